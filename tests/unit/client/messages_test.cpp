// Goal: messages arrive whole, by their tags, in the order in which they were sent, whatever the
// receiver asks for and when; those of a wrong size harm no other; nothing is asked for in vain.
// Method: a sender and a receiver, whose parts a test moves, with seeds; then two engines.

#include "client/collective/messages.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <map>
#include <random>
#include <set>
#include <vector>

#include "collective_group.h"

namespace ffrecord::client {
namespace {

using Token = Messages::Token;
using Bytes = std::vector<std::byte>;
using ranks::Group;

Bytes BytesOf(std::size_t size, std::uint64_t seed) {
  Bytes bytes(size);
  for (std::size_t i = 0; i < size; ++i)
    bytes[i] = static_cast<std::byte>(seed * 31 + i * 7 + i / 256);
  return bytes;
}

// Both ends of a line, and the parts on their way, as two engines would have them.
class Line {
 public:
  void Send(const Bytes& bytes, std::int64_t tag) {
    tokens_.insert(sender_.Send(bytes.data(), bytes.size(), tag, sender_wants_));
  }
  Token Receive(Bytes& place, std::int64_t tag) {
    return receiver_.Receive(place.data(), place.size(), tag, receiver_wants_);
  }
  std::optional<Token> ReceiveKept(Bytes& place, std::int64_t tag) {
    return receiver_.ReceiveKept(place.data(), place.size(), tag, receiver_wants_);
  }
  Token Probe(std::int64_t tag) { return receiver_.Probe(tag, receiver_wants_); }

  // Moves one part, if both ends have one. As an engine, looks whether the sender has begun.
  bool Move() {
    Queue(sender_wants_, sending_);
    Queue(receiver_wants_, receiving_);
    if (receiving_.empty()) receiver_.Look(!sending_.empty(), receiver_wants_);
    Queue(receiver_wants_, receiving_);
    if (sending_.empty() || receiving_.empty()) return false;
    const auto from = sending_.front();
    const auto to = receiving_.front();
    EXPECT_EQ(from.size_bytes, to.size_bytes);
    std::copy_n(from.data, from.size_bytes, to.data);
    sending_.pop_front();
    receiving_.pop_front();
    EXPECT_TRUE(sender_.PartEnded(sender_wants_));
    EXPECT_TRUE(receiver_.PartEnded(receiver_wants_));
    return true;
  }
  void MoveAll() {
    while (Move()) {
    }
  }
  bool is_asking() const { return !receiving_.empty(); }
  bool all_sent() {
    for (const auto& ended : sender_wants_.ended) tokens_.erase(ended.token);
    sender_wants_.ended.clear();
    return tokens_.empty();
  }

  // The outcome of a receive or a probe; none while it has not ended.
  const Result<void>* Outcome(Token token) {
    for (const auto& ended : receiver_wants_.ended) {
      EXPECT_FALSE(outcomes_.contains(ended.token)) << "ended twice";
      outcomes_.emplace(ended.token, ended.failure ? Result<void>(*ended.failure) : Result<void>());
    }
    receiver_wants_.ended.clear();
    const auto found = outcomes_.find(token);
    return found == outcomes_.end() ? nullptr : &found->second;
  }
  Messages& receiver() { return receiver_; }

 private:
  static void Queue(Messages::Wants& wants, std::deque<Messages::Part>& parts) {
    parts.insert(parts.end(), wants.parts.begin(), wants.parts.end());
    wants.parts.clear();
  }

  Messages sender_, receiver_;
  Messages::Wants sender_wants_, receiver_wants_;
  std::deque<Messages::Part> sending_, receiving_;
  std::set<Token> tokens_;
  std::map<Token, Result<void>> outcomes_;
};

constexpr std::size_t kSizes[] = {0, 1, Messages::kInlineSizeMax, Messages::kInlineSizeMax + 1,
                                  50'000};

TEST(MessagesTest, EachReceiveGetsTheNextMessageOfItsTagWhateverTheOrder) {
  for (std::uint32_t seed = 0; seed < 500; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937 random(seed);
    const auto below = [&](std::size_t n) { return random() % n; };
    Line line;
    std::deque<Bytes> sent, places;  // Deques: they are borrowed.
    std::map<std::int64_t, std::vector<std::size_t>> by_tag;
    std::map<std::int64_t, std::size_t> taken;
    struct Receive {
      Token token;
      std::size_t place, message;
      bool fits;
    };
    std::vector<Receive> receives;
    for (std::size_t i = 0; i < 12; ++i) {
      const auto tag = static_cast<std::int64_t>(below(3)) - 1;
      by_tag[tag].push_back(sent.size());
      sent.push_back(BytesOf(kSizes[below(std::size(kSizes))], seed + i));
    }
    std::vector<std::int64_t> tags(sent.size());
    for (const auto& [tag, messages] : by_tag)
      for (const std::size_t message : messages) tags[message] = tag;
    std::vector<std::int64_t> wanted = tags;
    std::ranges::shuffle(wanted, random);
    std::size_t next = 0;
    while (next < sent.size() || !wanted.empty()) {
      switch (below(4)) {
        case 0:
          if (next < sent.size()) line.Send(sent[next], tags[next]), ++next;
          break;
        case 1:
          if (!wanted.empty()) {
            const std::int64_t tag = wanted.back();
            const std::size_t message = by_tag[tag][taken[tag]];
            const bool fits = below(8) > 0;
            places.emplace_back(sent[message].size() + (fits ? 0 : 1));
            std::optional<Token> token;
            if (below(2) == 0) token = line.ReceiveKept(places.back(), tag);
            if (!token) token = line.Receive(places.back(), tag);
            receives.push_back({*token, places.size() - 1, message, fits});
            ++taken[tag];
            wanted.pop_back();
          }
          break;
        case 2:
          if (below(2) == 0)
            line.receiver().KeepNext();
          else
            (void)line.Probe(static_cast<std::int64_t>(below(3)) - 1);
          break;
        default:
          (void)line.Move();
      }
    }
    line.MoveAll();
    EXPECT_TRUE(line.all_sent());
    for (const Receive& receive : receives) {
      const auto* const outcome = line.Outcome(receive.token);
      ASSERT_NE(outcome, nullptr);
      EXPECT_EQ(static_cast<bool>(*outcome), receive.fits);
      if (receive.fits) {
        EXPECT_EQ(places[receive.place], sent[receive.message]);
      } else {
        EXPECT_EQ(outcome->error().code, ErrorCode::kInvalidArgument);
      }
    }
    if (testing::Test::HasFailure()) return;
  }
}

TEST(MessagesTest, NothingIsAskedForWhileNobodyReceives) {
  Line line;
  Bytes sent = BytesOf(10, 1), place(10);
  (void)line.Receive(place, 7);
  line.Send(sent, 7);
  line.MoveAll();
  EXPECT_FALSE(line.is_asking());
  line.Send(sent, 7);
  line.MoveAll();
  EXPECT_FALSE(line.all_sent());  // It waits at the sender.
}

TEST(MessagesTest, AProbeAsksOnlyOnceTheSenderHasBegun) {
  Line line;
  const Token probe = line.Probe(7);
  line.MoveAll();
  EXPECT_FALSE(line.is_asking());
  EXPECT_EQ(line.Outcome(probe), nullptr);

  const Bytes other = BytesOf(5, 1), wanted = BytesOf(90'000, 2);
  line.Send(other, 6);
  line.MoveAll();
  EXPECT_EQ(line.Outcome(probe), nullptr);
  line.Send(wanted, 7);
  line.MoveAll();

  ASSERT_NE(line.Outcome(probe), nullptr);
  Bytes place(wanted.size());
  const auto token = line.ReceiveKept(place, 7);
  ASSERT_TRUE(token);
  ASSERT_NE(line.Outcome(*token), nullptr);
  EXPECT_EQ(place, wanted);
  EXPECT_FALSE(line.ReceiveKept(place, 7));
}

TEST(MessagesTest, AMessageThatNobodyAskedForIsKeptIfItIsOnItsWay) {
  Line line;
  line.receiver().KeepNext();
  line.MoveAll();
  EXPECT_FALSE(line.is_asking()) << "the sender has sent nothing";
  const Bytes sent = BytesOf(90'000, 1);
  line.Send(sent, 7);
  line.MoveAll();
  EXPECT_FALSE(line.all_sent()) << "it was kept by an order that was over";

  line.receiver().KeepNext();
  line.Send(sent, 7);
  line.MoveAll();
  Bytes place(sent.size());
  const auto token = line.ReceiveKept(place, 7);
  ASSERT_TRUE(token);
  ASSERT_NE(line.Outcome(*token), nullptr);
  EXPECT_EQ(place, sent);
  EXPECT_FALSE(line.all_sent()) << "the second one was kept as well";
  EXPECT_FALSE(line.is_asking());
}

TEST(MessagesTest, AfterTheEndWhatHasComeWholeCanBeReceived) {
  Line line;
  const Bytes small = BytesOf(5, 1), large = BytesOf(90'000, 2);
  (void)line.Probe(9);
  line.Send(small, 1);
  line.Send(large, 2);
  ASSERT_TRUE(line.Move());  // The small one,
  ASSERT_TRUE(line.Move());  // and the head of the large one.
  line.receiver().Stop();
  Bytes place(small.size()), large_place(large.size());
  EXPECT_FALSE(line.ReceiveKept(large_place, 2));
  ASSERT_TRUE(line.ReceiveKept(place, 1));
  EXPECT_EQ(place, small);
}

TEST(MessagesTest, AHeadThatCannotBeIsAnError) {
  Messages receiver;
  Messages::Wants wants;
  Bytes place(8);
  (void)receiver.Receive(place.data(), place.size(), 0, wants);
  const std::uint64_t forged = Messages::kSizeMax + 1;
  std::memcpy(wants.parts.front().data + 8, &forged, sizeof(forged));
  const auto ended = receiver.PartEnded(wants);
  ASSERT_FALSE(ended);
  EXPECT_EQ(ended.error().code, ErrorCode::kCorruption);
}

// --- Engines -------------------------------------------------------------------------------------

CollectiveEngine::Options Carrying(std::chrono::milliseconds timeout = std::chrono::seconds(60)) {
  return {.timeout = timeout, .algorithm = Algorithm::kRing, .carries_messages = true};
}

TEST(MessagesOfEnginesTest, MessagesOfAllSizesCrossInSharedMemoryAndOverTcp) {
  for (const auto where : {ranks::Where::kTogether, ranks::Where::kApart}) {
    Group group(2, Carrying(), where);
    group.Connect();
    std::vector<Bytes> sent;
    for (const std::size_t size : {0UL, 1UL, 4080UL, 4081UL, 3'000'000UL})
      sent.push_back(BytesOf(size, size));
    group.ForEach([&](std::uint32_t rank, CollectiveEngine& engine) {
      for (int round = 0; round < 20; ++round) {
        for (const Bytes& bytes : sent) {
          Bytes place(bytes.size());
          const auto token = rank == 0 ? engine.Send(bytes.data(), bytes.size(), 3)
                                       : engine.Receive(place.data(), place.size(), 3);
          ASSERT_TRUE(token);
          const auto ended = engine.Wait(token.value());
          ASSERT_TRUE(ended) << ended.error().message;
          if (rank == 1) {
            EXPECT_EQ(place, bytes);
          }
        }
      }
    });
  }
}

TEST(MessagesOfEnginesTest, WaitAnyReturnsOnlyWhatWasAnnounced) {
  Group group(2, Carrying());
  group.Connect();
  const Bytes bytes = BytesOf(100, 1);
  Bytes place(100);
  CollectiveEngine& receiver = group.engines[1];
  const Token token = receiver.Receive(place.data(), place.size(), 0).value();
  const Token sent = group.engines[0].Send(bytes.data(), bytes.size(), 0).value();
  ASSERT_TRUE(group.engines[0].Wait(sent));
  const auto none = receiver.WaitAny(std::chrono::milliseconds(0));
  ASSERT_FALSE(none);
  EXPECT_EQ(none.error().code, ErrorCode::kDeadlineExceeded);
  ASSERT_TRUE(receiver.Announce(token));
  const auto ended = receiver.WaitAny(std::chrono::seconds(60));
  ASSERT_TRUE(ended) << ended.error().message;
  EXPECT_EQ(ended.value().token, token);
  EXPECT_EQ(place, bytes);
  EXPECT_FALSE(receiver.Announce(token));
  EXPECT_FALSE(receiver.Wait(token));
}

TEST(MessagesOfEnginesTest, AProbeFailsWhenTheSenderLeavesAndWhatHadComeIsThere) {
  for (const auto where : {ranks::Where::kTogether, ranks::Where::kApart}) {
    Group group(2, Carrying(), where);
    group.Connect();
    const Bytes bytes = BytesOf(100'000, 1);
    CollectiveEngine& receiver = group.engines[1];
    const Token found = receiver.Probe(5).value();
    const Token probe = receiver.Probe(6).value();
    const Token sent = group.engines[0].Send(bytes.data(), bytes.size(), 5).value();
    ASSERT_TRUE(group.engines[0].Wait(sent));
    ASSERT_TRUE(receiver.Wait(found));
    group.engines[0].Shutdown();
    const auto failed = receiver.Wait(probe);
    ASSERT_FALSE(failed);
    EXPECT_NE(failed.error().message.find("rank 0"), std::string::npos) << failed.error().message;
    Bytes place(bytes.size());
    const auto token = receiver.Receive(place.data(), place.size(), 5);
    ASSERT_TRUE(token) << token.error().message;
    ASSERT_TRUE(receiver.Wait(token.value()));
    EXPECT_EQ(place, bytes);
    EXPECT_FALSE(receiver.Receive(place.data(), place.size(), 5));
  }
}

TEST(MessagesOfEnginesTest, ASendEndsOnceTheOtherRankKeepsItsMessage) {
  for (const auto where : {ranks::Where::kTogether, ranks::Where::kApart}) {
    Group group(2, Carrying(), where);
    group.Connect();
    const Bytes bytes = BytesOf(30'000'000, 1);
    CollectiveEngine& sender = group.engines[0];
    CollectiveEngine& receiver = group.engines[1];
    ASSERT_TRUE(receiver.KeepNext());
    const Token sent = sender.Send(bytes.data(), bytes.size(), 5).value();
    for (;;) {  // As a rank that waits in a send of its own.
      const auto ended = sender.WaitFor(sent, std::chrono::milliseconds(1));
      ASSERT_TRUE(ended) << ended.error().message;
      if (ended.value()) break;
      ASSERT_TRUE(receiver.KeepNext());
    }
    Bytes place(bytes.size());
    ASSERT_TRUE(receiver.Wait(receiver.Receive(place.data(), place.size(), 5).value()));
    EXPECT_EQ(place, bytes);
    sender.Shutdown();
    EXPECT_TRUE(receiver.KeepNext());
    EXPECT_FALSE(sender.WaitFor(sent, std::chrono::milliseconds(1)));
  }
}

TEST(MessagesOfEnginesTest, AReceiveThatNobodyServesEndsInTimeAndNamesTheSender) {
  Group group(2, Carrying(std::chrono::milliseconds(300)));
  group.Connect();
  Bytes place(10);
  const Token token = group.engines[1].Receive(place.data(), place.size(), 0).value();
  const auto ended = group.engines[1].Wait(token);
  ASSERT_FALSE(ended);
  EXPECT_EQ(ended.error().code, ErrorCode::kDeadlineExceeded);
  EXPECT_NE(ended.error().message.find("rank 0"), std::string::npos);
}

TEST(MessagesOfEnginesTest, OnlyGroupsOfTwoCarryMessagesAndEachRankHasItsPart) {
  EXPECT_FALSE(CollectiveEngine::Create(0, 3, Carrying()));
  Group group(2, Carrying());
  group.Connect();
  std::byte byte{};
  EXPECT_FALSE(group.engines[0].Receive(&byte, 1, 0));
  EXPECT_FALSE(group.engines[1].Send(&byte, 1, 0));
  EXPECT_FALSE(group.engines[0].Probe(0));
  Group other(2, {.algorithm = Algorithm::kRing});
  other.Connect();
  EXPECT_FALSE(other.engines[0].Send(&byte, 1, 0));
}

}  // namespace
}  // namespace ffrecord::client
