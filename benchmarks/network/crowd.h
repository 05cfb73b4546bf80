#pragma once

#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <new>
#include <thread>

#include "../support/arm.h"

// Many processes that begin at one time.
namespace ffrecord::bench {

// What the processes of a crowd share. Times are nanoseconds of the steady clock.
struct Crowd {
  std::atomic<std::size_t> ready{0};
  std::atomic<std::int64_t> begin_ns{0};  // 0: not yet.
  std::atomic<std::uint64_t> records{0};
  std::atomic<std::uint64_t> bytes{0};
  std::atomic<std::int64_t> end_ns{0};  // Of the last one.
};

inline std::int64_t NowNs() {
  return std::chrono::nanoseconds(Clock::now().time_since_epoch()).count();
}

inline void WaitToBegin(Crowd& crowd) {
  crowd.ready.fetch_add(1);
  while (crowd.begin_ns.load() == 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));
}

// Runs `member` in as many processes; it calls WaitToBegin() when it is ready.
template <class Member>
Crowd& RunCrowd(std::size_t count, const Member& member) {
  void* const memory =
      ::mmap(nullptr, sizeof(Crowd), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) Fail("no memory");
  auto& crowd = *new (memory) Crowd;
  for (std::size_t i = 0; i < count; ++i) {
    const pid_t child = ::fork();
    if (child < 0) Fail("cannot fork");
    if (child > 0) continue;
    member(crowd, i);
    std::_Exit(0);
  }
  while (crowd.ready.load() < count) {
    // A client that has failed has said why.
    if (::waitpid(-1, nullptr, WNOHANG) > 0) Fail("a client has ended early");
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  crowd.begin_ns.store(NowNs());
  for (int status = 0; ::wait(&status) > 0;)
    if (status != 0) Fail("a client has failed");
  return crowd;
}

// Makes batches of `batch` records for as long as the crowd's time lasts, and counts the records.
// One batch comes before that time.
template <class MakeOne>
void CountInCrowd(Crowd& crowd, std::int64_t duration_ns, std::size_t batch,
                  const MakeOne& make_one) {
  make_one();
  WaitToBegin(crowd);
  const std::int64_t end_ns = crowd.begin_ns.load() + duration_ns;
  double records = 0;
  for (std::int64_t begin_ns = NowNs(); begin_ns < end_ns;) {
    make_one();
    const std::int64_t now_ns = NowNs();
    // The last one counts for as much of it as fell within the time.
    const double share = now_ns <= end_ns ? 1
                                          : static_cast<double>(end_ns - begin_ns) /
                                                static_cast<double>(now_ns - begin_ns);
    records += share * static_cast<double>(batch);
    begin_ns = now_ns;
  }
  crowd.records.fetch_add(static_cast<std::uint64_t>(records));
}

}  // namespace ffrecord::bench
