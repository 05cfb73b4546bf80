#include "libffrecord/base/side_by_side.h"

#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "libffrecord/base/quiet_signals.h"

namespace ffrecord {

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
  try {
    const QuietSignals quiet;
    while (others.size() + 1 < thread_count) others.emplace_back(one);
  } catch (const std::system_error&) {
    // Those that are there do the work.
  }
  one();
  for (std::thread& thread : others) thread.join();
  if (all.first_error_) return *std::move(all.first_error_);
  return {};
}

}  // namespace ffrecord
