// Goal: whatever one peer does, the daemon serves the others, within its bounds.
// Method: a daemon in this process; peers that speak the protocol by hand, badly or too much,
// beside one that goes on working.

#include "server/service/core/server.h"

#include <ffrecord/memory.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>
#include <thread>

#include "held_syncs.h"
#include "libffrecord/base/buffer_pool.h"
#include "seed.h"
#include "server/service/connection/connection.h"
#include "server/service/read/read_buffers.h"
#include "server_peers.h"

namespace ffrecord::server {
namespace {

TEST_F(ServerTest, MalformedPeersAreClosedAndNobodyElse) {
  auto bystander = Connect();
  auto wrong_version = HelloFrame();
  wrong_version[2] = std::byte{9};
  auto flipped_body = HelloFrame();
  flipped_body.back() ^= std::byte{1};
  const std::vector<std::byte> ping = FrameOf(FrameType::kPing, {});
  const std::vector<std::byte> noise(100, std::byte{0x5A});
  const std::vector<std::pair<std::string, std::vector<std::byte>>> peers{
      {"noise", noise},
      {"wrong version", wrong_version},
      {"flipped body", flipped_body},
      {"no HELLO", ping},
      {"a body beyond the limit before HELLO",
       FrameOf(FrameType::kHello, std::vector<std::byte>(5000))},
      {"a payload before HELLO", FrameOf(FrameType::kHello, {}, 1 << 20)},
      {"an empty HELLO", FrameOf(FrameType::kHello, {})},
      {"two HELLOs", Joined(HelloFrame(), HelloFrame())},
      {"noise behind HELLO", Joined(HelloFrame(), noise)},
      {"a malformed body", Joined(HelloFrame(), FrameOf(FrameType::kBatchRead, noise))},
      {"a payload on PING", Joined(HelloFrame(), FrameOf(FrameType::kPing, {}, 100))},
      {"a huge payload", Joined(HelloFrame(), FrameOf(FrameType::kPutData, {}, 1U << 30))},
      {"PUT_DATA without PUT_BEGIN",
       Joined(HelloFrame(), FrameOf(FrameType::kPutData, net::PutData{id_, 0}.Encode(), 10))},
      {"PUT_SEAL without PUT_BEGIN",
       Joined(HelloFrame(), FrameOf(FrameType::kPutSeal, net::PutSeal{id_, 0}.Encode()))},
  };
  for (const auto& [name, bytes] : peers) {
    SCOPED_TRACE(name);
    RawPeer peer(daemon_.address());
    peer.Write(bytes);
    EXPECT_TRUE(peer.IsClosedWithin(4s));
    EXPECT_TRUE(bystander->Call(FrameType::kPing, {}, {}, Soon(), "a ping"));
  }
  ExpectServing();
}

TEST_F(ServerTest, RandomBytesAndRandomCutsLeaveItServing) {
  std::mt19937 random(test::Seed());
  const auto batch = [&] {
    net::BatchRead read;
    read.entries.assign(random() % 20 + 1, {static_cast<std::uint32_t>(random() % 3), 0, 100, 0});
    return read.Encode();
  };
  for (int round = 0; round < 150; ++round) {
    auto bytes = HelloFrame();
    bytes = Joined(bytes, FrameOf(FrameType::kExtentBind, net::ExtentBind{0, {id_}}.Encode()));
    bytes = Joined(bytes, FrameOf(FrameType::kBatchRead, batch()));
    bytes = Joined(bytes, FrameOf(FrameType::kPutBegin, net::PutBegin{id_, 5000}.Encode()));
    bytes = Joined(bytes, FrameOf(FrameType::kPutData, net::PutData{id_, 0}.Encode(), 5000));
    switch (random() % 3) {
      case 0:  // One flipped bit.
        bytes[random() % bytes.size()] ^= static_cast<std::byte>(1U << (random() % 8));
        break;
      case 1:  // A frame cut short, and silence or the end behind it.
        bytes.resize(random() % bytes.size());
        break;
      default:  // Nonsense from some byte on.
        for (std::size_t i = random() % bytes.size(); i < bytes.size(); ++i)
          bytes[i] = static_cast<std::byte>(random());
    }
    RawPeer peer(daemon_.address());
    peer.Write(bytes);
  }
  ExpectServing();
}

TEST_F(ServerTest, SilentAndHalfDeadPeersCostNobodyAnything) {
  const Daemon impatient({.greeting_timeout = 500ms});
  std::vector<std::unique_ptr<RawPeer>> peers;
  for (int i = 0; i < 100; ++i) {
    peers.push_back(std::make_unique<RawPeer>(impatient.address()));
    auto bytes = HelloFrame();
    if (i % 2 == 0) bytes.resize(bytes.size() / 2);
    if (i % 4 != 0) peers.back()->Write(bytes);
  }
  // The time is short for us as well, on a busy machine.
  const auto is_served = [&] {
    return static_cast<bool>(Channel::Connect(impatient.address(), Soon()));
  };
  EXPECT_TRUE(test::Eventually(is_served));
  EXPECT_TRUE(peers[0]->IsClosedWithin(60s));
  EXPECT_TRUE(peers[2]->IsClosedWithin(60s));
  EXPECT_TRUE(test::Eventually(is_served));
}

TEST_F(ServerTest, ClientsThatTakeNothingOffDoNotStopOthers) {
  auto channel = Connect();
  const std::string data(8 << 20, 'd');
  ASSERT_TRUE(Put(*channel, id_, data));
  // More of them than the bound of a thread's memory holds windows for.
  std::vector<std::unique_ptr<RawPeer>> greedy;
  net::BatchRead batch;
  batch.entries.assign(200, {0, 0, 8 << 20, 0});
  for (int i = 0; i < 40; ++i) {
    greedy.push_back(std::make_unique<RawPeer>(daemon_.address()));
    auto bytes =
        Joined(HelloFrame(), FrameOf(FrameType::kExtentBind, net::ExtentBind{0, {id_}}.Encode()));
    for (int j = 0; j < 4; ++j)
      bytes = Joined(bytes, FrameOf(FrameType::kBatchRead, batch.Encode()));
    greedy.back()->Write(bytes);
  }
  std::this_thread::sleep_for(300ms);

  for (int i = 0; i < 4; ++i) {
    auto other = Connect();  // In turn on both threads.
    const auto read = Read(*other, {id_}, {{0, 0, 8 << 20, 0}});
    ASSERT_TRUE(read) << read.error().message;
    EXPECT_EQ(read.value().entries[0], data);
  }
}

// Method: many times the memory there is is asked for by clients that take nothing; the buffers of
// this process are counted meanwhile.
TEST_F(ServerTest, BytesInFlightStayWithinTheirBound) {
  constexpr std::uint64_t kHeldMax = 8 << 20;
  constexpr std::uint64_t kRunMax = 1 << 20;
  constexpr int kClients = 24;
  Daemon daemon({.core_count = 1, .held_bytes_max = kHeldMax, .mapped_count_max = 0});
  ASSERT_TRUE(Put(*ConnectTo(daemon), id_, std::string(8 << 20, 'd')));
  ASSERT_TRUE(test::Eventually([] { return GetMemoryUse().used_bytes == 0; }));
  net::BatchRead batch;
  batch.entries.assign(200, {0, 0, 8 << 20, 0});
  std::vector<std::unique_ptr<RawPeer>> greedy;
  std::uint64_t most = 0;
  const auto look = [&] { most = std::max<std::uint64_t>(most, GetMemoryUse().used_bytes); };
  for (int i = 0; i < kClients; ++i) {
    greedy.push_back(std::make_unique<RawPeer>(daemon.address()));
    greedy.back()->Write(
        Joined(HelloFrame(), FrameOf(FrameType::kExtentBind, net::ExtentBind{0, {id_}}.Encode())));
    for (int j = 0; j < 4; ++j)
      greedy.back()->Write(FrameOf(FrameType::kBatchRead, batch.Encode()));
    look();
  }
  for (const auto& peer : greedy) {
    EXPECT_TRUE(peer->Gets(100'000));  // Everybody gets something.
    look();
  }

  EXPECT_GT(most, 0U);
  EXPECT_LE(most, kHeldMax + kClients * kRunMax);
  greedy.clear();
  // The event loop keeps some of its buffers for the next read.
  EXPECT_TRUE(
      test::Eventually([] { return GetMemoryUse().used_bytes <= ReadBuffers::kIdleBytesMax; }));
}

TEST_F(ServerTest, AClientThatAsksOnAndTakesNoAnswersIsCutOff) {
  RawPeer peer(daemon_.address());
  peer.Write(HelloFrame());
  std::vector<std::byte> pings;
  for (int i = 0; i < 10'000; ++i) pings = Joined(std::move(pings), FrameOf(FrameType::kPing, {}));
  // 10 MB of answers fill the socket's buffers, then the daemon's bound.
  for (int i = 0; i < 100; ++i) peer.Write(pings);
  ExpectServing();
  EXPECT_TRUE(peer.IsClosedWithin(60s));
}

// Wherever in a frame the client stops, and though a byte comes now and then.
TEST_F(ServerTest, AFrameThatDoesNotGoOnClosesItsConnection) {
  const Daemon impatient({.stall_timeout = 400ms});
  const auto frame =
      Joined(FrameOf(FrameType::kPutData, net::PutData{id_, 0}.Encode(), 1 << 20), {});
  const auto large = FrameOf(FrameType::kExtentBind, std::vector<std::byte>(2 << 20));
  const auto begin = FrameOf(FrameType::kPutBegin, net::PutBegin{id_, 1 << 20}.Encode());
  const std::vector<std::vector<std::byte>> beginnings{
      {frame.begin(), frame.begin() + 1},
      {frame.begin(), frame.begin() + 39},
      {large.begin(), large.begin() + 40},
      {large.begin(), large.begin() + 100'000},
      Joined(begin, frame),
      Joined(Joined(begin, frame), std::vector<std::byte>(100'000))};
  std::vector<std::unique_ptr<RawPeer>> peers;
  for (const auto& beginning : beginnings) {
    peers.push_back(std::make_unique<RawPeer>(impatient.address()));
    peers.back()->Write(Joined(HelloFrame(), beginning));
  }
  RawPeer dripping(impatient.address());
  dripping.Write(Joined(HelloFrame(), beginnings[0]));
  bool is_dripping_closed = false;
  for (std::size_t i = 1; i < 39 && !is_dripping_closed; ++i) {
    dripping.Write(std::span(frame).subspan(i, 1));
    is_dripping_closed = dripping.IsClosedWithin(50ms);
  }
  EXPECT_TRUE(is_dripping_closed);
  for (std::size_t i = 0; i < peers.size(); ++i)
    EXPECT_TRUE(peers[i]->IsClosedWithin(10s)) << "beginning " << i;
}

TEST_F(ServerTest, AnUploadThatGoesOnSlowlyIsTakenHoweverLongItLasts) {
  const Daemon impatient({.stall_timeout = 600ms});
  const std::string data(640 << 10, 's');
  const auto bytes = AsBytes(data);
  RawPeer peer(impatient.address());
  peer.Write(Joined(HelloFrame(),
                    FrameOf(FrameType::kPutBegin, net::PutBegin{id_, data.size()}.Encode())));
  peer.Write(FrameOf(FrameType::kPutData, net::PutData{id_, 0}.Encode(),
                     static_cast<std::uint32_t>(data.size())));
  // One payload over twice that time: the pace is the test.
  for (std::size_t at = 0; at < bytes.size(); at += 64 << 10) {
    EXPECT_FALSE(peer.IsClosedWithin(130ms)) << at;
    peer.Write(bytes.subspan(at, 64 << 10));
  }
  peer.Write(FrameOf(FrameType::kPutSeal, net::PutSeal{id_, Xxh3(bytes)}.Encode()));
  EXPECT_TRUE(test::Eventually([&] { return !impatient.Extents().empty(); }));
  EXPECT_FALSE(peer.IsClosedWithin(1ms));
}

// The connection stays: only what was begun on it goes.
TEST_F(ServerTest, AnExtentOfWhichNothingComesIsDroppedAfterTheGrace) {
  const Daemon impatient({.upload_grace = 300ms});
  RawPeer peer(impatient.address());
  peer.Write(Joined(HelloFrame(), FrameOf(FrameType::kPutBegin, net::PutBegin{id_, 8}.Encode())));
  EXPECT_FALSE(peer.IsClosedWithin(1'000ms));
  peer.Write(FrameOf(FrameType::kPutSeal, net::PutSeal{id_, 0}.Encode()));
  EXPECT_TRUE(peer.IsClosedWithin(10s));
}

TEST_F(ServerTest, ABatchIsMeasuredBeforeItIsPlanned) {
  ASSERT_TRUE(Put(*Connect(), id_, std::string(8 << 20, 'd')));
  auto channel = Connect();
  ASSERT_TRUE(channel->Call(FrameType::kExtentBind, net::ExtentBind{0, {id_}}.Encode(), {}, Soon(),
                            "a binding"));
  net::BatchRead huge;
  huge.entries.assign(net::kBatchEntryCountMax, {0, 0, 8 << 20, 0});
  const auto refused = channel->Call(FrameType::kBatchRead, huge.Encode(), {}, Soon(), "records");
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, ErrorCode::kInvalidArgument) << refused.error().message;

  // Many small ones wait for a grant: those that are not the last are never begun.
  net::BatchRead many;
  many.initial_grant_bytes = 0;
  many.entries.assign(net::kBatchEntryCountMax, {0, 0, 1, 0});
  std::uint64_t request = 0;
  for (int i = 0; i < 3; ++i) request = channel->Send(FrameType::kBatchRead, many.Encode()).value();
  const auto third = channel->Receive(request, Soon(), "records");
  ASSERT_FALSE(third);
  EXPECT_TRUE(channel->retry_after()) << third.error().message;
}

TEST_F(ServerTest, EntriesCountWhileTheirBatchIsUnderWayAndNoLonger) {
  ASSERT_TRUE(Put(*Connect(), id_, "data"));
  auto channel = Connect();
  const std::vector<net::BatchEntry> entries(net::kBatchEntryCountMax, {0, 0, 1, 0});
  for (std::size_t sent = 0; sent <= ReadDesk::kEntryCountMax; sent += entries.size()) {
    const auto read = Read(*channel, {id_}, entries);
    ASSERT_TRUE(read) << read.error().message;
    EXPECT_EQ(read.value().done.ok_count, entries.size());
  }
}

TEST_F(ServerTest, APayloadThatIsRefusedIsTakenOffAndTakesNoMemory) {
  auto channel = Connect();
  const std::uint64_t cap_before = GetMemoryUse().cap_bytes;
  const auto held = BufferPool::Process().Take(4096).value();  // One block would always fit.
  SetMemoryCap(1 << 20);
  for (const std::size_t size : {std::size_t{0}, std::size_t{1}, std::size_t{64 << 10},
                                 std::size_t{8'000'001}, std::size_t{8 << 20}}) {
    const std::vector<std::byte> payload(size);
    const std::span<const std::byte> piece(payload);
    net::Publish publish;
    publish.attempt = 1;
    publish.name = "../escape";
    const auto refused =
        channel->Call(FrameType::kPublish, publish.Encode(), {&piece, 1}, Soon(), "a publication");
    EXPECT_FALSE(refused);
    if (refused) continue;
    EXPECT_EQ(refused.error().code, ErrorCode::kInvalidArgument) << refused.error().message;
    EXPECT_TRUE(channel->Call(FrameType::kPing, {}, {}, Soon(), "a ping"));
  }
  SetMemoryCap(cap_before);
}

TEST_F(ServerTest, TooManyBatchesAtOnceAreBusyAndTheOthersAreServed) {
  ASSERT_TRUE(Put(*Connect(), id_, std::string(8 << 20, 'd')));
  // Replies to many requests at once come in any order: no Channel, which leads one dialogue.
  auto endpoint = net::ConnectTcp(daemon_.address(), Soon()).value();
  endpoint->SetLimits({});
  std::uint64_t request = 0;
  const auto send = [&](FrameType type, std::span<const std::byte> body) {
    net::FrameHeader header;
    header.type = type;
    header.request_id = ++request;
    ASSERT_TRUE(endpoint->Send(header, body, {}));
  };
  const auto hello = HelloFrame();
  send(FrameType::kHello, std::span(hello).subspan(net::FrameHeader::kEncodedSizeBytes));
  send(FrameType::kExtentBind, net::ExtentBind{0, {id_}}.Encode());
  net::BatchRead batch;
  batch.entries.assign(10, {0, 0, 8 << 20, 0});
  for (int i = 0; i < 12; ++i) send(FrameType::kBatchRead, batch.Encode());

  std::map<FrameType, int> replies;
  std::vector<std::byte> payload(8 << 20);
  for (int ended = 0; ended < 12;) {
    const auto event = net::NextEvent(*endpoint, Soon(), "replies");
    ASSERT_TRUE(event) << event.error().message;
    if (event.value() != net::Endpoint::Event::kFrame) continue;
    const FrameType type = endpoint->header().type;
    ++replies[type];
    if (type == FrameType::kBusy) {
      EXPECT_GT(net::Busy::Decode(endpoint->body()).value().retry_after_ms, 0U);
    }
    ended += type == FrameType::kBusy || type == net::ReplyTo(FrameType::kBatchRead);
    if (const std::uint32_t size = endpoint->header().payload_size_bytes; size > 0) {
      const auto place = std::span(payload).first(size);
      ASSERT_TRUE(endpoint->ReceivePayload({&place, 1}));
    }
  }
  EXPECT_EQ(replies[net::ReplyTo(FrameType::kBatchRead)],
            static_cast<int>(ReadDesk::kBatchCountMax));
  EXPECT_EQ(replies[FrameType::kBusy], 12 - static_cast<int>(ReadDesk::kBatchCountMax));
}

// The loop takes all that one read brings before it hears of any job that has ended.
TEST_F(ServerTest, AnUploadGoesOnAfterARequestThatWasBusy) {
  auto endpoint = net::ConnectTcp(daemon_.address(), Soon()).value();
  endpoint->SetLimits({});
  std::uint64_t request = 0;
  const auto send = [&](FrameType type, std::span<const std::byte> body,
                        std::string_view payload = {}) {
    const auto bytes = AsBytes(payload);
    ASSERT_TRUE(endpoint->Send({.type = type, .request_id = ++request}, body, {&bytes, 1}));
  };
  const auto next = [&] {
    const auto event = net::NextEvent(*endpoint, Soon(), "a reply");
    EXPECT_TRUE(event) << event.error().message;
    return event ? endpoint->header().type : FrameType::kError;
  };
  const auto lists = [&](std::size_t count) {
    for (std::size_t i = 0; i < count; ++i) send(FrameType::kList, net::List{1, "", ""}.Encode());
  };
  const auto replies = [&](std::size_t count) {
    std::map<FrameType, int> types;
    for (std::size_t i = 0; i < count; ++i) ++types[next()];
    return types;
  };
  const auto hello = HelloFrame();
  send(FrameType::kHello, std::span(hello).subspan(net::FrameHeader::kEncodedSizeBytes));
  ASSERT_EQ(next(), net::ReplyTo(FrameType::kHello));
  const ExtentId other = MakeExtentId(77, 0, 1);

  send(FrameType::kPutBegin, net::PutBegin{id_, 4}.Encode());
  lists(ConnectionJobs::kCountMax - 1);
  send(FrameType::kPutBegin, net::PutBegin{other, 4}.Encode());
  EXPECT_EQ(replies(ConnectionJobs::kCountMax + 1)[FrameType::kBusy], 1);
  send(FrameType::kPutData, net::PutData{id_, 0}.Encode(), "data");
  lists(ConnectionJobs::kCountMax);
  const auto seal = net::PutSeal{id_, Xxh3(AsBytes("data"))}.Encode();
  send(FrameType::kPutSeal, seal);
  EXPECT_EQ(replies(ConnectionJobs::kCountMax + 1)[FrameType::kBusy], 1);
  send(FrameType::kPutSeal, seal);

  EXPECT_EQ(next(), net::ReplyTo(FrameType::kPutSeal));
}

// Method: the record of the upload waits for the disk, so that none of its pieces can be written.
// A PING is answered at once, in front of every job, unless a piece before it is held.
TEST_F(ServerTest, PiecesBeyondTheBoundAreLeftInTheSocketUntilEarlierOnesAreWritten) {
  constexpr std::size_t kPieceBytes = 1 << 20;
  constexpr std::size_t kPieceCount = 8 * ConnectionJobs::kPieceCountMax;
  const std::string data(kPieceCount * kPieceBytes, 'd');
  auto endpoint = net::ConnectTcp(daemon_.address(), Soon()).value();
  endpoint->SetLimits({});
  const auto send = [&](FrameType type, std::span<const std::byte> body,
                        std::span<const std::byte> payload = {}) {
    ASSERT_TRUE(endpoint->Send({.type = type, .request_id = 1}, body, {&payload, 1}));
  };
  const auto send_pieces = [&](std::size_t begin, std::size_t end) {
    for (std::size_t at = begin * kPieceBytes; at < end * kPieceBytes; at += kPieceBytes)
      send(FrameType::kPutData, net::PutData{id_, at}.Encode(),
           AsBytes(data).subspan(at, kPieceBytes));
    send(FrameType::kPing, {});
  };
  const auto next = [&](net::Deadline deadline = Soon()) -> Result<FrameType> {
    FFR_TRY(net::NextEvent(*endpoint, deadline, "a reply"));
    return endpoint->header().type;
  };
  const auto hello = HelloFrame();
  send(FrameType::kHello, std::span(hello).subspan(net::FrameHeader::kEncodedSizeBytes));
  ASSERT_EQ(next().value(), net::ReplyTo(FrameType::kHello));
  ASSERT_TRUE(test::Eventually([] { return GetMemoryUse().used_bytes == 0; }));
  test::HeldSyncs disk;

  send(FrameType::kPutBegin, net::PutBegin{id_, data.size()}.Encode());
  send_pieces(0, ConnectionJobs::kPieceCountMax);
  EXPECT_EQ(next().value(), net::ReplyTo(FrameType::kPing));
  send_pieces(ConnectionJobs::kPieceCountMax, kPieceCount);
  const auto early = next(net::Clock::now() + 300ms);

  ASSERT_FALSE(early) << static_cast<int>(early.value());
  EXPECT_EQ(early.error().code, ErrorCode::kDeadlineExceeded) << early.error().message;
  EXPECT_LE(GetMemoryUse().used_bytes, ConnectionJobs::kPieceCountMax * kPieceBytes);
  disk.Release();
  EXPECT_EQ(next().value(), net::ReplyTo(FrameType::kPutBegin));
  EXPECT_EQ(next().value(), net::ReplyTo(FrameType::kPing));
  send(FrameType::kPutSeal, net::PutSeal{id_, Xxh3(AsBytes(data))}.Encode());
  EXPECT_EQ(next().value(), net::ReplyTo(FrameType::kPutSeal));
}

TEST_F(ServerTest, ConnectionsBeyondTheBoundAreTurnedAway) {
  Daemon small({.connection_count_max = 2});
  auto first = Channel::Connect(small.address(), Soon()).value();
  auto second = Channel::Connect(small.address(), Soon()).value();
  Channel::RetryAfter retry_after;
  const auto third = Channel::Connect(small.address(), Soon(), {}, &retry_after);
  ASSERT_FALSE(third);
  EXPECT_EQ(third.error().code, ErrorCode::kUnavailable) << third.error().message;
  EXPECT_NE(third.error().message.find("is busy"), std::string::npos) << third.error().message;
  EXPECT_EQ(retry_after, 1000ms);
  first.reset();
  EXPECT_TRUE(test::Eventually(
      [&] { return static_cast<bool>(Channel::Connect(small.address(), Soon())); }));
}

}  // namespace
}  // namespace ffrecord::server
