// Goal: a directory that is not the disk it should be is never written to, and each reason is told
// with its remedy; a set of disks that is made new is made whole, wherever the daemon is killed.
// Method: folders and identities in every role, planned with and without permission; commits that
// are cut off after each step, then a start.

#include "server/storage/disk_set.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cerrno>

#include "libffrecord/base/hex.h"
#include "libffrecord/base/random.h"
#include "memory_store.h"
#include "server/service/catalog/disk_members.h"
#include "temp_folder.h"

namespace ffrecord::server {
namespace {

namespace fs = std::filesystem;
using test::TempFolder;

TEST(DiskIdentityTest, TheTextIsThatOfTheSpecificationAndEveryFlippedBitIsFound) {
  DiskIdentity identity;
  identity.daemon.fill(std::byte{0x11});
  identity.disk.fill(std::byte{0xAB});
  const std::string text = identity.Encode();
  EXPECT_EQ(text,
            "ffrecord disk 1\n"
            "daemon 11111111111111111111111111111111\n"
            "disk abababababababababababababababab\n"
            "check a5cef2e9b6ec0dbc\n");
  EXPECT_EQ(DiskIdentity::Decode(text).value(), identity);
  EXPECT_FALSE(DiskIdentity::Decode(text + "\n"));
  for (std::size_t size = 0; size < text.size(); ++size)
    EXPECT_FALSE(DiskIdentity::Decode(text.substr(0, size)));
  for (std::size_t bit = 0; bit < text.size() * 8; ++bit) {
    std::string flipped = text;
    flipped[bit / 8] = static_cast<char>(flipped[bit / 8] ^ (1 << (bit % 8)));
    ASSERT_FALSE(DiskIdentity::Decode(flipped)) << flipped;
  }
}

TEST(DiskIdentityTest, IsWrittenOnceAndNoLinkIsFollowed) {
  const TempFolder folder;
  const DiskIdentity identity{Random<DiskId>(), Random<DiskId>()};
  EXPECT_FALSE(ReadDiskIdentity(folder.path()).value());
  ASSERT_TRUE(WriteDiskIdentity(folder.path(), identity));
  EXPECT_EQ(ReadDiskIdentity(folder.path()).value(), identity);
  EXPECT_EQ(WriteDiskIdentity(folder.path(), {}).error().code, ErrorCode::kConflict);
  EXPECT_EQ(ReadDiskIdentity(folder.path()).value(), identity);

  fs::create_directory(folder / "other");
  fs::create_symlink(folder / "identity", folder / "other/identity");
  EXPECT_FALSE(ReadDiskIdentity(folder / "other"));
  EXPECT_FALSE(LookAtFolder(folder / "other").unusable.empty());
}

class DiskSetTest : public testing::Test {
 protected:
  // Fails after some commits, as if the daemon had been killed.
  class DyingStore final : public BlockingStore {
   public:
    explicit DyingStore(BlockingStore& store) : store_(store) {}
    Result<std::optional<KeyValue>> Get(std::string_view key) override { return store_.Get(key); }
    Result<Page> List(std::string_view prefix, std::string_view after,
                      std::uint32_t limit) override {
      return store_.List(prefix, after, limit);
    }
    Result<Outcome> TryCommit(const Commit& commit) override {
      if (commits_left == 0) return Error{ErrorCode::kIo, "killed", EIO};
      if (commits_left > 0) --commits_left;
      ++commit_count;
      return store_.TryCommit(commit);
    }
    int commits_left = -1;
    int commit_count = 0;

   private:
    BlockingStore& store_;
  };

  // What a start does before it opens the extents.
  Result<DiskPlan> Start(const std::vector<std::string>& names,
                         const DiskPermissions& permissions = {}) {
    std::vector<FoundFolder> found;
    for (const std::string& name : names) found.push_back(LookAtFolder(folder_ / name));
    auto home = LookAtFolder(folder_ / home_);
    FFR_TRY(CheckFolders(home, found));
    fs::create_directory(folder_ / home_);
    test::WriteFile(folder_ / home_ / "metadata.sqlite", "");
    const DiskMembers members = FFR_TRY(ReadDiskMembers(store_));
    auto plan = FFR_TRY(PlanDisks(found, members.daemon, members.members, permissions));
    for (const DiskPlan::Use& use : plan.used) FFR_TRY(LockFolder(use.path));
    FFR_TRY(RecordDisks(store_, members, plan));
    return plan;
  }
  std::string Refusal(const std::vector<std::string>& names,
                      const DiskPermissions& permissions = {}) {
    const auto before = Entries();
    const auto started = Start(names, permissions);
    EXPECT_FALSE(started);
    EXPECT_EQ(Entries(), before);
    return started ? "" : started.error().message;
  }
  std::vector<std::string> Entries() const {
    std::vector<std::string> entries;
    for (const auto& entry : fs::recursive_directory_iterator(folder_.path()))
      entries.push_back(entry.path().string());
    std::ranges::sort(entries);
    return entries;
  }
  DiskId IdOf(const std::string& name) const {
    return ReadDiskIdentity(folder_ / name).value()->disk;
  }
  void Empty(const std::string& name) const {
    fs::remove_all(folder_ / name);
    fs::create_directory(folder_ / name);
  }
  static void ExpectSays(const std::string& text, const std::string& words) {
    EXPECT_NE(text.find(words), std::string::npos) << text;
  }

  TempFolder folder_;
  std::string home_ = "a";
  std::unique_ptr<BlockingStore> memory_ = test::MakeMemoryStore();
  DyingStore store_{*memory_};
};

TEST_F(DiskSetTest, ASetIsMadeOnceAndFoundInAnyOrderAndAtOtherPlaces) {
  ASSERT_TRUE(Start({"a", "b"}));
  const DiskId a = IdOf("a");
  const DiskId b = IdOf("b");
  store_.commit_count = 0;
  ASSERT_TRUE(Start({"a", "b"}));
  EXPECT_EQ(store_.commit_count, 0);
  fs::rename(folder_ / "b", folder_ / "c");
  const auto plan = Start({"c", "a"});
  ASSERT_TRUE(plan) << plan.error().message;
  EXPECT_EQ(plan.value().used[0].id, b);
  EXPECT_EQ(plan.value().used[1].id, a);
  EXPECT_FALSE(plan.value().used[0].is_new);
  EXPECT_EQ(ReadDiskMembers(store_).value().members.size(), 2U);
}

TEST_F(DiskSetTest, AStoreFromBeforeIdentitiesGetsOne) {
  fs::create_directories(folder_ / "a/extents");
  test::WriteFile(folder_ / "a/metadata.sqlite", "");
  ASSERT_TRUE(Start({"a"}));
  EXPECT_TRUE(ReadDiskIdentity(folder_ / "a").value());
  // And another disk.
  ASSERT_TRUE(Start({"a", "b"}));
  EXPECT_NE(IdOf("a"), IdOf("b"));
}

TEST_F(DiskSetTest, AKillAtAnyPointOfAFirstStartIsGoneOnFrom) {
  for (int commits = 0; commits <= 2; ++commits) {
    for (int identities = 0; identities <= 2; ++identities) {
      SCOPED_TRACE(std::to_string(commits) + " commits, " + std::to_string(identities) + " files");
      Empty("a");
      Empty("b");
      memory_ = test::MakeMemoryStore();
      DyingStore dying(*memory_);
      dying.commits_left = commits;
      DiskPlan plan;
      plan.used = {{folder_ / "a", Random<DiskId>(), true},
                   {folder_ / "b", Random<DiskId>(), true}};
      EXPECT_EQ(static_cast<bool>(RecordDisks(dying, {}, plan)), commits == 2);
      // Those that the kill came before.
      if (commits == 1 && identities < 2) fs::remove(folder_ / "b/identity");
      if (commits == 1 && identities < 1) fs::remove(folder_ / "a/identity");
      test::WriteFile(folder_ / "a/metadata.sqlite", "");
      for (int start = 0; start < 2; ++start) {
        DyingStore again(*memory_);
        const auto members = ReadDiskMembers(again).value();
        const std::vector<FoundFolder> found{LookAtFolder(folder_ / "a"),
                                             LookAtFolder(folder_ / "b")};
        ASSERT_TRUE(CheckFolders(found[0], found));
        const auto planned = PlanDisks(found, members.daemon, members.members, {});
        ASSERT_TRUE(planned) << planned.error().message;
        EXPECT_EQ(planned.value().used.size(), 2U);
        ASSERT_TRUE(RecordDisks(again, members, planned.value()));
      }
      const auto members = ReadDiskMembers(*memory_).value();
      ASSERT_EQ(members.members.size(), 2U);
      for (const DiskMember& member : members.members) EXPECT_TRUE(member.has_joined);
      EXPECT_EQ(ReadDiskIdentity(folder_ / "b").value()->daemon, members.daemon);
    }
  }
}

TEST_F(DiskSetTest, AnEmptyFolderIsNoDiskThatItShouldBe) {
  ASSERT_TRUE(Start({"a", "b"}));
  const std::string id = Hex(IdOf("b"));
  Empty("b");

  const std::string refusal = Refusal({"a", "b"});

  ExpectSays(refusal, "disk " + id + " is missing");
  ExpectSays(refusal, "not mounted there, or was replaced");
  ExpectSays(refusal, "--missing-disks 1");
  ExpectSays(refusal, "--forget-disk " + id);
  // With permission it is left alone, and so is what is new.
  const auto plan = Start({"a", "b", "c"}, {1, {}});
  ASSERT_TRUE(plan) << plan.error().message;
  EXPECT_EQ(plan.value().used.size(), 1U);
  EXPECT_EQ(plan.value().missing.size(), 1U);
  EXPECT_EQ(plan.value().ignored.size(), 2U);
  EXPECT_TRUE(fs::is_empty(folder_ / "b"));
  EXPECT_FALSE(fs::exists(folder_ / "c"));
}

TEST_F(DiskSetTest, AFolderThatIsNotGivenOrNotThereIsMissing) {
  ASSERT_TRUE(Start({"a", "b"}));
  ExpectSays(Refusal({"a"}), "which is not given as --data");
  fs::rename(folder_ / "b", folder_ / "elsewhere");
  ExpectSays(Refusal({"a", "b"}), "b does not exist");
  EXPECT_TRUE(Start({"a", "b"}, {1, {}}));
  EXPECT_FALSE(fs::exists(folder_ / "b"));
  test::WriteFile(folder_ / "b", "a file");
  ExpectSays(Refusal({"a", "b"}), "b is not a folder");
  fs::rename(folder_ / "elsewhere", folder_ / "c");
  EXPECT_TRUE(Start({"a", "c"}));
}

TEST_F(DiskSetTest, TwoMissingAreMoreThanOne) {
  ASSERT_TRUE(Start({"a", "b", "c"}));
  Empty("b");
  Empty("c");
  ExpectSays(Refusal({"a", "b", "c"}, {1, {}}), "--missing-disks 2");
  EXPECT_TRUE(Start({"a", "b", "c"}, {2, {}}));
}

TEST_F(DiskSetTest, AnotherDaemonsDiskIsToldAndNeverUsed) {
  ASSERT_TRUE(Start({"a", "b"}));
  fs::create_directory(folder_ / "foreign");
  ASSERT_TRUE(WriteDiskIdentity(folder_ / "foreign", {Random<DiskId>(), Random<DiskId>()}));
  ExpectSays(Refusal({"a", "b", "foreign"}), "belongs to another daemon");
  ExpectSays(Refusal({"a", "b", "foreign"}, {5, {}}), "belongs to another daemon");
  // Swapped for one of ours.
  ExpectSays(Refusal({"a", "foreign"}), "is missing");
  const auto plan = Start({"a", "foreign"}, {1, {}});
  ASSERT_TRUE(plan) << plan.error().message;
  EXPECT_EQ(plan.value().used.size(), 1U);
}

TEST_F(DiskSetTest, WithoutItsMetadataNoDiskIsUsed) {
  ASSERT_TRUE(Start({"a", "b"}));
  home_ = "b";
  ExpectSays(Refusal({"b", "a"}), "a has the metadata of a daemon");
  ExpectSays(Refusal({"b"}), "whose metadata is not in");
  // The disk with the metadata was replaced.
  Empty("a");
  home_ = "a";
  ExpectSays(Refusal({"a", "b"}), "whose metadata is not in");
  EXPECT_TRUE(fs::is_empty(folder_ / "a"));
}

TEST_F(DiskSetTest, MetadataMayHaveAFolderOfItsOwn) {
  home_ = "meta";
  ASSERT_TRUE(Start({"a", "b"}));
  EXPECT_FALSE(ReadDiskIdentity(folder_ / "meta").value());
  EXPECT_TRUE(Start({"a", "b"}));
  home_ = "elsewhere";
  ExpectSays(Refusal({"a", "b"}), "whose metadata is not in");
  fs::rename(folder_ / "meta", folder_ / "elsewhere");
  EXPECT_TRUE(Start({"b", "a"}));
}

TEST_F(DiskSetTest, OneFolderIsGivenOnceAndACopyIsTold) {
  ASSERT_TRUE(Start({"a", "b"}));
  ExpectSays(Refusal({"a", "b", "a"}), "are the same folder");
  fs::create_directory_symlink(folder_ / "b", folder_ / "link");
  ExpectSays(Refusal({"a", "b", "link"}), "are the same folder");
  fs::remove(folder_ / "link");
  fs::copy(folder_ / "b", folder_ / "copy", fs::copy_options::recursive);
  ExpectSays(Refusal({"a", "b", "copy"}), "one is a copy of the other");
}

TEST_F(DiskSetTest, ADamagedIdentityIsNeitherNewNorOurs) {
  ASSERT_TRUE(Start({"a", "b"}));
  test::WriteFile(folder_ / "b/identity", "ffrecord disk 1\n");
  ExpectSays(Refusal({"a", "b"}), "identity is damaged");
  EXPECT_EQ(Start({"a", "b"}, {1, {}}).value().used.size(), 1U);
}

TEST_F(DiskSetTest, AForgottenDiskIsReplacedByANewOne) {
  ASSERT_TRUE(Start({"a", "b"}));
  const DiskId lost = IdOf("b");
  ExpectSays(Refusal({"a", "b"}, {0, {lost}}), "leave out its --data");
  fs::rename(folder_ / "b", folder_ / "old");
  fs::create_directory(folder_ / "b");

  ASSERT_TRUE(Start({"a", "b"}, {0, {lost}}));

  EXPECT_NE(IdOf("b"), lost);
  EXPECT_TRUE(Start({"a", "b"}, {0, {lost}}));  // Said once more, it changes nothing.
  // It comes back.
  ExpectSays(Refusal({"a", "b", "old"}), "does not list");
  fs::remove(folder_ / "old/identity");
  EXPECT_TRUE(Start({"a", "b", "old"}));
}

TEST_F(DiskSetTest, TwoDaemonsDoNotShareAFolder) {
  const auto first = LockFolder(folder_ / "a");
  ASSERT_TRUE(first);
  const auto second = LockFolder(folder_ / "a");
  ASSERT_FALSE(second);
  EXPECT_EQ(second.error().code, ErrorCode::kConflict);
  EXPECT_FALSE(LockFolder(folder_ / "no/parent"));
}

}  // namespace
}  // namespace ffrecord::server
