#pragma once

#include <utility>

#include <ffrecord/result.h>

namespace ffrecord::python {

// The one place where a code becomes an exception (ffrecord/errors.py). Requires the GIL.
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
