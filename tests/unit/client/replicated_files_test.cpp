// Goal: what all readers of replicated files share is right: whether the order is kept to, and
// which copies are damaged.
// Method: daemons in this process that hold the same files; bytes of their copies are changed.

#include "libffrecord/net/replicas/replicated_files.h"

#include <gtest/gtest.h>
#include <poll.h>

#include <array>
#include <chrono>
#include <fstream>
#include <memory>
#include <mutex>
#include <numeric>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "fake_daemon.h"
#include "libffrecord/base/endian.h"
#include "libffrecord/format/v2_footer.h"
#include "libffrecord/format/v2_index.h"
#include "libffrecord/record/read/open_records.h"
#include "queued_reader.h"
#include "replicated_daemons.h"
#include "test_file.h"
#include "whole_replicas.h"

namespace ffrecord::net {
namespace {

using namespace std::chrono_literals;

class ReplicatedFilesTest : public testing::Test {
 protected:
  static constexpr std::size_t kCount = 3;

  void SetUp() override {
    for (const test::Daemon& daemon : daemons_) {
      const auto manifest = test::PutFiles(daemon.address(), contents_, 77);
      ASSERT_TRUE(manifest) << manifest.error().message;
      manifest_ = manifest.value();
    }
    OpenFiles();
  }
  void OpenFiles() {
    const SessionOptions options{timeout_, Transport::kTcp};
    std::vector<std::shared_ptr<const RemoteFiles>> replicas;
    for (const test::Daemon& daemon : daemons_)
      replicas.push_back(test::FilesAt(daemon.address(), manifest_, options));
    files_ = HeldByAll(std::move(replicas), options);
  }
  // The node that is asked first, if all are alike.
  NodeIndex Preferred() const {
    auto& health = files_->health();
    const std::lock_guard lock(health.mutex);
    NodeIndex best = 0;
    for (NodeIndex node = 1; node < kCount; ++node)
      if (health.state->IsBetter(node, best, Clock::now())) best = node;
    return best;
  }

  std::array<test::Daemon, kCount> daemons_;
  std::vector<std::string> contents_{std::string(100'000, 'x'), "second"};
  std::chrono::milliseconds timeout_ = 20s;
  DatasetManifest manifest_;
  std::shared_ptr<const ReplicatedFiles> files_;
};

TEST_F(ReplicatedFilesTest, TheOrderIsKeptToUntilTheLastHintIsGone) {
  {
    auto& health = files_->health();
    const std::lock_guard lock(health.mutex);
    health.state->SetDistance(1, 0);
  }
  EXPECT_EQ(Preferred(), 1U);
  files_->KeepToOrder();
  EXPECT_EQ(Preferred(), 0U);
  files_->KeepToOrder();
  files_->StopKeepingToOrder();  // The hint of the epoch before goes after the next one was sent.
  EXPECT_EQ(Preferred(), 0U);
  files_->StopKeepingToOrder();
  EXPECT_EQ(Preferred(), 1U);
}

// Else a daemon would look busy for ever to all that read through these files.
TEST_F(ReplicatedFilesTest, WhatALeftQueueHadAskedForIsOnItsWayNoMore) {
  std::vector<std::byte> memory(100'000);
  // The daemons are asked by turns; the first one for more than the others.
  for (const std::size_t size : {std::size_t{100'000}, std::size_t{6}, std::size_t{6}}) {
    std::vector<RangeRead> ranges{{0, 0, std::span(memory).first(size)}};
    test::NotedGroup group(ranges);
    const auto queue = files_->MakeQueue(RangeReader::QueueUse::kAnyThread).value();
    queue->Submit(group);
  }
  EXPECT_EQ(Preferred(), 0U) << "it has the most bytes on their way";
}

// --- Newer views ---------------------------------------------------------------------------------

// Of one extent each file, all on one node, which is the last one.
class LastNode final : public ReplicaMap {
 public:
  explicit LastNode(NodeIndex node) : nodes_{node} {}
  std::span<const NodeIndex> NodesOf(std::uint32_t /*extent*/) const override { return nodes_; }
  bool MovesExtents() const override { return true; }

 private:
  const std::array<NodeIndex, 1> nodes_;
};

// The files are at the first address, and at the next one so long after somebody has asked whether
// they have moved; and so on.
class MovingPlaces final : public ReplicaPlaces {
 public:
  MovingPlaces(std::vector<std::shared_ptr<const RemoteFiles>> places,
               std::chrono::milliseconds lag)
      : places_(std::move(places)), lag_(lag) {
    MoveOn();
  }
  std::shared_ptr<const ReplicaView> Now() override {
    const std::lock_guard lock(mutex_);
    if (moves_at_ && Clock::now() >= *moves_at_) MoveOn();
    return view_;
  }
  void NoteFailure() override {
    const std::lock_guard lock(mutex_);
    if (!moves_at_ && view_->replicas.size() < places_.size()) moves_at_ = Clock::now() + lag_;
  }
  std::size_t place() {
    const std::lock_guard lock(mutex_);
    return view_->replicas.size() - 1;
  }

 private:
  void MoveOn() {
    moves_at_.reset();
    const std::size_t count = view_ == nullptr ? 1 : view_->replicas.size() + 1;
    const std::vector replicas(places_.begin(),
                               places_.begin() + static_cast<std::ptrdiff_t>(count));
    view_ = std::make_shared<const ReplicaView>(
        ReplicaView{replicas, std::make_shared<LastNode>(static_cast<NodeIndex>(count - 1))});
  }

  const std::vector<std::shared_ptr<const RemoteFiles>> places_;
  const std::chrono::milliseconds lag_;
  std::mutex mutex_;
  std::shared_ptr<const ReplicaView> view_;
  std::optional<Deadline> moves_at_;
};

// A daemon says nothing, none is there, then there is one that has the files. How the owner of the
// queue waits is the parameter.
class NewerViewsTest : public ReplicatedFilesTest, public testing::WithParamInterface<bool> {};

TEST_P(NewerViewsTest, ABatchUnderWayFindsTheFilesAtEachNextAddress) {
  const SessionOptions options{timeout_, Transport::kTcp};
  const test::FakeDaemon silent([](auto&) { return true; }, false);
  daemons_[0].Kill();
  std::vector<std::shared_ptr<const RemoteFiles>> replicas;
  for (const Address& address : {silent.address(), daemons_[0].address(), daemons_[1].address()})
    replicas.push_back(test::FilesAt(address, manifest_, options));
  const auto places = std::make_shared<MovingPlaces>(std::move(replicas), 200ms);
  const ReplicatedFiles files(places, options);
  std::vector<std::byte> memory(contents_[0].size() + contents_[1].size());
  const auto first = std::span(memory).first(contents_[0].size());
  std::vector<RangeRead> ranges{{0, 0, first},
                                {1, 0, std::span(memory).subspan(contents_[0].size())}};
  const auto queue = files.MakeQueue(RangeReader::QueueUse::kOneThread).value();
  const bool waits_outside = GetParam();
  const int descriptor = waits_outside ? queue->EventDescriptor().value() : -1;
  test::NotedGroup group(ranges);
  queue->Submit(group);
  for (;;) {
    queue->Poll(waits_outside ? 0ms : 60'000ms);
    if (group.ended) break;
    pollfd wanted{descriptor, POLLIN, 0};
    if (waits_outside) {
      ASSERT_GT(::poll(&wanted, 1, 60'000), 0);
    }
  }
  for (const RangeRead& range : ranges) EXPECT_EQ(range.status, ErrorCode::kOk);
  EXPECT_EQ(std::string(reinterpret_cast<const char*>(memory.data()), memory.size()),
            contents_[0] + contents_[1]);
  EXPECT_EQ(places->place(), 2U);
}

INSTANTIATE_TEST_SUITE_P(Waits, NewerViewsTest, testing::Bool());

// The first daemon is away, or has the file no more. The next map names another one.
class MovedCopiesTest : public ReplicatedFilesTest {
 protected:
  void ExpectCopyFromSecond(const Address& first) {
    const SessionOptions options{timeout_, Transport::kTcp};
    std::vector<std::shared_ptr<const RemoteFiles>> replicas;
    for (const Address& address : {first, daemons_[1].address()})
      replicas.push_back(test::FilesAt(address, manifest_, options));
    const auto places = std::make_shared<MovingPlaces>(std::move(replicas), 100ms);
    const ReplicatedFiles files(places, options);
    const auto copy = files.ReadFromCopies(
        1, 0, contents_[1].size(), [](const auto&) { return true; }, Patience::OfThread());
    ASSERT_TRUE(copy) << copy.error().message;
    EXPECT_EQ(test::AsString(*copy.value()), contents_[1]);
    EXPECT_EQ(places->place(), 1U);
  }
};

TEST_F(MovedCopiesTest, ACopyIsReadWhereTheNewestMapSaysIfADaemonIsAway) {
  timeout_ = 8s;
  daemons_[0].Kill();
  ExpectCopyFromSecond(daemons_[0].address());
}

TEST_F(MovedCopiesTest, ACopyIsReadWhereTheNewestMapSaysIfADaemonIsSilent) {
  timeout_ = 8s;
  const test::FakeDaemon silent([](auto&) { return true; }, false);
  ExpectCopyFromSecond(silent.address());
}

TEST_F(MovedCopiesTest, ACopyThatHasMovedIsNotTakenForADamagedOne) {
  const test::Daemon empty;
  ExpectCopyFromSecond(empty.address());
}

// --- Damaged copies ------------------------------------------------------------------------------

class DamagedCopiesTest : public ReplicatedFilesTest {
 protected:
  void SetUp() override {
    for (std::size_t i = 0; i < 300; ++i)
      records_.push_back(std::string(500 + i, static_cast<char>('a' + i % 26)));
    contents_ = {test::FileOf(records_)};
    ReplicatedFilesTest::SetUp();
  }
  RecordReader Open() const { return OpenRecords(files_, {}).value(); }

  // Changes a byte at the place of the file in the daemon's copy, which does not notice.
  void Damage(std::size_t daemon, std::size_t offset) const {
    const auto paths = daemons_[daemon].Extents();
    ASSERT_EQ(paths.size(), 1U);
    std::fstream file(paths.front(), std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(static_cast<std::streamoff>(offset));
    file.put(static_cast<char>(contents_[0][offset] ^ 1));
  }
  void DamageRecord(std::size_t daemon, std::size_t record) const {
    Damage(daemon, contents_[0].find(records_[record]));
  }
  void DamageIndex(std::size_t daemon) const {
    for (std::size_t page = 0; page < contents_[0].size(); page += kIndexPageSizeBytes)
      if (LoadLittleEndian<std::uint32_t>(test::AsBytes(contents_[0]), page + 8) ==
          kIndexEntriesPerPage)
        return Damage(daemon, page + 100);
    FAIL() << "there is no index page";
  }
  // Reads all records so often that each daemon is asked. All but those of `but` must be whole; the
  // statuses of those.
  std::set<ErrorCode> ReadAll(const RecordReader& reader, std::set<std::size_t> but = {}) const {
    std::vector<std::uint64_t> indices(records_.size());
    std::iota(indices.begin(), indices.end(), std::uint64_t{0});
    std::set<ErrorCode> others;
    for (int i = 0; i < 6; ++i) {
      const auto batch = reader.ReadBatch(indices);
      EXPECT_TRUE(batch) << batch.error().message;
      for (std::size_t record = 0; batch && record < records_.size(); ++record) {
        const ErrorCode status = batch.value().statuses()[record];
        if (but.contains(record)) {
          others.insert(status);
          continue;
        }
        EXPECT_EQ(status, ErrorCode::kOk) << reader.Describe(record, status);
        if (status == ErrorCode::kOk) {
          EXPECT_EQ(test::AsString(batch.value().record(record)), records_[record]);
        }
      }
    }
    return others;
  }
  // The daemons that the lines name.
  std::set<std::size_t> Named(const std::vector<std::string>& lines) const {
    std::set<std::size_t> named;
    for (const std::string& line : lines)
      for (std::size_t i = 0; i < kCount; ++i)
        if (line.find("ffrecord://" + daemons_[i].address().ToString() + "/") != std::string::npos)
          named.insert(i);
    return named;
  }

  std::vector<std::string> records_;
};

TEST_F(DamagedCopiesTest, ARecordThatFailsItsChecksumIsReadFromAnotherDaemon) {
  const auto reader = Open();
  DamageRecord(0, 17);
  DamageRecord(2, 17);
  DamageRecord(2, 200);
  ReadAll(reader);
  EXPECT_EQ(Named(reader.file(0).warnings), (std::set<std::size_t>{0, 2}))
      << testing::PrintToString(reader.file(0).warnings);
}

TEST_F(DamagedCopiesTest, ADamagedCopyIsReadLastFromThenOn) {
  const auto reader = Open();
  DamageRecord(1, 17);
  ReadAll(reader);
  auto& health = files_->health();
  const std::lock_guard lock(health.mutex);
  for (NodeIndex node = 0; node < kCount; ++node)
    EXPECT_EQ(health.state->IsDamaged(0, node, Clock::now()), node == 1);
}

TEST_F(DamagedCopiesTest, ARecordThatIsDamagedInEachCopyIsCorrupt) {
  const auto reader = Open();
  for (std::size_t i = 0; i < kCount; ++i) DamageRecord(i, 17);
  EXPECT_EQ(ReadAll(reader, {17}), std::set{ErrorCode::kCorruption});
}

TEST_F(DamagedCopiesTest, WhileAnotherDaemonMayComeBackItIsUnavailableAndNotCorrupt) {
  timeout_ = 2s;
  OpenFiles();
  const auto reader = Open();
  DamageRecord(0, 17);
  daemons_[1].Kill();
  daemons_[2].Kill();
  const auto batch = reader.ReadBatch(std::vector<std::uint64_t>{16, 17});
  ASSERT_TRUE(batch) << batch.error().message;
  EXPECT_EQ(batch.value().statuses()[0], ErrorCode::kOk);
  EXPECT_EQ(batch.value().statuses()[1], ErrorCode::kUnavailable);
}

TEST_F(DamagedCopiesTest, ADaemonThatDoesNotAnswerIsNotWaitedForWhileAnotherOneHasTheRecord) {
  const auto reader = Open();
  DamageRecord(0, 17);
  daemons_[1].Kill();
  const auto begin = Clock::now();
  ReadAll(reader);
  EXPECT_LT(Clock::now() - begin, timeout_);
}

TEST_F(DamagedCopiesTest, PagesOfAnIndexAreReadFromAnotherDaemonToo) {
  const auto reader = Open();  // Pages are read when they are touched first.
  DamageIndex(0);
  DamageIndex(1);
  ReadAll(reader);
}

// Each structure of a file is tested without daemons: tests/unit/record/file_copies_test.cpp.
TEST_F(DamagedCopiesTest, TheEndOfAFileIsReadFromAnotherDaemonToo) {
  Damage(0, contents_[0].size() - V2Tail::kEncodedSizeBytes);
  Damage(1, contents_[0].size() - V2Tail::kEncodedSizeBytes + 8);
  const auto reader = Open();
  EXPECT_EQ(reader.record_count(), records_.size());
  ReadAll(reader);
}

TEST_F(DamagedCopiesTest, AnEndThatIsWrongInEachCopyIsNoDaemonsFault) {
  for (std::size_t i = 0; i < kCount; ++i) Damage(i, contents_[0].size() - 1);
  EXPECT_EQ(OpenRecords(files_, {}).error().code, ErrorCode::kCorruption);
  EXPECT_TRUE(files_->DamagedCopies(0).empty());
}

}  // namespace
}  // namespace ffrecord::net
