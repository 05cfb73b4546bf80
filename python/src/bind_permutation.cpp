#include <cstdint>
#include <span>
#include <string>

#include <ffrecord/permutation.h>

#include "python/src/bind.h"
#include "python/src/errors.h"

namespace ffrecord::python {
namespace {

// So few are made sooner than Python's lock is had back from another thread.
constexpr std::uint64_t kWithGilMax = 512;

using Positions = py::array_t<std::int64_t, py::array::c_style | py::array::forcecast>;

// Threads may share an order: permutations are immutable. Position and count travel in pairs, as
// in Python's range.
template <class Order>
py::array_t<std::int64_t> Range(const Order& order, std::uint64_t count, std::uint64_t begin,
                                std::uint64_t end) {
  if (begin > end || end > count)
    Raise({ErrorCode::kOutOfRange, "positions [" + std::to_string(begin) + ", " +
                                       std::to_string(end) + ") of an order of " +
                                       std::to_string(count) + " records"});
  py::array_t<std::int64_t> indices(static_cast<py::ssize_t>(end - begin));
  // The same bits: an index is below 2^48.
  const std::span out(reinterpret_cast<std::uint64_t*>(indices.mutable_data()), end - begin);
  const auto fill = [&] { order.Fill(begin, out); };
  if (end - begin <= kWithGilMax)
    fill();
  else
    WithoutGil(fill);
  return indices;
}

// The indices at positions that do not follow each other.
template <class Order>
py::array_t<std::int64_t> At(const Order& order, std::uint64_t count, const Positions& positions) {
  if (positions.ndim() != 1)
    Raise({ErrorCode::kInvalidArgument, "positions have not one dimension"});
  const std::span in(positions.data(), static_cast<std::size_t>(positions.size()));
  for (const std::int64_t position : in)
    if (position < 0 || static_cast<std::uint64_t>(position) >= count)
      Raise({ErrorCode::kOutOfRange, "position " + std::to_string(position) + " of an order of " +
                                         std::to_string(count) + " records"});
  py::array_t<std::int64_t> indices(positions.size());
  std::int64_t* const out = indices.mutable_data();
  const auto fill = [&] {
    for (std::size_t i = 0; i < in.size(); ++i)
      out[i] = static_cast<std::int64_t>(order(static_cast<std::uint64_t>(in[i])));
  };
  if (in.size() <= kWithGilMax)
    fill();
  else
    WithoutGil(fill);
  return indices;
}

// BlockedPermutation does not tell its count, and Range must check it.
struct CountedBlockedPermutation {
  BlockedPermutation order;
  std::uint64_t count;
};

}  // namespace

void BindPermutation(py::module_& module) {
  py::class_<Permutation>(module, "Permutation", py::is_final())
      .def(py::init([](std::uint64_t seed, std::uint64_t epoch, std::uint64_t lane,
                       std::uint64_t count) {
             return ValueOrRaise(Permutation::Make(seed, epoch, lane, count));
           }),
           py::kw_only(), py::arg("seed"), py::arg("epoch"), py::arg("lane") = 0, py::arg("count"))
      .def("__len__", &Permutation::count)
      .def(
          "range",
          [](const Permutation& order, std::uint64_t begin, std::uint64_t end) {
            return Range(order, order.count(), begin, end);
          },
          py::arg("begin"), py::arg("end"))
      .def(
          "at",
          [](const Permutation& order, const Positions& positions) {
            return At(order, order.count(), positions);
          },
          py::arg("positions"))
      .def(
          "position_of",
          [](const Permutation& order, std::uint64_t index) {
            if (index >= order.count())
              Raise({ErrorCode::kOutOfRange, "index " + std::to_string(index) + " of an order of " +
                                                 std::to_string(order.count()) + " records"});
            return order.PositionOf(index);
          },
          py::arg("index"));

  py::class_<CountedBlockedPermutation>(module, "BlockedPermutation", py::is_final())
      .def(py::init([](std::uint64_t seed, std::uint64_t epoch, std::uint64_t count,
                       std::uint64_t block, std::uint64_t window) {
             return CountedBlockedPermutation{
                 ValueOrRaise(BlockedPermutation::Make(seed, epoch, count, block, window)), count};
           }),
           py::kw_only(), py::arg("seed"), py::arg("epoch"), py::arg("count"), py::arg("block"),
           py::arg("window"))
      .def("__len__", [](const CountedBlockedPermutation& order) { return order.count; })
      .def(
          "range",
          [](const CountedBlockedPermutation& order, std::uint64_t begin, std::uint64_t end) {
            return Range(order.order, order.count, begin, end);
          },
          py::arg("begin"), py::arg("end"))
      .def(
          "at",
          [](const CountedBlockedPermutation& order, const Positions& positions) {
            return At(order.order, order.count, positions);
          },
          py::arg("positions"));
}

}  // namespace ffrecord::python
