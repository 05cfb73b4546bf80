#pragma once

#include <pthread.h>

#include <atomic>
#include <cstdlib>

#include "libffrecord/base/assert.h"
#include "libffrecord/base/home_process.h"

namespace ffrecord {

// Starts a thread that leaves all signals to the program's own threads, but for faults, which go to
// the thread that causes them. False if the system has no thread to give.
bool StartQuietThread(pthread_t& thread, void* (*run)(void*), void* argument) noexcept;

// The one T of this process, made at first use; T owns threads. A forked child gets another, for
// threads do not follow it and its copies of locks are in an unknown state. Never destroyed: at
// exit T::EndThreads() is called, and T must go on serving those who come later, without threads.
// Takes no lock, so that a child may be born at any moment. Thread-safe.
template <class T>
T& OfThisProcess() {
  struct Instance {
    const HomeProcess home;
    T object;
  };
  static std::atomic<Instance*> current{nullptr};
  Instance* instance = current.load();
  while (instance == nullptr || !instance->home.is_here()) {
    auto* fresh = new Instance;  // The parent's stays.
    if (!current.compare_exchange_strong(instance, fresh)) {
      delete fresh;
      continue;
    }
    static const int registered = std::atexit([] {
      Instance* last = current.load();
      if (last->home.is_here()) last->object.EndThreads();
    });
    FFR_ASSERT(registered == 0);
    return fresh->object;
  }
  return instance->object;
}

}  // namespace ffrecord
