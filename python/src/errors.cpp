#include "python/src/errors.h"

#include <pybind11/pybind11.h>

#include <cerrno>
#include <string>

namespace ffrecord::python {
namespace {

namespace py = pybind11;

[[noreturn]] void RaiseAs(const py::handle& type, const std::string& message) {
  PyErr_SetObject(type.ptr(), py::str(message).ptr());
  throw py::error_already_set();
}

// Python picks the subclass that fits the number: ENOENT gives FileNotFoundError.
[[noreturn]] void RaiseOs(const py::handle& type, int number, const std::string& message) {
  const py::tuple arguments = py::make_tuple(number, message);
  PyErr_SetObject(type.ptr(), arguments.ptr());
  throw py::error_already_set();
}

py::object Ours(const char* name) { return py::module_::import("ffrecord.errors").attr(name); }

}  // namespace

void Raise(const Error& error) {
  switch (error.code) {
    case ErrorCode::kInvalidArgument:
      RaiseAs(PyExc_ValueError, error.message);
    case ErrorCode::kOutOfRange:
      RaiseAs(PyExc_IndexError, error.message);
    case ErrorCode::kNotFound:
      RaiseOs(PyExc_FileNotFoundError, ENOENT, error.message);
    case ErrorCode::kCorruption:
      RaiseAs(Ours("CorruptionError"), error.message);
    case ErrorCode::kIo:
      RaiseOs(PyExc_OSError, error.system_errno == 0 ? EIO : error.system_errno, error.message);
    case ErrorCode::kUnavailable:
      RaiseAs(Ours("UnavailableError"), error.message);
    case ErrorCode::kDeadlineExceeded:
      RaiseAs(Ours("DeadlineExceeded"), error.message);
    case ErrorCode::kConflict:
      RaiseOs(Ours("ConflictError"), EEXIST, error.message);
    case ErrorCode::kDenied:
      RaiseOs(PyExc_PermissionError, EACCES, error.message);
    case ErrorCode::kOk:
      break;
  }
  RaiseAs(PyExc_SystemError, "an error without a code: " + error.message);
}

}  // namespace ffrecord::python
