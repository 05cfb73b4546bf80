// Goal: a daemon that starts while the coordinator is away knows what it knew, and no more.
// Method: states saved and loaded by hand, over the store of one daemon.

#include "server/service/cluster/cluster_cache.h"

#include <gtest/gtest.h>

#include "catalog_fixture.h"
#include "libffrecord/base/cursor.h"
#include "server/cluster/placement.h"
#include "temp_folder.h"

namespace ffrecord::server {
namespace {

class ClusterCacheTest : public testing::Test {
 protected:
  ClusterCacheTest() : store_(OpenBlockingStore(folder_ / "home").value()) {}

  std::shared_ptr<const ClusterState::NameMap> Names() const {
    return std::make_shared<const ClusterState::NameMap>(
        ClusterState::NameMap::Changes(names_.begin(), names_.end()));
  }
  void Save() {
    state_.names = Names();
    const auto saved = cache_.Save(state_);
    ASSERT_TRUE(saved) << saved.error().message;
  }
  // As the next start of the daemon does.
  ClusterState Load() {
    auto loaded = ClusterCache(*store_).Load();
    EXPECT_TRUE(loaded) << loaded.error().message;
    return std::move(loaded).value();
  }
  static ClusterState::Name NameOf(std::uint64_t attempt, std::uint64_t revision) {
    ClusterState::Name name;
    name.record.attempt = attempt;
    name.record.size_bytes = 1000;
    name.record.file_count = 1;
    name.record.body = {{MakeExtentId(attempt, 0, 0), 50, attempt}};
    name.revision = revision;
    name.manifest = std::make_shared<const DatasetManifest>(
        DatasetManifest{{{"f", 1000, {{MakeExtentId(attempt, 1, 0), 1000, 5}}}}});
    return name;
  }
  void ExpectSame(const ClusterState& loaded) const {
    EXPECT_TRUE(loaded.is_from_cache);
    ASSERT_EQ(loaded.names->size(), names_.size());
    for (const auto& [text, name] : names_) {
      const ClusterState::Name* const found = loaded.Find(text);
      ASSERT_NE(found, nullptr) << text;
      EXPECT_EQ(found->record, name.record) << text;
      EXPECT_EQ(found->revision, name.revision) << text;
      ASSERT_EQ(bool(found->manifest), bool(name.manifest)) << text;
      if (name.manifest) {
        EXPECT_EQ(*found->manifest, *name.manifest) << text;
      }
    }
  }

  test::TempFolder folder_;
  std::unique_ptr<BlockingStore> store_;
  ClusterCache cache_{*store_};
  ClusterState state_;
  std::map<std::string, ClusterState::Name> names_;
};

TEST_F(ClusterCacheTest, AManifestThatItsNameHoldsIsSavedOnce) {
  const ClusterState::Name name = NameOf(1, 10);
  ClusterState::Name own = name;
  const auto bytes = EncodeDatasetManifest(*name.manifest).value();
  own.record.body.clear();
  own.record.manifest = std::make_shared<const std::vector<std::byte>>(bytes);
  names_ = {{"extents", name}, {"own", own}};
  Save();
  ExpectSame(Load());
  const auto size_of = [this](const std::string& key) {
    return store_->Get("cluster/names/" + key).value()->value.size();
  };
  EXPECT_EQ(size_of("own"), size_of("extents") - 32);  // Of the extent that it does not have.
}

TEST_F(ClusterCacheTest, ANodeThatWasNeverOfAClusterKnowsNothing) {
  EXPECT_EQ(cache_.ReadId().value(), std::nullopt);
  EXPECT_EQ(cache_.ReadMark().value(), cluster::HistoryMark());
  ExpectSame(Load());
  EXPECT_EQ(Load().map_version(), 0U);
}

TEST_F(ClusterCacheTest, WhatIsSavedIsLoaded) {
  net::ClusterId id{};
  id[3] = std::byte{7};
  EXPECT_EQ(cache_.ReadNode().value(), std::nullopt);
  ASSERT_TRUE(cache_.WriteId(id, "n1"));
  const cluster::HistoryMark mark{5, 99, {3, 4}};
  ASSERT_TRUE(cache_.WriteMark(mark));
  for (std::uint64_t i = 0; i < 200; ++i)  // Of several pages.
    names_["train/" + std::to_string(i)] = NameOf(i + 1, 100 + i);
  cluster::SlotsRecord slots;
  slots.map = cluster::Place({}, {{"n1", "d1", 1}, {"n2", "d2", 1}}, {.row_size = 2}).value();
  slots.map.version = 12;
  state_.slots = std::make_shared<const cluster::SlotsRecord>(slots);
  state_.level = 3;
  state_.ancestors = {7, 9};
  state_.nodes = {{"n1", "a:1", "d1", 1, net::MemberState::kIn, true},
                  {"n2", "b:1", "d2", 9, net::MemberState::kDraining, false}};
  Save();

  const ClusterState loaded = Load();

  ExpectSame(loaded);
  EXPECT_EQ(*loaded.slots, slots);
  EXPECT_EQ(loaded.level, 3U);
  EXPECT_EQ(loaded.ancestors, state_.ancestors);
  EXPECT_EQ(ClusterCache(*store_).ReadId().value(), id);
  EXPECT_EQ(ClusterCache(*store_).ReadNode().value(), "n1");
  EXPECT_EQ(ClusterCache(*store_).ReadMark().value(), mark);
  ASSERT_EQ(loaded.nodes.size(), 2U);
  EXPECT_EQ(loaded.nodes[1], state_.nodes[1]);
  state_.nodes[0].is_up = false;  // Nobody knows.
  EXPECT_EQ(loaded.nodes[0], state_.nodes[0]);
}

TEST_F(ClusterCacheTest, WhatChangesIsSaved) {
  names_["kept"] = NameOf(1, 10);
  names_["replaced"] = NameOf(2, 11);
  names_["removed"] = NameOf(3, 12);
  names_["fetched later"] = NameOf(4, 13);
  const auto manifest = std::exchange(names_["fetched later"].manifest, nullptr);
  Save();
  ExpectSame(Load());

  names_["replaced"] = NameOf(5, 14);
  names_.erase("removed");
  names_["fetched later"].manifest = manifest;
  names_["new"] = NameOf(6, 15);
  Save();
  ExpectSame(Load());

  // It comes again, as it was.
  names_["removed"] = NameOf(3, 12);
  Save();
  ExpectSame(Load());
}

// The disk was full half way: what was written then, and removed before the next try, is not there.
TEST_F(ClusterCacheTest, WhatAFailedSaveHasLeftIsRemoved) {
  FailingStore full(*store_);
  int left = 1;
  full.is_full = [&] { return left-- == 0; };
  ClusterCache cache(full);
  // Three of them fill a commit.
  constexpr std::uint32_t kExtentCount = 200'000;
  for (std::uint64_t attempt = 1; attempt <= 4; ++attempt) {
    DatasetManifest large{{{"f", kExtentCount * kExtentSizeMax, {}}}};
    for (std::uint32_t i = 0; i < kExtentCount; ++i)
      large.files[0].extents.push_back({MakeExtentId(attempt, 1, i), kExtentSizeMax, 5});
    auto& name = names_[std::to_string(attempt)] = NameOf(attempt, attempt);
    name.manifest = std::make_shared<const DatasetManifest>(std::move(large));
  }
  state_.names = Names();
  ASSERT_FALSE(cache.Save(state_));
  ASSERT_NE(Load().Find("1"), nullptr);

  names_.erase("1");
  state_.names = Names();
  ASSERT_TRUE(cache.Save(state_));

  ExpectSame(Load());
}

// The store was put back, and the revision given to another publication.
TEST_F(ClusterCacheTest, AnotherPublicationOfTheSameRevisionIsSaved) {
  names_["a"] = NameOf(1, 10);
  Save();

  names_["a"] = NameOf(2, 10);
  Save();

  ExpectSame(Load());
}

TEST_F(ClusterCacheTest, WhatWasLoadedIsSavedAgainWhenItChanges) {
  names_["a"] = NameOf(1, 10);
  names_["b"] = NameOf(2, 11);
  Save();
  ClusterCache next(*store_);
  ASSERT_TRUE(next.Load());

  names_["a"] = NameOf(3, 12);
  names_.erase("b");
  state_.names = Names();
  ASSERT_TRUE(next.Save(state_));

  ExpectSame(Load());
}

TEST_F(ClusterCacheTest, AnEntryThatCannotBeReadIsLeftOut) {
  names_["a"] = NameOf(1, 10);
  names_["b"] = NameOf(2, 11);
  Save();
  auto bytes = store_->Get("cluster/names/b").value()->value;
  for (std::size_t size = 0; size < bytes.size(); ++size) {
    auto cut = bytes;
    cut.resize(size);
    ASSERT_TRUE(store_->TryCommit({{}, {{"cluster/names/b", cut}}, {}}));
    const ClusterState loaded = Load();
    const ClusterState::Name* const found = loaded.Find("b");
    ASSERT_TRUE(found == nullptr || (found->record == names_["b"].record && !found->manifest))
        << size;
    ASSERT_NE(loaded.Find("a"), nullptr);
  }
  ASSERT_TRUE(store_->TryCommit({{}, {{"cluster/nodes", bytes}, {"cluster/slots", bytes}}, {}}));
  EXPECT_TRUE(Load().nodes.empty());
  EXPECT_EQ(Load().map_version(), 0U);
}

// A revision may come twice, where the metadata was put back to an older state.
TEST_F(ClusterCacheTest, AManifestOfBeforeIsThatOfTheSamePublicationAlone) {
  const ClusterState::Name now = NameOf(7, 30);
  const std::string key = cluster::Key(cluster::kDatasetKeys, "a");
  MetaStore::Page page;
  page.entries = {{key, now.record.Encode(), 30}};
  page.revision = 30;
  cluster::NameTable table;
  cluster::KeyMirror mirror({}, [](const auto&) {});
  cluster::Outbox out;
  mirror.Step({}, out);
  ASSERT_TRUE(mirror.Take({}, {out.Take().front().id, Result<MetaStore::Page>(page)}, out));
  table.Update({key}, mirror);
  for (const std::uint64_t attempt : {6U, 7U}) {
    names_["a"] = NameOf(attempt, 30);
    const auto names = NamesOf(table, *Names(), {"a"});
    ASSERT_NE(names->Find("a"), nullptr);
    EXPECT_EQ(names->Find("a")->record, now.record);
    EXPECT_EQ(bool(names->Find("a")->manifest), attempt == 7);
  }
}

}  // namespace
}  // namespace ffrecord::server
