// Goal: an operator saves the metadata page by page, puts it back into an empty store only, and
// confirms what it has looked at only.
// Method: the rooms of one node, stepped by a clock of the test.

#include "server/service/cluster/metadata_desk.h"

#include <gtest/gtest.h>

#include <chrono>
#include <optional>
#include <string>
#include <vector>

#include "node_rooms.h"

namespace ffrecord::server {
namespace {

using namespace std::chrono_literals;
using Action = net::MetadataHistory::Action;

class MetadataDeskTest : public testing::Test {
 protected:
  static ClusterOptions Options() {
    ClusterOptions options;
    options.node = options.domain = "n1";
    options.replicas = 1;
    options.lease = 10min;  // It ends in no test.
    return options;
  }
  void Join() {
    rooms_.RunFor(2s);
    ASSERT_TRUE(rooms_.machines().view().mirror.was_listed()) << rooms_.machines().Trouble();
  }
  cluster::HistoryRecord History() const {
    const auto key = rooms_.Get(cluster::kHistoryKey);
    return key ? cluster::HistoryRecord::Decode(key->value).value() : cluster::HistoryRecord();
  }
  // The history as it is in the store, and shown by the node: nobody has confirmed it.
  cluster::HistoryRecord Unconfirmed() {
    cluster::HistoryRecord record = History();
    record.Confirm(rooms_.Get(cluster::kHistoryKey)->mod_revision);  // Fixes its newest term.
    record.is_confirmed = false;
    rooms_.Put(cluster::kHistoryKey, record.Encode());
    rooms_.RunFor(1s);
    return record;
  }
  template <class T>
  auto Done() {
    return [this](const Result<T>& result) {
      ++answered_;
      error_ = result ? std::nullopt : std::optional(result.error());
    };
  }
  void Confirm(std::uint64_t incarnation) {
    rooms_.metadata().WorkOnHistory({Action::kConfirm, false, incarnation}, Done<std::string>());
    rooms_.RunFor(1s);
  }
  void ExpectRefused(ErrorCode code, const std::string& why) {
    ASSERT_EQ(answered_, 1);
    ASSERT_TRUE(error_);
    EXPECT_EQ(error_->code, code) << error_->message;
    EXPECT_NE(error_->message.find(why), std::string::npos) << error_->message;
  }

  int answered_ = 0;
  std::optional<Error> error_;
  test::NodeRooms rooms_{Options()};  // Last: its answers may come as it ends.
};

TEST_F(MetadataDeskTest, AllKeysAreListedPageByPage) {
  Join();
  std::vector<std::string> keys;
  for (int i = 0; i < 2'500; ++i) {
    std::string digits = std::to_string(i);
    keys.push_back("other/" + std::string(4 - digits.size(), '0') + digits);
    rooms_.Put(keys.back(), {});
  }
  std::vector<std::string> listed;
  net::MetadataList request;
  bool has_more = true;
  int page_count = 0;
  for (; has_more && page_count < 20; ++page_count) {
    has_more = false;
    rooms_.metadata().ListMetadata(request, [&](const Result<net::MetadataListReply>& reply) {
      ASSERT_TRUE(reply) << reply.error().message;
      request.revision = reply.value().revision;
      has_more = reply.value().more;
      for (const auto& entry : reply.value().page.entries) {
        request.after = entry.key;
        if (entry.key.starts_with("other/")) listed.push_back(entry.key);
      }
    });
    rooms_.RunFor(100ms);
  }
  EXPECT_GT(page_count, 1);
  EXPECT_EQ(listed, keys);
}

TEST_F(MetadataDeskTest, NothingIsPutIntoAStoreThatHasTheMetadata) {
  Join();
  rooms_.Put(std::string(cluster::kDatasetKeys) + "a", {});
  net::MetadataPut part;
  part.backup = 5;
  rooms_.metadata().PutMetadata(part, Done<void>());
  rooms_.RunFor(1s);
  ExpectRefused(ErrorCode::kConflict, "a backup is put into an empty one only");
}

TEST_F(MetadataDeskTest, ABackupWithoutItsClusterIsRefusedAtItsLastPage) {
  Join();
  net::MetadataPut part;
  part.backup = 5;
  part.is_last = true;
  rooms_.metadata().PutMetadata(part, Done<void>());
  rooms_.RunFor(1s);
  ExpectRefused(ErrorCode::kInvalidArgument, "does not say of which cluster it is");
}

TEST_F(MetadataDeskTest, ALeaderThatBeginsMeanwhileIsNoReasonNotToConfirm) {
  Join();
  cluster::HistoryRecord record = Unconfirmed();
  rooms_.way().HoldCommits();
  Confirm(record.incarnation);
  record.AddTerm(77, rooms_.Get(cluster::kHistoryKey)->mod_revision);
  rooms_.way().HoldNews();
  rooms_.Put(cluster::kHistoryKey, record.Encode());
  rooms_.way().ReleaseCommits();
  rooms_.RunFor(1s);
  EXPECT_EQ(answered_, 0);  // The node does not know the record that it is to confirm.
  rooms_.way().ReleaseNews();
  rooms_.RunFor(1s);
  EXPECT_EQ(answered_, 1);
  EXPECT_FALSE(error_) << error_->message;
  const auto confirmed = History();
  EXPECT_TRUE(confirmed.is_confirmed);
  EXPECT_EQ(confirmed.terms.back().token, 77U);
}

TEST_F(MetadataDeskTest, AnIncarnationThatBeginsMeanwhileIsNotConfirmed) {
  Join();
  cluster::HistoryRecord record = Unconfirmed();
  rooms_.way().HoldCommits();
  Confirm(record.incarnation);
  record.AddAncestors({&record.incarnation, 1});
  ++record.incarnation;
  rooms_.Put(cluster::kHistoryKey, record.Encode());
  rooms_.way().ReleaseCommits();
  rooms_.RunFor(1s);
  ExpectRefused(ErrorCode::kConflict, "compare it again");
  EXPECT_FALSE(History().is_confirmed);
}

TEST_F(MetadataDeskTest, ANodeThatDoesNotSeeTheStoreConfirmsNothing) {
  Join();
  const cluster::HistoryRecord record = Unconfirmed();
  rooms_.way().Cut();
  rooms_.machines().node().Doubt();
  Confirm(record.incarnation);
  rooms_.RunFor(20s);
  ExpectRefused(ErrorCode::kUnavailable, "does not show the newest history");
  rooms_.way().Mend();
  rooms_.RunFor(10s);
  EXPECT_FALSE(History().is_confirmed);
}

TEST_F(MetadataDeskTest, AnotherIncarnationThanTheOneLookedAtIsNotConfirmed) {
  Join();
  Confirm(History().incarnation + 1);
  ExpectRefused(ErrorCode::kConflict, "compare it again");
}

}  // namespace
}  // namespace ffrecord::server
