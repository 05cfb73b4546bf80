// Goal: over the local socket the daemon takes an extent out of a client's slab as it takes one
// from payloads, and a client that lies about that memory, or takes it away, harms its own upload
// alone. Method: a daemon in this process; clients that speak the protocol by hand, with slabs of
// their own, good and bad, and that vanish with pieces under way.

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstring>
#include <fstream>
#include <iterator>
#include <random>
#include <thread>

#include "daemon.h"
#include "held_syncs.h"
#include "libffrecord/base/checksum.h"
#include "libffrecord/format/dataset_manifest.h"
#include "libffrecord/net/protocol/batch_messages.h"
#include "libffrecord/net/protocol/storage_messages.h"
#include "libffrecord/net/rpc/channel.h"
#include "libffrecord/net/transport/slab.h"
#include "local_clients.h"
#include "seed.h"
#include "server/service/connection/connection_jobs.h"

namespace ffrecord::server {
namespace {

using net::Channel;
using net::FrameType;
using net::PutPull;
using test::Daemon;
using Use = net::SlabRegister::Use;
using namespace std::chrono_literals;

constexpr std::uint64_t kSlabSize = std::uint64_t{4} << 20;

net::Deadline Soon() { return net::Clock::now() + 20s; }

class SlabUploadsTest : public testing::Test {
 protected:
  void SetUp() override {
    const auto channel = Channel::Connect(daemon_.address(), Soon());
    ASSERT_TRUE(channel) << channel.error().message;
    ASSERT_TRUE(channel.value()->hello().capabilities & net::kCapabilityPulls);
    std::mt19937 random(test::Seed());
    for (auto& byte : data_) byte = static_cast<std::byte>(random());
    std::ranges::copy(data_, slab_.bytes().begin());
  }

  std::unique_ptr<Channel> Connect() const { return test::ConnectLocally(daemon_.address()); }
  static Result<void> Register(Channel& channel, std::uint32_t id, int fd, Use use = Use::kIsRead,
                               std::uint64_t size_bytes = kSlabSize) {
    const auto request = FFR_TRY(channel.SendDescriptor(
        FrameType::kSlabRegister, net::SlabRegister{id, size_bytes, {}, use}.Encode(), fd));
    FFR_TRY(channel.Receive(request, Soon(), "a slab"));
    return {};
  }
  Result<void> Begin(Channel& channel) const {
    FFR_TRY(channel.Call(FrameType::kPutBegin, net::PutBegin{id_, data_.size()}.Encode(), {},
                         Soon(), "a place"));
    return {};
  }
  static Result<void> Pull(Channel& channel, const PutPull& pull) {
    FFR_TRY(channel.Call(FrameType::kPutPull, pull.Encode(), {}, Soon(), "a piece"));
    return {};
  }
  Result<void> Seal(Channel& channel) const {
    FFR_TRY(channel.Call(FrameType::kPutSeal, net::PutSeal{id_, Xxh3(data_)}.Encode(), {}, Soon(),
                         "a seal"));
    return {};
  }
  // An upload as it should be, of pieces that are at the same offsets of slab 1.
  Result<void> Upload(Channel& channel) const {
    FFR_TRY(Begin(channel));
    for (std::uint32_t at = 0; at < data_.size();) {
      const auto rest = static_cast<std::uint32_t>(data_.size()) - at;
      const std::uint32_t size = std::min(rest, PutPull::kSizeBytesMax);
      FFR_TRY(Pull(channel, {id_, at, 1, at, size}));
      at += size;
    }
    return Seal(channel);
  }
  void ExpectServing() const {
    const auto channel = Connect();
    ASSERT_TRUE(Register(*channel, 1, slab_.fd()));
    const auto uploaded = Upload(*channel);
    EXPECT_TRUE(uploaded) << uploaded.error().message;
  }

  const ExtentId id_ = MakeExtentId(77, 0, 0);
  std::vector<std::byte> data_{3'000'000};
  const net::Slab slab_ = net::Slab::Make(kSlabSize, net::Slab::Peer::kReads).value();
  Daemon daemon_;
};

TEST_F(SlabUploadsTest, PiecesAreTakenFromTheirPlacesAndEachIsAnsweredOnce) {
  const auto channel = Connect();
  ASSERT_TRUE(Register(*channel, 3, slab_.fd()));
  ASSERT_TRUE(Begin(*channel));
  // Far more at one time than the daemon takes in hand; of every size and alignment.
  std::mt19937 random(test::Seed());
  std::vector<std::uint64_t> requests;
  for (std::uint32_t at = 0; at < data_.size();) {
    const auto rest = static_cast<std::uint32_t>(data_.size()) - at;
    const auto size = std::min(rest, static_cast<std::uint32_t>(1 + random() % 200'000));
    const auto sent = channel->Send(FrameType::kPutPull, PutPull{id_, at, 3, at, size}.Encode());
    ASSERT_TRUE(sent);
    requests.push_back(sent.value());
    at += size;
  }
  for (const std::uint64_t request : requests) {
    const auto answer = channel->Receive(request, Soon(), "a piece");
    ASSERT_TRUE(answer) << answer.error().message;
    EXPECT_EQ(answer.value().type, net::ReplyTo(FrameType::kPutPull));
  }
  const auto sealed = Seal(*channel);

  ASSERT_TRUE(sealed) << sealed.error().message;
  ASSERT_EQ(daemon_.Extents().size(), 1U);
  std::ifstream file(daemon_.Extents()[0], std::ios::binary);
  std::vector<char> stored(data_.size());
  ASSERT_TRUE(file.read(stored.data(), static_cast<std::streamsize>(stored.size())));
  EXPECT_EQ(std::memcmp(stored.data(), data_.data(), data_.size()), 0);
  // And once more over TCP and as payload: it is the same extent.
  const auto tcp = Channel::Connect(daemon_.address(), Soon()).value();
  const auto again = tcp->Call(FrameType::kPutBegin, net::PutBegin{id_, data_.size()}.Encode(), {},
                               Soon(), "a place");
  ASSERT_TRUE(again);
  EXPECT_TRUE(net::PutBeginReply::Decode(again.value().body).value().already_sealed);
}

TEST_F(SlabUploadsTest, ASlabServesOneDirectionOnly) {
  const auto channel = Connect();
  const auto to_read_into = net::Slab::Make(kSlabSize).value();
  ASSERT_TRUE(Register(*channel, 1, slab_.fd()));
  ASSERT_TRUE(Register(*channel, 2, to_read_into.fd(), Use::kIsWritten));
  // What may be read the daemon could not write to if it wanted: it is not given for that either.
  EXPECT_FALSE(Register(*channel, 3, slab_.fd(), Use::kIsWritten));

  net::BatchRead batch;
  batch.slab_id = 1;
  batch.entries = {{0, 0, 10, 0}};
  const auto read = channel->Call(FrameType::kBatchRead, batch.Encode(), {}, Soon(), "records");
  ASSERT_FALSE(read);
  EXPECT_EQ(read.error().code, ErrorCode::kInvalidArgument) << read.error().message;
  ASSERT_TRUE(Begin(*channel));
  const auto pulled = Pull(*channel, {id_, 0, 2, 0, 100});
  ASSERT_FALSE(pulled);
  EXPECT_EQ(pulled.error().code, ErrorCode::kInvalidArgument) << pulled.error().message;
  ASSERT_TRUE(Upload(*channel));
}

TEST_F(SlabUploadsTest, WhatIsNotInTheSlabSpoilsTheExtentAndTheConnectionGoesOn) {
  const auto channel = Connect();
  const auto page = net::Slab::Make(net::kSlabPageBytes, net::Slab::Peer::kReads).value();
  ASSERT_TRUE(Register(*channel, 1, slab_.fd()));
  ASSERT_TRUE(Register(*channel, 2, page.fd(), Use::kIsRead, net::kSlabPageBytes));
  const auto at_end = static_cast<std::uint32_t>(kSlabSize);
  // The message of the connection's own check, which over RDMA is the only one.
  const std::string passes = "a piece of an upload passes its slab";
  for (const auto& [slab, offset, size, code, words] :
       {std::tuple{1U, at_end - 99, 100U, ErrorCode::kOutOfRange, passes},
        {1U, at_end, 1U, ErrorCode::kOutOfRange, passes},
        {1U, 0xFFFFFFFFU, PutPull::kSizeBytesMax, ErrorCode::kOutOfRange, passes},
        {2U, 0U, 4097U, ErrorCode::kOutOfRange, passes},
        {5U, 0U, 100U, ErrorCode::kInvalidArgument, std::string("slab")}}) {
    ASSERT_TRUE(Begin(*channel));
    const auto pulled = Pull(*channel, {id_, 0, slab, offset, size});
    const auto next = Pull(*channel, {id_, size, 1, 0, 100});
    const auto sealed = Seal(*channel);
    for (const auto& failed : {pulled, next, sealed}) {
      ASSERT_FALSE(failed);
      EXPECT_EQ(failed.error().code, code) << failed.error().message;
      EXPECT_NE(failed.error().message.find(words), std::string::npos) << failed.error().message;
    }
  }
  EXPECT_TRUE(Upload(*channel));
}

TEST_F(SlabUploadsTest, APieceMayEndWhereItsSlabEnds) {
  const auto channel = Connect();
  const auto page = net::Slab::Make(net::kSlabPageBytes, net::Slab::Peer::kReads).value();
  ASSERT_TRUE(Register(*channel, 1, page.fd(), Use::kIsRead, net::kSlabPageBytes));
  ASSERT_TRUE(Begin(*channel));
  for (const PutPull& good : {PutPull{id_, 0, 1, 0, 4096}, PutPull{id_, 4096, 1, 4095, 1}}) {
    const auto pulled = Pull(*channel, good);
    EXPECT_TRUE(pulled) << pulled.error().message;
  }
}

// Method: the record of the upload waits for the disk. A PING is answered at once, in front of
// every job, unless a piece before it is held.
TEST_F(SlabUploadsTest, PiecesBeyondTheBoundWaitUntilEarlierOnesAreWritten) {
  constexpr std::uint32_t kPieceBytes = 1000;
  const auto channel = Connect();
  ASSERT_TRUE(Register(*channel, 1, slab_.fd()));
  test::HeldSyncs disk;
  const auto begun = channel->Send(FrameType::kPutBegin, net::PutBegin{id_, data_.size()}.Encode());
  std::vector<std::uint64_t> pieces;
  const auto send_piece = [&] {
    const auto at = static_cast<std::uint32_t>(pieces.size()) * kPieceBytes;
    const PutPull pull{id_, at, 1, at, kPieceBytes};
    pieces.push_back(channel->Send(FrameType::kPutPull, pull.Encode()).value());
  };
  while (pieces.size() < ConnectionJobs::kPieceCountMax) send_piece();
  EXPECT_TRUE(channel->Call(FrameType::kPing, {}, {}, Soon(), "a ping"));

  send_piece();
  ASSERT_TRUE(channel->Send(FrameType::kPing, {}));
  bool is_answered = false;
  for (int i = 0; i < 60 && !is_answered; ++i) {
    is_answered = channel->Push().value();
    std::this_thread::sleep_for(5ms);
  }

  EXPECT_FALSE(is_answered);
  disk.Release();
  EXPECT_TRUE(channel->Receive(begun.value(), Soon(), "a place"));
  EXPECT_TRUE(channel->Receive(pieces[0], Soon(), "a piece"));
}

TEST_F(SlabUploadsTest, MoreThanTheExtentHasIsRefused) {
  const auto channel = Connect();
  ASSERT_TRUE(Register(*channel, 1, slab_.fd()));
  ASSERT_TRUE(
      channel->Call(FrameType::kPutBegin, net::PutBegin{id_, 100}.Encode(), {}, Soon(), "a place"));
  const auto pulled = Pull(*channel, {id_, 0, 1, 0, 101});
  ASSERT_FALSE(pulled);
  EXPECT_EQ(pulled.error().code, ErrorCode::kInvalidArgument) << pulled.error().message;
}

TEST_F(SlabUploadsTest, APieceOutOfPlaceEndsTheConnection) {
  for (const PutPull& wrong :
       {PutPull{MakeExtentId(78, 0, 0), 0, 1, 0, 100}, PutPull{id_, 1, 1, 0, 100},
        PutPull{id_, 0, 17, 0, 100}, PutPull{id_, 0, 1, 0, 0},
        PutPull{id_, 0, 1, 0, PutPull::kSizeBytesMax + 1}}) {
    const auto channel = Connect();
    ASSERT_TRUE(Register(*channel, 1, slab_.fd()));
    ASSERT_TRUE(Begin(*channel));
    const auto pulled = Pull(*channel, wrong);
    ASSERT_FALSE(pulled);
    EXPECT_EQ(pulled.error().code, ErrorCode::kUnavailable) << pulled.error().message;
  }
  const auto nothing_open = Connect();
  ASSERT_TRUE(Register(*nothing_open, 1, slab_.fd()));
  EXPECT_FALSE(Pull(*nothing_open, {id_, 0, 1, 0, 100}));
  EXPECT_FALSE(nothing_open->reusable());
  ExpectServing();
}

TEST_F(SlabUploadsTest, MemoryThatIsTakenAwayIsAnErrorOrAWrongSum) {
  const auto channel = Connect();
  const UniqueFd memory(::memfd_create("shrinks", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  ASSERT_EQ(::ftruncate(memory.get(), static_cast<off_t>(kSlabSize)), 0);
  ASSERT_TRUE(Register(*channel, 1, memory.get()));
  ASSERT_EQ(::ftruncate(memory.get(), 4096), 0);
  ASSERT_TRUE(Begin(*channel));
  const auto pulled = Pull(*channel, {id_, 0, 1, 0, 5000});
  ASSERT_FALSE(pulled);
  EXPECT_EQ(pulled.error().code, ErrorCode::kIo) << pulled.error().message;

  // A hole is zeros.
  ASSERT_TRUE(Register(*channel, 1, slab_.fd()));
  ASSERT_TRUE(Begin(*channel));
  std::ranges::fill(slab_.bytes(), std::byte{});
  for (std::uint32_t at = 0; at < data_.size(); at += 1'000'000)
    ASSERT_TRUE(Pull(*channel, {id_, at, 1, at, 1'000'000}));
  const auto sealed = Seal(*channel);
  ASSERT_FALSE(sealed);
  EXPECT_EQ(sealed.error().code, ErrorCode::kCorruption) << sealed.error().message;
}

TEST_F(SlabUploadsTest, ClientsThatVanishWithPiecesUnderWayHarmNobody) {
  std::mt19937 random(test::Seed());
  for (int round = 0; round < 60; ++round) {
    const auto channel = Connect();
    const UniqueFd memory(::memfd_create("vanishes", MFD_CLOEXEC | MFD_ALLOW_SEALING));
    ASSERT_EQ(::ftruncate(memory.get(), static_cast<off_t>(kSlabSize)), 0);
    ASSERT_TRUE(Register(*channel, 1, memory.get()));
    ASSERT_TRUE(Begin(*channel));
    for (std::uint32_t at = 0; at < 2'000'000; at += 500'000)
      ASSERT_TRUE(channel->Send(FrameType::kPutPull, PutPull{id_, at, 1, at, 500'000}.Encode()));
    if (random() % 2 == 0) (void)channel->Push();
    if (random() % 2 == 0) {
      ASSERT_EQ(::ftruncate(memory.get(), 0), 0);
    }
  }
  ExpectServing();
}

TEST_F(SlabUploadsTest, OverTcpThereIsNothingToTakeThemFrom) {
  const auto channel = Channel::Connect(daemon_.address(), Soon()).value();
  const auto slab =
      channel->Call(FrameType::kSlabRegister, net::SlabRegister{1, 4096, {}, Use::kIsRead}.Encode(),
                    {}, Soon(), "a slab");
  ASSERT_FALSE(slab);
  EXPECT_EQ(slab.error().code, ErrorCode::kInvalidArgument) << slab.error().message;
  ASSERT_TRUE(Begin(*channel));
  const auto pulled = Pull(*channel, {id_, 0, 1, 0, 100});
  ASSERT_FALSE(pulled);
  EXPECT_EQ(pulled.error().code, ErrorCode::kInvalidArgument) << pulled.error().message;
}

}  // namespace
}  // namespace ffrecord::server
