#include "libffrecord/base/process_threads.h"

#include "libffrecord/base/quiet_signals.h"

namespace ffrecord {

bool StartQuietThread(pthread_t& thread, void* (*run)(void*), void* argument) noexcept {
  const QuietSignals quiet;
  return ::pthread_create(&thread, nullptr, run, argument) == 0;
}

}  // namespace ffrecord
