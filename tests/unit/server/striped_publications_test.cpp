// Goal: a name with an erasure code is published only if each of its stripes can lose as many nodes
// as its code says, and takes nothing from the stripes of other names.
// Method: one node whose peers and store are in the test's hands; its refusals and commits.

#include <gtest/gtest.h>

#include <functional>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "libffrecord/base/hex.h"
#include "one_node.h"
#include "stripes.h"

namespace ffrecord::server::cluster {
namespace {

using namespace std::chrono_literals;
using test::OneNode;

constexpr ErasureCode kCode{2, 1};
constexpr std::uint64_t kUpload = 21, kOther = 22, kAttempt = 41;

class StripedPublicationsTest : public testing::Test {
 protected:
  using IsHeld = std::function<bool(const std::string& node, const ManifestExtent& extent)>;

  StripedPublicationsTest() {
    for (const std::uint64_t upload : {kUpload, kOther}) one_.Put(UploadKey(upload), {});
    one_.Run(1s);
  }
  // What comes of it where nodes hold what `is_held` says.
  Result<std::uint64_t> Publish(const DatasetManifest& manifest, const IsHeld& is_held,
                                std::uint8_t held_min = 0) {
    Publication::Request request;
    request.mode = Publication::Mode::kReplace;
    request.name = "set";
    request.attempt = kAttempt;
    request.manifest = EncodeDatasetManifest(manifest).value();
    request.deadline = one_.now + 10s;
    request.held_min = held_min;
    (void)one_.node->Begin(std::move(request));
    for (int round = 0; round < 200; ++round) {
      one_.Run(100ms);
      one_.Answer<AskHoldings>([&](const AskHoldings& question) {
        if (question.node == silent_ && silent_count_ > 0) {
          --silent_count_;
          return Result<Holdings>(Error{ErrorCode::kDeadlineExceeded, "no answer"});
        }
        Holdings holdings;
        for (const ManifestExtent& extent : question.extents)
          holdings.push_back(is_held(question.node, extent) ? Holding::kHeld : Holding::kAbsent);
        return Result<Holdings>(holdings);
      });
      one_.Answer<StoreBody>([](const StoreBody&) { return Result<void>(); });
      auto finished = one_.node->TakeFinished();
      if (!finished.empty()) return finished.front().result;
    }
    return Error{ErrorCode::kDeadlineExceeded, "it goes on"};
  }
  // Each owner has its member.
  IsHeld ByOwners(const DatasetManifest& manifest) const {
    return [&, manifest](const std::string& node, const ManifestExtent& extent) {
      for (const Stripe& stripe : StripesOf(manifest)) {
        const auto owners = one_.slots.map.StripeOwners(stripe.slot(), stripe.members.size());
        for (std::size_t i = 0; i < owners.size(); ++i)
          if (stripe.members[i].id == extent.id) return one_.slots.map.nodes[owners[i]].id == node;
      }
      return false;
    };
  }
  static IsHeld But(IsHeld is_held, const ManifestExtent& lost) {
    return [is_held = std::move(is_held), lost](const auto& node, const ManifestExtent& extent) {
      return extent.id != lost.id && is_held(node, extent);
    };
  }
  // Other names have it already.
  void PublishOther(const std::string& name, const DatasetManifest& manifest) {
    one_.PublishBody(name, EncodeDatasetManifest(manifest).value(), 2, kAttempt + name.size());
    one_.Run(100ms);
  }
  void ExpectRefused(const Result<std::uint64_t>& result, ErrorCode code,
                     const std::string& words) const {
    ASSERT_FALSE(result);
    EXPECT_EQ(result.error().code, code) << result.error().message;
    EXPECT_NE(result.error().message.find(words), std::string::npos) << result.error().message;
    EXPECT_EQ(one_.RevisionOf("datasets/set"), 0U);
  }

  OneNode one_;
  std::string silent_;  // A node that does not answer so many questions.
  int silent_count_ = 0;
};

TEST_F(StripedPublicationsTest, ItIsCommittedOnceEachMemberIsHeldOnANodeOfItsOwn) {
  const auto manifest = test::StripedManifest(kUpload, 5, kCode);
  const auto result = Publish(manifest, ByOwners(manifest));
  ASSERT_TRUE(result) << result.error().message;
  EXPECT_NE(one_.RevisionOf("datasets/set"), 0U);
}

TEST_F(StripedPublicationsTest, MembersMayLieElsewhereThanWithTheirOwners) {
  const auto manifest = test::StripedManifest(kUpload, 2, kCode);
  const auto members = StripeOf(manifest, 0).members;
  EXPECT_TRUE(Publish(manifest, [&](const std::string& node, const ManifestExtent& extent) {
    const auto at = std::ranges::find(members, extent) - members.begin();
    return node == "n" + std::to_string(at + 1);
  }));
}

TEST_F(StripedPublicationsTest, AMemberThatNoNodeHoldsIsRefused) {
  const auto manifest = test::StripedManifest(kUpload, 5, kCode);
  ExpectRefused(Publish(manifest, But(ByOwners(manifest), manifest.parity[1])),
                ErrorCode::kConflict, Hex(manifest.parity[1].id) + " is held in 0");
}

TEST_F(StripedPublicationsTest, TwoMembersOnOneNodeAreRefused) {
  const auto manifest = test::StripedManifest(kUpload, 2, kCode);
  ExpectRefused(
      Publish(manifest, [](const std::string& node, const auto&) { return node == "n2"; }),
      ErrorCode::kConflict, "of one stripe are held in failure domain d-n2 alone");
}

// A writer that gets no answer from a node sends the member to another one, and the next member to
// the first: each has a node of its own all the same.
TEST_F(StripedPublicationsTest, AMemberThatIsOnTwoNodesLeavesOneToAnother) {
  const auto manifest = test::StripedManifest(kUpload, 2, kCode);
  const Stripe stripe = StripeOf(manifest, 0);
  const auto owners = one_.slots.map.StripeOwners(stripe.slot(), 3);
  const auto owner = [&](std::size_t member) { return one_.slots.map.nodes[owners[member]].id; };
  std::string spare;
  for (const PlacedNode& node : one_.slots.map.nodes)
    if (node.id != owner(0) && node.id != owner(1) && node.id != owner(2)) spare = node.id;
  // The first is asked for at its owner, where the second is too, and nowhere else.
  const std::map<ExtentId, std::set<std::string>> places{{stripe.members[0].id, {owner(0), spare}},
                                                         {stripe.members[1].id, {owner(0)}},
                                                         {stripe.members[2].id, {owner(2)}}};
  const auto is_held = [&](const std::string& node, const ManifestExtent& extent) {
    return places.at(extent.id).contains(node);
  };
  const auto result = Publish(manifest, is_held);
  EXPECT_TRUE(result) << result.error().message;
}

// Whoever says nothing may have the member that would make it right.
TEST_F(StripedPublicationsTest, ANodeThatDoesNotAnswerIsAskedAgainBeforeAStripeIsRefused) {
  const auto manifest = test::StripedManifest(kUpload, 2, kCode);
  const Stripe stripe = StripeOf(manifest, 0);
  const auto owners = one_.slots.map.StripeOwners(stripe.slot(), 3);
  const std::string& crowded = one_.slots.map.nodes[owners[0]].id;
  for (const PlacedNode& node : one_.slots.map.nodes)
    if (std::ranges::none_of(
            owners, [&](std::uint16_t owner) { return one_.slots.map.nodes[owner].id == node.id; }))
      silent_ = node.id;
  const auto is_held = [&](const std::string& node, const ManifestExtent& extent) {
    if (node == silent_) return extent.id == stripe.members[0].id;
    return node == crowded ? extent.id != stripe.members[2].id : extent.id == stripe.members[2].id;
  };
  silent_count_ = 2;
  const auto result = Publish(manifest, is_held);
  EXPECT_TRUE(result) << result.error().message;
  EXPECT_EQ(silent_count_, 0);
}

// Each of the three has more than one node; the three have two.
TEST_F(StripedPublicationsTest, ThreeMembersOnTwoNodesAreRefused) {
  const auto manifest = test::StripedManifest(kUpload, 2, kCode);
  ExpectRefused(Publish(manifest, [](const std::string& node,
                                     const auto&) { return node == "n2" || node == "n3"; }),
                ErrorCode::kConflict,
                "of one stripe are held in failure domain d-n2, d-n3 alone; upload them again");
}

TEST_F(StripedPublicationsTest, OneGivesWayToAnotherThatGivesWay) {
  const auto manifest = test::StripedManifest(kUpload, 3, {3, 1});
  const auto& members = StripeOf(manifest, 0).members;
  // A chain: it can be n1, n2, n3, n4 in one way only, whatever is found first.
  const std::vector<std::set<std::string>> places{{"n1", "n2"}, {"n2", "n3"}, {"n3", "n4"}, {"n4"}};
  const auto is_held = [&](const std::string& node, const ManifestExtent& extent) {
    const auto at = std::ranges::find(members, extent) - members.begin();
    return places[static_cast<std::size_t>(at)].contains(node);
  };
  const auto result = Publish(manifest, is_held);
  EXPECT_TRUE(result) << result.error().message;
}

TEST_F(StripedPublicationsTest, TooFewFailureDomainsAreRefusedAndSayHowMany) {
  const auto large = test::StripedManifest(kUpload, 3, {3, 2});
  ExpectRefused(Publish(large, ByOwners(large)), ErrorCode::kUnavailable,
                "5 members of a stripe are asked for and 4 failure domains are up");
  // A short stripe needs fewer.
  const auto small = test::StripedManifest(kUpload, 2, {3, 2});
  EXPECT_TRUE(Publish(small, ByOwners(small)));
}

TEST_F(StripedPublicationsTest, NodesThatAreDownCountNot) {
  one_.Delete("nodes/n3");
  one_.Delete("nodes/n4");
  const auto manifest = test::StripedManifest(kUpload, 2, kCode);
  ExpectRefused(Publish(manifest, [](const auto&, const auto&) { return true; }),
                ErrorCode::kUnavailable, "2 failure domains are up");
}

TEST_F(StripedPublicationsTest, ParityNeedsAnUploadAsDataDoes) {
  auto manifest = test::StripedManifest(kUpload, 2, kCode);
  manifest.parity[0].id = MakeExtentId(77, 1, 0);
  ExpectRefused(Publish(manifest, ByOwners(manifest)), ErrorCode::kConflict,
                "parity: extent " + Hex(manifest.parity[0].id));
}

// --- Stripes that are published already ---------------------------------------------------------

TEST_F(StripedPublicationsTest, WholeStripesOfAnotherNameAreTakenWhileItStands) {
  const auto manifest = test::StripedManifest(kUpload, 3, kCode);
  PublishOther("other", manifest);
  const std::uint64_t revision = one_.RevisionOf("datasets/other");
  ASSERT_TRUE(Publish(manifest, ByOwners(manifest)));
  const auto& compares = one_.commits.back().compares;
  EXPECT_TRUE(std::ranges::any_of(compares, [&](const auto& compare) {
    return compare.key == "datasets/other" && compare.mod_revision == revision;
  }));
}

// While the slot map moves, a node may have one member still and another already.
TEST_F(StripedPublicationsTest, StripesOfAnotherNameMayMoveMeanwhile) {
  const auto manifest = test::StripedManifest(kUpload, 2, kCode);
  PublishOther("other", manifest);
  EXPECT_TRUE(Publish(manifest, [](const std::string& node, const auto&) { return node == "n2"; }));
}

TEST_F(StripedPublicationsTest, AMemberThatIsNowhereForAMomentIsLookedForAgain) {
  const auto manifest = test::StripedManifest(kUpload, 2, kCode);
  PublishOther("other", manifest);
  int asked = 0;  // Of each node once: by then it is where nobody looks any more.
  const auto by_owners = ByOwners(manifest);
  const auto result = Publish(manifest, [&](const std::string& node, const auto& extent) {
    if (extent.id == manifest.parity[0].id && ++asked <= 4) return false;
    return by_owners(node, extent);
  });
  EXPECT_TRUE(result) << result.error().message;
  EXPECT_GT(asked, 4);
}

TEST_F(StripedPublicationsTest, AMemberOfAnotherNameThatStaysAwayIsRefusedInTheEnd) {
  const auto manifest = test::StripedManifest(kUpload, 2, kCode);
  PublishOther("other", manifest);
  ExpectRefused(Publish(manifest, But(ByOwners(manifest), manifest.parity[0])),
                ErrorCode::kConflict, Hex(manifest.parity[0].id) + " is held in 0");
}

TEST_F(StripedPublicationsTest, ExtentsWithReplicasBecomeNoMembersOfAStripe) {
  const auto manifest = test::StripedManifest(kUpload, 2, kCode);
  auto plain = manifest;
  plain.code = {};
  plain.parity.clear();
  PublishOther("other", plain);
  ExpectRefused(Publish(manifest, ByOwners(manifest)), ErrorCode::kConflict, "upload");
}

TEST_F(StripedPublicationsTest, MembersOfAStripeAreNoExtentsWithReplicas) {
  const auto manifest = test::StripedManifest(kUpload, 2, kCode);
  PublishOther("other", manifest);
  auto plain = manifest;
  plain.code = {};
  plain.parity.clear();
  ExpectRefused(Publish(plain, [](const auto&, const auto&) { return true; }), ErrorCode::kConflict,
                "is published with an erasure code and 2 replicas");
}

TEST_F(StripedPublicationsTest, AnotherCodeOrAnotherOrderIsRefused) {
  const auto manifest = test::StripedManifest(kUpload, 2, kCode);
  PublishOther("other", manifest);
  auto wider = manifest;
  wider.code = {3, 1};  // The same stripe, of another code.
  ExpectRefused(Publish(wider, ByOwners(wider)), ErrorCode::kConflict, "its place in a stripe");
  auto turned = manifest;
  std::swap(turned.files[0], turned.files[1]);
  ExpectRefused(Publish(turned, ByOwners(turned)), ErrorCode::kConflict, "its place in a stripe");
}

// A stripe whose parity is another's could not be computed from it, for either name.
TEST_F(StripedPublicationsTest, TheStripeOfAnotherNameGetsNoOtherParity) {
  const auto manifest = test::StripedManifest(kUpload, 2, kCode);
  PublishOther("other", manifest);
  auto changed = manifest;
  // Of the same slot, so that the members would lie where they lie now.
  std::uint32_t number = 0;
  while (SlotOf(MakeExtentId(kOther, 1, number)) != SlotOf(manifest.parity[0].id)) ++number;
  changed.parity[0].id = MakeExtentId(kOther, 1, number);
  ExpectRefused(Publish(changed, ByOwners(changed)), ErrorCode::kConflict, "of one stripe extent ");
}

TEST_F(StripedPublicationsTest, TheStripeOfAnotherNameGetsNoOtherMember) {
  const auto manifest = test::StripedManifest(kUpload, 2, kCode);
  PublishOther("other", manifest);
  auto changed = manifest;
  changed.files[1].extents[0].id = MakeExtentId(kOther, 0, 1);
  ExpectRefused(Publish(changed, ByOwners(changed)), ErrorCode::kConflict, "of one stripe extent ");
}

TEST_F(StripedPublicationsTest, MembersOfTwoStripesMakeNoThird) {
  const auto one = test::StripedManifest(kUpload, 2, kCode);
  std::uint32_t file = 1;  // A stripe of the same slot.
  const std::uint32_t slot = StripeOf(one, 0).slot();
  while (SlotOf(MakeExtentId(kOther, file, 0)) != slot) ++file;
  const auto other = test::StripedManifest(kOther, 2, kCode, file);
  PublishOther("one", one);
  PublishOther("other", other);
  auto mixed = one;
  mixed.files[1] = other.files[1];
  ExpectRefused(Publish(mixed, ByOwners(mixed)), ErrorCode::kConflict, "its place in a stripe");
}

// --- Names that are published again by an operator ----------------------------------------------

TEST_F(StripedPublicationsTest, WhatRepairCanComputeMayBeMissingWhereRepairMakesTheRest) {
  const auto manifest = test::StripedManifest(kUpload, 2, kCode);
  EXPECT_TRUE(
      Publish(manifest, But(ByOwners(manifest), manifest.files[0].extents[0]), /*held_min=*/1));
}

TEST_F(StripedPublicationsTest, WhatItCannotComputeMayNot) {
  const auto manifest = test::StripedManifest(kUpload, 2, kCode);
  const auto is_held =
      But(But(ByOwners(manifest), manifest.files[0].extents[0]), manifest.parity[0]);
  ExpectRefused(Publish(manifest, is_held, /*held_min=*/1), ErrorCode::kConflict,
                "1 members of 2 are held");
}

}  // namespace
}  // namespace ffrecord::server::cluster
