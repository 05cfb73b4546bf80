#pragma once

#include <unistd.h>

#include <cstddef>
#include <functional>

#include "python/src/bind.h"

namespace ffrecord::python {

// The result of `call`, called without the GIL. `call` is given what tells it to give up, and may
// be called twice: Ctrl-C ends a long one, and what the handler of SIGINT raises is raised.
//
// The handler runs only after the call, when this thread may read again: it is Python, and may do
// anything. If it raises nothing the call is made once more, to its end. Handlers run on the main
// thread, which in a forked child is the one that forked: calls of others never ask for the GIL.
template <class Call>
auto Interruptible(const Call& call) {
  if (::gettid() == ::getpid()) {
    bool interrupted = false;
    const std::function<bool()> give_up = [&] {
      const GilAcquired acquired;
      // Asking takes the signal off the list, and a call may ask again after the answer was yes.
      if (PyOS_InterruptOccurred() != 0) interrupted = true;
      return interrupted;
    };
    auto result = WithoutGil([&] { return call(give_up); });
    if (!interrupted) return result;
    PyErr_SetInterrupt();  // Back on the list.
    if (PyErr_CheckSignals() != 0) throw py::error_already_set();
  }
  return WithoutGil([&] { return call(std::function<bool()>()); });
}

// For loops that hold the GIL: raises what a signal handler raises, once in so many turns.
inline void CheckSignals(std::size_t turn) {
  constexpr std::size_t kTurns = std::size_t{1} << 16;
  if (turn % kTurns == kTurns - 1 && PyErr_CheckSignals() != 0) throw py::error_already_set();
}

}  // namespace ffrecord::python
