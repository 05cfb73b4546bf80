#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "eventually.h"
#include "libffrecord/net/rpc/remote_files.h"
#include "libffrecord/net/rpc/session.h"
#include "queued_reader.h"
#include "scripted_daemon.h"
#include "virtual_clock.h"

namespace ffrecord::test {

// A queue over the files of a daemon that is a script, with groups of one range each, by a clock of
// the test.
class RemoteQueueFixture : public testing::Test {
 protected:
  static constexpr std::uint32_t kSizeBytes = 1000;  // Size of a group.

  struct Group {
    explicit Group(std::uint64_t offset = 0) : memory(kSizeBytes, std::byte{0xEE}) {
      range = {0, offset, memory};
      noted = std::make_unique<NotedGroup>(std::span(&range, 1));
    }
    bool is_good() const {
      return noted->ended && *noted->ended && range.status == ErrorCode::kOk &&
             std::ranges::all_of(memory, [](std::byte byte) { return byte == std::byte{0x11}; });
    }
    std::vector<std::byte> memory;
    RangeRead range;
    std::unique_ptr<NotedGroup> noted;
  };

  void Start(BatchScript::OnBatch on_batch,
             std::chrono::milliseconds timeout = std::chrono::seconds(10),
             std::uint64_t capabilities = net::kCapabilityCancel) {
    script_.emplace(std::move(on_batch));
    daemon_.emplace([this](FakeDaemon::Request& request) { return (*script_)(request); }, true,
                    capabilities);
    files_.emplace(net::Session::Get(daemon_->address()), OneFile(1'000'000), "location",
                   SessionOptions{timeout});
    queue_ = files_->MakeQueue(RangeReader::QueueUse::kAnyThread).value();
  }
  void TearDown() override {
    queue_.reset();
    files_.reset();
    daemon_.reset();
  }
  Group& Submit() {
    groups_.push_back(std::make_unique<Group>());
    queue_->Submit(*groups_.back()->noted);
    return *groups_.back();
  }
  void PollUntil(const std::function<bool()>& condition) {
    const auto end = Clock::now() + std::chrono::seconds(20);
    while (!condition() && Clock::now() < end) queue_->Poll(std::chrono::milliseconds(20));
    ASSERT_TRUE(condition());
  }
  void PollUntilAllEnded() {
    PollUntil([&] {
      return std::ranges::all_of(groups_,
                                 [](auto& group) { return group->noted->ended.has_value(); });
    });
  }

  VirtualClock clock_;
  std::optional<BatchScript> script_;
  std::optional<FakeDaemon> daemon_;
  std::optional<net::RemoteFiles> files_;
  std::vector<std::unique_ptr<Group>> groups_;
  std::unique_ptr<RangeQueue> queue_;
};

}  // namespace ffrecord::test
