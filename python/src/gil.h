#pragma once

#include <pybind11/pybind11.h>

#include <cxxabi.h>
#include <unistd.h>

#include <optional>

namespace ffrecord::python {

// Takes the GIL, or waits for the end of the process.
//
// An interpreter that goes down ends each daemon thread that comes for the GIL, up to Python 3.13
// by pthread_exit(). That unwinds the stack, and aborts the process at the first frame that lets no
// exception pass, such as a destructor. The unwinding is stopped here and never goes on: the thread
// hangs until the process is gone, which is what Python does from 3.14 on.
template <class Take>
void TakeGil(const Take& take) {
  try {
    take();
  } catch (abi::__forced_unwind&) {
    for (;;) ::pause();
  }
}

// Without the GIL for the time of a block.
class GilReleased {
 public:
  GilReleased() : state_(PyEval_SaveThread()) {}
  ~GilReleased() {
    TakeGil([this] { PyEval_RestoreThread(state_); });
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
    TakeGil([this] { held_.emplace(); });
  }

 private:
  std::optional<pybind11::gil_scoped_acquire> held_;
};

}  // namespace ffrecord::python
