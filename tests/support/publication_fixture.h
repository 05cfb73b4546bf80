#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "one_node.h"

namespace ffrecord::test {

using std::chrono_literals::operator""s;
using std::chrono_literals::operator""ms;

inline bool Compares(const server::MetaStore::Commit& commit, const std::string& key,
                     std::uint64_t revision) {
  return std::ranges::any_of(commit.compares, [&](const auto& compare) {
    return compare.key == key && compare.mod_revision == revision;
  });
}
inline bool Puts(const server::MetaStore::Commit& commit, const std::string& key) {
  return std::ranges::any_of(commit.puts, [&](const auto& put) { return put.key == key; });
}
inline bool Deletes(const server::MetaStore::Commit& commit, const std::string& key) {
  return std::ranges::find(commit.deletes, key) != commit.deletes.end();
}

// A publication by the node "n1", whose peers and store are in the test's hands.
class ClusterPublicationTest : public testing::Test {
 public:
  static constexpr std::uint64_t kUpload = 21, kAttempt = 41;

 protected:
  using Publication = server::cluster::Publication;
  using Mode = Publication::Mode;
  using Holding = server::cluster::Holding;
  using StoreBody = server::cluster::StoreBody;

  ClusterPublicationTest() {
    one_.Put(server::cluster::UploadKey(kUpload), {});
    one_.Run(1s);
  }
  void Begin(Mode mode, const std::vector<ManifestExtent>& extents, std::uint8_t replicas = 2,
             std::chrono::milliseconds time = 100ms) {
    Publication::Request request;
    request.mode = mode;
    request.name = "set";
    request.attempt = kAttempt;
    request.expected_revision = expected_revision_;
    request.replicas = replicas;
    if (mode != Publication::Mode::kRemove) request.manifest = one_.ManifestOf(extents);
    request.deadline = one_.now + 60s;
    request.quotas = quotas_;
    (void)one_.node->Begin(std::move(request));
    one_.Run(time);
  }
  void AnswerAll() {
    for (int round = 0; round < 5; ++round) {
      one_.AnswerHoldings(Holding::kHeld);
      one_.Answer<StoreBody>([](const StoreBody&) { return Result<void>(); });
      one_.Run(10ms);
    }
  }
  // The outcome of the publication; none: it goes on.
  std::optional<Result<std::uint64_t>> Outcome() {
    auto finished = one_.node->TakeFinished();
    return finished.empty() ? std::nullopt : std::optional(finished.front().result);
  }
  Error Late() {
    const auto result = Outcome();
    EXPECT_TRUE(result && !*result) << "it goes on, or succeeded";
    return result && !*result ? result->error() : Error{ErrorCode::kIo, ""};
  }
  static bool Says(const Error& error, const std::string& text) {
    return error.message.find(text) != std::string::npos;
  }
  ErrorCode Refused() {
    const auto result = Outcome();
    return result && !*result ? result->error().code : ErrorCode::kIo;  // It was not refused.
  }

  OneNode one_;
  // Quotas and expected revision of the next one that begins.
  server::NameQuotas quotas_;
  std::uint64_t expected_revision_ = 0;
  const ManifestExtent extent_ = one_.ExtentOf(true, kUpload);
};

}  // namespace ffrecord::test
