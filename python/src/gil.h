#pragma once

#include <pybind11/pybind11.h>

#include <cxxabi.h>
#include <unistd.h>

#include <optional>
#include <utility>

namespace ffrecord::python {

// Makes a call that takes the GIL, at once or in the Python code that it runs, or waits for the end
// of the process.
//
// An interpreter that goes down ends each daemon thread that comes for the GIL, up to Python 3.13
// by pthread_exit(). That unwinds the stack, and aborts the process at the first frame that lets no
// exception pass, such as a destructor, or drops references without the GIL. The unwinding is
// stopped here and never goes on: the thread hangs until the process is gone, which is what Python
// does from 3.14 on.
template <class Call>
void OrHang(const Call& call) {
  try {
    call();
  } catch (abi::__forced_unwind&) {
    for (;;) ::pause();
  }
}

// Without the GIL for the time of a block.
class GilReleased {
 public:
  GilReleased() : state_(PyEval_SaveThread()) {}
  ~GilReleased() {
    OrHang([this] { PyEval_RestoreThread(state_); });
  }
  GilReleased(const GilReleased&) = delete;
  GilReleased& operator=(const GilReleased&) = delete;

 private:
  PyThreadState* const state_;
};

// With the GIL for the time of a block; in any thread.
class GilAcquired {
 public:
  GilAcquired() {
    OrHang([this] { held_.emplace(); });
  }

 private:
  std::optional<pybind11::gil_scoped_acquire> held_;
};

// The result of a Python callable; throws error_already_set with what it raises. For calls out of a
// thread's C++ code, whose frames must not be unwound. Requires the GIL.
template <class... Arguments>
pybind11::object CallPython(const pybind11::handle& callable, Arguments&&... arguments) {
  const auto packed = pybind11::make_tuple(std::forward<Arguments>(arguments)...);
  PyObject* returned = nullptr;
  OrHang([&] { returned = PyObject_CallObject(callable.ptr(), packed.ptr()); });
  if (returned == nullptr) throw pybind11::error_already_set();
  return pybind11::reinterpret_steal<pybind11::object>(returned);
}

}  // namespace ffrecord::python
