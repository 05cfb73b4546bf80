#include "client/checkpoint/side_by_side.h"

#include <signal.h>

#include <system_error>
#include <thread>
#include <utility>
#include <vector>

namespace ffrecord::client {

bool SideBySide::failed() const {
  const std::lock_guard lock(mutex_);
  return first_error_.has_value();
}

void SideBySide::Note(Result<void> outcome) {
  if (outcome) return;
  const std::lock_guard lock(mutex_);
  if (!first_error_) first_error_ = std::move(outcome).error();
}

Result<void> SideBySide::Run(std::size_t thread_count, const Work& work) {
  SideBySide all;
  const auto one = [&] { all.Note(work(all)); };
  std::vector<std::thread> others;
  // Signals belong to the program's own threads; faults belong to whoever causes them.
  sigset_t blocked;
  sigset_t before;
  ::sigfillset(&blocked);
  for (const int fault : {SIGBUS, SIGSEGV, SIGFPE, SIGILL, SIGTRAP, SIGABRT})
    ::sigdelset(&blocked, fault);
  ::pthread_sigmask(SIG_SETMASK, &blocked, &before);
  try {
    while (others.size() + 1 < thread_count) others.emplace_back(one);
  } catch (const std::system_error&) {
    // Those that are there do the work.
  }
  ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
  one();
  for (std::thread& thread : others) thread.join();
  if (all.first_error_) return *std::move(all.first_error_);
  return {};
}

}  // namespace ffrecord::client
