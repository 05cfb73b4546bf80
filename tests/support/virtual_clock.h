#pragma once

#include <dirent.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <cstdlib>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "libffrecord/base/event_fd.h"
#include "libffrecord/base/timed_waits.h"
#include "libffrecord/base/unique_fd.h"

namespace ffrecord::test {

// The process's clock while it lives. Time stands still while any thread of the process runs, and
// jumps to the next deadline once all of them wait: for each other, for a descriptor, or for a
// time.
//
// A wait of 30 s takes a millisecond, and a busy machine makes nothing late: a thread that has not
// been scheduled has not waited. It sees neither other processes nor bytes that a disk has yet to
// bring: tests of those use the machine's clock. Waits that io_uring, curl and TCP end are real.
//
// Made before the first thread that looks at the clock, and outlives the last one.
class VirtualClock {
 public:
  VirtualClock() : state_(Kept()) {
    state_->driver = std::thread([state = state_] { state->Drive(); });
    ClockSource::Install(state_);
  }
  VirtualClock(const VirtualClock&) = delete;
  VirtualClock& operator=(const VirtualClock&) = delete;
  ~VirtualClock() {
    ClockSource::Install(nullptr);
    {
      const std::lock_guard lock(state_->mutex);
      state_->is_ending = true;
    }
    state_->driver.join();
    state_->tasks.reset();
    state_->statuses.clear();
  }

  // Returns once all other threads have done what there is to do in the next `time`.
  void RunFor(Clock::duration time) {
    state_->SleepUntil(state_->Now() + time);
    RunUntilIdle();
  }
  // The same, for now: all other threads wait, and for later.
  void RunUntilIdle() { state_->AwaitIdle(); }

 private:
  // The time or event that a thread waits for; `until` is max() if that is idleness.
  struct Entry {
    Clock::time_point until;
    std::condition_variable* changed = nullptr;
    const EventFd* event = nullptr;
    bool looks = false;          // At something, each time it is asked: it has answered
    std::uint64_t answered = 0;  // so many questions,
    bool is_looking = false;     // and looks for the next answer.
    bool awaits_idle = false;
    bool is_idle = false;
  };
  using Entries = std::list<Entry>;

  struct Thread {
    pid_t id = 0;
    char state = '?';
    std::string switches{};  // How often it has gone to wait.
    bool operator==(const Thread&) const = default;
  };

  // Never freed: a thread that leaves a wait late may still look at it.
  struct State final : ClockSource, TimedWaits {
    Clock::time_point Now() const noexcept override { return start + Clock::duration(passed); }
    WallClock::time_point WallNow() const noexcept override {
      return wall_start + std::chrono::duration_cast<WallClock::duration>(Clock::duration(passed));
    }
    TimedWaits& waits() noexcept override { return *this; }

    void SleepUntil(Clock::time_point until) override {
      std::unique_lock lock(mutex);
      if (IsOver(until)) return;
      const auto entry = Enter({.until = until, .changed = &slept});
      slept.wait(lock, [&] { return IsOver(until); });
      Leave(entry);
    }

    std::cv_status WaitUntil(std::condition_variable& changed, std::unique_lock<std::mutex>& user,
                             Clock::time_point until) override {
      Entries::iterator entry;
      {
        const std::lock_guard lock(mutex);
        entry = Enter({.until = until, .changed = &changed});
      }
      // The driver repeats what comes before this.
      if (!IsOver(until)) changed.wait(user);
      const std::lock_guard lock(mutex);
      Leave(entry);
      return IsOver(until) ? std::cv_status::timeout : std::cv_status::no_timeout;
    }

    bool AwaitUntil(const std::function<bool()>& is_done, Clock::time_point until) override {
      std::unique_lock lock(mutex);
      const auto entry = Enter({.until = until, .changed = &asked, .looks = true});
      for (;;) {
        const bool is_over = IsOver(until);
        const std::uint64_t question = questions;
        entry->is_looking = true;
        lock.unlock();
        const bool is_so = is_done();
        lock.lock();
        entry->is_looking = false;
        entry->answered = question;
        if (is_so || is_over) {
          Leave(entry);
          return is_so;
        }
        asked.wait(lock, [&] { return entry->answered != questions || IsOver(until); });
      }
    }

    int Poll(std::span<pollfd> fds, std::chrono::nanoseconds timeout) override {
      const auto until = EndOf(timeout);
      thread_local const EventFd event = EventFd::Make().value();
      event.Clear();
      std::vector<pollfd> waited(fds.begin(), fds.end());
      waited.push_back({event.fd(), POLLIN, 0});
      Entries::iterator entry;
      {
        const std::lock_guard lock(mutex);
        entry = Enter({.until = until, .event = &event});
      }
      const timespec none{};
      int count = ::ppoll(waited.data(), waited.size(), IsOver(until) ? &none : nullptr, nullptr);
      const int error = errno;
      std::copy(waited.begin(), waited.end() - 1, fds.begin());
      if (count > 0 && waited.back().revents != 0) --count;
      const std::lock_guard lock(mutex);
      Leave(entry);
      errno = error;
      return count;
    }

    void Arm(int timer, Clock::time_point time) override {
      const std::lock_guard lock(mutex);
      timers.erase(timer);
      if (time != Clock::time_point::max()) timers[timer] = time;
      SetTimer(timer, 0);
      FireTimers();
    }

    void AwaitIdle() {
      std::unique_lock lock(mutex);
      const auto entry =
          Enter({.until = Clock::time_point::max(), .changed = &slept, .awaits_idle = true});
      slept.wait(lock, [&] { return entry->is_idle; });
      Leave(entry);
    }

    // --- The driver ------------------------------------------------------------------------------

    void Drive() {
      std::unique_lock lock(mutex);
      for (std::uint64_t round = 1; !is_ending || !entries.empty(); ++round) {
        const bool are_due = WakeThoseDue();
        // Those that were due and wait all the same, for a mutex, were not only missed.
        const bool is_idle = IsIdle(lock) && (!are_due || (WakeThoseDue() && IsIdle(lock)));
        if (is_idle && !is_ending && !AskThoseThatLook() && !WakeThoseThatAwaitIdle()) Advance();
        if (!is_idle) is_asked = false;
        if (round % 32 == 0) AskThoseThatLook();  // Perhaps threads are never idle.
        lock.unlock();
        std::this_thread::sleep_for(std::chrono::microseconds(100));
        lock.lock();
      }
    }

    // Whether those that look at something have yet to do so since all have waited.
    bool AskThoseThatLook() {
      const auto has_to_answer = [&](const Entry& entry) {
        return entry.looks && !entry.is_looking && entry.answered != questions;
      };
      if (!is_asked) ++questions;
      is_asked = true;
      if (std::ranges::none_of(entries, has_to_answer)) return false;
      asked.notify_all();
      return true;
    }

    // Whether there are some.
    bool WakeThoseDue() {
      bool are_some = false;
      for (const Entry& entry : entries) {
        if (!IsOver(entry.until) && !entry.is_idle) continue;
        are_some = true;
        if (entry.changed != nullptr) entry.changed->notify_all();
        if (entry.event != nullptr) entry.event->Ring();
      }
      return are_some;
    }

    bool WakeThoseThatAwaitIdle() {
      bool are_some = false;
      for (Entry& entry : entries) are_some |= entry.is_idle = entry.awaits_idle;
      WakeThoseDue();
      return are_some;
    }

    void Advance() {
      auto next = Clock::time_point::max();
      for (const Entry& entry : entries)
        if (entry.until > Now()) next = std::min(next, entry.until);
      for (const auto& [timer, time] : timers) next = std::min(next, time);
      if (next == Clock::time_point::max()) return;
      ++version;
      is_asked = false;
      passed = std::max(Clock::rep{passed}, (next - start).count());
      FireTimers();
      WakeThoseDue();
    }

    void FireTimers() {
      std::erase_if(timers, [&](const auto& timer) {
        if (timer.second > Now()) return false;
        SetTimer(timer.first, 1);
        return true;
      });
    }

    static void SetTimer(int timer, long nanoseconds) {
      itimerspec at{};
      at.it_value.tv_nsec = nanoseconds;  // Since the machine started: at once. 0 disarms it.
      ::timerfd_settime(timer, TFD_TIMER_ABSTIME, &at, nullptr);
    }

    // Whether there was a moment since the call in which all other threads waited, and nobody has
    // entered or left since. A thread that waits in both of two looks, and has not gone to wait
    // anew, has waited from the one to the other; so at the end of the first look all did.
    bool IsIdle(std::unique_lock<std::mutex>& lock) {
      const auto before = version;
      lock.unlock();
      const auto first = Threads();
      const bool do_wait = std::ranges::all_of(
          first, [](const Thread& thread) { return thread.state == 'S' || thread.state == 'Z'; });
      const bool are_same = do_wait && Threads() == first;
      lock.lock();
      return are_same && version == before;
    }

    std::vector<Thread> Threads() {
      std::vector<Thread> threads;
      ::rewinddir(tasks.get());
      while (const dirent* task = ::readdir(tasks.get())) {
        const pid_t id = std::atoi(task->d_name);
        if (id != 0 && id != ::gettid()) threads.push_back(ThreadOf(id));
      }
      std::erase_if(statuses, [&](const auto& status) {
        return std::ranges::find(threads, status.first, &Thread::id) == threads.end();
      });
      return threads;
    }

    // Unknown for a thread that has ended, or if no descriptor is left.
    Thread ThreadOf(pid_t id) {
      Thread thread{.id = id};
      UniqueFd& status = statuses[id];
      std::array<char, 4096> text;
      for (int tries = 0; tries < 2; ++tries) {
        if (!status)
          status.Reset(::open(("/proc/self/task/" + std::to_string(id) + "/status").c_str(),
                              O_RDONLY | O_CLOEXEC));
        const ssize_t size = status ? ::pread(status.get(), text.data(), text.size(), 0) : -1;
        if (size <= 0) {
          status.Reset();  // It is an earlier thread of that number.
          continue;
        }
        const std::string_view lines(text.data(), static_cast<std::size_t>(size));
        thread.state = lines[lines.find_first_not_of(" \t", lines.find("\nState:") + 7)];
        const auto switches = lines.find("\nvoluntary_ctxt_switches:");
        thread.switches = lines.substr(switches, lines.find('\n', switches + 1) - switches);
        break;
      }
      return thread;
    }

    // --- Under the mutex
    // --------------------------------------------------------------------------

    Entries::iterator Enter(Entry entry) {
      ++version;
      return entries.insert(entries.end(), entry);
    }
    void Leave(Entries::iterator entry) {
      ++version;
      entries.erase(entry);
    }

    // Needs no mutex. Once the clock's owner is gone, all waits end.
    bool IsOver(Clock::time_point until) const noexcept { return is_ending || Now() >= until; }
    Clock::time_point EndOf(std::chrono::nanoseconds timeout) const noexcept {
      const auto now = Now();
      return timeout >= Clock::time_point::max() - now ? Clock::time_point::max() : now + timeout;
    }

    const Clock::time_point start = std::chrono::steady_clock::now();
    const WallClock::time_point wall_start = std::chrono::system_clock::now();
    std::atomic<Clock::rep> passed{0};
    std::atomic<bool> is_ending{false};
    std::mutex mutex;  // Taken with callers' own mutexes held, and no other is taken with it.
    std::condition_variable slept;
    std::condition_variable asked;
    Entries entries;
    std::map<int, Clock::time_point> timers;
    std::uint64_t version = 0;  // Changes with the entries and with time.
    std::uint64_t questions = 1;
    bool is_asked = false;
    std::thread driver;
    // The driver's, kept open: a test may leave the process no other.
    std::unique_ptr<DIR, int (*)(DIR*)> tasks{::opendir("/proc/self/task"), ::closedir};
    std::map<pid_t, UniqueFd> statuses;
  };

  static State* Kept() {
    static std::vector<std::unique_ptr<State>>& all = *new std::vector<std::unique_ptr<State>>;
    return all.emplace_back(std::make_unique<State>()).get();
  }

  State* const state_;
};

}  // namespace ffrecord::test
