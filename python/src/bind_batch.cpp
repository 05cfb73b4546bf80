#include <cstdint>
#include <cstring>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <ffrecord/batch.h>

#include "python/src/bind.h"
#include "python/src/errors.h"
#include "python/src/signals.h"

namespace ffrecord::python {
namespace {

// Batches are immutable here, so threads may share them. Arrays keep their Batch alive.
using Handle = std::shared_ptr<Batch>;

py::array Slab(const py::object& self) {
  const auto data = self.cast<const Batch&>().data();
  return View<std::uint8_t>(data.data(), data.size(), self);
}

py::list Views(const py::object& self, std::span<const std::int64_t> starts,
               std::span<const std::int64_t> sizes) {
  const std::byte* slab = self.cast<const Batch&>().data().data();
  py::list views(starts.size());
  for (std::size_t i = 0; i < starts.size(); ++i) {
    CheckSignals(i);
    views[i] = View<std::uint8_t>(slab + starts[i], static_cast<std::size_t>(sizes[i]), self);
  }
  return views;
}

py::list Records(const py::object& self) {
  const auto& batch = self.cast<const Batch&>();
  return Views(self, batch.starts_bytes(), batch.sizes_bytes());
}

Batch::Field FieldOf(const Batch& batch, std::size_t column) {
  if (column >= batch.schema().columns().size())
    Raise({ErrorCode::kOutOfRange, "column " + std::to_string(column) + " of " +
                                       std::to_string(batch.schema().columns().size())});
  return ValueOrRaise(WithoutGil([&] { return batch.field(column); }));
}

py::list ColumnViews(const py::object& self, std::size_t column) {
  const auto field = FieldOf(self.cast<const Batch&>(), column);
  return Views(self, field.starts_bytes, field.sizes_bytes);
}

// Where the values of a column lie in the block: starts and sizes.
py::tuple ColumnSpans(const Batch& batch, std::size_t column) {
  const auto field = FieldOf(batch, column);
  const auto copy = [](const std::vector<std::int64_t>& numbers) {
    return py::array_t<std::int64_t>(static_cast<py::ssize_t>(numbers.size()), numbers.data());
  };
  return py::make_tuple(copy(field.starts_bytes), copy(field.sizes_bytes));
}

py::list ColumnText(const Batch& batch, std::size_t column) {
  const auto field = FieldOf(batch, column);
  const auto* slab = reinterpret_cast<const char*>(batch.data().data());
  py::list texts(batch.size());
  for (std::size_t i = 0; i < batch.size(); ++i) {
    CheckSignals(i);
    PyObject* text =
        PyUnicode_DecodeUTF8(slab + field.starts_bytes[i], field.sizes_bytes[i], "strict");
    if (text == nullptr) {
      // Python's own exception is set: another one may be raised only without it.
      if (PyErr_ExceptionMatches(PyExc_UnicodeDecodeError) == 0) throw py::error_already_set();
      PyErr_Clear();
      Raise({ErrorCode::kCorruption, "column '" + batch.schema().columns()[column].name +
                                         "' of the record in place " + std::to_string(i) +
                                         " of the batch is not UTF-8"});
    }
    texts[i] = py::reinterpret_steal<py::str>(text);
  }
  return texts;
}

void GatherFixed(const Batch& batch, std::size_t column,
                 py::array_t<std::uint8_t, py::array::c_style>& destination) {
  const std::span bytes(destination.mutable_data(), static_cast<std::size_t>(destination.size()));
  OkOrRaise(WithoutGil([&] { return batch.GatherFixed(column, std::as_writable_bytes(bytes)); }));
}

// The records back to back in request order: the block itself if they lie so already, else a copy.
py::tuple Packed(const py::object& self) {
  const auto& batch = self.cast<const Batch&>();
  const auto starts = batch.starts_bytes();
  const auto sizes = batch.sizes_bytes();
  py::array_t<std::int64_t> offsets(static_cast<py::ssize_t>(batch.size() + 1));
  std::int64_t* offset = offsets.mutable_data();
  offset[0] = 0;
  std::int64_t origin = 0;  // Where the first byte of the first record lies in the block.
  bool in_place = true;
  for (std::size_t i = 0; i < batch.size(); ++i) {
    if (sizes[i] > 0 && offset[i] == 0) origin = starts[i];
    in_place = in_place && (sizes[i] == 0 || starts[i] == origin + offset[i]);
    offset[i + 1] = offset[i] + sizes[i];
  }
  const auto total = static_cast<std::size_t>(offset[batch.size()]);
  if (in_place)
    return py::make_tuple(View<std::uint8_t>(batch.data().data() + origin, total, self), offsets);

  py::array_t<std::uint8_t> packed(static_cast<py::ssize_t>(total));
  std::uint8_t* out = packed.mutable_data();
  WithoutGil([&] {
    for (std::size_t i = 0; i < batch.size(); ++i)
      if (sizes[i] > 0)
        std::memcpy(out + offset[i], batch.data().data() + starts[i],
                    static_cast<std::size_t>(sizes[i]));
  });
  return py::make_tuple(std::move(packed), std::move(offsets));
}

// The block, if all records are whole, `width` bytes long and back to back in it; else None.
py::object Rows(const py::object& self, std::int64_t width) {
  const auto& batch = self.cast<const Batch&>();
  const auto starts = batch.starts_bytes();
  const auto sizes = batch.sizes_bytes();
  const auto statuses = batch.statuses();
  if (starts.empty()) return py::none();
  std::int64_t wrong = 0;  // Without branches: vectors of records at a time.
  for (std::size_t i = 0; i < starts.size(); ++i)
    wrong |= (starts[i] - starts[0] - static_cast<std::int64_t>(i) * width) | (sizes[i] - width) |
             static_cast<std::int64_t>(statuses[i]);
  if (wrong != 0) return py::none();
  return View<std::uint8_t>(batch.data().data() + starts[0],
                            starts.size() * static_cast<std::size_t>(width), self);
}

// The rows `positions` as a batch of its own, over the same block.
Handle Select(const Handle& batch, const py::array_t<std::int64_t, py::array::c_style>& positions) {
  std::vector<std::int64_t> starts, sizes;
  std::vector<ErrorCode> statuses;
  for (const std::int64_t position :
       std::span(positions.data(), static_cast<std::size_t>(positions.size()))) {
    const auto row = static_cast<std::size_t>(position);
    if (row >= batch->size())
      Raise({ErrorCode::kOutOfRange, "row " + std::to_string(position) + " of a batch of " +
                                         std::to_string(batch->size())});
    starts.push_back(batch->starts_bytes()[row]);
    sizes.push_back(batch->sizes_bytes()[row]);
    statuses.push_back(batch->statuses()[row]);
  }
  return std::make_shared<Batch>(batch, batch->data(), std::move(starts), std::move(sizes),
                                 std::move(statuses),
                                 std::shared_ptr<const Schema>(batch, &batch->schema()));
}

// A batch of records that lie in `block`, an array that it keeps alive.
Handle Over(const py::array_t<std::uint8_t, py::array::c_style>& block,
            const py::array_t<std::int64_t, py::array::c_style>& starts,
            const py::array_t<std::int64_t, py::array::c_style>& sizes,
            const py::array_t<std::uint8_t, py::array::c_style>& statuses, const Schema& schema) {
  const std::vector<std::int64_t> begins(starts.data(), starts.data() + starts.size());
  const std::vector<std::int64_t> lengths(sizes.data(), sizes.data() + sizes.size());
  const std::span codes(statuses.data(), static_cast<std::size_t>(statuses.size()));
  if (begins.size() != lengths.size() || begins.size() != codes.size())
    Raise({ErrorCode::kInvalidArgument, "starts, sizes and status differ in length"});
  const std::int64_t limit = block.size();
  std::vector<ErrorCode> errors(codes.size());
  for (std::size_t i = 0; i < begins.size(); ++i) {
    if (begins[i] < 0 || lengths[i] < 0 || begins[i] > limit || lengths[i] > limit - begins[i])
      Raise({ErrorCode::kInvalidArgument, "record " + std::to_string(i) + " lies outside the " +
                                              std::to_string(limit) + " bytes of the block"});
    errors[i] = static_cast<ErrorCode>(codes[i]);
  }
  const std::span bytes(reinterpret_cast<const std::byte*>(block.data()),
                        static_cast<std::size_t>(limit));
  // The last owner may be a thread without the GIL.
  std::shared_ptr<const void> owner(new py::object(block), [](const void* held) {
    const GilAcquired acquired;
    delete static_cast<const py::object*>(held);
  });
  return std::make_shared<Batch>(std::move(owner), bytes, begins, lengths, std::move(errors),
                                 std::make_shared<const Schema>(schema));
}

}  // namespace

void BindBatch(py::module_& module) {
  py::class_<Batch, Handle>(module, "Batch", py::is_final())
      .def_static("over", &Over, py::arg("block"), py::arg("starts"), py::arg("sizes"),
                  py::arg("status"), py::arg("schema"))
      .def("__len__", &Batch::size)
      .def_property_readonly("slab", &Slab)
      .def_property_readonly("starts",
                             [](const py::object& self) {
                               const auto starts = self.cast<const Batch&>().starts_bytes();
                               return View<std::int64_t>(starts.data(), starts.size(), self);
                             })
      .def_property_readonly("sizes",
                             [](const py::object& self) {
                               const auto sizes = self.cast<const Batch&>().sizes_bytes();
                               return View<std::int64_t>(sizes.data(), sizes.size(), self);
                             })
      .def_property_readonly("status",
                             [](const py::object& self) {
                               const auto statuses = self.cast<const Batch&>().statuses();
                               return View<std::uint8_t>(statuses.data(), statuses.size(), self);
                             })
      .def("packed", &Packed)
      .def("rows", &Rows, py::arg("width"))
      .def("records", &Records)
      .def("column_views", &ColumnViews, py::arg("column"))
      .def("column_spans", &ColumnSpans, py::arg("column"))
      .def("column_text", &ColumnText, py::arg("column"))
      .def("gather_fixed", &GatherFixed, py::arg("column"), py::arg("destination").noconvert())
      .def("select", &Select, py::arg("positions"));
}

}  // namespace ffrecord::python
