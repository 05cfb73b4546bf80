#pragma once

#include <pybind11/pybind11.h>

#include <string>
#include <utility>
#include <vector>

#include <ffrecord/result.h>

namespace ffrecord::python {

// Decodes text with names of files, which may hold any bytes, as Python decodes paths. Requires the
// GIL.
pybind11::str TextOf(const std::string& text);
pybind11::list TextsOf(const std::vector<std::string>& texts);

// The one place where a code becomes an exception (ffrecord/errors.py). Takes the GIL if the thread
// does not have it: an error may be found where it was released.
[[noreturn]] void Raise(const Error& error);

template <class T>
T ValueOrRaise(Result<T> result) {
  if (!result) Raise(result.error());
  return std::move(result).value();
}

inline void OkOrRaise(const Result<void>& result) {
  if (!result) Raise(result.error());
}

}  // namespace ffrecord::python
