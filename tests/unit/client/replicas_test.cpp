// Goal: an address of several daemons is that of a cluster, and refused for others; files that
// several daemons hold are read on without a failed batch while one of them is killed, stopped or
// absent.
// Method: real daemon processes, which get SIGKILL and SIGSTOP between batches and under them; all
// that is read is compared with the file.

#include <ffrecord/client/checkpoint.h>
#include <ffrecord/client/dataset.h>
#include <ffrecord/client/served_files.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <csignal>
#include <functional>
#include <iostream>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "daemon_process.h"
#include "libffrecord/net/rpc/location.h"
#include "libffrecord/record/read/open_records.h"
#include "replicated_daemons.h"
#include "seed.h"
#include "temp_folder.h"
#include "test_file.h"
#include "whole_replicas.h"

namespace ffrecord::client {
namespace {

using test::DaemonProcess;
using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

constexpr SessionOptions kOptions{1h, Transport::kTcp};  // Nothing waits for so long.

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
  // Brings the file to each daemon.
  void Put() {
    const std::vector<std::string> contents{test::FileOf(records_)};
    for (const std::string& address : addresses_) {
      const auto manifest = test::PutFiles(AddressOf(address), contents, 77);
      ASSERT_TRUE(manifest) << manifest.error().message;
      manifest_ = manifest.value();
    }
  }
  RecordReader Open() const {
    std::vector<std::shared_ptr<const net::RemoteFiles>> replicas;
    for (const std::string& address : addresses_)
      replicas.push_back(test::FilesAt(AddressOf(address), manifest_, kOptions));
    auto reader = OpenRecords(net::HeldByAll(std::move(replicas), kOptions), {});
    EXPECT_TRUE(reader) << reader.error().message;
    return std::move(reader).value();
  }
  static net::Address AddressOf(const std::string& text) {
    return net::Address::Parse(text, kDefaultPort).value();
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
  DatasetManifest manifest_;
  std::vector<std::string> records_;
  std::mt19937 random_{test::Seed()};
};

TEST_F(ReplicasTest, DaemonsOfNoClusterAreNotOnePlaceAndTheErrorNamesThemAndTheRemedy) {
  ASSERT_TRUE(Publish(One(1, "x")));
  const std::string all = All("x");
  const auto as_error = [](const auto& result) { return result ? Error{} : result.error(); };
  const std::map<std::string, Error> errors{
      {"open", as_error(OpenDataset({{all}}, {}, kOptions))},
      {"read bytes", as_error(ServedFiles::Open(all, kOptions))},
      {"publish", as_error(Publish(All("y")))},
      {"list", as_error(ListPublished(All(""), kOptions))},
      {"remove", as_error(RemovePublished(all, kOptions))},
      {"checkpoints",
       as_error(CheckpointReader::Open(All("run"), CheckpointReader::kLatest, kOptions))},
  };
  for (const auto& [what, error] : errors) {
    EXPECT_EQ(error.code, ErrorCode::kInvalidArgument) << what << ": " << error.message;
    for (const std::string& told : {addresses_[0], addresses_[1], addresses_[2],
                                    std::string("name one of them"), std::string("--cluster")})
      EXPECT_NE(error.message.find(told), std::string::npos) << what << ": " << error.message;
  }
  for (std::size_t i = 0; i < kCount; ++i)
    EXPECT_EQ(ListPublished(One(i, ""), kOptions).value().size(), i == 1 ? 1U : 0U);
}

TEST_F(ReplicasTest, KilledDaemonsFailNoBatchWhileOneIsLeft) {
  Put();
  const auto reader = Open();
  LongestAround(reader, [&] { daemons_[0]->Signal(SIGKILL); });
  EXPECT_LT(LongestAround(reader, [&] { daemons_[2]->Signal(SIGKILL); }), 5s);
}

TEST_F(ReplicasTest, AStoppedDaemonFailsNoBatchAndServesAgainWhenItGoesOn) {
  Put();
  const auto reader = Open();
  EXPECT_LT(LongestAround(reader, [&] { daemons_[1]->Signal(SIGSTOP); }), 5s);
  daemons_[1]->Signal(SIGCONT);
  LongestAround(reader, [&] { daemons_[0]->Signal(SIGSTOP); });
  LongestAround(reader, [&] { daemons_[2]->Signal(SIGSTOP); });
  for (const auto& daemon : daemons_) daemon->Signal(SIGCONT);
}

TEST_F(ReplicasTest, ADaemonThatIsAbsentOrStoppedAtOpenIsNotWaitedFor) {
  Put();
  daemons_[0]->Signal(SIGSTOP);
  daemons_[1]->Signal(SIGKILL);
  const auto reader = Open();
  ReadBatch(reader);
  daemons_[0]->Signal(SIGCONT);
}

TEST_F(ReplicasTest, ADaemonThatWasAbsentAtOpenServesWhenItIsBack) {
  Put();
  daemons_[0]->Signal(SIGKILL);
  ASSERT_NE(daemons_[0]->Wait(10s), DaemonProcess::kStillRunning);
  const auto reader = Open();
  ReadBatch(reader);
  Start(0, addresses_[0]);
  const auto end = Clock::now() + 3s;
  while (Clock::now() < end) ReadBatch(reader);  // A probe finds it.
  daemons_[1]->Signal(SIGKILL);
  daemons_[2]->Signal(SIGKILL);
  ReadBatch(reader);
}

TEST(LocationTest, SeveralNodesAreNamedEachOnce) {
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
