#include "libffrecord/io/process_threads.h"

#include <signal.h>

namespace ffrecord {

bool StartQuietThread(pthread_t& thread, void* (*run)(void*), void* argument) noexcept {
  sigset_t blocked;
  sigset_t before;
  ::sigfillset(&blocked);
  for (const int fault : {SIGBUS, SIGSEGV, SIGFPE, SIGILL, SIGTRAP, SIGABRT})
    ::sigdelset(&blocked, fault);
  ::pthread_sigmask(SIG_SETMASK, &blocked, &before);
  const bool started = ::pthread_create(&thread, nullptr, run, argument) == 0;
  ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
  return started;
}

}  // namespace ffrecord
