// Files that threads of the program read, as a byte source: range_reader_conformance.h says what is
// tested. Then what the queue between readers and threads promises: groups and their bounds,
// retries, time limits, and that no answer is written where nobody waits for it.

#include <pthread.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <deque>
#include <future>
#include <numeric>

#include "bytes.h"
#include "child_threads.h"
#include "libffrecord/source/delegated_files.h"
#include "range_queue_conformance.h"
#include "range_reader_conformance.h"
#include "virtual_clock.h"

namespace ffrecord::test {
namespace {

using namespace std::chrono_literals;
using Made = Result<std::shared_ptr<const RangeReader>>;
using Retry = DelegatedReads::Retry;

std::vector<DelegatedReads::File> FilesOf(const Contents& contents) {
  std::vector<DelegatedReads::File> files;
  for (std::size_t i = 0; i < contents.size(); ++i)
    files.push_back({"store/file-" + std::to_string(i), contents[i].size(), ""});
  return files;
}

std::span<const std::byte> BytesOf(const Contents& contents, const DelegatedReads::Range& range) {
  return std::as_bytes(
      std::span(contents[range.file]).subspan(range.offset_bytes, range.size_bytes));
}

// A reader of `contents`, and threads that serve it; in a forked child, too.
class ServedFiles {
 public:
  ServedFiles(Contents contents, std::size_t thread_count)
      : contents_(std::move(contents)),
        thread_count_(thread_count),
        reads_(std::make_shared<DelegatedReads>(FilesOf(contents_),
                                                DelegatedReads::Options{.group_count_max = 7})),
        files(OpenDelegatedFiles(reads_)) {
    static const int registered = ::pthread_atfork(nullptr, nullptr, [] {
      if (served_ != nullptr) served_->StartInChild();
    });
    EXPECT_EQ(registered, 0);
    served_ = this;
    Start();
  }
  ~ServedFiles() {
    served_ = nullptr;
    reads_->Close();  // Ends the threads.
    for (std::thread& thread : threads_) thread.join();
  }
  ServedFiles(const ServedFiles&) = delete;
  ServedFiles& operator=(const ServedFiles&) = delete;

 private:
  void Start() {
    for (std::size_t i = 0; i < thread_count_; ++i) threads_.emplace_back([this] { Serve(); });
  }
  void StartInChild() {
    new std::vector<std::thread>(std::move(threads_));  // The parent's, which cannot be joined.
    threads_.clear();
    Start();
    for (std::thread& thread : threads_) thread.detach();  // They end with the child.
  }
  void Serve() {
    for (;;) {
      const auto group = reads_->Take();
      if (group.ranges.empty()) return;
      for (const auto& range : group.ranges) reads_->Answer(range.id, BytesOf(contents_, range));
    }
  }

  inline static ServedFiles* served_ = nullptr;

  const Contents contents_;
  const std::size_t thread_count_;
  const std::shared_ptr<DelegatedReads> reads_;
  std::vector<std::thread> threads_;

 public:
  std::unique_ptr<RangeReader> files;
};

RangeReaderForm Form(std::string name, std::size_t thread_count) {
  const auto make = [=](const Contents& contents) {
    auto served = std::make_shared<ServedFiles>(contents, thread_count);
    return Made(std::shared_ptr<const RangeReader>(served, served->files.get()));
  };
  // A child has threads of its own that serve.
  return {.name = std::move(name), .make = make, .may_be_forked = kChildMayHaveThreads};
}

const std::vector<RangeReaderForm> kForms{Form("one_thread", 1), Form("four_threads", 4)};

INSTANTIATE_TEST_SUITE_P(Forms, RangeReaderConformance, testing::ValuesIn(AndTheirQueues(kForms)),
                         NameOfForm);
INSTANTIATE_TEST_SUITE_P(Forms, RangeQueueConformance, testing::ValuesIn(kForms), NameOfForm);

// --- What the queue promises ---------------------------------------------------------------------

// A reader that the test serves by itself.
class DelegatedReadsTest : public testing::Test {
 protected:
  void Open(const DelegatedReads::Options& options) {
    reads_ = std::make_shared<DelegatedReads>(FilesOf(contents_), options);
    files_ = OpenDelegatedFiles(reads_);
  }
  // Begins to read `count` ranges of `size_bytes` in another thread.
  void Begin(std::size_t count, std::uint64_t size_bytes, const Patience::GiveUp& give_up = {}) {
    memory_.assign(count * size_bytes, std::byte{0xA5});
    ranges_.clear();
    for (std::size_t i = 0; i < count; ++i)
      ranges_.push_back(
          {0, i * size_bytes, std::span(memory_).subspan(i * size_bytes, size_bytes)});
    result_ = std::async(std::launch::async, [this, give_up] {
      Patience patience(give_up);
      return files_->ReadEach(
          ranges_, [](RangeRead&) {}, patience);
    });
  }
  // Requires that all ranges are right.
  void ExpectAll() {
    ASSERT_TRUE(result_.get());
    for (const RangeRead& range : ranges_) {
      ASSERT_EQ(range.status, ErrorCode::kOk);
      const auto wanted = std::as_bytes(
          std::span(contents_[0]).subspan(range.offset_bytes, range.destination.size()));
      ASSERT_TRUE(std::ranges::equal(range.destination, wanted));
    }
  }
  void AnswerAll(const DelegatedReads::Group& group) {
    for (const auto& range : group.ranges) reads_->Answer(range.id, BytesOf(contents_, range));
  }

  const Contents contents_{RandomContent(1U << 20), RandomContent(5000)};
  std::shared_ptr<DelegatedReads> reads_;
  std::unique_ptr<RangeReader> files_;
  std::vector<std::byte> memory_;
  std::vector<RangeRead> ranges_;
  std::future<Result<void>> result_;
};

TEST_F(DelegatedReadsTest, GroupsHaveBothBoundsAndKeepTheOrder) {
  Open({.group_count_max = 4, .group_bytes_max = 2500});
  Begin(6, 1000);
  const auto first = reads_->Take();
  ASSERT_EQ(first.ranges.size(), 2U);
  EXPECT_EQ(first.ranges[0].offset_bytes, 0U);
  EXPECT_EQ(first.ranges[1].offset_bytes, 1000U);
  EXPECT_TRUE(first.is_help_wanted);
  AnswerAll(first);
  AnswerAll(reads_->Take());
  const auto last = reads_->Take();
  EXPECT_FALSE(last.is_help_wanted);
  AnswerAll(last);
  ExpectAll();
  Begin(9, 100);
  EXPECT_EQ(reads_->Take().ranges.size(), 4U);
  reads_->Close();
  EXPECT_TRUE(result_.get());
  Open({.group_count_max = 4, .group_bytes_max = 2500});
  Begin(1, 50'000);  // More than a group may have.
  AnswerAll(reads_->Take());
  ExpectAll();
}

TEST_F(DelegatedReadsTest, NoHelpIsWantedWhileAThreadWaits) {
  Open({.group_count_max = 1});
  auto waiting = std::async(std::launch::async, [this] { return reads_->Take(); });
  auto other = std::async(std::launch::async, [this] { return reads_->Take(); });
  Begin(2, 100);
  const auto first = waiting.get();
  const auto second = other.get();
  EXPECT_FALSE(first.is_help_wanted && second.is_help_wanted);
  AnswerAll(first);
  AnswerAll(second);
  ExpectAll();
}

TEST_F(DelegatedReadsTest, AFailureThatMayPassIsTriedAgain) {
  Open({});
  Begin(3, 1000);
  const auto group = reads_->Take();
  ASSERT_EQ(group.ranges.size(), 3U);
  reads_->Refuse(group.ranges[0].id, {ErrorCode::kUnavailable, "503"}, Retry::kThrottled);
  reads_->Answer(group.ranges[1].id, BytesOf(contents_, group.ranges[1]).first(10));  // Cut short.
  AnswerAll({{group.ranges[2]}, false});
  std::set<std::uint64_t> offsets;
  while (offsets.size() < 2) {
    const auto again = reads_->Take();
    for (const auto& range : again.ranges) offsets.insert(range.offset_bytes);
    AnswerAll(again);
  }
  ExpectAll();
  EXPECT_EQ(offsets, (std::set<std::uint64_t>{0, 1000}));
  const auto report = *files_->report().store;
  EXPECT_EQ(report.requests, 5U);
  EXPECT_EQ(report.retries, 2U);
  EXPECT_EQ(report.throttled, 1U);
  EXPECT_EQ(report.received_bytes, 3000U);
}

TEST_F(DelegatedReadsTest, AFailureThatStaysEndsWithItsMessageOnceTheTimeIsOver) {
  VirtualClock clock;
  Open({.timeout = 300ms});
  Begin(1, 1000);
  std::atomic<bool> is_over = false;
  std::thread server([&] {
    for (int i = 0; !is_over; ++i) {
      const auto group = reads_->Take();
      for (const auto& range : group.ranges)
        reads_->Refuse(range.id, {ErrorCode::kUnavailable, "try " + std::to_string(i)},
                       Retry::kLater);
    }
  });
  EXPECT_TRUE(result_.get());
  EXPECT_EQ(ranges_[0].status, ErrorCode::kUnavailable);
  EXPECT_EQ(files_->Trouble(0, ErrorCode::kUnavailable).substr(0, 4), "try ");
  EXPECT_GT(files_->report().store->retries, 0U);
  is_over = true;
  reads_->Close();
  server.join();
}

TEST_F(DelegatedReadsTest, AFinalFailureSpoilsItsOwnRangeOnly) {
  Open({});
  Begin(3, 1000);
  const auto group = reads_->Take();
  for (int i = 0; i < 2; ++i)  // Said twice, it is one end.
    reads_->Refuse(group.ranges[1].id, {ErrorCode::kDenied, "not yours"}, Retry::kNever);
  reads_->Answer(group.ranges[2].id, BytesOf(contents_, {0, 0, 0, 2000}));  // Too much.
  AnswerAll({{group.ranges[0]}, false});
  EXPECT_TRUE(result_.get());
  EXPECT_EQ(ranges_[0].status, ErrorCode::kOk);
  EXPECT_EQ(test::AsString(ranges_[0].destination), contents_[0].substr(0, 1000));
  EXPECT_EQ(ranges_[1].status, ErrorCode::kDenied);
  EXPECT_EQ(ranges_[2].status, ErrorCode::kInvalidArgument);
  EXPECT_NE(files_->Trouble(0, ErrorCode::kInvalidArgument).find("store/file-0: sent 2000 bytes"),
            std::string::npos);
}

TEST_F(DelegatedReadsTest, RangesThatNobodyTakesOrAnswersEndInTime) {
  VirtualClock clock;
  Open({.timeout = 200ms});
  Begin(2, 1000);
  EXPECT_TRUE(result_.get());
  EXPECT_EQ(ranges_[1].status, ErrorCode::kDeadlineExceeded);
  EXPECT_NE(files_->Trouble(0, ErrorCode::kDeadlineExceeded).find("within 200 ms"),
            std::string::npos);
  Begin(2, 1000);
  const auto group = reads_->Take();
  ASSERT_EQ(group.ranges.size(), 2U);
  EXPECT_TRUE(reads_->IsWanted(group.ranges[0].id));
  AnswerAll({{group.ranges[1]}, false});
  EXPECT_TRUE(result_.get());
  EXPECT_EQ(ranges_[0].status, ErrorCode::kDeadlineExceeded);
  EXPECT_EQ(ranges_[1].status, ErrorCode::kOk);
  EXPECT_FALSE(reads_->IsWanted(group.ranges[0].id));
  // An index that is looked up page by page waits once.
  const auto begin = Clock::now();
  EXPECT_EQ(files_->MapIndex(0, 0, 100).error().code, ErrorCode::kDeadlineExceeded);
  EXPECT_EQ(Clock::now(), begin);
}

TEST_F(DelegatedReadsTest, RangesThatWaitWhileOthersAreTakenAreNotLate) {
  VirtualClock clock;
  Open({.timeout = 400ms, .group_count_max = 1});
  Begin(6, 100);
  for (int i = 0; i < 6; ++i) {  // All take longer than the limit, each is taken in time.
    const auto group = reads_->Take();
    clock.RunFor(100ms);
    AnswerAll(group);
  }
  ExpectAll();
}

TEST_F(DelegatedReadsTest, AnAnswerThatComesAfterItsCallIsDropped) {
  Open({});
  std::atomic<bool> gives_up = false;
  Begin(2, 1000, [&] { return gives_up.load(); });
  const auto group = reads_->Take();
  AnswerAll({{group.ranges[0]}, false});
  gives_up = true;
  EXPECT_EQ(result_.get().error().code, ErrorCode::kDeadlineExceeded);
  EXPECT_FALSE(reads_->IsWanted(group.ranges[1].id));
  std::ranges::fill(memory_, std::byte{0xA5});
  AnswerAll(group);
  reads_->Refuse(group.ranges[1].id, {ErrorCode::kUnavailable, "late"}, Retry::kLater);
  EXPECT_TRUE(std::ranges::all_of(memory_, [](std::byte byte) { return byte == std::byte{0xA5}; }));
  Begin(2, 1000);  // What was given up is not in the way.
  const auto next = reads_->Take();
  EXPECT_EQ(next.ranges.size(), 2U);
  AnswerAll(next);
  AnswerAll(next);  // Twice.
  ExpectAll();
}

// Answers and givers-up meet at all times: nothing is written after ReadEach has returned.
TEST_F(DelegatedReadsTest, NoAnswerIsWrittenOnceItsCallHasReturned) {
  VirtualClock clock;
  Open({.group_count_max = 4});
  std::vector<std::thread> servers;
  for (int i = 0; i < 3; ++i)
    servers.emplace_back([this] {
      for (;;) {
        const auto group = reads_->Take();
        if (group.ranges.empty()) return;
        AnswerAll(group);
      }
    });
  std::mt19937 random(Seed());
  for (int turn = 0; turn < 40; ++turn) {
    std::vector<std::byte> memory(1U << 20);
    std::vector<RangeRead> ranges;
    for (std::uint64_t i = 0; i < 64; ++i)
      ranges.push_back({0, i << 14, std::span(memory).subspan(i << 14, 1U << 14)});
    const std::size_t arrived_max = random() % 64;
    std::size_t arrived = 0;
    const Patience::GiveUp give_up = [&] { return arrived >= arrived_max; };
    {
      Patience patience(give_up);
      clock.RunFor(Patience::kInterval);  // It asks from now on.
      static_cast<void>(files_->ReadEach(
          ranges, [&](RangeRead&) { ++arrived; }, patience));
    }
    std::ranges::fill(memory, std::byte{0xA5});
    std::this_thread::sleep_for(1ms);
    ASSERT_TRUE(
        std::ranges::all_of(memory, [](std::byte byte) { return byte == std::byte{0xA5}; }));
  }
  reads_->Close();
  for (std::thread& server : servers) server.join();
}

// A page that cannot be read until the test says so.
class HeldPage {
 public:
  HeldPage()
      : page_(static_cast<std::byte*>(
            ::mmap(nullptr, kBytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0))) {
    held_ = page_;
    is_touched_ = false;
    release_ = ::eventfd(0, EFD_CLOEXEC);
    struct sigaction wait {};
    wait.sa_handler = [](int) {
      is_touched_ = true;
      std::uint64_t count;
      (void)!::read(release_, &count, sizeof(count));
      ::mprotect(held_, kBytes, PROT_READ);
    };
    ::sigaction(SIGSEGV, &wait, &before_);
  }
  ~HeldPage() {
    ::sigaction(SIGSEGV, &before_, nullptr);
    ::munmap(page_, kBytes);
    ::close(release_);
  }
  HeldPage(const HeldPage&) = delete;
  HeldPage& operator=(const HeldPage&) = delete;

  std::span<const std::byte> bytes() const { return {page_, kBytes}; }
  bool is_touched() const { return is_touched_; }
  void Release() { ::eventfd_write(release_, 1); }

  static constexpr std::size_t kBytes = 4096;

 private:
  inline static std::byte* held_ = nullptr;
  inline static std::atomic<bool> is_touched_;
  inline static int release_ = -1;
  std::byte* const page_;
  struct sigaction before_ {};
};

TEST_F(DelegatedReadsTest, ACallThatIsGivenUpWaitsForTheAnswerThatIsBeingCopied) {
  VirtualClock clock;
  Open({});
  std::atomic<bool> gives_up = false;
  Begin(1, HeldPage::kBytes, [&] { return gives_up.load(); });
  const auto group = reads_->Take();
  HeldPage page;
  std::thread server([&] { reads_->Answer(group.ranges[0].id, page.bytes()); });
  clock.RunUntilIdle();
  ASSERT_TRUE(page.is_touched());
  gives_up = true;
  clock.RunFor(1min);
  EXPECT_EQ(result_.wait_for(0s), std::future_status::timeout);
  page.Release();
  server.join();
  EXPECT_EQ(result_.get().error().code, ErrorCode::kDeadlineExceeded);
}

TEST_F(DelegatedReadsTest, AClosedReaderEndsItsThreadsAndItsReads) {
  Open({});
  Begin(2, 1000);
  const auto group = reads_->Take();
  auto taking = std::async(std::launch::async, [this] { return reads_->Take(); });
  reads_->Close();
  EXPECT_TRUE(taking.get().ranges.empty());
  EXPECT_TRUE(result_.get());
  EXPECT_EQ(ranges_[0].status, ErrorCode::kUnavailable);
  AnswerAll(group);
  EXPECT_TRUE(reads_->Take().ranges.empty());
  EXPECT_EQ(files_->Read({ranges_}).error().code, ErrorCode::kUnavailable);
}

TEST_F(DelegatedReadsTest, AClosedReaderEndsWhatWaitsOrIsToBeTriedAgain) {
  Open({.group_count_max = 1});
  Begin(3, 1000);
  const auto first = reads_->Take();
  (void)reads_->Take();
  reads_->Refuse(first.ranges[0].id, {ErrorCode::kUnavailable, "slow down"}, Retry::kThrottled);
  reads_->Close();
  EXPECT_TRUE(result_.get());
  for (const RangeRead& range : ranges_) EXPECT_EQ(range.status, ErrorCode::kUnavailable);
}

TEST_F(DelegatedReadsTest, AForkedChildBeginsWithAnEmptyQueue) {
  if (!kChildMayHaveThreads) GTEST_SKIP() << "the child has a thread that serves";
  Open({.timeout = 30s});
  Begin(3, 1000);
  const auto group = reads_->Take();
  const auto in_child = [&] {
    std::vector<std::byte> memory(100);
    RangeRead range{0, 500, memory};
    std::thread server([this] { AnswerAll(reads_->Take()); });
    const bool is_read = files_->Read({&range, 1}) && range.status == ErrorCode::kOk;
    server.join();
    if (reads_->IsWanted(group.ranges[0].id)) return 2;
    return is_read && std::ranges::equal(memory, BytesOf(contents_, {0, 0, 500, 100})) ? 0 : 1;
  };
  EXPECT_EQ(RunInChild(in_child), 0);
  AnswerAll(group);
  ExpectAll();
}

}  // namespace
}  // namespace ffrecord::test
