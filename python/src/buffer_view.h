#pragma once

#include <cstddef>
#include <span>

#include "python/src/bind.h"

namespace ffrecord::python {

// The contiguous bytes of an object with the buffer protocol, as long as this lives. Made and
// destroyed with the GIL; in between the bytes may be read without it.
class BufferView {
 public:
  explicit BufferView(const py::handle& object) {
    if (PyObject_GetBuffer(object.ptr(), &view_, PyBUF_SIMPLE) != 0) throw py::error_already_set();
  }
  BufferView(const BufferView&) = delete;
  BufferView& operator=(const BufferView&) = delete;
  ~BufferView() { PyBuffer_Release(&view_); }

  std::span<const std::byte> bytes() const noexcept {
    return {static_cast<const std::byte*>(view_.buf), static_cast<std::size_t>(view_.len)};
  }

 private:
  Py_buffer view_{};
};

}  // namespace ffrecord::python
