// Goal: what all readers of replicated files share is right: the daemon that is kept to, and which
// copies are damaged.
// Method: daemons in this process that hold the same files.

#include "libffrecord/net/replicas/replicated_files.h"

#include <gtest/gtest.h>

#include <array>
#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "replicated_daemons.h"

namespace ffrecord::net {
namespace {

using namespace std::chrono_literals;

class ReplicatedFilesTest : public testing::Test {
 protected:
  static constexpr std::size_t kCount = 3;

  void SetUp() override {
    std::vector<std::shared_ptr<const RemoteFiles>> replicas;
    for (const test::Daemon& daemon : daemons_) {
      const auto manifest = test::PutFiles(daemon.address(), contents_, 77);
      ASSERT_TRUE(manifest) << manifest.error().message;
      replicas.push_back(test::FilesAt(daemon.address(), manifest.value(), {20s, Transport::kTcp}));
    }
    files_ = std::make_shared<const ReplicatedFiles>(std::move(replicas), nullptr,
                                                     SessionOptions{20s, Transport::kTcp});
  }
  // The node that is asked first, if all are alike.
  NodeIndex Preferred() const {
    auto& health = files_->health();
    const std::lock_guard lock(health.mutex);
    NodeIndex best = 0;
    for (NodeIndex node = 1; node < kCount; ++node)
      if (health.state->IsBetter(node, best)) best = node;
    return best;
  }

  std::array<test::Daemon, kCount> daemons_;
  std::vector<std::string> contents_{std::string(100'000, 'x'), "second"};
  std::shared_ptr<const ReplicatedFiles> files_;
};

TEST_F(ReplicatedFilesTest, TheLastOfTheDaemonsThatReadAheadIsKeptTo) {
  const auto first = files_->KeepTo(1);
  EXPECT_EQ(Preferred(), 1U);
  const auto second = files_->KeepTo(2);
  EXPECT_EQ(Preferred(), 2U);
  files_->LetGo(first);  // The hint of the epoch before goes after the next one was sent.
  EXPECT_EQ(Preferred(), 2U);
  const auto third = files_->KeepTo(1);
  files_->LetGo(third);
  EXPECT_EQ(Preferred(), 2U);
  files_->LetGo(second);
  EXPECT_EQ(Preferred(), 0U);
}

}  // namespace
}  // namespace ffrecord::net
