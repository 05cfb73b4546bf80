#pragma once

#include <signal.h>

#include <initializer_list>

namespace ffrecord {

// While it lives, threads that the calling one starts leave all signals to the program's own
// threads, but for faults, which go to the thread that causes them. Destroyed on the same thread.
class QuietSignals {
 public:
  QuietSignals() noexcept {
    sigset_t blocked;
    ::sigfillset(&blocked);
    for (const int fault : {SIGBUS, SIGSEGV, SIGFPE, SIGILL, SIGTRAP, SIGABRT})
      ::sigdelset(&blocked, fault);
    ::pthread_sigmask(SIG_SETMASK, &blocked, &before_);
  }
  ~QuietSignals() { ::pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  QuietSignals(const QuietSignals&) = delete;
  QuietSignals& operator=(const QuietSignals&) = delete;

 private:
  sigset_t before_;
};

}  // namespace ffrecord
