#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>

#include <ffrecord/record_reader.h>

#include "libffrecord/base/clock.h"
#include "libffrecord/base/event_log.h"
#include "libffrecord/base/io_times.h"

namespace ffrecord {

// The sums of one reader, in nanoseconds. Thread-safe.
struct StageSums {
  using Sum = std::atomic<std::int64_t>;

  Sum submit{0};
  Sum device{0};
  Sum verify{0};
  Sum decompress{0};

  RecordReader::StageTimes Load() const noexcept {
    const auto time = [](const Sum& sum) { return std::chrono::nanoseconds(sum.load()); };
    return {time(submit), time(device), time(verify), time(decompress)};
  }
};

// Splits the time of one thread's call into stages: a few looks at the clock for each batch. The
// profile gets each part as an event.
class StageClock {
 public:
  explicit StageClock(StageSums& sums) noexcept : sums_(sums) {}
  StageClock(const StageClock&) = delete;
  StageClock& operator=(const StageClock&) = delete;

  // The time since the last lap belongs to `stage`, except for what sources have counted as
  // submitting and waiting.
  void Lap(StageSums::Sum& stage) noexcept {
    const auto now = Clock::now();
    const IoTimes io = IoTimes::OfThread();
    const auto submit = io.submit - io_.submit, device = io.device - io_.device;
    Add(sums_.submit, submit);
    Add(sums_.device, device);
    Add(stage, now - at_ - submit - device);
    if (EventLog* const log = EventLog::active(); log != nullptr) [[unlikely]]
      log->Write(EventOf(&stage == &sums_.submit ? ProfileKind::kSubmit : ProfileKind::kRead, now,
                         submit, device));
    at_ = now;
    io_ = io;
  }

 private:
  static void Add(StageSums::Sum& sum, std::chrono::nanoseconds time) noexcept {
    if (time.count() != 0) sum.fetch_add(time.count(), std::memory_order_relaxed);
  }

  ProfileEvent EventOf(ProfileKind kind, Clock::time_point now, Clock::duration submit,
                       Clock::duration device) const noexcept {
    ProfileEvent event;
    event.begin_ns = ProfiledSpan::NanosecondsOf(at_);
    event.end_ns = ProfiledSpan::NanosecondsOf(now);
    event.first = ProfiledSpan::MicrosecondsOf(device);
    event.second = ProfiledSpan::MicrosecondsOf(submit);
    event.kind = static_cast<std::uint16_t>(kind);
    return event;
  }

  StageSums& sums_;
  Clock::time_point at_ = Clock::now();
  IoTimes io_ = IoTimes::OfThread();
};

}  // namespace ffrecord
