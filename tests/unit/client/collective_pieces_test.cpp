// Goal: whatever order a peer's pieces come in over several streams, whatever comes twice or stays
// in the middle, each is checked and added once; and what may not be said ends the group.
// Method: a rank that the test plays by hand, one frame at a time.

#include <sys/eventfd.h>
#include <sys/socket.h>

#include <algorithm>
#include <span>
#include <thread>
#include <tuple>

#include "client/collective/group_messages.h"
#include "client/collective/links.h"
#include "collective_group.h"
#include "libffrecord/base/checksum.h"
#include "libffrecord/base/unique_fd.h"
#include "libffrecord/net/transport/endpoint.h"
#include "virtual_clock.h"

namespace ffrecord::client {
namespace {

using namespace std::chrono_literals;
using namespace ranks;
using testing::HasSubstr;

// One piece for each step of the ring: a half of the array.
constexpr std::uint64_t kCount = 1000;
constexpr std::uint64_t kHalf = kCount / 2;

// Rank 1 of 2, up to where the first operation of rank 0 is due.
class PlayedRank {
 public:
  PlayedRank(std::chrono::milliseconds timeout, std::uint16_t streams,
             std::uint64_t chunk_size_bytes = Options{}.chunk_size_bytes)
      : engine_(CollectiveEngine::Create(0, 2,
                                         {.timeout = timeout,
                                          .chunk_size_bytes = chunk_size_bytes,
                                          .algorithm = Algorithm::kRing,
                                          .streams = streams,
                                          .shares_memory = false})
                    .value()) {
    const std::vector<std::string> addresses{engine_.address(), listener_.address().ToString()};
    std::thread joins([&] {
      const auto connected = engine_.Connect(addresses, kSecret);
      ASSERT_TRUE(connected) << connected.error().message;
    });
    hello_ = {.secret = kSecret,
              .rank = 1,
              .world_size = 2,
              .chunk_size_bytes = chunk_size_bytes,
              .streams = streams};
    links_ = JoinGroup(hello_, addresses, Machines(), {.listener = listener_}, Clock::now() + 20s)
                 .value();
    Send(0, Frame({.step = 1, .type = ReduceType::kI64, .algorithm = Algorithm::kRecursiveDoubling},
                  {}));
    joins.join();
  }

  CollectiveEngine& engine() { return engine_; }
  void RunFor(Clock::duration time) { clock_.RunFor(time); }

  // Ends that stream, and makes it anew.
  void Replace(std::uint16_t stream) {
    auto& to = links_.to.at(stream).endpoint;
    const auto at = MemberAddress::Parse(engine_.address()).value().tcp;
    to = net::ConnectTcp(net::Address::Parse(at, 0).value(), Clock::now() + 20s).value();
    GroupHello hello = hello_;
    hello.stream = stream;
    ASSERT_TRUE(to->Send({.type = net::FrameType::kHello}, hello.Encode(), {}));
    const auto event = net::NextEvent(*to, Clock::now() + 20s, "a welcome");
    ASSERT_TRUE(event && event.value() == net::Endpoint::Event::kFrame);
    ASSERT_EQ(to->header().type, net::ReplyTo(net::FrameType::kHello));
  }

  // A frame with its payload, as it crosses the wire.
  static std::vector<std::byte> Frame(CollectiveData data, std::span<const float> values,
                                      std::uint64_t check_spoilt = 0) {
    const auto payload = std::as_bytes(values);
    data.payload_check = Xxh3(payload) ^ check_spoilt;
    return Frame(net::FrameType::kCollectiveData, data.Encode(), payload);
  }
  static std::vector<std::byte> Frame(net::FrameType type, std::span<const std::byte> body,
                                      std::span<const std::byte> payload) {
    std::vector<std::byte> frame(net::FrameHeader::kEncodedSizeBytes);
    net::EncodeFrameHeader(
        {.type = type, .payload_size_bytes = static_cast<std::uint32_t>(payload.size())}, body,
        std::span(frame).first<net::FrameHeader::kEncodedSizeBytes>());
    frame.insert(frame.end(), body.begin(), body.end());
    frame.insert(frame.end(), payload.begin(), payload.end());
    return frame;
  }
  void Send(std::size_t stream, std::span<const std::byte> bytes) {
    SendOn(*links_.to.at(stream).endpoint, bytes);
  }
  // Against the direction of the data.
  void SendBack(std::size_t stream, std::span<const std::byte> bytes) {
    SendOn(*links_.from.at(stream).endpoint, bytes);
  }

  // Until so many pieces have come on that stream.
  void AwaitPieces(std::size_t stream, int count) {
    net::Endpoint& endpoint = *links_.from.at(stream).endpoint;
    for (int i = 0; i < count; ++i) {
      auto event = net::NextEvent(endpoint, Clock::now() + 20s, "a piece");
      ASSERT_TRUE(event && event.value() == net::Endpoint::Event::kFrame);
      std::vector<std::byte> payload(endpoint.header().payload_size_bytes);
      if (payload.empty()) continue;
      const std::span<std::byte> places[] = {payload};
      ASSERT_TRUE(endpoint.ReceivePayload(places));
      event = net::NextEvent(endpoint, Clock::now() + 20s, "a payload");
      ASSERT_TRUE(event && event.value() == net::Endpoint::Event::kPayload);
    }
  }
  // Closes all streams on which pieces come.
  void TakeNoMore() { links_.from.clear(); }

  // That the other end says, in one word or two, that it has taken the first two of that stream.
  void ExpectTwoTaken(std::size_t stream) {
    CollectiveTaken taken = Taken(stream);
    EXPECT_EQ(taken.first, 0U);
    if (taken.pieces == 1) {  // A tick has passed between the two.
      taken = Taken(stream);
      EXPECT_EQ(taken.first, 1U);
      ++taken.pieces;
    }
    EXPECT_EQ(taken.pieces, 2U);
  }

  // What the other end says next of that stream's pieces.
  CollectiveTaken Taken(std::size_t stream) {
    net::Endpoint& endpoint = *links_.to.at(stream).endpoint;
    const auto event = net::NextEvent(endpoint, Clock::now() + 20s, "word of what was taken");
    EXPECT_TRUE(event && event.value() == net::Endpoint::Event::kFrame) << "stream " << stream;
    const auto taken = CollectiveTaken::Decode(endpoint.body());
    return taken ? taken.value() : CollectiveTaken{};
  }

 private:
  static void SendOn(const net::Endpoint& endpoint, std::span<const std::byte> bytes) {
    ASSERT_EQ(::send(endpoint.fd(), bytes.data(), bytes.size(), MSG_NOSIGNAL),
              static_cast<ssize_t>(bytes.size()));
  }

  test::VirtualClock clock_;
  CollectiveEngine engine_;
  net::TcpListener listener_ = net::TcpListener::Listen({"127.0.0.1", 0}).value();
  GroupHello hello_;
  Links links_;
};

// The piece that rank 0 adds in the first step of a ring, and the one that it copies in the second.
CollectiveData Added(std::uint64_t sequence) { return {.sequence = sequence, .count = kCount}; }
CollectiveData Copied(std::uint64_t sequence) {
  return {.sequence = sequence, .count = kCount, .first = kHalf, .step = 1};
}

Result<CollectiveEngine::Token> Submit(CollectiveEngine& engine, std::vector<float>& data) {
  return engine.AllReduce(data.data(), data.size(), ReduceType::kF32, ReduceOp::kSum);
}

void ExpectHalves(const std::vector<float>& data, float first, float second) {
  for (std::size_t i = 0; i < data.size(); ++i)
    ASSERT_EQ(data[i], i < kHalf ? first : second) << "at " << i;
}

// As when a lost stream's pieces are sent again over one on which the next operation has begun.
TEST(CollectivePiecesTest, WhatComesTooEarlyMakesRoomForWhatStandsBehindIt) {
  PlayedRank peer(3s, 2);
  std::vector<float> first(kCount, 1);
  std::vector<float> second(kCount, 10);
  const auto one = Submit(peer.engine(), first).value();
  const auto two = Submit(peer.engine(), second).value();
  for (const std::uint64_t sequence : {2U, 1U}) {
    const std::vector<float> values(kHalf, static_cast<float>(sequence));
    peer.Send(0, PlayedRank::Frame(Added(sequence), values));
    peer.Send(0, PlayedRank::Frame(Copied(sequence), values));
  }
  ASSERT_TRUE(peer.engine().Wait(one));
  const auto ended = peer.engine().Wait(two);
  ASSERT_TRUE(ended) << ended.error().message;
  ExpectHalves(first, 2, 1);
  ExpectHalves(second, 12, 2);
}

TEST(CollectivePiecesTest, WhatWasSetAsideIsCheckedBeforeItIsAdded) {
  PlayedRank peer(3s, 2);
  const std::vector<float> values(kHalf, 1);
  peer.Send(0, PlayedRank::Frame(Added(1), values, /*check_spoilt=*/1));
  peer.RunFor(600ms);  // Some ticks: by then it has been set aside.
  std::vector<float> data(kCount, 1);
  const auto token = Submit(peer.engine(), data);
  const auto ended = token ? peer.engine().Wait(token.value()) : Result<void>(token.error());
  ASSERT_FALSE(ended);
  EXPECT_EQ(ended.error().code, ErrorCode::kCorruption) << ended.error().message;
  EXPECT_THAT(ended.error().message, HasSubstr("fails its check"));
}

// What had come over the old one is forgotten, for its sender sends it again over the new one and
// must not be told of it twice.
TEST(CollectivePiecesTest, WhatWasSetAsideOfAStreamEndsWithIt) {
  PlayedRank peer(3s, 2);
  const std::vector<float> values(kHalf, 1);
  peer.Send(1, PlayedRank::Frame(Added(1), values));
  peer.RunFor(600ms);  // Some ticks: by then it has been set aside.
  peer.Replace(1);
  peer.Send(1, PlayedRank::Frame(Added(1), values));
  peer.Send(1, PlayedRank::Frame(Copied(1), values));
  std::vector<float> data(kCount, 1);
  const auto ended = peer.engine().Wait(Submit(peer.engine(), data).value());
  ASSERT_TRUE(ended) << ended.error().message;
  ExpectHalves(data, 2, 1);
  peer.engine().Shutdown();
  peer.ExpectTwoTaken(1);
}

// The same piece comes whole over one stream while it is half there over another: that one may
// still get on, and then both are in use; or it does not, and is given up.
void ExpectAddedOnce(bool comes_through) {
  PlayedRank peer(4s, 2);
  std::vector<float> data(kCount, 1);
  const auto token = Submit(peer.engine(), data).value();
  const std::vector<float> values(kHalf, 5);
  const auto piece = PlayedRank::Frame(Added(1), values);
  const auto [begin, end] = std::pair(std::span(piece).first(piece.size() / 2),
                                      std::span(piece).subspan(piece.size() / 2));
  peer.Send(0, begin);
  peer.RunFor(100ms);
  peer.Send(1, piece);
  if (comes_through) {
    peer.RunFor(400ms);
    peer.Send(0, end);
  }
  peer.Send(1, PlayedRank::Frame(Copied(1), values));

  const auto ended = peer.engine().Wait(token);
  ASSERT_TRUE(ended) << ended.error().message;
  ExpectHalves(data, 6, 5);

  if (!comes_through) return;
  // In good order it says what it has taken, of the barrier and of these.
  peer.engine().Shutdown();
  peer.ExpectTwoTaken(0);
}

TEST(CollectivePiecesTest, APieceThatIsOnItsWayTwiceIsAddedOnce) {
  ExpectAddedOnce(true);
  ExpectAddedOnce(false);
}

// Of a stream of which nobody was told that anything was taken.
TEST(CollectivePiecesTest, WhatWasTakenIsToldAtTheEnd) {
  PlayedRank peer(20s, 2);
  peer.engine().Shutdown();
  const auto taken = peer.Taken(0);
  EXPECT_EQ(taken.first, 0U);
  EXPECT_EQ(taken.pieces, 1U);
}

// "I have taken so many pieces from that one on."
std::vector<std::byte> TakenFrame(std::uint64_t first, std::uint32_t pieces) {
  return PlayedRank::Frame(net::FrameType::kCollectiveTaken,
                           CollectiveTaken{.first = first, .pieces = pieces}.Encode(), {});
}

void ExpectUntakeable(const Result<void>& ended) {
  ASSERT_FALSE(ended);
  EXPECT_EQ(ended.error().code, ErrorCode::kCorruption) << ended.error().message;
  EXPECT_THAT(ended.error().message, HasSubstr("rank 1: took pieces that it was not sent"));
}

TEST(CollectivePiecesTest, WhatATakerMayNotSayEndsTheOperation) {
  // The word comes on the stream on which the engine has sent its barrier: one piece, of number 0.
  struct Case {
    std::uint16_t streams;
    std::vector<std::vector<std::byte>> frames;
    std::string_view named;
  };
  const std::vector<std::byte> none;
  const Case all[] = {
      {2, {TakenFrame(0, 0)}, "took pieces that it was not sent"},
      {2, {TakenFrame(7, 1)}, "took pieces that it was not sent"},
      {2, {TakenFrame(0, 1), TakenFrame(0, 1)}, "took pieces that it was not sent"},
      {2, {PlayedRank::Frame(net::FrameType::kPing, none, none)}, "against the data's direction"},
      {1, {TakenFrame(0, 1)}, "against the data's direction"},
  };
  for (const Case& one : all) {
    PlayedRank peer(20s, one.streams);
    for (const auto& frame : one.frames) peer.SendBack(0, frame);
    std::vector<float> data(kCount, 1);
    const auto token = Submit(peer.engine(), data);
    const auto ended = token ? peer.engine().Wait(token.value()) : Result<void>(token.error());
    ASSERT_FALSE(ended);
    EXPECT_EQ(ended.error().code, ErrorCode::kCorruption) << ended.error().message;
    EXPECT_THAT(ended.error().message, HasSubstr(one.named));
    EXPECT_THAT(ended.error().message, HasSubstr("rank 1"));
  }
}

TEST(CollectivePiecesTest, PiecesAroundOneThatWasTakenAreNotTakenTogether) {
  PlayedRank peer(3s, 2);
  const auto token = peer.engine().Barrier().value();
  ASSERT_TRUE(peer.engine().Barrier());
  peer.AwaitPieces(0, 3);  // With that of the barrier by which it joined.
  peer.SendBack(0, TakenFrame(1, 1));
  peer.SendBack(0, TakenFrame(0, 2));
  ExpectUntakeable(peer.engine().Wait(token));
}

// The second piece stands in the queue, for nobody reads.
TEST(CollectivePiecesTest, WhatHasNotLeftCannotBeTaken) {
  constexpr std::uint64_t kChunk = 8 << 20;
  PlayedRank peer(3s, 2, kChunk);
  std::vector<std::byte> data(6 * kChunk);
  const auto token =
      peer.engine().Broadcast(data.data(), data.size(), ReduceType::kBytes, 0).value();
  peer.RunFor(300ms);
  peer.SendBack(0, TakenFrame(1, 2));
  ExpectUntakeable(peer.engine().Wait(token));
}

// It may have arrived where nobody said so: nothing is owed to a rank that ends. Pieces of that
// size are borrowed from the array until they are taken.
TEST(CollectivePiecesTest, WhatHasLeftIsNotWaitedForWhenAllStreamsEnd) {
  PlayedRank peer(3s, 2);
  std::vector<std::byte> data(100 << 10);
  const auto token =
      peer.engine().Broadcast(data.data(), data.size(), ReduceType::kBytes, 0).value();
  peer.AwaitPieces(0, 2);  // With that of the barrier by which it joined.
  peer.TakeNoMore();
  const auto ended = peer.engine().Wait(token);
  EXPECT_TRUE(ended) << ended.error().message;
}

// Who shares memory has a connection beside it, for words alone.
TEST(CollectivePiecesTest, DataBesideSharedMemoryEndsTheGroup) {
  auto engine =
      CollectiveEngine::Create(0, 2, {.timeout = 20s, .algorithm = Algorithm::kRing}).value();
  auto listener = net::TcpListener::Listen({"127.0.0.1", 0}).value();
  auto local = net::LocalListener::Listen(NewLocalName()).value();
  const MemberAddress own{listener.address().ToString(), ThisMachine().value(), local.name()};
  const std::vector<std::string> addresses{engine.address(), own.ToString()};
  const UniqueFd wakeup(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  Result<void> connected;
  std::thread joins([&] { connected = engine.Connect(addresses, kSecret); });
  auto links = JoinGroup({.secret = kSecret,
                          .rank = 1,
                          .world_size = 2,
                          .chunk_size_bytes = Options{}.chunk_size_bytes},
                         addresses, Machines::Of(addresses).value(),
                         {.listener = listener, .local_listener = &local, .wake_fd = wakeup.get()},
                         Clock::now() + 20s)
                   .value();
  const CollectiveData barrier{.payload_check = Xxh3({}),
                               .step = 1,
                               .type = ReduceType::kI64,
                               .algorithm = Algorithm::kRecursiveDoubling};
  ASSERT_TRUE(
      links.to[0].endpoint->Send({.type = net::FrameType::kCollectiveData}, barrier.Encode(), {}));
  std::ignore = net::Flush(*links.to[0].endpoint, Clock::now() + 20s);
  joins.join();
  ASSERT_FALSE(connected);
  EXPECT_THAT(connected.error().message, HasSubstr("beside shared memory"));
}

}  // namespace
}  // namespace ffrecord::client
