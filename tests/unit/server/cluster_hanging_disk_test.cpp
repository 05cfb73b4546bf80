// Goal: of a node's disks, one that hangs while files are removed from it keeps its own files, and
// nothing else: files go from other disks, and names are published and removed.
// Method: a node in this process with two disks, on one of which unlink() waits.

#include <gtest/gtest.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cstddef>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "daemon_cluster.h"
#include "hang.h"

namespace {

ffrecord::test::Hang unlink_hangs;
std::atomic<int> hanging_count{0};

}  // namespace

// In place of the C library's, for the whole program.
extern "C" int unlink(const char* path) noexcept {
  if (unlink_hangs && std::string_view(path).find("/slow/") != std::string_view::npos) {
    ++hanging_count;
    unlink_hangs.Wait();
    --hanging_count;
  }
  return static_cast<int>(::syscall(SYS_unlink, path));
}

namespace ffrecord::server {
namespace {

using test::Eventually;

class ClusterHangingDiskTest : public test::DaemonCluster {
 protected:
  ~ClusterHangingDiskTest() override { unlink_hangs = false; }
  void Adjust(const std::string& node, Server::Options& options) override {
    std::filesystem::create_directories(folder_ / node);
    options.data = {folder_ / node / "fast", folder_ / node / "slow"};
    options.cluster->service.replicas = 1;
  }
  std::size_t FilesOn(std::string_view disk) const {
    std::size_t count = 0;
    const auto folder = folder_ / "n1" / disk / "extents";
    for (const auto& entry : std::filesystem::recursive_directory_iterator(folder))
      if (entry.is_regular_file()) ++count;
    return count;
  }
  // As many extents as are on both disks.
  void Publish(const std::string& name) const {
    const std::vector<std::string> extents(6, name);
    const auto manifest = Client().Upload(extents, 1);
    ASSERT_TRUE(manifest) << manifest.error().message;
    const auto published = Client().Publish(AddressOf(nodes_.front()), name, manifest.value());
    ASSERT_TRUE(published) << published.error().message;
  }
};

TEST_F(ClusterHangingDiskTest, ADiskThatHangsWhileItRemovesKeepsItsOwnFilesOnly) {
  StartNodes(1);
  Publish("first");
  ASSERT_GE(FilesOn("fast"), 2U);
  ASSERT_GE(FilesOn("slow"), 2U);

  unlink_hangs = true;
  ASSERT_TRUE(Client().Remove(AddressOf(nodes_.front()), "first"));
  EXPECT_TRUE(Eventually([&] { return hanging_count > 0 && FilesOn("fast") == 0; }));
  const std::size_t kept = FilesOn("slow");
  EXPECT_GE(kept, 2U);

  // What is removed later does not wait behind it either.
  Publish("second");
  ASSERT_TRUE(Client().Remove(AddressOf(nodes_.front()), "second"));
  EXPECT_TRUE(Eventually([&] { return FilesOn("fast") == 0; }));
  EXPECT_GE(FilesOn("slow"), kept);

  unlink_hangs = false;
  EXPECT_TRUE(Eventually([&] { return FilesOn("slow") == 0; }));
}

}  // namespace
}  // namespace ffrecord::server
