#pragma once

#include <cstdint>
#include <span>

#include "python/src/bind.h"
#include "python/src/errors.h"

namespace ffrecord::python {

// The values of one column of a batch: `field` is a Field of ffrecord/decode/_decoder.py, that is
// (slab, starts, sizes, status). Keeps the arrays alive; made and dropped with the GIL, used
// without it too. Raises ValueError if a value lies outside of the slab.
class FieldSpans {
 public:
  explicit FieldSpans(const py::object& field)
      : slab_(field.attr("slab").cast<Array<std::uint8_t>>()),
        starts_(field.attr("starts").cast<Array<std::int64_t>>()),
        sizes_(field.attr("sizes").cast<Array<std::int64_t>>()),
        status_(field.attr("status").cast<Array<std::uint8_t>>()) {
    bool fits = starts_.size() == sizes_.size() && starts_.size() == status_.size();
    const std::int64_t limit = slab_.size();
    for (py::ssize_t i = 0; fits && i < starts_.size(); ++i) {
      const std::int64_t start = starts_.data()[i], size = sizes_.data()[i];
      fits = start >= 0 && size >= 0 && start <= limit && size <= limit - start;
    }
    if (!fits) Raise({ErrorCode::kInvalidArgument, "a value lies outside of its block"});
  }

  std::size_t size() const { return static_cast<std::size_t>(starts_.size()); }
  bool good(std::size_t row) const { return status_.data()[row] == 0; }
  std::span<const std::byte> operator[](std::size_t row) const {
    return {reinterpret_cast<const std::byte*>(slab_.data()) + starts_.data()[row],
            static_cast<std::size_t>(sizes_.data()[row])};
  }

 private:
  template <class T>
  using Array = py::array_t<T, py::array::c_style>;
  Array<std::uint8_t> slab_;
  Array<std::int64_t> starts_;
  Array<std::int64_t> sizes_;
  Array<std::uint8_t> status_;
};

}  // namespace ffrecord::python
