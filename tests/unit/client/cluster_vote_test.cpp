// Goal: daemons that are silent are never outvoted by a few quick ones; daemons that are not there
// delay nothing; two clusters at one address are an error.
// Method: the vote gets answers in any order; in each order of the same words it says the same.

#include "client/dataset/cluster_vote.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

namespace ffrecord::client {
namespace {

using State = ClusterVote::State;

struct Named {
  std::size_t at;
  bool is_up = true;
};

std::string AddressOf(std::size_t i) { return "host" + std::to_string(i) + ":9400"; }

// Of cluster `id`, which gives these addresses to its nodes.
ClusterView ViewOf(int id, const std::vector<Named>& named, std::uint32_t version = 1) {
  ClusterView view;
  view.reply.cluster.fill(static_cast<std::byte>(id));
  view.reply.version = version;
  for (const auto& [at, is_up] : named)
    view.reply.nodes.push_back({.id = "n" + std::to_string(at),
                                .address = AddressOf(at),
                                .domain = "",
                                .weight = 1,
                                .state = net::MemberState::kIn,
                                .is_up = is_up});
  return view;
}

// What one daemon has said: a view, that it is of no cluster, or nothing as it is away.
struct Word {
  std::size_t at;
  enum Kind { kNode, kAlone, kAway, kSilent } kind;
  ClusterView view = {};
};
Word Node(std::size_t at, ClusterView view) { return {at, Word::kNode, std::move(view)}; }
Word Alone(std::size_t at) { return {at, Word::kAlone, {}}; }
Word Away(std::size_t at) { return {at, Word::kAway, {}}; }
Word Silent(std::size_t at) { return {at, Word::kSilent, {}}; }

ClusterVote Vote(std::size_t count, const std::vector<Word>& words) {
  std::vector<std::string> addresses;
  for (std::size_t i = 0; i < count; ++i) addresses.push_back(AddressOf(i));
  ClusterVote vote(std::move(addresses));
  for (const Word& word : words) {
    const Error why{ErrorCode::kUnavailable, AddressOf(word.at) + " says why"};
    if (word.kind == Word::kNode) vote.NoteAnswer(word.at, word.view);
    if (word.kind == Word::kAlone) vote.NoteAnswer(word.at, std::nullopt);
    if (word.kind == Word::kAway) vote.NoteAway(word.at, why);
    if (word.kind == Word::kSilent) vote.NoteSilent(word.at, why);
  }
  return vote;
}

struct Outcome {
  State state;
  ErrorCode code;   // kOk: there is a result,
  int cluster = 0;  // which is this cluster, or 0: none.
  bool operator==(const Outcome&) const = default;
};
void PrintTo(const Outcome& outcome, std::ostream* out) {
  *out << "state " << static_cast<int>(outcome.state) << ", code " << static_cast<int>(outcome.code)
       << ", cluster " << outcome.cluster;
}

Outcome OutcomeOf(const ClusterVote& vote) {
  const auto decided = vote.Decide();
  if (!decided) return {vote.state(), decided.error().code};
  const auto& view = decided.value();
  return {vote.state(), ErrorCode::kOk, view ? std::to_integer<int>(view->reply.cluster[0]) : 0};
}

// In each order of the words.
void ExpectVote(std::size_t count, std::vector<Word> words, Outcome expected) {
  std::vector<std::size_t> order(words.size());
  std::iota(order.begin(), order.end(), 0U);
  do {
    std::vector<Word> said;
    for (const std::size_t i : order) said.push_back(words[i]);
    EXPECT_EQ(OutcomeOf(Vote(count, said)), expected) << "order " << testing::PrintToString(order);
  } while (std::next_permutation(order.begin(), order.end()));
}

constexpr int kOurs = 1;
constexpr int kTheirs = 2;
ClusterView Ours(std::uint32_t version = 1) { return ViewOf(kOurs, {{0}, {1}, {2}}, version); }
ClusterView OursWith(bool others_are_up) {
  return ViewOf(kOurs, {{0}, {1, others_are_up}, {2, others_are_up}});
}
ClusterView Aliased() { return ViewOf(kOurs, {}); }
ClusterView Theirs(std::size_t at) { return ViewOf(kTheirs, {{at}}); }

TEST(ClusterVoteTest, AStrangerDoesNotDecideWhileOthersAreSilent) {
  const Outcome open{State::kOpen, ErrorCode::kUnavailable};
  ExpectVote(3, {Alone(1)}, open);
  ExpectVote(3, {Alone(1), Silent(0), Silent(2)}, open);
  ExpectVote(3, {Node(1, Theirs(1))}, open);
  ExpectVote(3, {Node(1, Theirs(1)), Silent(0), Silent(2)}, open);
  ExpectVote(2, {Alone(1)}, open);
  ExpectVote(2, {Node(1, Theirs(1))}, open);
  // Two strangers of different kinds, and two that may be of one cluster.
  ExpectVote(4, {Alone(1), Node(3, Theirs(3))}, open);
}

TEST(ClusterVoteTest, TheNodesThatAnswerAfterwardsDecide) {
  for (const Word& stranger : {Alone(1), Node(1, Theirs(1))}) {
    ExpectVote(3, {stranger, Node(0, Aliased()), Node(2, Aliased())},
               {State::kCertain, ErrorCode::kOk, kOurs});
    // The view of one of them speaks for the other, whose lease is alive.
    ExpectVote(3, {stranger, Node(0, ViewOf(kOurs, {{0}, {2}}))},
               {State::kCertain, ErrorCode::kOk, kOurs});
    ExpectVote(3, {stranger, Node(0, ViewOf(kOurs, {{0}, {2, false}}))},
               {State::kOpen, ErrorCode::kUnavailable});
  }
}

TEST(ClusterVoteTest, OneNodeIsEnoughForTheAddressesThatItsViewNames) {
  ExpectVote(3, {Node(0, OursWith(true))}, {State::kCertain, ErrorCode::kOk, kOurs});
  ExpectVote(3, {Node(0, OursWith(false))}, {State::kLikely, ErrorCode::kOk, kOurs});
  ExpectVote(3, {Node(0, OursWith(false)), Silent(1), Away(2)},
             {State::kLikely, ErrorCode::kOk, kOurs});
  ExpectVote(4, {Node(0, OursWith(false))}, {State::kLikely, ErrorCode::kOk, kOurs});
}

TEST(ClusterVoteTest, WhereNobodyServesNobodyHasASay) {
  ExpectVote(2, {Away(0), Node(1, Aliased())}, {State::kLikely, ErrorCode::kOk, kOurs});
  ExpectVote(3, {Away(0), Node(1, Aliased()), Away(2)}, {State::kLikely, ErrorCode::kOk, kOurs});
  ExpectVote(3, {Away(0), Node(1, Aliased())}, {State::kOpen, ErrorCode::kUnavailable});
  // It serves again.
  auto vote = Vote(2, {Away(0), Node(1, Aliased()), Silent(0)});
  EXPECT_EQ(vote.state(), State::kOpen);
  vote.NoteAnswer(0, Aliased());
  EXPECT_EQ(OutcomeOf(vote), (Outcome{State::kCertain, ErrorCode::kOk, kOurs}));
}

TEST(ClusterVoteTest, OnlyAllOfThemAreOfNoCluster) {
  ExpectVote(1, {Alone(0)}, {State::kCertain, ErrorCode::kOk, 0});
  ExpectVote(3, {Alone(0), Alone(1), Alone(2)}, {State::kCertain, ErrorCode::kOk, 0});
  ExpectVote(3, {Alone(0), Alone(1)}, {State::kOpen, ErrorCode::kUnavailable});
  ExpectVote(3, {Alone(0), Alone(1), Away(2)}, {State::kOpen, ErrorCode::kUnavailable});
  ExpectVote(3, {Alone(0), Alone(1), Silent(2)}, {State::kOpen, ErrorCode::kUnavailable});
}

TEST(ClusterVoteTest, TwoPlacesAreAConflictOnceAllAreHeard) {
  ExpectVote(2, {Alone(0), Node(1, Aliased())}, {State::kCertain, ErrorCode::kConflict});
  ExpectVote(2, {Node(0, Theirs(0)), Node(1, Aliased())}, {State::kCertain, ErrorCode::kConflict});
  ExpectVote(3, {Alone(0), Node(1, Aliased()), Away(2)}, {State::kOpen, ErrorCode::kConflict});
  ExpectVote(3, {Alone(0), Node(1, Aliased()), Silent(2)}, {State::kOpen, ErrorCode::kUnavailable});
  ExpectVote(3, {Alone(0), Node(1, Aliased()), Alone(2)}, {State::kCertain, ErrorCode::kConflict});
  const auto conflict = Vote(2, {Alone(0), Node(1, Aliased())}).Decide();
  for (const std::string& part :
       {AddressOf(0) + " is a daemon of no cluster", AddressOf(1) + " is a node of cluster 0101"})
    EXPECT_NE(conflict.error().message.find(part), std::string::npos) << conflict.error().message;
}

TEST(ClusterVoteTest, TheNewestViewIsTheResult) {
  const auto decided = Vote(3, {Node(0, Ours(4)), Node(1, Ours(9)), Node(2, Ours(7))}).Decide();
  ASSERT_TRUE(decided && decided.value());
  EXPECT_EQ(decided.value()->reply.version, 9U);
}

TEST(ClusterVoteTest, WhatAFailureSaysIsToldAndABareAbsenceLast) {
  ClusterVote vote({AddressOf(0), AddressOf(1), AddressOf(2)});
  vote.NoteAway(0, {ErrorCode::kUnavailable, "it is not there"});
  vote.NoteAway(1, {ErrorCode::kDenied, "the token is not valid"});
  vote.NoteAnswer(2, std::nullopt);
  const Error error = vote.Decide().error();
  EXPECT_EQ(error.code, ErrorCode::kDenied);
  for (const std::string& part :
       {std::string("it is not there"), std::string("the token is not valid"),
        AddressOf(2) + " is a daemon of no cluster"})
    EXPECT_NE(error.message.find(part), std::string::npos) << error.message;
  ClusterVote silent({AddressOf(0)});
  silent.NoteSilent(0, {ErrorCode::kDeadlineExceeded, "it is silent"});
  EXPECT_EQ(silent.Decide().error().code, ErrorCode::kDeadlineExceeded);
  EXPECT_EQ(silent.Decide().error().message, "it is silent");
}

}  // namespace
}  // namespace ffrecord::client
