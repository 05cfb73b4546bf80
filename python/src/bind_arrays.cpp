#include <algorithm>
#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <ffrecord/array_headers.h>

#include "python/src/bind.h"
#include "python/src/errors.h"
#include "python/src/field.h"
#include "python/src/native_decoder.h"

namespace ffrecord::python {
namespace {

// The array over the value's own memory, kept alive by `owner`.
py::array ViewOf(const ArrayHeader& array, std::span<const std::byte> value,
                 const py::object& owner) {
  std::vector<py::ssize_t> shape, strides(array.shape.size());
  for (const std::uint64_t side : array.shape) shape.push_back(static_cast<py::ssize_t>(side));
  auto stride = static_cast<py::ssize_t>(array.item_size_bytes);
  for (std::size_t i = 0; i < shape.size(); ++i) {
    const std::size_t side = array.fortran_order ? i : shape.size() - 1 - i;
    strides[side] = stride;
    stride *= std::max<py::ssize_t>(1, shape[side]);
  }
  return {py::dtype(array.dtype), shape, strides, value.data() + array.offset_bytes, owner};
}

// A value for each row, None where there is none, and what is wrong with some.
template <class Make>
py::tuple EachRow(const py::object& field, const Make& make) {
  const FieldSpans spans(field);
  py::list values, wrong;
  for (std::size_t i = 0; i < spans.size(); ++i) {
    py::object value = py::none();
    if (spans.good(i)) {
      if (auto made = make(spans[i]); made)
        value = std::move(made).value();
      else
        wrong.append(py::make_tuple(i, made.error().message));
    }
    values.append(value);
  }
  return py::make_tuple(values, wrong);
}

py::tuple NpyViews(const py::object& field) {
  const py::object owner = field.attr("slab");
  return EachRow(field, [&](std::span<const std::byte> value) -> Result<py::object> {
    const ArrayHeader array = FFR_TRY(ReadNpyHeader(value));
    return py::object(ViewOf(array, value, owner));
  });
}

py::tuple SafetensorsViews(const py::object& field, const std::vector<std::string>& wanted) {
  const py::object owner = field.attr("slab");
  return EachRow(field, [&](std::span<const std::byte> value) -> Result<py::object> {
    const auto arrays = FFR_TRY(ReadSafetensorsHeader(value));
    py::dict made;
    for (const auto& [name, array] : arrays) {
      if (wanted.empty() || std::find(wanted.begin(), wanted.end(), name) != wanted.end())
        made[py::str(name)] = ViewOf(array, value, owner);
    }
    for (const std::string& name : wanted)
      if (!made.contains(name.c_str()))
        return Error{ErrorCode::kCorruption, "there is no tensor '" + name + "'"};
    return py::object(std::move(made));
  });
}

// Copies arrays that must all be of that type and shape back to back; what is wrong with some.
py::list NpyStack(const py::object& field, const std::string& dtype,
                  const std::vector<std::uint64_t>& shape,
                  py::array_t<std::uint8_t, py::array::c_style>& destination) {
  const FieldSpans spans(field);
  const auto total = static_cast<std::size_t>(destination.size());
  const std::size_t each = spans.size() == 0 ? 0 : total / spans.size();
  if (each * spans.size() != total)
    Raise({ErrorCode::kInvalidArgument, "npy: a destination of another size"});
  std::uint8_t* out = destination.mutable_data();
  std::vector<std::pair<std::size_t, std::string>> wrong;
  WithoutGil([&] {
    for (std::size_t i = 0; i < spans.size(); ++i) {
      const std::span to(out + i * each, each);
      auto copied = spans.good(i) ? CopyNpy(spans[i], dtype, shape, std::as_writable_bytes(to))
                                  : Result<void>(Error{ErrorCode::kCorruption, ""});
      if (copied) continue;
      std::ranges::fill(to, 0);
      if (spans.good(i)) wrong.emplace_back(i, std::move(copied).error().message);
    }
  });
  return py::cast(wrong);
}

// Copies each value to its place.
void GatherSpans(const py::object& field,
                 const py::array_t<std::int64_t, py::array::c_style>& places,
                 py::array_t<std::uint8_t, py::array::c_style>& destination) {
  const FieldSpans spans(field);
  const auto room = static_cast<std::uint64_t>(destination.size());
  bool fits = static_cast<std::size_t>(places.size()) == spans.size();
  const std::int64_t* place = places.data();
  for (std::size_t i = 0; fits && i < spans.size(); ++i) {
    const auto at = static_cast<std::uint64_t>(place[i]);
    fits = at <= room && spans[i].size() <= room - at;
  }
  if (!fits) Raise({ErrorCode::kInvalidArgument, "a place lies outside of the destination"});
  std::uint8_t* out = destination.mutable_data();
  WithoutGil([&] {
    for (std::size_t i = 0; i < spans.size(); ++i)
      std::copy_n(reinterpret_cast<const std::uint8_t*>(spans[i].data()), spans[i].size(),
                  out + place[i]);
  });
}

}  // namespace

void BindArrays(py::module_& module) {
  module.def("npy_views", &NpyViews, py::arg("field"));
  module.def(
      "npy_decoder",
      [](std::string dtype, std::vector<std::uint64_t> shape, std::size_t size_bytes) {
        return NativeDecoder{NpyColumnDecoder(std::move(dtype), std::move(shape), size_bytes)};
      },
      py::arg("dtype"), py::arg("shape"), py::arg("size_bytes"));
  module.def("npy_stack", &NpyStack, py::arg("field"), py::arg("dtype"), py::arg("shape"),
             py::arg("destination").noconvert());
  module.def("gather_spans", &GatherSpans, py::arg("field"), py::arg("places"),
             py::arg("destination").noconvert());
  module.def("safetensors_views", &SafetensorsViews, py::arg("field"), py::arg("names"));
}

}  // namespace ffrecord::python
