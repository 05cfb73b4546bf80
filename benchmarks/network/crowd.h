#pragma once

#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <new>
#include <thread>

#include "../support/arm.h"

// Many processes that begin at one time.
namespace ffrecord::bench {

// The memory that the processes of a crowd share. Times are nanoseconds of the steady clock.
struct Crowd {
  std::atomic<std::size_t> ready{0};
  std::atomic<std::int64_t> begin_ns{0};  // 0: not yet.
  std::atomic<std::uint64_t> records{0};
  std::atomic<std::uint64_t> bytes{0};
  std::atomic<std::int64_t> end_ns{0};  // When the last one ended.
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

// Makes batches of `batch` records, and counts the records of those of the crowd's time, of a batch
// that only in part fell within it that part. One batch comes before that time; with `lead_ns` it
// begins so much later: what was under way before has come by then.
template <class MakeOne>
void CountInCrowd(Crowd& crowd, std::int64_t duration_ns, std::size_t batch,
                  const MakeOne& make_one, std::int64_t lead_ns = 0) {
  make_one();
  WaitToBegin(crowd);
  const std::int64_t begin_ns = crowd.begin_ns.load() + lead_ns;
  const std::int64_t end_ns = begin_ns + duration_ns;
  double records = 0;
  for (std::int64_t last_ns = NowNs(); last_ns < end_ns;) {
    make_one();
    const std::int64_t now_ns = NowNs();
    const std::int64_t within_ns = std::min(now_ns, end_ns) - std::max(last_ns, begin_ns);
    if (within_ns > 0)
      records += static_cast<double>(batch) * static_cast<double>(within_ns) /
                 static_cast<double>(now_ns - last_ns);
    last_ns = now_ns;
  }
  crowd.records.fetch_add(static_cast<std::uint64_t>(records));
}

}  // namespace ffrecord::bench
