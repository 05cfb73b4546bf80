#include "python/src/errors.h"

#include <pybind11/pybind11.h>

#include <cerrno>

#include "python/src/gil.h"

namespace ffrecord::python {
namespace {

namespace py = pybind11;

[[noreturn]] void RaiseAs(const py::handle& type, const std::string& message) {
  PyErr_SetObject(type.ptr(), TextOf(message).ptr());
  throw py::error_already_set();
}

// Python picks the subclass that fits the number: ENOENT gives FileNotFoundError.
[[noreturn]] void RaiseOs(const py::handle& type, int number, const std::string& message) {
  const py::tuple arguments = py::make_tuple(number, TextOf(message));
  PyErr_SetObject(type.ptr(), arguments.ptr());
  throw py::error_already_set();
}

py::object Ours(const char* name) { return py::module_::import("ffrecord.errors").attr(name); }

}  // namespace

py::str TextOf(const std::string& text) {
  return py::reinterpret_steal<py::str>(
      PyUnicode_DecodeFSDefaultAndSize(text.data(), static_cast<py::ssize_t>(text.size())));
}

py::list TextsOf(const std::vector<std::string>& texts) {
  py::list list;
  for (const std::string& text : texts) list.append(TextOf(text));
  return list;
}

void Raise(const Error& error) {
  const GilAcquired acquired;
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
