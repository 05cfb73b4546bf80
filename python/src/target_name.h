#pragma once

#include <string>

#include "python/src/bind.h"

namespace ffrecord::python {

// A target of checkpoints, as the library takes it. A binding takes one as a parameter of this
// type, never as a string: a folder may have a name of any bytes, and what that means is decided
// here alone.
struct TargetName {
  std::string value;
};

}  // namespace ffrecord::python

namespace pybind11::detail {

// From str, bytes or os.PathLike. A folder's path has the bytes that the system has for it, as with
// os.fsencode; an address, also in a replicated target, is text. Raises TypeError for what is no
// path, and UnicodeEncodeError for an address that is no text.
template <>
struct type_caster<ffrecord::python::TargetName> {
  PYBIND11_TYPE_CASTER(ffrecord::python::TargetName, const_name("str | bytes | os.PathLike"));

  bool load(handle source, bool) {
    auto path = Checked(PyOS_FSPath(source.ptr()));
    if (PyUnicode_Check(path.ptr())) {
      const bool is_address = path.contains("://");
      path = Checked(is_address ? PyUnicode_AsUTF8String(path.ptr())
                                : PyUnicode_EncodeFSDefault(path.ptr()));
    }
    value = {std::string(reinterpret_borrow<bytes>(path))};
    return true;
  }

 private:
  static object Checked(PyObject* made) {
    if (made == nullptr) throw error_already_set();
    return reinterpret_steal<object>(made);
  }
};

}  // namespace pybind11::detail
