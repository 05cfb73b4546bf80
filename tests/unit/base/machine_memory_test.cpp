// Goal: the memory that a process may use is that of its control groups, of either version.
// Method: files as /proc and /sys/fs/cgroup have them, in a folder.

#include "libffrecord/base/machine_memory.h"

#include <gtest/gtest.h>

#include <fstream>
#include <string>

#include "temp_folder.h"

namespace ffrecord {
namespace {

namespace fs = std::filesystem;

class GroupMemoryTest : public testing::Test {
 protected:
  void Write(const std::string& name, const std::string& text) const {
    const fs::path path = fs::path(folder_.path()) / name;
    fs::create_directories(path.parent_path());
    std::ofstream(path) << text << "\n";
  }
  // Of `root` within the file system, at `place` in the folder.
  void Mount(const std::string& root, const std::string& place, const std::string& kind) const {
    const std::string point = fs::path(folder_.path()) / place;
    Write("mountinfo", "nonsense\n30 24 0:26 " + root + " " + point + " rw shared:9 - " + kind);
  }
  std::optional<std::uint64_t> Limit() const { return GroupMemoryBytes(folder_.path()); }
  std::optional<std::uint64_t> Free() const { return GroupFreeBytes(folder_.path()); }

  test::TempFolder folder_;
};

TEST_F(GroupMemoryTest, WithoutGroupsThereIsNoLimit) {
  EXPECT_EQ(GroupMemoryBytes("/absent"), std::nullopt);
  Write("cgroup", "0::/\nnonsense");
  EXPECT_EQ(Limit(), std::nullopt);
}

TEST_F(GroupMemoryTest, TheLeastOfTheGroupsAboveCounts) {
  Mount("/", "g", "cgroup2 cgroup2 rw");
  Write("cgroup", "0::/a/b/c");
  Write("g/a/memory.max", "1000");
  Write("g/a/b/memory.max", "max");
  Write("g/a/b/c/memory.max", "2000");
  Write("g/other/memory.max", "1");
  EXPECT_EQ(Limit(), 1000);
}

TEST_F(GroupMemoryTest, AContainerSeesItsGroupAsTheRoot) {
  Mount("/", "g", "cgroup2 cgroup2 rw");
  Write("cgroup", "0::/");
  Write("g/memory.max", "3000");
  EXPECT_EQ(Limit(), 3000);
}

TEST_F(GroupMemoryTest, WithoutANamespaceTheMountBeginsAtTheContainersGroup) {
  Mount("/docker/1", "g", "cgroup2 cgroup2 rw");
  Write("cgroup", "0::/docker/1/inner");
  Write("g/memory.max", "5000");
  Write("g/inner/memory.max", "4000");
  EXPECT_EQ(Limit(), 4000);
}

TEST_F(GroupMemoryTest, OfAnotherNamespaceWhatIsMountedCounts) {
  Mount("/", "g", "cgroup2 cgroup2 rw");
  Write("cgroup", "0::/../elsewhere");
  Write("g/memory.max", "6000");
  EXPECT_EQ(Limit(), 6000);
}

TEST_F(GroupMemoryTest, VersionOneHasALargeNumberForNoLimit) {
  Mount("/", "m", "cgroup cgroup rw,cpu,memory");
  Write("cgroup", "4:cpu:/a\n7:hugetlb,memory:/a\n0::/");
  Write("m/memory.limit_in_bytes", "9223372036854771712");
  EXPECT_EQ(Limit(), std::nullopt);
  Write("m/a/memory.limit_in_bytes", "7000");
  EXPECT_EQ(Limit(), 7000);
}

TEST_F(GroupMemoryTest, PagesOfFilesAreFreeAndTheFullestGroupCounts) {
  Mount("/", "g", "cgroup2 cgroup2 rw");
  Write("cgroup", "0::/a/b");
  Write("g/a/memory.max", "1000");
  Write("g/a/memory.current", "900");
  Write("g/a/memory.stat", "anon 500\nactive_file 100\ninactive_file 200\nfile 999");
  Write("g/a/b/memory.max", "max");
  Write("g/a/b/memory.current", "900");
  EXPECT_EQ(Free(), 400);
  Write("g/a/b/memory.max", "1000");
  Write("g/a/b/memory.current", "1200");
  EXPECT_EQ(Free(), 0);
  EXPECT_EQ(GroupFreeBytes("/absent"), std::nullopt);
}

TEST_F(GroupMemoryTest, VersionOneHasOtherNamesForWhatIsUsed) {
  Mount("/", "m", "cgroup cgroup rw,memory");
  Write("cgroup", "4:memory:/a");
  Write("m/a/memory.limit_in_bytes", "1000");
  Write("m/a/memory.usage_in_bytes", "900");
  Write("m/a/memory.stat", "total_active_file 100\ntotal_inactive_file 200\nactive_file 7");
  Write("m/memory.limit_in_bytes", "9223372036854771712");
  Write("m/memory.usage_in_bytes", "900");
  EXPECT_EQ(Free(), 400);
}

TEST_F(GroupMemoryTest, ThisProcessMayUseSomething) {
  EXPECT_GT(MachineMemoryBytes(), 1U << 20);
  EXPECT_GT(FreeMemoryBytes(), 0U);
  EXPECT_LE(FreeMemoryBytes(), MachineMemoryBytes());
}

}  // namespace
}  // namespace ffrecord
