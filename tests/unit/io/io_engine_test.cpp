// Goal: requests are carried to their end whatever the engine does to them, and an engine is found
// on every machine, thread and process.
// Method: RunAll over the faulty engine; children in which the kernel refuses rings, threads or
// descriptors; a traced child whose system calls are counted.

#include "libffrecord/io/io_engine.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <linux/io_uring.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/resource.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "child.h"
#include "faulty_engine.h"
#include "libffrecord/base/buffer_pool.h"
#include "libffrecord/base/unique_fd.h"
#include "libffrecord/io/file.h"
#include "open_files.h"
#include "refused_calls.h"
#include "seed.h"
#include "temp_folder.h"

namespace ffrecord {
namespace {

using test::Faults;
using test::FaultyEngine;
using test::kSkipped;
using test::RefuseCalls;
using test::RunInChild;
using test::TempFolder;
using Kind = IoRequest::Kind;

constexpr std::size_t kFileSize = 256 * 1024;

class IoEngineTest : public testing::Test {
 protected:
  IoEngineTest() {
    std::mt19937 random(test::Seed());
    content_.resize(kFileSize);
    for (char& letter : content_) letter = static_cast<char>(random());
    test::WriteFile(path(), content_);
    fd_ = UniqueFd(::open(path().c_str(), O_RDWR | O_CLOEXEC));
  }

  std::filesystem::path path() const { return folder_ / "file"; }

  std::vector<IoRequest> Reads(std::size_t count, std::size_t size) {
    buffer_.assign(count * size, std::byte{0});
    std::vector<IoRequest> requests;
    for (std::size_t i = 0; i < count; ++i)
      requests.push_back({Kind::kRead, fd_.get(), i * size % kFileSize,
                          std::span(buffer_).subspan(i * size, size)});
    return requests;
  }

  bool AllRead(std::span<const IoRequest> requests) const {
    return std::ranges::all_of(requests, [&](const IoRequest& request) {
      return request.result == static_cast<std::int64_t>(request.buffer.size()) &&
             std::memcmp(request.buffer.data(), content_.data() + request.offset_bytes,
                         request.buffer.size()) == 0;
    });
  }

  // 0 if `engine` reads right.
  int Use(IoEngine& engine) {
    auto requests = Reads(50, 1000);
    if (!RunAll(engine, requests, 20)) return 1;
    return AllRead(requests) ? 0 : 2;
  }

  static FaultyEngine Faulty(Faults faults) {
    return FaultyEngine(MakeIoEngine(64).value(), std::move(faults));
  }

  TempFolder folder_;
  std::string content_;
  std::vector<std::byte> buffer_;
  UniqueFd fd_;
};

TEST_F(IoEngineTest, ShortTransfersAreContinuedInAnyOrder) {
  for (std::uint32_t round = 0; round < 20; ++round) {
    Faults faults;
    faults.short_transfer_unit_bytes = 1;
    faults.disorder = true;
    faults.seed = test::Seed() + round;
    auto engine = Faulty(faults);
    auto requests = Reads(30, 5000);

    ASSERT_TRUE(RunAll(engine, requests, 1 + round));

    EXPECT_TRUE(AllRead(requests));
  }
}

TEST_F(IoEngineTest, InterruptedTransfersAreRetriedOthersFailAlone) {
  Faults faults;
  faults.failures = {{Kind::kRead, 3, -EINTR}, {Kind::kRead, 5, -EAGAIN}, {Kind::kRead, 7, -EIO}};
  auto engine = Faulty(faults);
  auto requests = Reads(10, 1000);

  ASSERT_TRUE(RunAll(engine, requests, 10));

  EXPECT_EQ(requests[6].result, -EIO);
  requests.erase(requests.begin() + 6);
  EXPECT_TRUE(AllRead(requests));
}

TEST_F(IoEngineTest, GivenUpItSubmitsNoMoreAndLeavesNothingInFlight) {
  auto engine = Faulty({});
  auto requests = Reads(200, 1000);
  std::size_t ended_count = 0;
  const auto ended = [&](IoRequest&) {
    if (ended_count++ == 0) std::this_thread::sleep_for(Patience::kInterval);
  };
  const Patience::GiveUp give_up = [] { return true; };
  Patience patience(give_up);

  const auto run = RunAll(engine, requests, 4, ended, &patience);

  ASSERT_FALSE(run);
  EXPECT_EQ(run.error().code, ErrorCode::kDeadlineExceeded);
  EXPECT_EQ(engine.in_flight(), 0U);
  EXPECT_GE(ended_count, 1U);
  EXPECT_LE(ended_count, 8U);
  EXPECT_EQ(Use(engine), 0);
}

TEST_F(IoEngineTest, EngineThatFailsInTheMiddleIsAnErrorAndNothingStaysInFlight) {
  auto ring = MakeUringEngine(8);
  if (!ring) GTEST_SKIP() << ring.error().message;
  Faults faults;
  faults.failed_submit = 1;
  FaultyEngine engine(std::move(ring).value(), faults);
  auto requests = Reads(4, 5000);
  // The first is a read of an empty pipe, which only a ring takes: still in flight at the failure.
  int ends[2];
  ASSERT_EQ(::pipe2(ends, O_CLOEXEC), 0);
  const UniqueFd read_end(ends[0]);
  const UniqueFd write_end(ends[1]);
  requests[0].fd = read_end.get();
  requests[0].offset_bytes = 0;
  std::thread writer([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    EXPECT_EQ(::write(write_end.get(), "late", 4), 4);
  });

  const auto run = RunAll(engine, requests, 3);

  EXPECT_EQ(engine.in_flight(), 0U);
  ASSERT_FALSE(run);
  EXPECT_EQ(run.error().system_errno, EIO);
  EXPECT_EQ(std::memcmp(requests[0].buffer.data(), "late", 4), 0);
  writer.join();
  EXPECT_EQ(Use(engine), 0);
}

TEST_F(IoEngineTest, EndlessInterruptionEndsAsAnError) {
  Faults faults;
  faults.failures = {{Kind::kRead, 1, -EAGAIN, true}};
  auto engine = Faulty(faults);
  auto requests = Reads(1, 1000);

  ASSERT_TRUE(RunAll(engine, requests, 1));

  EXPECT_EQ(requests[0].result, -EAGAIN);
}

TEST_F(IoEngineTest, InterruptedSyncIsAFailureAndNotRetried) {
  Faults faults;
  faults.failures = {{Kind::kSync, 1, -EINTR}};
  auto engine = Faulty(faults);
  std::vector<IoRequest> requests{{Kind::kSync, fd_.get(), 0, {}}};

  ASSERT_TRUE(RunAll(engine, requests, 1));

  EXPECT_EQ(requests[0].result, -EINTR);
}

TEST_F(IoEngineTest, WriteThatMovesNothingIsAnError) {
  Faults faults;
  faults.failures = {{Kind::kWrite, 1, 0}};
  auto engine = Faulty(faults);
  std::vector<std::byte> data(10);
  std::vector<IoRequest> requests{{Kind::kWrite, fd_.get(), 0, data}};

  ASSERT_TRUE(RunAll(engine, requests, 1));

  EXPECT_EQ(requests[0].result, -EIO);
}

TEST_F(IoEngineTest, DirectReadRefusedAtTheOddEndOfItsFileIsWhole) {
  // Some file systems refuse a direct read from an odd offset even where the file ends.
  Faults faults;
  faults.short_transfer_unit_bytes = 1;
  faults.failures = {{Kind::kRead, 2, -EINVAL}};
  auto engine = Faulty(faults);
  auto requests = Reads(1, 500);

  ASSERT_TRUE(RunAll(engine, requests, 1));

  EXPECT_GT(requests[0].result, 0);
  EXPECT_LT(requests[0].result, 500);
  requests[0].buffer = requests[0].buffer.first(static_cast<std::size_t>(requests[0].result));
  EXPECT_TRUE(AllRead(requests));
}

TEST_F(IoEngineTest, FlippedBitArrivesExactlyOnce) {
  Faults faults;
  faults.flipped_read = 2;
  faults.flipped_bit = 77;
  auto engine = Faulty(faults);
  auto requests = Reads(3, 1000);

  ASSERT_TRUE(RunAll(engine, requests, 1));

  EXPECT_FALSE(AllRead(requests));
  buffer_[1000 + 77 / 8] ^= std::byte{1} << 77 % 8;
  EXPECT_TRUE(AllRead(requests));
}

TEST_F(IoEngineTest, DirectReadsEndWhereTheFileDoes) {
  const std::size_t odd_size = kFileSize - 1234;
  ASSERT_EQ(::ftruncate(fd_.get(), static_cast<off_t>(odd_size)), 0);
  const auto file = OpenReadOnly(path(), true).value();
  if (!file.direct_fd) GTEST_SKIP() << "no O_DIRECT on " << path();
  const auto buffer = BufferPool::Process().Take(16384).value();
  std::vector<IoRequest> requests{
      {Kind::kRead, file.direct_fd.get(), kFileSize - 8192, buffer->first(8192)},
      {Kind::kRead, file.direct_fd.get(), 8192, buffer->subspan(8192, 8192)},
  };

  ASSERT_TRUE(RunAll(*ThreadIoEngine().value(), requests, 2));

  EXPECT_EQ(requests[0].result, 8192 - 1234);
  EXPECT_EQ(std::memcmp(buffer->data(), &content_[kFileSize - 8192], 8192 - 1234), 0);
  EXPECT_EQ(requests[1].result, 8192);
}

TEST_F(IoEngineTest, RingRunsABatchInAtMostThreeSystemCalls) {
  auto made = MakeUringEngine(128);
  if (!made) GTEST_SKIP() << made.error().message;
  std::vector<IoRequest> requests = Reads(128, 1000);
  std::unique_ptr<IoEngine> engine;

  const auto calls = test::TraceInChild(
      [&] {
        engine = MakeUringEngine(128).value();
        Use(*engine);
        requests = Reads(128, 1000);
      },
      [&] {
        if (!RunAll(*engine, requests, 128) || !AllRead(requests)) ::_exit(1);
      },
      [](const test::SystemCalls&) { return false; });

  if (!calls) GTEST_SKIP() << "no tracing here";
  const auto enters = std::ranges::count(*calls, static_cast<std::uint64_t>(SYS_io_uring_enter));
  std::cout << "RunAll of 128 reads: " << enters << " system calls into the ring, "
            << calls->size() - 1 << " in all\n";
  EXPECT_EQ(calls->back(), static_cast<std::uint64_t>(SYS_exit_group));
  EXPECT_GE(enters, 1);
  EXPECT_LE(enters, 3);
}

TEST_F(IoEngineTest, ThreadsTakeOverWhereRingsAreRefused) {
  for (const int refusal : {EPERM, ENOSYS}) {
    const int status = RunInChild([&] {
      if (!RefuseCalls({{SYS_io_uring_setup, refusal}})) return kSkipped;
      if (MakeUringEngine(8)) return 10;
      auto engine = MakeIoEngine(8);
      if (!engine || engine.value()->name() != "threads") return 11;
      IoEngine* own = ThreadIoEngine().value();
      if (own->name() != "threads") return 12;
      return Use(*engine.value()) + Use(*own);
    });
    if (status == kSkipped) GTEST_SKIP() << "no seccomp here";
    EXPECT_EQ(status, 0);
  }
}

TEST_F(IoEngineTest, ThreadsTakeOverForOneEngineWhereDescriptorsAreUsedUp) {
  if (!MakeUringEngine(8)) GTEST_SKIP() << "io_uring is refused";
  EXPECT_EQ(RunInChild([&] {
              const auto open_max = static_cast<rlim_t>(*test::OpenFiles().rbegin() + 1);
              const rlimit full{open_max, 4096};
              if (::setrlimit(RLIMIT_NOFILE, &full) != 0) return 9;
              // Fill the holes below the limit.
              while (::open("/dev/null", O_RDONLY | O_CLOEXEC) >= 0) {
              }
              auto engine = MakeIoEngine(8);
              if (!engine || engine.value()->name() != "threads") return 10;
              if (Use(*engine.value()) != 0) return 11;
              const rlimit enough{4096, 4096};
              if (::setrlimit(RLIMIT_NOFILE, &enough) != 0) return 12;
              auto later = MakeIoEngine(8);
              return later && later.value()->name() == "io_uring" ? 0 : 13;
            }),
            0);
}

TEST_F(IoEngineTest, WithoutAnyThreadTheWaiterDoesTheWork) {
  const int status = RunInChild([&] {
    if (!RefuseCalls({{SYS_clone3, EAGAIN}, {SYS_clone, EAGAIN}})) return kSkipped;
    auto engine = MakeThreadsEngine(16);
    return engine ? Use(*engine.value()) : 10;
  });
  if (status == kSkipped) GTEST_SKIP() << "no seccomp here";
  EXPECT_EQ(status, 0);
}

// Runs `work` in a thread for which io_uring_setup knows none of `unknown_flags`, as in an older
// kernel, and returns how many set-ups were refused; -1 if this cannot be done here.
template <class Work>
int RunWithOlderRings(std::uint32_t unknown_flags, Work work) {
  std::atomic<int> listener{-2};
  std::atomic<bool> done{false};
  std::thread worker([&] {
    // A filter binds only the thread that installs it.
    sock_filter program[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_io_uring_setup, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_USER_NOTIF),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    const sock_fprog filter{4, program};
    ::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
    listener = static_cast<int>(
        ::syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_NEW_LISTENER, &filter));
    if (listener >= 0) work();
    done = true;
  });
  int refused = 0;
  while (!done) {
    pollfd poll_fd{listener, POLLIN, 0};
    if (listener < 0 || ::poll(&poll_fd, 1, 5) <= 0) continue;
    seccomp_notif call{};
    if (::ioctl(listener, SECCOMP_IOCTL_NOTIF_RECV, &call) != 0) continue;
    // The caller waits in the kernel. ThreadSanitizer does not know that, so the kernel reads it.
    io_uring_params params{};
    const iovec here{&params, sizeof(params)};
    const iovec there{reinterpret_cast<void*>(call.data.args[1]), sizeof(params)};
    const bool unknown = ::process_vm_readv(::getpid(), &here, 1, &there, 1, 0) == sizeof(params) &&
                         (params.flags & unknown_flags) != 0;
    seccomp_notif_resp answer{};
    answer.id = call.id;
    if (unknown)
      answer.error = -EINVAL;
    else
      answer.flags = SECCOMP_USER_NOTIF_FLAG_CONTINUE;
    ::ioctl(listener, SECCOMP_IOCTL_NOTIF_SEND, &answer);
    if (unknown) ++refused;
  }
  worker.join();
  if (listener < 0) return -1;
  ::close(listener);
  return refused;
}

TEST_F(IoEngineTest, OlderKernelsGetARingWithFewerFlags) {
  if (!MakeUringEngine(8)) GTEST_SKIP() << "io_uring is refused";
  constexpr std::uint32_t kSince61 = IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_DEFER_TASKRUN;
  constexpr std::uint32_t kSince519 = IORING_SETUP_COOP_TASKRUN | IORING_SETUP_SUBMIT_ALL;
  for (const auto& [unknown, refusals] : {std::pair{kSince61, 1}, {kSince61 | kSince519, 2}}) {
    const int refused = RunWithOlderRings(unknown, [&] {
      const auto engine = MakeUringEngine(32);
      ASSERT_TRUE(engine) << engine.error().message;
      EXPECT_EQ(Use(*engine.value()), 0);
    });
    if (refused < 0) GTEST_SKIP() << "no seccomp listener here";
    EXPECT_EQ(refused, refusals);
  }
}

TEST_F(IoEngineTest, RingThatIsRefusedWithEveryFlagIsAnErrorAndThreadsTakeOver) {
  const int status = RunInChild([&] {
    if (!RefuseCalls({{SYS_io_uring_setup, EINVAL}})) return kSkipped;
    if (MakeUringEngine(8)) return 10;
    auto chosen = MakeIoEngine(8);
    return chosen ? Use(*chosen.value()) : 11;
  });
  if (status == kSkipped) GTEST_SKIP() << "no seccomp here";
  EXPECT_EQ(status, 0);
}

TEST_F(IoEngineTest, EachThreadHasItsOwnEngineAndKeepsIt) {
  IoEngine* const mine = ThreadIoEngine().value();
  IoEngine* others = nullptr;
  std::thread([&] {
    others = ThreadIoEngine().value();
    EXPECT_EQ(Use(*others), 0);
  }).join();

  EXPECT_NE(mine, nullptr);
  EXPECT_NE(mine, others);
  EXPECT_EQ(ThreadIoEngine().value(), mine);
}

TEST_F(IoEngineTest, ForkedChildrenAndTheirChildrenHaveTheirOwn) {
  IoEngine* const mine = ThreadIoEngine().value();
  auto requests = Reads(100, 1000);
  std::vector<IoRequest*> pointers;
  for (IoRequest& request : requests) pointers.push_back(&request);
  ASSERT_EQ(mine->Submit(pointers).value(), 100U);

  for (int i = 0; i < 5; ++i) {
    EXPECT_EQ(RunInChild([&] {
                IoEngine* own = ThreadIoEngine().value();
                if (own->in_flight() != 0) return 10;
                if (const int failed = Use(*own); failed != 0) return failed;
                return RunInChild([&] { return Use(*ThreadIoEngine().value()); });
              }),
              0);
  }

  std::vector<IoRequest*> done(100);
  EXPECT_EQ(mine->Wait(done, 100, kIoForever).value(), 100U);
  EXPECT_TRUE(AllRead(requests));
  EXPECT_EQ(ThreadIoEngine().value(), mine);
}

TEST_F(IoEngineTest, ProcessesExitCleanlyWithThreadsIdleAndAfterFork) {
  // exit(), not _exit(): the handlers run. A child that has inherited them must not join threads
  // that only its parent has: it would never end.
  EXPECT_EQ(RunInChild([&]() -> int {
              auto engine = MakeThreadsEngine(16).value();
              if (Use(*engine) != 0) return 10;
              const pid_t grandchild = ::fork();
              if (grandchild == 0) std::exit(0);
              if (test::WaitForChild(grandchild) != 0) return 11;
              engine.reset();
              std::exit(0);
            }),
            0);
}

TEST_F(IoEngineTest, EnginesLeaveNoDescriptorsAndAllAreClosedOnExec) {
  const auto before = test::OpenFiles();
  {
    auto ring = MakeIoEngine(8).value();
    auto threads = MakeThreadsEngine(8).value();
    ASSERT_EQ(Use(*ring) + Use(*threads), 0);
    for (const int fd : test::OpenFiles()) {
      if (!before.contains(fd)) {
        EXPECT_EQ(::fcntl(fd, F_GETFD), FD_CLOEXEC);
      }
    }
  }
  EXPECT_EQ(test::OpenFiles(), before);
}

TEST_F(IoEngineTest, DestroyingAnEngineWithRequestsInFlightIsAMistakeThatEndsTheProcess) {
  EXPECT_DEATH(
      {
        auto engine = MakeThreadsEngine(8).value();
        auto requests = Reads(1, 1000);
        IoRequest* pointer = &requests[0];
        static_cast<void>(engine->Submit({&pointer, 1}));
      },
      "in_flight_ == 0");
}

}  // namespace
}  // namespace ffrecord
