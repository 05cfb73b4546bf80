// Goal: a client that submits much and takes nothing off holds no more at the daemon than it has
// granted, and what it cancels is neither held nor read any more.
// Method: a real daemon that reads every run from its disk, and its metrics, by a clock of the
// test.

#include <ffrecord/batch_stream.h>
#include <ffrecord/client/dataset.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "bytes.h"
#include "client/dataset/upload.h"
#include "daemon.h"
#include "daemon_metrics.h"
#include "libffrecord/io/io_engine.h"
#include "libffrecord/net/rpc/remote_files.h"
#include "libffrecord/net/rpc/session.h"
#include "one_daemon.h"
#include "queued_reader.h"
#include "test_file.h"
#include "virtual_clock.h"

namespace ffrecord::client {
namespace {

using namespace std::chrono_literals;

constexpr std::uint64_t kFileBytes = std::uint64_t{24} << 20;

std::string Content() {
  std::string content(kFileBytes, '\0');
  for (std::size_t i = 0; i < content.size(); ++i)
    content[i] = static_cast<char>(i / 4096 * 31 + i);
  return content;
}

// What the client grants, and one read that the daemon may be ahead of it.
constexpr std::uint64_t kGrantedBytesMax = std::uint64_t{4} << 20;

// Counts the bytes that are to be read.
class CountingEngine final : public IoEngine {
 public:
  CountingEngine(std::unique_ptr<IoEngine> real, std::atomic<std::uint64_t>& bytes)
      : real_(std::move(real)), bytes_(bytes) {}
  std::string_view name() const noexcept override { return "counting"; }
  std::uint32_t in_flight() const noexcept override { return real_->in_flight(); }
  Result<int> EventDescriptor() override { return real_->EventDescriptor(); }
  Result<std::uint32_t> Submit(std::span<IoRequest* const> requests) override {
    const std::uint32_t taken = FFR_TRY(real_->Submit(requests));
    for (const IoRequest* request : requests.first(taken)) bytes_ += request->buffer.size();
    return taken;
  }
  Result<std::uint32_t> Wait(std::span<IoRequest*> done, std::uint32_t count_min,
                             std::chrono::milliseconds timeout) override {
    return real_->Wait(done, count_min, timeout);
  }

 private:
  const std::unique_ptr<IoEngine> real_;
  std::atomic<std::uint64_t>& bytes_;
};

class QueueCreditTest : public testing::Test {
 protected:
  // Of 1 MiB each.
  struct Group {
    explicit Group(std::uint32_t range_count) : memory(std::size_t{range_count} << 20) {
      for (std::uint64_t i = 0; i < range_count; ++i)
        ranges.push_back({0, i << 20, std::span(memory).subspan(i << 20, 1U << 20)});
      noted = std::make_unique<test::NotedGroup>(std::span<RangeRead>(ranges));
    }
    std::vector<std::byte> memory;
    std::vector<RangeRead> ranges;
    std::unique_ptr<test::NotedGroup> noted;
  };

  void SetUp() override {
    const SessionOptions options{60s, Transport::kTcp};
    const auto session = net::Session::Get(daemon_.address(), Transport::kTcp);
    Upload upload(test::OneDaemon(daemon_.address(), options));
    const auto bytes = std::as_bytes(std::span(content_));
    DatasetManifest manifest;
    manifest.files.push_back(upload.PutBytes("file", {&bytes, 1}).value());
    files_.emplace(session, std::move(manifest), "location", options);
    queue_ = files_->MakeQueue(RangeReader::QueueUse::kAnyThread).value();
  }
  void TearDown() override {
    queue_.reset();
    files_.reset();
  }
  Group& Submit(std::uint32_t range_count) {
    groups_.push_back(std::make_unique<Group>(range_count));
    queue_->Submit(*groups_.back()->noted);
    return *groups_.back();
  }
  // Of memory that the daemon holds for its clients.
  std::uint64_t held_bytes() const {
    return test::MetricOf(*daemon_.server().admin_address(), "ffrecord_inflight_bytes");
  }

  test::VirtualClock clock_;
  std::atomic<std::uint64_t> read_bytes_ = 0;  // From the disk.
  test::Daemon daemon_{
      {.core_count = 1,
       .mapped_count_max = 0,  // All is read through the engine.
       .make_engine = [this](std::uint32_t depth) -> Result<std::unique_ptr<IoEngine>> {
         return std::unique_ptr<IoEngine>(
             std::make_unique<CountingEngine>(FFR_TRY(MakeThreadsEngine(depth)), read_bytes_));
       },
       .admin = net::Address{"127.0.0.1", 0}}};
  const std::string content_ = Content();
  std::optional<net::RemoteFiles> files_;
  std::vector<std::unique_ptr<Group>> groups_;
  std::unique_ptr<RangeQueue> queue_;
};

TEST_F(QueueCreditTest, AClientThatTakesNothingOffHoldsNoMoreThanItHasGranted) {
  Group& first = Submit(24);
  while (!first.noted->ended) queue_->Poll(1s);  // There is a connection, and wide windows.
  const std::uint64_t read_before = read_bytes_;
  for (int i = 0; i < 5; ++i) Submit(24);
  clock_.RunFor(10s);

  EXPECT_GT(read_bytes_, read_before);
  EXPECT_LE(read_bytes_ - read_before, kGrantedBytesMax);
  EXPECT_LE(held_bytes(), kGrantedBytesMax);

  for (const auto& group : groups_) {
    while (!group->noted->ended) queue_->Poll(1s);
    ASSERT_TRUE(*group->noted->ended);
    EXPECT_EQ(std::memcmp(group->memory.data(), content_.data(), content_.size()), 0);
  }
}

TEST_F(QueueCreditTest, WhatIsGivenUpIsNotReadAnyMoreAndNotHeld) {
  Group& first = Submit(1);
  while (!first.noted->ended) queue_->Poll(1s);
  const std::uint64_t read_before = read_bytes_;
  for (int i = 0; i < 6; ++i) Submit(24);
  clock_.RunFor(100ms);
  for (std::size_t i = 1; i < groups_.size(); ++i) queue_->GiveUp(*groups_[i]->noted);
  for (const auto& group : groups_)
    while (!group->noted->ended) queue_->Poll(1s);

  // Without groups Poll() still receives what comes of them.
  EXPECT_TRUE(test::Eventually([&] {
    queue_->Poll(0ms);
    return held_bytes() == 0;
  }));
  EXPECT_LE(read_bytes_ - read_before, kGrantedBytesMax);
  Group& next = Submit(24);
  while (!next.noted->ended) queue_->Poll(1s);
  EXPECT_TRUE(*next.noted->ended);
  EXPECT_EQ(std::memcmp(next.memory.data(), content_.data(), content_.size()), 0);
}

TEST_F(QueueCreditTest, AGiveUpMayMeetTheEndOfItsBatch) {
  for (int i = 0; i < 200; ++i) {
    Group& given_up = Submit(i % 3 == 0 ? 24 : 1);
    Group& kept = Submit(1);
    std::this_thread::sleep_for(std::chrono::microseconds(i * 37 % 2000));
    queue_->GiveUp(*given_up.noted);
    while (!kept.noted->ended || !given_up.noted->ended) queue_->Poll(1s);
    ASSERT_TRUE(*kept.noted->ended);
    ASSERT_EQ(kept.ranges[0].status, ErrorCode::kOk);
    ASSERT_EQ(std::memcmp(kept.memory.data(), content_.data(), kept.memory.size()), 0);
    groups_.clear();
  }
}

// A consumer that stops for longer than a batch may take. Method: a stream of which nothing is
// taken meanwhile, and then more than an epoch.
class StoppedConsumerTest : public testing::TestWithParam<const char*> {};

TEST_P(StoppedConsumerTest, HoldsNoMoreThanItMayAndGoesOn) {
  constexpr std::uint64_t kRecordBytes = std::uint64_t{1} << 20;
  constexpr std::uint64_t kLimitBytes = 6 * kRecordBytes;
  constexpr std::uint64_t kRecordCount = 24;
  constexpr std::uint32_t kThreadCount = 2;
  test::VirtualClock clock;
  const test::Daemon daemon(
      {.core_count = 1, .mapped_count_max = 0, .admin = net::Address{"127.0.0.1", 0}});
  std::vector<std::string> records;
  for (std::uint64_t i = 0; i < kRecordCount; ++i)
    records.emplace_back(kRecordBytes, static_cast<char>('a' + i));
  const test::TestFile file(records);
  const std::string uri = daemon.Uri("data") + "?transport=" + GetParam();
  const SessionOptions options{1s};
  const std::filesystem::path path = file.path();
  ASSERT_TRUE(PublishDataset({&path, 1}, uri, false, {20s}, {}));
  const auto reader = OpenDataset({{uri}}, {}, options).value();
  auto stream =
      BatchStream::Open(
          reader, {.end = kRecordCount, .step_size = 1}, kRecordCount,
          {.threads = kThreadCount, .batches_ahead = 16, .memory_limit_bytes = kLimitBytes})
          .value();
  const auto held_bytes = [&] {
    return test::MetricOf(*daemon.server().admin_address(), "ffrecord_inflight_bytes");
  };
  const auto next = [&] {
    const auto item = stream.Next(20s).value();
    ASSERT_TRUE(item && item->batch) << (item ? item->batch.error().message : "late");
    const auto record = item->batch.value().record(0);
    EXPECT_EQ(test::AsString(record), records[item->indices[0]]);
  };

  next();
  clock.RunFor(10s);
  EXPECT_LE(stream.stats().held_bytes, kLimitBytes);
  EXPECT_GE(stream.stats().held_bytes, kLimitBytes / 2);  // It has read ahead.
  EXPECT_LE(held_bytes(), kThreadCount * kGrantedBytesMax);

  for (std::uint64_t i = 0; i < kRecordCount + 5; ++i) next();
}

INSTANTIATE_TEST_SUITE_P(Transports, StoppedConsumerTest, testing::Values("tcp", "shm"),
                         [](const auto& transport) { return std::string(transport.param); });

}  // namespace
}  // namespace ffrecord::client
