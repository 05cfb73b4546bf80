#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string_view>
#include <utility>

#include <ffrecord/profile.h>

#include "libffrecord/base/clock.h"
#include "libffrecord/base/home_process.h"

namespace ffrecord {

// The rings of a profile, as they lie in its mapped file: docs/internals/profile-format.md. Writing
// takes one atomic addition and a few stores. Thread-safe, and safe for several processes.
//
// An event's stamp is its number plus one; it is zero while the event is being written. The check
// is a sum over all other words, which finds an event that two writers mixed, or that a reader
// copied while it changed.
class EventLog {
 public:
  static constexpr std::size_t kWords = 8;
  using Slot = std::array<std::atomic<std::uint64_t>, kWords>;
  static_assert(sizeof(Slot) == 64 && std::atomic<std::uint64_t>::is_always_lock_free);

  static constexpr std::uint32_t kVersion = 1;
  static constexpr std::size_t kNamesOffset = 4096;
  static constexpr std::size_t kNames = 512;
  static constexpr std::size_t kNameBytesMax = 126;  // Behind the size, two bytes.
  static constexpr std::size_t kOpenOffset = kNamesOffset + kNames * (kNameBytesMax + 2);
  static constexpr std::size_t kOpenSlots = 128;
  static constexpr std::size_t kCoarseOffset = kOpenOffset + kOpenSlots * sizeof(Slot);

  // The header's fields that change; the others are written once, when the file is made.
  struct Header {
    std::array<std::byte, 32> fixed;
    std::atomic<std::int32_t> rank;
    std::int32_t local_rank;
    std::atomic<std::int32_t> world_size;
    std::atomic<std::uint32_t> has_ended;
    std::array<std::byte, 80> more;
    alignas(64) std::atomic<std::uint64_t> coarse_count;
    alignas(64) std::atomic<std::uint64_t> fine_count;
    alignas(64) std::atomic<std::uint32_t> names_count;  // Also of those that found no room.
  };
  static_assert(offsetof(Header, coarse_count) == 128 && offsetof(Header, names_count) == 256);

  // `memory` holds SizeOf(coarse, fine) bytes; the counts are powers of two.
  EventLog(std::byte* memory, std::uint32_t coarse, std::uint32_t fine) noexcept
      : memory_(memory), coarse_(coarse), fine_(fine) {}

  static std::size_t SizeOf(std::uint32_t coarse, std::uint32_t fine) noexcept {
    return kCoarseOffset + (std::size_t{coarse} + fine) * sizeof(Slot);
  }

  std::byte* memory() const noexcept { return memory_; }
  std::uint32_t coarse() const noexcept { return coarse_; }
  std::uint32_t fine() const noexcept { return fine_; }
  Header& header() const noexcept { return *reinterpret_cast<Header*>(memory_); }

  void Write(const ProfileEvent& event) noexcept {
    const bool is_fine = event.kind >= kProfileFineKinds;
    auto& count = is_fine ? header().fine_count : header().coarse_count;
    const std::uint64_t number = count.fetch_add(1, std::memory_order_relaxed);
    const std::uint64_t mask = (is_fine ? fine_ : coarse_) - 1;
    Fill(Slots()[(is_fine ? coarse_ : 0) + (number & mask)], event, number + 1);
  }

  // The number of an open slot that holds the event from now on; kOpenSlots if all are taken. Half
  // of them are for coarse events alone, which take the last ones first.
  std::size_t Begin(const ProfileEvent& event) noexcept {
    const bool is_fine = event.kind >= kProfileFineKinds;
    for (std::size_t n = 0; n < (is_fine ? kOpenSlots / 2 : kOpenSlots); ++n) {
      const std::size_t i = is_fine ? n : kOpenSlots - 1 - n;
      Slot& slot = OpenSlots()[i];
      std::uint64_t free = 0;
      if (slot[0].load(std::memory_order_relaxed) != 0 ||
          !slot[0].compare_exchange_strong(free, kClaimed, std::memory_order_acq_rel))
        continue;
      Fill(slot, event, kOpenStamp);
      return i;
    }
    return kOpenSlots;
  }
  void End(std::size_t open) noexcept { OpenSlots()[open][0].store(0, std::memory_order_release); }

  // The number of a name of at most kNameBytesMax bytes from now on; 0 if there is no room for it.
  // Its size is written last: a name that was never completed reads as empty.
  std::uint16_t AddName(std::string_view name) noexcept {
    const std::uint32_t number = header().names_count.fetch_add(1, std::memory_order_relaxed);
    if (number >= kNames) return 0;
    std::byte* const place = memory_ + kNamesOffset + number * (kNameBytesMax + 2);
    std::memcpy(place + 2, name.data(), name.size());
    std::atomic_ref(*reinterpret_cast<std::uint16_t*>(place))
        .store(static_cast<std::uint16_t>(name.size()), std::memory_order_release);
    return static_cast<std::uint16_t>(number + 1);
  }

  // The log of this process; null while its profile is off. One load.
  static EventLog* active() noexcept { return active_.load(std::memory_order_acquire); }
  static void Activate(EventLog* log) noexcept { active_.store(log, std::memory_order_release); }

  // The calling thread's id, without a system call but for the first.
  static std::uint32_t ThreadId() noexcept;
  // In a forked child the thread has another.
  static void ForgetThreadId() noexcept;

 private:
  static constexpr std::uint64_t kClaimed = ~std::uint64_t{0};
  static constexpr std::uint64_t kOpenStamp = 1;

  Slot* Slots() const noexcept { return reinterpret_cast<Slot*>(memory_ + kCoarseOffset); }
  Slot* OpenSlots() const noexcept { return reinterpret_cast<Slot*>(memory_ + kOpenOffset); }

  static void Fill(Slot& slot, const ProfileEvent& event, std::uint64_t stamp) noexcept {
    constexpr std::uint64_t kFactor = 0x9E3779B97F4A7C15;
    const std::array<std::uint64_t, kWords> words{
        stamp,
        static_cast<std::uint64_t>(event.begin_ns),
        static_cast<std::uint64_t>(event.end_ns),
        event.size_bytes,
        event.detail,
        event.first | std::uint64_t{event.second} << 32,
        event.kind | std::uint64_t{event.name} << 16 | std::uint64_t{ThreadId()} << 32,
        0};
    std::uint64_t check = 0;
    slot[0].store(stamp == kOpenStamp ? kClaimed : 0, std::memory_order_relaxed);
    std::atomic_thread_fence(std::memory_order_release);
    for (std::size_t i = 0; i + 1 < kWords; ++i) {
      check = (check ^ words[i]) * kFactor;
      if (i > 0) slot[i].store(words[i], std::memory_order_relaxed);
    }
    slot[kWords - 1].store(check, std::memory_order_relaxed);
    slot[0].store(stamp, std::memory_order_release);
  }

  inline static std::atomic<EventLog*> active_{nullptr};

  std::byte* const memory_;
  const std::uint32_t coarse_;
  const std::uint32_t fine_;
};

// The beginning of an event that the profile gets if it is on now and then. Costs a load if it is
// off.
class ProfiledSpan {
 public:
  ProfiledSpan() noexcept
      : begin_ns_(EventLog::active() == nullptr ? 0 : NanosecondsOf(Clock::now())) {}
  void End(ProfileEvent event) const noexcept {
    EventLog* const log = EventLog::active();
    if (log == nullptr || begin_ns_ == 0) return;
    event.begin_ns = begin_ns_;
    event.end_ns = NanosecondsOf(Clock::now());
    log->Write(event);
  }

  static std::int64_t NanosecondsOf(Clock::time_point time) noexcept {
    return std::chrono::duration_cast<std::chrono::nanoseconds>(time.time_since_epoch()).count();
  }
  static std::uint32_t MicrosecondsOf(Clock::duration time) noexcept {
    return static_cast<std::uint32_t>(
        std::chrono::duration_cast<std::chrono::microseconds>(time).count());
  }

 private:
  const std::int64_t begin_ns_;
};

// An event that stands in the profile as unfinished until End(), or, if it is given up, until this
// is destroyed. In a forked child the parent's stays as it is. Thread-bound.
class OpenEvent {
 public:
  OpenEvent() noexcept = default;
  OpenEvent(OpenEvent&& other) noexcept
      : home_(other.home_),
        begin_ns_(std::exchange(other.begin_ns_, 0)),
        token_(std::exchange(other.token_, 0)) {}
  OpenEvent& operator=(OpenEvent&& other) noexcept {
    std::swap(home_, other.home_);
    std::swap(begin_ns_, other.begin_ns_);
    std::swap(token_, other.token_);
    return *this;
  }
  ~OpenEvent() {
    if (token_ != 0 && home_.is_here()) Profile::Drop(token_);
  }

  // Once; requires that the profile is on.
  void Begin(ProfileEvent event) noexcept {
    event.begin_ns = begin_ns_ = ProfiledSpan::NanosecondsOf(Clock::now());
    token_ = Profile::Begin(event);
  }
  // Records `event` with its times, if it has begun.
  void End(ProfileEvent event) noexcept {
    if (begin_ns_ == 0) return;
    event.begin_ns = begin_ns_;
    event.end_ns = ProfiledSpan::NanosecondsOf(Clock::now());
    Profile::End(std::exchange(token_, 0), event);
  }

 private:
  HomeProcess home_;
  std::int64_t begin_ns_ = 0;
  std::uint64_t token_ = 0;
};

// The number of a name in the profile that is on, looked up once; 0 if none is on. Thread-bound.
class ProfiledName {
 public:
  std::uint16_t Of(std::string_view name) noexcept {
    if (EventLog::active() == nullptr) return 0;
    if (number_ == 0 || generation_ != Profile::generation()) {
      generation_ = Profile::generation();
      number_ = Profile::Name(name);
    }
    return number_;
  }

 private:
  std::uint32_t generation_ = 0;
  std::uint16_t number_ = 0;
};

}  // namespace ffrecord
