// Goal: a dataset at several daemons is published and opened under one address, and read on without
// a failed batch while one of them is killed, stopped or absent.
// Method: real daemon processes, which get SIGKILL and SIGSTOP between batches and under them; all
// that is read is compared with the file.

#include <ffrecord/client/dataset.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <csignal>
#include <functional>
#include <iostream>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "daemon_process.h"
#include "libffrecord/net/rpc/location.h"
#include "seed.h"
#include "temp_folder.h"
#include "test_file.h"

namespace ffrecord::client {
namespace {

using test::DaemonProcess;
using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

constexpr SessionOptions kOptions{20s, Transport::kTcp};

class ReplicasTest : public testing::Test {
 protected:
  static constexpr std::size_t kCount = 3;

  void SetUp() override {
    for (std::size_t i = 0; i < kCount; ++i) {
      Start(i, "127.0.0.1:0");
      ASSERT_FALSE(addresses_[i].empty());
    }
    std::mt19937 random(test::Seed());
    for (std::size_t i = 0; i < 500; ++i)
      records_.push_back(std::string(random() % 3000, static_cast<char>('a' + i % 26)));
  }
  void Start(std::size_t i, const std::string& listen) {
    daemons_[i] = std::make_unique<DaemonProcess>(
        FFRECORDD, std::vector<std::string>{"--data", folder_ / ("data" + std::to_string(i)),
                                            "--listen", listen});
    addresses_[i] = daemons_[i]->WaitReady();
  }
  std::string All(const std::string& name) const {
    return "ffrecord://" + addresses_[0] + "," + addresses_[1] + "," + addresses_[2] + "/" + name;
  }
  std::string One(std::size_t i, const std::string& name) const {
    return "ffrecord://" + addresses_[i] + "/" + name;
  }
  Result<void> Publish(const std::string& address) const {
    const test::TestFile file(records_);
    return PublishDataset({{file.path()}}, address, false, kOptions, {});
  }
  static Result<RecordReader> Open(const std::string& address) {
    return OpenDataset({{address}}, {}, kOptions);
  }

  // One batch of random records; how long it took. All of them must be right.
  std::chrono::milliseconds ReadBatch(const RecordReader& reader) {
    std::vector<std::uint64_t> indices(64);
    for (auto& index : indices) index = random_() % records_.size();
    const auto begin = Clock::now();
    const auto batch = reader.ReadBatch(indices);
    const auto time = std::chrono::duration_cast<std::chrono::milliseconds>(Clock::now() - begin);
    EXPECT_TRUE(batch);
    for (std::size_t i = 0; batch && i < indices.size(); ++i) {
      EXPECT_EQ(batch.value().statuses()[i], ErrorCode::kOk)
          << reader.Describe(indices[i], batch.value().statuses()[i]);
      const auto record = batch.value().record(i);
      EXPECT_TRUE(std::ranges::equal(record, std::as_bytes(std::span(records_[indices[i]]))));
    }
    return time;
  }
  // The longest of many batches, the second half of them after `fault`.
  std::chrono::milliseconds LongestAround(const RecordReader& reader,
                                          const std::function<void()>& fault) {
    std::chrono::milliseconds longest{0};
    for (int i = 0; i < 200; ++i) {
      if (i == 100) fault();
      longest = std::max(longest, ReadBatch(reader));
    }
    std::cout << "longest batch: " << longest.count() << " ms\n";
    return longest;
  }

  test::TempFolder folder_;
  std::array<std::unique_ptr<DaemonProcess>, kCount> daemons_;
  std::array<std::string, kCount> addresses_;
  std::vector<std::string> records_;
  std::mt19937 random_{test::Seed()};
};

TEST_F(ReplicasTest, OnePublicationIsAtEveryDaemonAndReadFromAll) {
  const auto published = Publish(All("x"));
  ASSERT_TRUE(published) << published.error().message;
  for (std::size_t i = 0; i < kCount; ++i) {
    const auto alone = Open(One(i, "x"));
    ASSERT_TRUE(alone) << alone.error().message;
    ReadBatch(alone.value());
  }
  const auto reader = Open(All("x"));
  ASSERT_TRUE(reader) << reader.error().message;
  for (int i = 0; i < 20; ++i) ReadBatch(reader.value());
  EXPECT_EQ(Publish(All("x")).error().code, ErrorCode::kConflict);
}

TEST_F(ReplicasTest, FilesThatWerePublishedApartAreTheSameDataset) {
  for (std::size_t i = 0; i < kCount; ++i) ASSERT_TRUE(Publish(One(i, "x")));
  const auto reader = Open(All("x"));
  ASSERT_TRUE(reader) << reader.error().message;
  ReadBatch(reader.value());
}

TEST_F(ReplicasTest, DifferentFilesAreAnErrorThatNamesTheDaemons) {
  ASSERT_TRUE(Publish(One(0, "x")));
  ASSERT_TRUE(Publish(One(1, "x")));
  records_[7] += "!";
  ASSERT_TRUE(Publish(One(2, "x")));
  const auto reader = Open(All("x"));
  ASSERT_FALSE(reader);
  EXPECT_EQ(reader.error().code, ErrorCode::kConflict);
  EXPECT_NE(reader.error().message.find(addresses_[0]), std::string::npos);
  EXPECT_NE(reader.error().message.find(addresses_[2]), std::string::npos);
}

TEST_F(ReplicasTest, ANameThatNoDaemonHasIsNotFoundAndOneThatSomeHaveIsRead) {
  EXPECT_EQ(Open(All("x")).error().code, ErrorCode::kNotFound);
  ASSERT_TRUE(Publish(One(1, "x")));
  const auto reader = Open(All("x"));
  ASSERT_TRUE(reader) << reader.error().message;
  ReadBatch(reader.value());
}

TEST_F(ReplicasTest, KilledDaemonsFailNoBatchWhileOneIsLeft) {
  ASSERT_TRUE(Publish(All("x")));
  const auto reader = Open(All("x")).value();
  LongestAround(reader, [&] { daemons_[0]->Signal(SIGKILL); });
  EXPECT_LT(LongestAround(reader, [&] { daemons_[2]->Signal(SIGKILL); }), 5s);
}

TEST_F(ReplicasTest, AStoppedDaemonFailsNoBatchAndServesAgainWhenItGoesOn) {
  ASSERT_TRUE(Publish(All("x")));
  const auto reader = Open(All("x")).value();
  EXPECT_LT(LongestAround(reader, [&] { daemons_[1]->Signal(SIGSTOP); }), 5s);
  daemons_[1]->Signal(SIGCONT);
  LongestAround(reader, [&] { daemons_[0]->Signal(SIGSTOP); });
  LongestAround(reader, [&] { daemons_[2]->Signal(SIGSTOP); });
  for (const auto& daemon : daemons_) daemon->Signal(SIGCONT);
}

TEST_F(ReplicasTest, ADaemonThatIsAbsentOrStoppedAtOpenIsNotWaitedFor) {
  ASSERT_TRUE(Publish(All("x")));
  daemons_[0]->Signal(SIGSTOP);
  daemons_[1]->Signal(SIGKILL);
  const auto begin = Clock::now();
  const auto reader = Open(All("x"));
  ASSERT_TRUE(reader) << reader.error().message;
  EXPECT_LT(Clock::now() - begin, 10s);  // Of a timeout of 20 s.
  ReadBatch(reader.value());
  daemons_[0]->Signal(SIGCONT);
}

TEST_F(ReplicasTest, ADaemonThatWasAbsentAtOpenServesWhenItIsBack) {
  ASSERT_TRUE(Publish(All("x")));
  daemons_[0]->Signal(SIGKILL);
  ASSERT_NE(daemons_[0]->Wait(10s), DaemonProcess::kStillRunning);
  const auto reader = Open(All("x")).value();
  ReadBatch(reader);
  Start(0, addresses_[0]);
  const auto end = Clock::now() + 3s;
  while (Clock::now() < end) ReadBatch(reader);  // A probe finds it.
  daemons_[1]->Signal(SIGKILL);
  daemons_[2]->Signal(SIGKILL);
  ReadBatch(reader);
}

TEST(LocationTest, SeveralDaemonsAreForDatasetsEachOnce) {
  const auto all = net::Location::ParseAll("ffrecord://a:7000,[::1]:8,b/x/y?transport=tcp").value();
  ASSERT_EQ(all.size(), 3U);
  EXPECT_EQ(all[0].address.ToString(), "a:7000");
  EXPECT_EQ(all[1].address.ToString(), "[::1]:8");
  EXPECT_EQ(all[2].address.port, kDefaultPort);
  for (const auto& one : all) {
    EXPECT_EQ(one.name, "x/y");
    EXPECT_EQ(one.transport, Transport::kTcp);
  }
  for (const char* bad : {"ffrecord://a,a/x", "ffrecord://a,/x", "ffrecord://,a/x", "a,b/x",
                          "ffrecord://a:9400,a/x", "ffrecord:///x"})
    EXPECT_EQ(net::Location::ParseAll(bad).error().code, ErrorCode::kInvalidArgument) << bad;
  EXPECT_NE(net::Location::Parse("ffrecord://a,b/x").error().message.find("several daemons"),
            std::string::npos);
}

}  // namespace
}  // namespace ffrecord::client
