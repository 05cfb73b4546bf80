// Goal: metadata that is put back to an older state, or lost, costs no published byte: nothing is
// removed, and all names come back from the nodes' disks or from a backup. Method: three daemons in
// this process, over TCP, with a store in a file, which is replaced by a copy from before or by an
// empty one while they run.

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <future>
#include <string>
#include <thread>

#include "daemon_cluster.h"
#include "libffrecord/base/hex.h"
#include "libffrecord/net/protocol/metadata_messages.h"

namespace ffrecord::server {
namespace {

using test::Eventually;
using test::SomeExtents;
using Action = net::MetadataHistory::Action;
using namespace std::chrono_literals;

class ClusterRestoreTest : public test::DaemonCluster {
 protected:
  ClusterRestoreTest() {
    Server::Options options;
    options.upload_grace = 1s;
    StartNodes(3, options);
  }

  // The file as it is now, under another name. No node changes it meanwhile.
  void Snapshot() {
    for (Node& node : nodes_) node.store->Cut();
    for (const char* const part : {"", "-wal"}) {
      const std::string name = std::string("store.sqlite") + part;
      if (std::filesystem::exists(folder_ / name))
        std::filesystem::copy_file(folder_ / name, folder_ / (std::string("older.sqlite") + part));
    }
    for (Node& node : nodes_) node.store->Mend();
    EXPECT_TRUE(WaitForNodes(3));
  }
  void ReplaceStore(const std::string& name) {
    auto opened = OpenSqliteStore(folder_ / name);
    ASSERT_TRUE(opened) << opened.error().message;
    store_ = std::move(opened).value();
    for (Node& node : nodes_) node.store->LeadTo(store_);
  }

  std::string AddressOf(std::size_t i) const { return DaemonCluster::AddressOf(nodes_[i]); }
  bool AllFrozen(bool frozen = true) const {
    return Eventually([&] {
      return std::ranges::all_of(nodes_, [&](const Node& node) {
        return Metric(node, "ffrecord_cluster_frozen") == (frozen ? 1U : 0U);
      });
    });
  }
  Result<net::Channel::Reply> Call(net::FrameType type, const std::vector<std::byte>& body) const {
    const auto channel = FFR_TRY(Client().Connect(AddressOf(0)));
    return channel->Call(type, body, {}, test::Within(40s), "the metadata");
  }
  Result<std::string> Work(net::MetadataHistory request) const {
    const auto reply = FFR_TRY(Call(net::FrameType::kMetadataHistory, request.Encode()));
    return std::string(reinterpret_cast<const char*>(reply.payload.data()), reply.payload.size());
  }
  net::MetadataPage Backup() const {
    const auto read = Call(net::FrameType::kMetadataList, net::MetadataList{}.Encode());
    EXPECT_TRUE(read) << read.error().message;
    if (!read) return {};
    auto reply = net::MetadataListReply::Decode(read.value().body).value();
    EXPECT_FALSE(reply.more);
    return std::move(reply.page);
  }
  static std::pair<net::MetadataPut, net::MetadataPut> InTwoParts(const net::MetadataPage& backup) {
    net::MetadataPut first{7, false, {}}, last{7, true, {}};
    for (const auto& entry : backup.entries) {
      const bool is_last = entry.key == "cluster" || entry.key == "history";
      EXPECT_TRUE((is_last ? last : first).page.Add(entry));
    }
    return {first, last};
  }
  // What an operator does: publishes again what is lost, and confirms it.
  void RebuildAndConfirm() {
    const auto rebuilt = Work({Action::kRebuild, false, 0});
    ASSERT_TRUE(rebuilt) << rebuilt.error().message;
    std::array<std::byte, 8> incarnation{};
    const std::size_t at = rebuilt.value().find("\"incarnation\": \"") + 16;
    ASSERT_TRUE(FromHex(rebuilt.value().substr(at, 16), incarnation)) << rebuilt.value();
    net::MetadataHistory confirm{Action::kConfirm, false, 0};
    for (const std::byte byte : incarnation)
      confirm.incarnation = confirm.incarnation << 8 | std::to_integer<std::uint64_t>(byte);
    const auto other = Work({Action::kConfirm, false, confirm.incarnation + 1});
    EXPECT_FALSE(other);
    const auto confirmed = Work(confirm);
    EXPECT_TRUE(confirmed) << confirmed.error().message;
  }
  void ExpectReadable(const std::string& name, const DatasetManifest& manifest,
                      const std::vector<std::string>& extents, bool accepts_old = false) const {
    Result<DatasetManifest> resolved = Error{};
    (void)Eventually([&] {
      resolved =
          Client().Resolve(AddressOf(1), name, accepts_old);  // Its files may be on their way.
      return bool(resolved);
    });
    ASSERT_TRUE(resolved) << name << ": " << resolved.error().message;
    EXPECT_EQ(resolved.value(), manifest);
    for (std::size_t i = 0; i < extents.size(); ++i)
      EXPECT_EQ(Client().Read(test::ExtentsOf(manifest)[i]).value(), extents[i]);
  }
};

TEST_F(ClusterRestoreTest, WhatWasPublishedAfterTheOlderStateIsNotRemoved) {
  const auto extents = SomeExtents(4, 50'000);
  const auto manifest = Client().Upload(extents);  // Open in the older state.
  ASSERT_TRUE(manifest) << manifest.error().message;
  Snapshot();
  ASSERT_TRUE(Client().Publish(AddressOf(0), "train/a", manifest.value()));

  ReplaceStore("older.sqlite");
  ASSERT_TRUE(AllFrozen());
  // A node is frozen as soon as it doubts the store, and shows its names a moment later.
  EXPECT_TRUE(Eventually([&] {
    const auto resolved = Client().Resolve(AddressOf(0), "train/a", /*accepts_old=*/true);
    return !resolved && resolved.error().code == ErrorCode::kNotFound;
  }));
  // It is published, as far as anybody knows.
  const auto absent = Client().Resolve(AddressOf(0), "train/a");
  ASSERT_FALSE(absent);
  EXPECT_EQ(absent.error().code, ErrorCode::kUnavailable) << absent.error().message;
  EXPECT_TRUE(Eventually([&] { return Metric(nodes_[0], "ffrecord_cluster_names_lost") == 1U; }));
  // Longer than an upload may be silent: another one, begun later, is over by then.
  const auto later = Client().Upload(SomeExtents(1, 1'000));
  ASSERT_TRUE(later) << later.error().message;
  const auto end = std::chrono::steady_clock::now() + 5s;
  while (std::chrono::steady_clock::now() < end) {
    for (const auto& extent : test::ExtentsOf(manifest.value()))
      ASSERT_GE(Client().CountReplicas(extent), 2U);
    std::this_thread::sleep_for(100ms);
  }

  RebuildAndConfirm();
  ASSERT_TRUE(AllFrozen(false));
  ExpectReadable("train/a", manifest.value(), extents);
  // The upload that is given up now is of none of it: its own extent goes.
  EXPECT_TRUE(Eventually(
      [&] { return Client().CountReplicas(test::ExtentsOf(later.value()).front()) == 0; }));
  ExpectReadable("train/a", manifest.value(), extents);
}

// What it is in the older state may have been replaced or removed since.
TEST_F(ClusterRestoreTest, ANameIsNotToldFromTheOlderStateUntilARebuild) {
  const auto older = Client().Upload(SomeExtents(1, 50'000));
  ASSERT_TRUE(older) << older.error().message;
  ASSERT_TRUE(Client().Publish(AddressOf(0), "train/a", older.value()));
  ASSERT_TRUE(Client().Publish(AddressOf(0), "train/b", older.value()));
  Snapshot();
  const auto extents = SomeExtents(1, 60'000);
  const auto newer = Client().Upload(extents);
  ASSERT_TRUE(newer) << newer.error().message;
  ASSERT_TRUE(Client().Remove(AddressOf(0), "train/a"));
  ASSERT_TRUE(Client().Remove(AddressOf(0), "train/b"));
  ASSERT_TRUE(Client().Publish(AddressOf(0), "train/a", newer.value()));

  ReplaceStore("older.sqlite");
  ASSERT_TRUE(AllFrozen());
  for (const char* const name : {"train/a", "train/b"})
    for (std::size_t i = 0; i < nodes_.size(); ++i) {
      Result<DatasetManifest> told = Error{};
      EXPECT_TRUE(Eventually([&] {
        told = Client().Resolve(AddressOf(i), name, /*accepts_old=*/true);
        return told && told.value() == older.value();
      }));
      const auto refused = Client().Resolve(AddressOf(i), name);
      ASSERT_FALSE(refused) << name;
      EXPECT_EQ(refused.error().code, ErrorCode::kUnavailable) << refused.error().message;
    }
  net::List list{100, "train/", ""};
  EXPECT_FALSE(Call(net::FrameType::kList, list.Encode()));
  list.accepts_old = true;
  EXPECT_TRUE(Call(net::FrameType::kList, list.Encode()));

  RebuildAndConfirm();
  ASSERT_TRUE(AllFrozen(false));
  ExpectReadable("train/a", newer.value(), extents);
}

// A name is removed while somebody reads it, so that its files are still there when the metadata is
// put back: it is whole again, and not a byte of it is unlinked.
TEST_F(ClusterRestoreTest, WhatWasDroppedAndIsStillThereComesBackWithItsName) {
  const auto extents = SomeExtents(4, 50'000);
  const auto manifest = Client().Upload(extents);
  ASSERT_TRUE(manifest) << manifest.error().message;
  ASSERT_TRUE(Client().Publish(AddressOf(0), "train/a", manifest.value()));
  Snapshot();
  std::vector<std::unique_ptr<net::Channel>> readers;
  for (std::size_t i = 0; i < nodes_.size(); ++i) {
    readers.push_back(Client().Connect(AddressOf(i)).value());
    net::ExtentBind bind{0, {}};
    for (const auto& extent : test::ExtentsOf(manifest.value())) bind.ids.push_back(extent.id);
    ASSERT_TRUE(readers.back()->Call(net::FrameType::kExtentBind, bind.Encode(), {},
                                     test::Within(20s), "extents"));
  }
  ASSERT_TRUE(Client().Remove(AddressOf(0), "train/a"));
  for (int i = 0; i < 5; ++i)
    ASSERT_TRUE(Client().Publish(AddressOf(0), "train/b", Client().Upload({"b"}).value()));
  for (const auto& extent : test::ExtentsOf(manifest.value()))
    ASSERT_TRUE(Eventually([&] { return Client().CountReplicas(extent) == 0; }));

  ReplaceStore("older.sqlite");
  ASSERT_TRUE(AllFrozen());
  readers.clear();

  EXPECT_TRUE(WaitForReplicas(manifest.value()));
  RebuildAndConfirm();
  ASSERT_TRUE(AllFrozen(false));
  ExpectReadable("train/a", manifest.value(), extents);
}

// Clients ask another node after ten seconds.
TEST_F(ClusterRestoreTest, APublicationSaysInTimeWhoseListOfFilesIsMissing) {
  auto manifest = Client().Upload(SomeExtents(1, 1'000));
  ASSERT_TRUE(manifest) << manifest.error().message;
  test::MakeLarge(manifest.value());
  ASSERT_TRUE(Client().Publish(AddressOf(0), "train/a", manifest.value()));
  Snapshot();
  ASSERT_TRUE(Client().Remove(AddressOf(0), "train/a"));
  ASSERT_TRUE(Eventually([&] {
    return std::ranges::all_of(nodes_, [](const Node& node) { return ExtentsOf(node).empty(); });
  }));
  ReplaceStore("older.sqlite");
  ASSERT_TRUE(AllFrozen());
  ASSERT_TRUE(WaitForNodes(3));  // The older store has none of their leases.
  const auto other = Client().Upload(SomeExtents(1, 2'000));
  ASSERT_TRUE(other) << other.error().message;

  const auto refused = Client().Publish(AddressOf(0), "train/b", other.value());

  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, ErrorCode::kUnavailable) << refused.error().message;
  EXPECT_NE(refused.error().message.find("train/a"), std::string::npos) << refused.error().message;
}

TEST_F(ClusterRestoreTest, NodesThatWereDownNoticeAsWell) {
  const auto extents = SomeExtents(2, 50'000);
  const auto manifest = Client().Upload(extents);
  ASSERT_TRUE(manifest) << manifest.error().message;
  Snapshot();
  ASSERT_TRUE(Client().Publish(AddressOf(0), "train/a", manifest.value()));

  for (Node& node : nodes_) node.daemon->Kill();
  ReplaceStore("older.sqlite");
  for (Node& node : nodes_) node.daemon->Start();

  ASSERT_TRUE(AllFrozen());
  RebuildAndConfirm();
  ASSERT_TRUE(AllFrozen(false));
  ExpectReadable("train/a", manifest.value(), extents);
}

// The older state is not what they keep.
TEST_F(ClusterRestoreTest, NodesThatStartBeforeItIsConfirmedStillKnowWhatWasLost) {
  const auto extents = SomeExtents(2, 50'000);
  const auto manifest = Client().Upload(extents);
  ASSERT_TRUE(manifest) << manifest.error().message;
  Snapshot();
  ASSERT_TRUE(Client().Publish(AddressOf(0), "train/a", manifest.value()));
  ReplaceStore("older.sqlite");
  ASSERT_TRUE(AllFrozen());
  for (std::size_t i = 0; i < nodes_.size(); ++i)
    EXPECT_TRUE(Eventually([&] { return !Client().Resolve(AddressOf(i), "train/a"); }));

  for (Node& node : nodes_) {
    EXPECT_TRUE(node.daemon->Stop(20s));
    node.daemon->Kill();
    node.daemon->Start();
  }

  ASSERT_TRUE(AllFrozen());
  RebuildAndConfirm();
  ASSERT_TRUE(AllFrozen(false));
  ExpectReadable("train/a", manifest.value(), extents);
}

TEST_F(ClusterRestoreTest, ALostStoreIsRebuiltFromTheNodes) {
  const auto extents = SomeExtents(4, 50'000);
  const auto manifest = Client().Upload(extents);
  ASSERT_TRUE(manifest) << manifest.error().message;
  ASSERT_TRUE(Client().Publish(AddressOf(0), "train/a", manifest.value()));
  const auto cluster = Client().GetMap(AddressOf(0)).value().reply.cluster;

  ReplaceStore("empty.sqlite");
  ASSERT_TRUE(AllFrozen());
  EXPECT_TRUE(Client().Resolve(AddressOf(0), "train/a", /*accepts_old=*/true));
  RebuildAndConfirm();

  ASSERT_TRUE(AllFrozen(false));
  EXPECT_TRUE(WaitForNodes(3));
  EXPECT_EQ(Client().GetMap(AddressOf(0)).value().reply.cluster, cluster);
  ExpectReadable("train/a", manifest.value(), extents);
  // Each node finds out by itself that it takes part again.
  Result<DatasetManifest> more = Error{};
  ASSERT_TRUE(Eventually([&] {
    more = Client().Upload(SomeExtents(1, 1'000));
    return bool(more);
  })) << more.error().message;
  EXPECT_TRUE(
      Eventually([&] { return bool(Client().Publish(AddressOf(2), "train/b", more.value())); }));
}

// It knows less than all others, of an incarnation that they have left behind them long ago.
TEST_F(ClusterRestoreTest, ANodeThatHasSleptThroughTwoLossesPutsNothingBack) {
  const auto older = Client().Upload(SomeExtents(2, 50'000));
  ASSERT_TRUE(older) << older.error().message;
  ASSERT_TRUE(Client().Publish(AddressOf(0), "train/a", older.value()));
  Node sleeper = std::move(nodes_.back());
  nodes_.pop_back();
  sleeper.daemon->Kill();
  const auto is_up = [](const auto& node) { return node.is_up; };
  ASSERT_TRUE(Eventually([&] {
    const auto map = Client().GetMap(AddressOf(0));
    return map && std::ranges::count_if(map.value().reply.nodes, is_up) == 2;
  }));
  ASSERT_TRUE(Client().SetMember(AddressOf(0), "n3", net::MemberState::kOut));  // Not waited for.

  ReplaceStore("first.sqlite");
  RebuildAndConfirm();
  const auto extents = SomeExtents(2, 60'000);
  Result<DatasetManifest> newer = Error{};
  ASSERT_TRUE(Eventually([&] {
    newer = Client().Upload(extents);
    return newer && Client().Publish(AddressOf(0), "train/a", newer.value());
  }));
  ReplaceStore("second.sqlite");
  for (Node& node : nodes_) RestartNode(node);  // What they know is on their disks.
  RebuildAndConfirm();
  ASSERT_TRUE(AllFrozen(false));

  sleeper.store->LeadTo(store_);
  sleeper.daemon->Start();
  nodes_.push_back(std::move(sleeper));
  EXPECT_TRUE(Eventually([&] {
    const auto resolved = Client().Resolve(AddressOf(2), "train/a");
    return resolved && resolved.value() == newer.value();
  }));
  EXPECT_TRUE(AllFrozen(false));
  EXPECT_FALSE(Work({Action::kRebuild, false, 0}));  // There is nothing to compare.
  ExpectReadable("train/a", newer.value(), extents);
}

// At once, before any node has found out that nothing is there.
TEST_F(ClusterRestoreTest, ARebuildLooksAtTheStoreItself) {
  const auto extents = SomeExtents(2, 50'000);
  const auto manifest = Client().Upload(extents);
  ASSERT_TRUE(manifest) << manifest.error().message;
  ASSERT_TRUE(Client().Publish(AddressOf(0), "train/a", manifest.value()));

  ReplaceStore("empty.sqlite");
  RebuildAndConfirm();

  ASSERT_TRUE(AllFrozen(false));
  ExpectReadable("train/a", manifest.value(), extents);
}

// What a restore has put there before it was given up is older than what the nodes know.
TEST_F(ClusterRestoreTest, ARebuildOverAnUnfinishedRestoreTakesTheNewerNames) {
  const auto extents = SomeExtents(2, 50'000), newer_extents = SomeExtents(2, 60'000);
  const auto manifest = Client().Upload(extents);
  ASSERT_TRUE(manifest) << manifest.error().message;
  ASSERT_TRUE(Client().Publish(AddressOf(0), "train/a", manifest.value()));
  const auto backup = Backup();
  const auto newer = Client().Upload(newer_extents);
  ASSERT_TRUE(newer) << newer.error().message;
  ASSERT_TRUE(Client().Publish(AddressOf(0), "train/a", newer.value()));
  const auto [first, last] = InTwoParts(backup);

  ReplaceStore("empty.sqlite");
  for (int i = 0; i < 2; ++i)  // So that it is not the store's first commit that puts the name.
    ASSERT_TRUE(Call(net::FrameType::kMetadataPut, first.Encode()));
  RebuildAndConfirm();

  ASSERT_TRUE(AllFrozen(false));
  ExpectReadable("train/a", newer.value(), newer_extents);
  // Nor does the rest of it come later.
  const auto late = Call(net::FrameType::kMetadataPut, last.Encode());
  ASSERT_FALSE(late);
  EXPECT_EQ(late.error().code, ErrorCode::kConflict);
}

TEST_F(ClusterRestoreTest, ABackupGoesIntoAnEmptyStore) {
  const auto extents = SomeExtents(2, 50'000);
  const auto manifest = Client().Upload(extents);
  ASSERT_TRUE(manifest) << manifest.error().message;
  ASSERT_TRUE(Client().Publish(AddressOf(0), "train/a", manifest.value()));
  const auto backup = Backup();
  const auto later = Client().Upload(SomeExtents(1, 1'000));
  ASSERT_TRUE(later) << later.error().message;
  ASSERT_TRUE(Client().Publish(AddressOf(0), "train/b", later.value()));

  const net::MetadataPut put{7, true, backup};
  const auto refused = Call(net::FrameType::kMetadataPut, put.Encode());
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, ErrorCode::kConflict);

  ReplaceStore("empty.sqlite");
  const auto [first, last] = InTwoParts(backup);  // The first is sent twice.
  EXPECT_TRUE(Call(net::FrameType::kMetadataPut, first.Encode()));
  EXPECT_TRUE(Call(net::FrameType::kMetadataPut, first.Encode()));
  net::MetadataPut other = first;
  other.backup = 8;
  EXPECT_FALSE(Call(net::FrameType::kMetadataPut, other.Encode()));
  const auto restored = Call(net::FrameType::kMetadataPut, last.Encode());
  ASSERT_TRUE(restored) << restored.error().message;

  EXPECT_TRUE(WaitForNodes(3));
  ASSERT_TRUE(AllFrozen());
  ExpectReadable("train/a", manifest.value(), extents, /*accepts_old=*/true);
  RebuildAndConfirm();
  ASSERT_TRUE(AllFrozen(false));
  EXPECT_TRUE(Client().Resolve(AddressOf(1), "train/b"));
}

// Names that need the level may be published again from the nodes' disks.
class BackupFromBeforeAnUpgradeTest : public ClusterRestoreTest,
                                      public testing::WithParamInterface<bool> {};
INSTANTIATE_TEST_SUITE_P(HasLevel, BackupFromBeforeAnUpgradeTest, testing::Bool());

TEST_P(BackupFromBeforeAnUpgradeTest, DoesNotLowerTheLevel) {
  net::MetadataPage older;
  for (net::MetadataEntry entry : Backup().entries) {
    if (entry.key == cluster::kLevelKey) entry.value = cluster::LevelRecord{1}.Encode();
    if (!GetParam() && entry.key == cluster::kLevelKey) continue;
    EXPECT_TRUE(older.Add(std::move(entry)));
  }
  const auto [first, last] = InTwoParts(older);

  ReplaceStore("empty.sqlite");
  EXPECT_TRUE(Call(net::FrameType::kMetadataPut, first.Encode()));
  EXPECT_TRUE(Call(net::FrameType::kMetadataPut, last.Encode()));

  std::promise<std::uint32_t> told;
  store_->Get(std::string(cluster::kLevelKey), test::Within(20s), [&](const auto& found) {
    told.set_value(found && found.value() ? cluster::LevelIn(&*found.value()) : 0);
  });
  EXPECT_EQ(told.get_future().get(), cluster::kFeatureLevel);
}

}  // namespace
}  // namespace ffrecord::server
