// Goal: every engine moves the same bytes, keeps the same limits and reports the same errors.
// Method: the same tests over each real engine and over the faulty one without faults, on a file of
// known random bytes; results come out of Wait() and are compared with what the file holds.

#include <fcntl.h>
#include <gtest/gtest.h>
#include <linux/userfaultfd.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <functional>
#include <random>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "faulty_engine.h"
#include "libffrecord/base/unique_fd.h"
#include "libffrecord/io/io_engine.h"
#include "seed.h"
#include "temp_folder.h"

namespace ffrecord {
namespace {

using std::chrono::milliseconds;
using test::TempFolder;
using Kind = IoRequest::Kind;
using Engine = std::unique_ptr<IoEngine>;

struct EngineUnderTest {
  std::string name;
  std::function<Result<Engine>(std::uint32_t depth)> make;
};

// A read that is not done before Release().
class LateRead {
 public:
  // In a ring a read of an empty pipe; in threads, which refuse pipes, one into memory that is not
  // there yet. Fails with kUnavailable where the kernel allows no such memory.
  static Result<std::unique_ptr<LateRead>> Make(bool uses_uring) {
    std::unique_ptr<LateRead> late(new LateRead);
    if (uses_uring) {
      int ends[2];
      if (::pipe2(ends, O_CLOEXEC) != 0) std::abort();
      late->source_ = UniqueFd(ends[0]);
      late->release_ = UniqueFd(ends[1]);
      late->request_ = {Kind::kRead, ends[0], 0, {&late->byte_, 1}};
      return late;
    }
    late->source_ = UniqueFd(::open("/dev/zero", O_RDONLY | O_CLOEXEC));
    late->release_ = UniqueFd(static_cast<int>(::syscall(SYS_userfaultfd, O_CLOEXEC | O_NONBLOCK)));
    uffdio_api api{UFFD_API, 0, 0};
    if (!late->release_ || ::ioctl(late->release_.get(), UFFDIO_API, &api) != 0)
      return Error{ErrorCode::kUnavailable, "no userfaultfd"};
    late->page_ =
        ::mmap(nullptr, kPage, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    uffdio_register range{{late->address(), kPage}, UFFDIO_REGISTER_MODE_MISSING, 0};
    if (::ioctl(late->release_.get(), UFFDIO_REGISTER, &range) != 0) std::abort();
    late->request_ = {
        Kind::kRead, late->source_.get(), 0, {static_cast<std::byte*>(late->page_), 1}};
    return late;
  }
  ~LateRead() {
    if (page_ != nullptr) ::munmap(page_, kPage);
  }

  IoRequest& request() { return request_; }

  void Release() {
    if (page_ == nullptr) {
      if (::write(release_.get(), "x", 1) != 1) std::abort();
      return;
    }
    uffdio_zeropage zero{{address(), kPage}, 0, 0};
    if (::ioctl(release_.get(), UFFDIO_ZEROPAGE, &zero) != 0) std::abort();
  }

 private:
  static constexpr std::size_t kPage = 4096;
  LateRead() = default;
  std::uint64_t address() const { return reinterpret_cast<std::uintptr_t>(page_); }

  UniqueFd source_;
  UniqueFd release_;
  void* page_ = nullptr;
  std::byte byte_{};
  IoRequest request_;
};

Result<Engine> MakeFaultyEngine(std::uint32_t depth) {
  auto real = MakeThreadsEngine(depth);
  if (!real) return real;
  test::Faults faults;
  faults.depth = depth;
  return Engine(std::make_unique<test::FaultyEngine>(std::move(real).value(), faults));
}

Result<Engine> MakeDisorderedEngine(std::uint32_t depth) {
  auto real = MakeThreadsEngine(depth);
  if (!real) return real;
  test::Faults faults;
  faults.depth = depth;
  faults.disorder = true;
  faults.seed = test::Seed();
  return Engine(std::make_unique<test::FaultyEngine>(std::move(real).value(), faults));
}

constexpr std::uint32_t kDepth = 32;
constexpr std::size_t kFileSize = 1 << 20;

class EngineConformance : public testing::TestWithParam<EngineUnderTest> {
 protected:
  void SetUp() override {
    auto engine = GetParam().make(kDepth);
    const bool may_be_refused = GetParam().name == "uring";
    if (!engine && may_be_refused) GTEST_SKIP() << engine.error().message;
    ASSERT_TRUE(engine) << engine.error().message;
    engine_ = std::move(engine).value();
    content_.resize(kFileSize);
    std::mt19937 random(test::Seed());
    for (std::byte& byte : content_) byte = static_cast<std::byte>(random());
    fd_ = UniqueFd(::open((folder_ / "file").c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
    ASSERT_TRUE(fd_);
    ASSERT_EQ(::pwrite(fd_.get(), content_.data(), kFileSize, 0), static_cast<ssize_t>(kFileSize));
  }

  IoRequest Read(std::uint64_t offset, std::span<std::byte> buffer) const {
    return {Kind::kRead, fd_.get(), offset, buffer};
  }
  IoRequest Write(std::uint64_t offset, std::span<std::byte> buffer) const {
    return {Kind::kWrite, fd_.get(), offset, buffer};
  }

  // Submits one request and returns its result.
  std::int64_t RunOne(IoRequest& request) {
    IoRequest* pointer = &request;
    const auto taken = engine_->Submit({&pointer, 1});
    EXPECT_TRUE(taken && taken.value() == 1);
    IoRequest* done = nullptr;
    const auto count = engine_->Wait({&done, 1}, 1, kIoForever);
    EXPECT_TRUE(count && count.value() == 1);
    EXPECT_EQ(done, &request);
    return request.result;
  }

  bool IsContent(std::uint64_t offset, std::span<const std::byte> bytes) const {
    return std::ranges::equal(bytes, std::span(content_).subspan(offset, bytes.size()));
  }

  TempFolder folder_;
  std::vector<std::byte> content_;
  UniqueFd fd_;
  Engine engine_;
};

TEST_P(EngineConformance, ReadsWhatTheFileHolds) {
  std::vector<std::byte> buffer(1000);
  IoRequest request = Read(12345, buffer);

  EXPECT_EQ(RunOne(request), 1000);

  EXPECT_TRUE(IsContent(12345, buffer));
  EXPECT_EQ(engine_->in_flight(), 0U);
}

TEST_P(EngineConformance, WritesSyncsAndReadsBack) {
  std::vector<std::byte> written(70000, std::byte{0x5A});
  IoRequest write = Write(kFileSize - 100, written);  // Past the end: the file grows.
  IoRequest sync{Kind::kSync, fd_.get(), 0, {}};

  EXPECT_EQ(RunOne(write), 70000);
  EXPECT_EQ(RunOne(sync), 0);

  std::vector<std::byte> read(70000);
  IoRequest request = Read(kFileSize - 100, read);
  EXPECT_EQ(RunOne(request), 70000);
  EXPECT_EQ(read, written);
}

TEST_P(EngineConformance, ReadStopsAtTheEndOfTheFileAndReadsNothingBehindIt) {
  std::vector<std::byte> buffer(1000);
  IoRequest across = Read(kFileSize - 10, buffer);
  IoRequest at_end = Read(kFileSize, buffer);
  IoRequest beyond = Read(std::uint64_t{1} << 40, buffer);
  IoRequest empty = Read(0, {});

  EXPECT_EQ(RunOne(across), 10);
  EXPECT_TRUE(IsContent(kFileSize - 10, std::span(buffer).first(10)));
  EXPECT_EQ(RunOne(at_end), 0);
  EXPECT_EQ(RunOne(beyond), 0);
  EXPECT_EQ(RunOne(empty), 0);
}

TEST_P(EngineConformance, BadRequestsFailAloneWithTheirErrno) {
  std::vector<std::byte> buffer(16);
  const UniqueFd read_only(::open((folder_ / "file").c_str(), O_RDONLY | O_CLOEXEC));
  const UniqueFd folder(::open(folder_.path().c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  IoRequest no_fd{Kind::kRead, -1, 0, buffer};
  IoRequest closed{Kind::kWrite, 1 << 20, 0, buffer};
  IoRequest sync_closed{Kind::kSync, 1 << 20, 0, {}};
  IoRequest denied{Kind::kWrite, read_only.get(), 0, buffer};
  IoRequest of_folder{Kind::kRead, folder.get(), 0, buffer};
  IoRequest negative = Read(std::uint64_t{1} << 63, buffer);
  IoRequest minus_one = Read(~std::uint64_t{0}, buffer);
  IoRequest good = Read(5, buffer);

  EXPECT_EQ(RunOne(no_fd), -EBADF);
  EXPECT_EQ(RunOne(closed), -EBADF);
  EXPECT_EQ(RunOne(sync_closed), -EBADF);
  EXPECT_EQ(RunOne(denied), -EBADF);
  EXPECT_EQ(RunOne(of_folder), -EISDIR);
  EXPECT_EQ(RunOne(negative), -EINVAL);
  EXPECT_EQ(RunOne(minus_one), -EINVAL);
  EXPECT_EQ(RunOne(good), 16);
  EXPECT_TRUE(IsContent(5, buffer));
}

TEST_P(EngineConformance, TakesNoMoreThanItsDepthAndTheRestLater) {
  std::vector<std::vector<std::byte>> buffers(3 * kDepth, std::vector<std::byte>(512));
  std::vector<IoRequest> requests;
  std::vector<IoRequest*> pointers;
  for (std::size_t i = 0; i < buffers.size(); ++i) requests.push_back(Read(i * 512, buffers[i]));
  for (IoRequest& request : requests) pointers.push_back(&request);

  std::set<IoRequest*> returned;
  std::size_t submitted = 0;
  std::vector<IoRequest*> done(7);
  while (returned.size() < requests.size()) {
    const auto taken = engine_->Submit(std::span(pointers).subspan(submitted)).value();
    submitted += taken;
    ASSERT_LE(engine_->in_flight(), kDepth);
    ASSERT_EQ(engine_->in_flight(), submitted - returned.size());
    const std::uint32_t count_min = std::min(engine_->in_flight(), 3U);
    const auto count = engine_->Wait(done, count_min, kIoForever).value();
    ASSERT_GE(count, count_min);
    for (IoRequest* request : std::span(done).first(count))
      ASSERT_TRUE(returned.insert(request).second) << "returned twice";
  }

  EXPECT_EQ(engine_->in_flight(), 0U);
  for (std::size_t i = 0; i < buffers.size(); ++i) {
    EXPECT_EQ(requests[i].result, 512);
    EXPECT_TRUE(IsContent(i * 512, buffers[i]));
  }
}

TEST_P(EngineConformance, FullEngineTakesNothingAndIsNotAnError) {
  std::vector<std::vector<std::byte>> buffers(kDepth + 1, std::vector<std::byte>(16));
  std::vector<IoRequest> requests;
  std::vector<IoRequest*> pointers;
  for (auto& buffer : buffers) requests.push_back(Read(0, buffer));
  for (IoRequest& request : requests) pointers.push_back(&request);
  std::uint32_t taken = 0;
  while (taken < kDepth)
    taken += engine_->Submit(std::span(pointers).subspan(taken, kDepth - taken)).value();

  const auto more = engine_->Submit(std::span(pointers).last(1));

  ASSERT_TRUE(more);
  EXPECT_EQ(more.value(), 0U);
  std::vector<IoRequest*> done(kDepth);
  EXPECT_EQ(engine_->Wait(done, kDepth, kIoForever).value(), kDepth);
}

TEST_P(EngineConformance, WaitReturnsAtItsTimeoutAndTheRequestLater) {
  if (engine_->name() == "inline") GTEST_SKIP() << "nothing is in flight while it waits";
  auto late = LateRead::Make(engine_->name() == "io_uring");
  if (!late) GTEST_SKIP() << "no read can be held up here: " << late.error().message;
  IoRequest* pointer = &late.value()->request();
  ASSERT_EQ(engine_->Submit({&pointer, 1}).value(), 1U);
  IoRequest* done = nullptr;

  const auto start = std::chrono::steady_clock::now();
  const auto count = engine_->Wait({&done, 1}, 1, milliseconds(50));
  const auto elapsed = std::chrono::steady_clock::now() - start;

  EXPECT_EQ(count.value(), 0U);
  EXPECT_GE(elapsed, milliseconds(50));
  EXPECT_EQ(engine_->in_flight(), 1U);
  EXPECT_EQ(engine_->Wait({&done, 1}, 1, milliseconds(0)).value(), 0U);
  EXPECT_EQ(engine_->Wait({&done, 1}, 1, milliseconds(-5)).value(), 0U);
  late.value()->Release();
  EXPECT_EQ(engine_->Wait({&done, 1}, 1, kIoForever).value(), 1U);
  EXPECT_EQ(done, pointer);
  EXPECT_EQ(pointer->result, 1);
}

bool IsReadable(int descriptor, milliseconds timeout) {
  pollfd ready{descriptor, POLLIN, 0};
  return ::poll(&ready, 1, static_cast<int>(timeout.count())) == 1 && (ready.revents & POLLIN) != 0;
}

TEST_P(EngineConformance, ItsDescriptorIsReadableWhileSomethingIsDone) {
  const auto descriptor = engine_->EventDescriptor();
  if (!descriptor) GTEST_SKIP() << descriptor.error().message;
  auto late = LateRead::Make(engine_->name() == "io_uring");
  if (!late) GTEST_SKIP() << "no read can be held up here: " << late.error().message;
  IoRequest* done = nullptr;
  EXPECT_EQ(engine_->Wait({&done, 1}, 0, milliseconds(0)).value(), 0U);

  IoRequest* pointer = &late.value()->request();
  ASSERT_EQ(engine_->Submit({&pointer, 1}).value(), 1U);
  EXPECT_EQ(engine_->Wait({&done, 1}, 0, milliseconds(0)).value(), 0U);
  EXPECT_FALSE(IsReadable(descriptor.value(), milliseconds(20)));
  late.value()->Release();
  ASSERT_TRUE(IsReadable(descriptor.value(), milliseconds(10'000)));
  EXPECT_EQ(engine_->Wait({&done, 1}, 0, milliseconds(0)).value(), 1U);
  EXPECT_EQ(engine_->Wait({&done, 1}, 0, milliseconds(0)).value(), 0U);
  EXPECT_FALSE(IsReadable(descriptor.value(), milliseconds(0)));

  // What is done and does not fit stays visible.
  std::array<std::byte, 3> bytes{};
  std::array<IoRequest, 3> reads{Read(0, {&bytes[0], 1}), Read(1, {&bytes[1], 1}),
                                 Read(2, {&bytes[2], 1})};
  for (IoRequest& read : reads) {
    IoRequest* next = &read;
    ASSERT_EQ(engine_->Submit({&next, 1}).value(), 1U);
  }
  for (std::size_t i = 0; i < reads.size(); ++i) {
    ASSERT_TRUE(IsReadable(descriptor.value(), milliseconds(10'000))) << i;
    ASSERT_EQ(engine_->Wait({&done, 1}, 1, kIoForever).value(), 1U);
  }
  EXPECT_EQ(engine_->Wait({&done, 1}, 0, milliseconds(0)).value(), 0U);
  EXPECT_FALSE(IsReadable(descriptor.value(), milliseconds(0)));
}

TEST_P(EngineConformance, WaitWithNothingInFlightReturnsAtOnce) {
  IoRequest* done = nullptr;
  EXPECT_EQ(engine_->Wait({&done, 1}, 1, kIoForever).value(), 0U);
  EXPECT_EQ(engine_->Wait({&done, 1}, 0, milliseconds(0)).value(), 0U);
}

TEST_P(EngineConformance, PollingSeesCompletionsInTheEnd) {
  std::vector<std::byte> buffer(4096);
  IoRequest request = Read(0, buffer);
  IoRequest* pointer = &request;
  ASSERT_EQ(engine_->Submit({&pointer, 1}).value(), 1U);

  IoRequest* done = nullptr;
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  while (engine_->Wait({&done, 1}, 0, milliseconds(0)).value() == 0)
    ASSERT_LT(std::chrono::steady_clock::now(), deadline);

  EXPECT_EQ(done, &request);
  EXPECT_EQ(request.result, 4096);
}

TEST_P(EngineConformance, RandomMixesOfReadsWritesAndSyncsMatchAModel) {
  std::mt19937 random(test::Seed());
  constexpr std::size_t kBlock = 1024;
  for (int round = 0; round < 50; ++round) {
    // Each block has one request at most, so that their order does not matter.
    std::vector<std::size_t> blocks(kFileSize / kBlock);
    for (std::size_t i = 0; i < blocks.size(); ++i) blocks[i] = i;
    std::shuffle(blocks.begin(), blocks.end(), random);
    const std::size_t count = 1 + random() % 100;
    std::vector<std::vector<std::byte>> buffers(count);
    std::vector<IoRequest> requests;
    for (std::size_t i = 0; i < count; ++i) {
      const std::size_t skip = random() % kBlock;
      buffers[i].assign(random() % (kBlock - skip + 1), static_cast<std::byte>(random()));
      const std::uint64_t offset = blocks[i] * kBlock + skip;
      const auto choice = random() % 40;  // A sync waits for the disk, so there are few.
      if (choice == 0) {
        requests.push_back({Kind::kSync, fd_.get(), 0, {}});
      } else if (choice % 2 == 0) {
        requests.push_back(Read(offset, buffers[i]));
      } else {
        requests.push_back(Write(offset, buffers[i]));
        std::ranges::copy(buffers[i], content_.begin() + static_cast<std::ptrdiff_t>(offset));
      }
    }

    ASSERT_TRUE(RunAll(*engine_, requests, 1 + random() % (2 * kDepth)));

    for (std::size_t i = 0; i < count; ++i) {
      ASSERT_EQ(requests[i].result, static_cast<std::int64_t>(requests[i].buffer.size()));
      if (requests[i].kind == Kind::kRead) {
        ASSERT_TRUE(IsContent(requests[i].offset_bytes, buffers[i]));
      }
    }
  }
  std::vector<std::byte> all(kFileSize);
  ASSERT_EQ(::pread(fd_.get(), all.data(), kFileSize, 0), static_cast<ssize_t>(kFileSize));
  EXPECT_EQ(all, content_);
}

TEST_P(EngineConformance, RunAllGivesEachRequestItsOwnResultAndChangesNothingElse) {
  std::vector<std::byte> buffer(4 * 100);
  int user = 0;
  std::vector<IoRequest> requests{
      Read(0, std::span(buffer).subspan(0, 100)),
      Read(kFileSize - 40, std::span(buffer).subspan(100, 100)),
      Read(kFileSize + 1, std::span(buffer).subspan(200, 100)),
      {Kind::kRead, -1, 0, std::span(buffer).subspan(300, 100)},
  };
  for (IoRequest& request : requests) request.user = &user;

  ASSERT_TRUE(RunAll(*engine_, requests, 2));

  EXPECT_EQ(requests[0].result, 100);
  EXPECT_EQ(requests[1].result, 40);
  EXPECT_EQ(requests[2].result, 0);
  EXPECT_EQ(requests[3].result, -EBADF);
  EXPECT_TRUE(IsContent(0, std::span(buffer).first(100)));
  EXPECT_TRUE(IsContent(kFileSize - 40, std::span(buffer).subspan(100, 40)));
  for (const IoRequest& request : requests) EXPECT_EQ(request.user, &user);
  EXPECT_EQ(requests[1].offset_bytes, kFileSize - 40);
  EXPECT_EQ(requests[1].buffer.size(), 100U);
  EXPECT_TRUE(RunAll(*engine_, {}, 1));
}

TEST_P(EngineConformance, RunAllMovesMoreThanOneTransferHolds) {
  // Pages that are never touched cost nothing, and a write to /dev/null does not touch them.
  constexpr std::uint64_t kSize = (std::uint64_t{5} << 29) + 777;
  void* const memory =
      ::mmap(nullptr, kSize, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) GTEST_SKIP() << "no address space of 2.5 GiB";
  const UniqueFd null(::open("/dev/null", O_WRONLY | O_CLOEXEC));
  std::vector<std::byte> small(1000);
  std::vector<IoRequest> requests{
      {Kind::kWrite, null.get(), 0, {static_cast<std::byte*>(memory), kSize}},
      Read(0, small),
  };

  ASSERT_TRUE(RunAll(*engine_, requests, 2));

  EXPECT_EQ(requests[0].result, static_cast<std::int64_t>(kSize));
  EXPECT_EQ(requests[1].result, 1000);
  ::munmap(memory, kSize);
}

TEST_P(EngineConformance, MadeInOneThreadItWorksInAnother) {
  std::vector<std::byte> buffer(100);
  std::int64_t result = 0;
  std::thread([&] {
    IoRequest request = Read(7, buffer);
    result = RunOne(request);
    engine_.reset();
  }).join();

  EXPECT_EQ(result, 100);
  EXPECT_TRUE(IsContent(7, buffer));
}

TEST_P(EngineConformance, SixtyFourEnginesWorkAtOnce) {
  std::vector<Engine> engines;
  for (int i = 0; i < 64; ++i) engines.push_back(GetParam().make(kDepth).value());
  std::vector<std::byte> buffer(64 * 100);
  std::vector<IoRequest> requests;
  for (std::size_t i = 0; i < 64; ++i)
    requests.push_back(Read(i * 100, std::span(buffer).subspan(i * 100, 100)));
  for (std::size_t i = 0; i < 64; ++i) {
    IoRequest* pointer = &requests[i];
    ASSERT_EQ(engines[i]->Submit({&pointer, 1}).value(), 1U);
  }

  for (std::size_t i = 0; i < 64; ++i) {
    IoRequest* done = nullptr;
    ASSERT_EQ(engines[i]->Wait({&done, 1}, 1, kIoForever).value(), 1U);
    EXPECT_EQ(done, &requests[i]);
  }
  EXPECT_TRUE(IsContent(0, buffer));
}

TEST_P(EngineConformance, ForkedChildMakesItsOwnWhileTheParentsRequestsAreInFlight) {
  std::vector<std::byte> buffer(kDepth * 4096);
  std::vector<IoRequest> requests;
  std::vector<IoRequest*> pointers;
  for (std::size_t i = 0; i < kDepth; ++i)
    requests.push_back(Read(i * 4096, std::span(buffer).subspan(i * 4096, 4096)));
  for (IoRequest& request : requests) pointers.push_back(&request);
  std::uint32_t taken = 0;
  while (taken < kDepth) taken += engine_->Submit(std::span(pointers).subspan(taken)).value();

  const pid_t child = ::fork();
  if (child == 0) {
    engine_.reset();  // What a child inherits it may destroy, with requests in flight.
    auto own = GetParam().make(kDepth);
    if (!own) ::_exit(1);
    engine_ = std::move(own).value();
    std::vector<std::byte> mine(1000);
    std::vector<IoRequest> reads(5, Read(99, mine));
    if (!RunAll(*engine_, reads, 3)) ::_exit(2);
    if (reads[4].result != 1000 || !IsContent(99, mine)) ::_exit(3);
    ::_exit(0);
  }
  int status = -1;
  ASSERT_EQ(::waitpid(child, &status, 0), child);

  EXPECT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 0);
  std::vector<IoRequest*> done(kDepth);
  EXPECT_EQ(engine_->Wait(done, kDepth, kIoForever).value(), kDepth);
  for (const IoRequest& request : requests) EXPECT_EQ(request.result, 4096);
  EXPECT_TRUE(IsContent(0, buffer));
}

TEST_P(EngineConformance, DepthOutOfRangeIsRefused) {
  EXPECT_EQ(GetParam().make(0).error().code, ErrorCode::kInvalidArgument);
  EXPECT_EQ(GetParam().make(4097).error().code, ErrorCode::kInvalidArgument);
  EXPECT_TRUE(GetParam().make(1));
  EXPECT_TRUE(GetParam().make(4096));
}

INSTANTIATE_TEST_SUITE_P(AllEngines, EngineConformance,
                         testing::Values(EngineUnderTest{"uring", MakeUringEngine},
                                         EngineUnderTest{"roving_uring", MakeRovingUringEngine},
                                         EngineUnderTest{"threads", MakeThreadsEngine},
                                         EngineUnderTest{"inline", MakeInlineEngine},
                                         EngineUnderTest{"chosen", MakeIoEngine},
                                         EngineUnderTest{"faulty", MakeFaultyEngine},
                                         EngineUnderTest{"disordered", MakeDisorderedEngine}),
                         [](const auto& instance) { return instance.param.name; });

}  // namespace
}  // namespace ffrecord
