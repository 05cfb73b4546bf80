// A node whose store has a history, and an older state of that to be put back.

#pragma once

#include <gtest/gtest.h>

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "one_node.h"

namespace ffrecord::server::cluster {

using test::OneNode;

constexpr std::uint64_t kUpload = 21;

class ClusterHistoryTest : public testing::Test {
 protected:
  explicit ClusterHistoryTest(const std::string& leader = "n2") : one_(leader) {
    HistoryRecord record;
    record.incarnation = 3;
    record.AddTerm(7, 0);
    if (leader == "n2") one_.Put(std::string(kHistoryKey), record.Encode());
    one_.Put(UploadKey(kUpload), {});
    one_.Run(std::chrono::seconds(5));
    older_ = std::make_unique<MetaState>(one_.state);
  }
  // Changes the cluster: more than it takes to notice that the store does not go on.
  void GoOn() {
    one_.extents.extents[extent_.id] = extent_;
    one_.Publish("later", {extent_}, 2, 31);
    one_.Delete(UploadKey(kUpload));
    for (int i = 0; i < 20; ++i) one_.Put(std::string(kGenerationKey), {});
    one_.Run(std::chrono::seconds(5));
  }
  std::optional<HistoryRecord> Record() const {
    const auto key = one_.state.Get(kHistoryKey);
    if (!key) return std::nullopt;
    return HistoryRecord::Decode(key->value).value();
  }
  void Confirm() {
    auto record = *Record();
    record.Confirm(one_.RevisionOf(std::string(kHistoryKey)));
    one_.Put(std::string(kHistoryKey), record.Encode());
  }
  // Nothing wants the extent of `later`, as far as the older state says.
  void PutTombstone() {
    TombstoneRecord tombstone;
    tombstone.upload = kUpload;
    one_.Delete(UploadKey(kUpload));
    one_.Put(UploadTombstoneKey(kUpload), tombstone.Encode());
  }
  const Continuity& History() const { return one_.node->view().continuity; }

  OneNode one_;
  const ManifestExtent extent_ = one_.ExtentOf(true, kUpload);
  std::unique_ptr<MetaState> older_;
};

}  // namespace ffrecord::server::cluster
