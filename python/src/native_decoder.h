#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <vector>

#include <ffrecord/column_decoder.h>

#include "python/src/bind.h"

namespace ffrecord::python {

// A decoder for the threads of a BatchStream, which may outlive the Python object.
struct NativeDecoder {
  std::shared_ptr<const ColumnDecoder> inner;
};

// ColumnValues::places and ImageDecoder::Output::places as an array of shape (n, 3).
inline py::array_t<std::int64_t> PlacesOf(const std::vector<std::int64_t>& places) {
  const std::array<py::ssize_t, 2> shape{static_cast<py::ssize_t>(places.size() / 3), 3};
  return py::array_t<std::int64_t>(shape, places.data());
}

}  // namespace ffrecord::python
