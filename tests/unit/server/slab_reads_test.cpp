// Goal: over the local socket the daemon reads into a client's slab exactly what was asked for, and
// a client that breaks the rules of shared memory harms itself alone.
// Method: a daemon in this process, with data in memory, on the disk, and cut meanwhile; clients
// that speak the protocol by hand, with slabs of their own, good and bad, and that vanish with
// reads under way.

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <filesystem>
#include <random>
#include <thread>

#include "bytes.h"
#include "daemon.h"
#include "libffrecord/base/checksum.h"
#include "libffrecord/format/dataset_manifest.h"
#include "libffrecord/io/io_engine.h"
#include "libffrecord/net/protocol/batch_messages.h"
#include "libffrecord/net/protocol/storage_messages.h"
#include "libffrecord/net/rpc/channel.h"
#include "libffrecord/net/transport/slab.h"
#include "local_clients.h"
#include "seed.h"
#include "temp_folder.h"

namespace ffrecord::server {
namespace {

using net::Channel;
using net::EntryStatus;
using net::FrameType;
using test::Daemon;
using namespace std::chrono_literals;

constexpr std::uint64_t kSlabSize = std::uint64_t{8} << 20;
constexpr std::byte kUntouched{0xEE};

net::Deadline Soon() { return net::Clock::now() + 20s; }

class SlabReadsTest : public testing::Test {
 protected:
  void SetUp() override {
    auto channel = net::Channel::Connect(daemon_.address(), Soon());
    ASSERT_TRUE(channel) << channel.error().message;
    ASSERT_TRUE(channel.value()->hello().local);
    std::mt19937 random(test::Seed());
    data_.resize(3'000'000);
    for (auto& byte : data_) byte = static_cast<std::byte>(random());
    Put(id_);
  }

  void Put(const ExtentId& id) {
    auto connected = net::Channel::Connect(daemon_.address(), Soon());
    ASSERT_TRUE(connected) << connected.error().message;
    Channel& channel = *connected.value();
    ASSERT_TRUE(channel.Call(FrameType::kPutBegin, net::PutBegin{id, data_.size()}.Encode(), {},
                             Soon(), "a place"));
    const std::span<const std::byte> bytes(data_);
    ASSERT_TRUE(channel.Send(FrameType::kPutData, net::PutData{id, 0}.Encode(), {&bytes, 1}));
    const auto sealed = channel.Call(FrameType::kPutSeal, net::PutSeal{id, Xxh3(bytes)}.Encode(),
                                     {}, Soon(), "a seal");
    ASSERT_TRUE(sealed) << sealed.error().message;
  }

  // A greeted connection on the local socket, with the extent bound at 0.
  std::unique_ptr<Channel> Connect() {
    auto channel = test::ConnectLocally(daemon_.address());
    EXPECT_TRUE(channel->Call(FrameType::kExtentBind, net::ExtentBind{0, {id_}}.Encode(), {},
                              Soon(), "a binding"));
    return channel;
  }

  static net::Slab MakeSlab(std::uint64_t size = kSlabSize) {
    auto slab = net::Slab::Make(size).value();
    std::ranges::fill(slab.bytes(), kUntouched);
    return slab;
  }
  static Result<void> Register(Channel& channel, std::uint32_t id, int fd,
                               std::uint64_t size = kSlabSize) {
    const auto request = FFR_TRY(
        channel.SendDescriptor(FrameType::kSlabRegister, net::SlabRegister{id, size}.Encode(), fd));
    FFR_TRY(channel.Receive(request, Soon(), "a slab"));
    return {};
  }

  // Sends the batch and takes its answers. Each piece must be in its place when it is told.
  Result<net::BatchDone> Read(Channel& channel, const net::BatchRead& batch,
                              const net::Slab& slab) {
    const auto request = FFR_TRY(channel.Send(FrameType::kBatchRead, batch.Encode()));
    std::vector<std::uint32_t> told(batch.entries.size());
    for (;;) {
      const auto header = FFR_TRY(channel.Receive(request, Soon(), "records"));
      if (header.type == net::ReplyTo(FrameType::kBatchRead))
        return net::BatchDone::Decode(channel.body());
      EXPECT_EQ(header.type, FrameType::kBatchData);
      EXPECT_EQ(header.payload_size_bytes, 0U);
      for (const auto& piece : FFR_TRY(net::BatchData::Decode(channel.body())).pieces) {
        const auto& entry = batch.entries.at(piece.entry);
        EXPECT_EQ(piece.offset_bytes, told[piece.entry]);
        told[piece.entry] += piece.size_bytes;
        ExpectRead(slab, entry.slab_offset_bytes + piece.offset_bytes,
                   entry.offset_bytes + piece.offset_bytes, piece.size_bytes);
      }
    }
  }
  void ExpectRead(const net::Slab& slab, std::size_t at, std::size_t from, std::size_t size) {
    ASSERT_LE(at + size, slab.bytes().size());
    EXPECT_EQ(std::memcmp(slab.bytes().data() + at, data_.data() + from, size), 0)
        << at << " " << from << " " << size;
  }
  static void ExpectUntouched(const net::Slab& slab, std::size_t begin, std::size_t end) {
    EXPECT_TRUE(std::ranges::all_of(slab.bytes().subspan(begin, end - begin),
                                    [](std::byte byte) { return byte == kUntouched; }))
        << begin << " to " << end;
  }
  void ExpectServing() {
    auto channel = Connect();
    const auto slab = MakeSlab();
    ASSERT_TRUE(Register(*channel, 1, slab.fd()));
    net::BatchRead batch;
    batch.slab_id = 1;
    batch.entries = {{0, 10, 100, 0}};
    const auto done = Read(*channel, batch, slab);
    ASSERT_TRUE(done) << done.error().message;
    EXPECT_EQ(done.value().ok_count, 1U);
  }
  // Of a daemon whose disk fails as long as `engine_fails_`.
  Result<std::unique_ptr<IoEngine>> MakeEngine(std::uint32_t depth) {
    class Engine final : public IoEngine {
     public:
      Engine(std::unique_ptr<IoEngine> real, const std::atomic<bool>& fails)
          : real_(std::move(real)), fails_(fails) {}
      std::string_view name() const noexcept override { return "failing"; }
      std::uint32_t in_flight() const noexcept override { return real_->in_flight(); }
      Result<std::uint32_t> Submit(std::span<IoRequest* const> requests) override {
        return real_->Submit(requests);
      }
      Result<std::uint32_t> Wait(std::span<IoRequest*> done, std::uint32_t count_min,
                                 std::chrono::milliseconds timeout) override {
        const auto count = FFR_TRY(real_->Wait(done, count_min, timeout));
        if (fails_)
          for (IoRequest* const request : done.first(count)) request->result = -EIO;
        return count;
      }

     private:
      const std::unique_ptr<IoEngine> real_;
      const std::atomic<bool>& fails_;
    };
    return std::unique_ptr<IoEngine>(
        std::make_unique<Engine>(FFR_TRY(MakeIoEngine(depth)), engine_fails_));
  }

  const ExtentId id_ = MakeExtentId(77, 0, 0);
  std::vector<std::byte> data_;
  std::atomic<bool> engine_fails_{false};
  Daemon daemon_{{.make_engine = [this](std::uint32_t depth) { return MakeEngine(depth); }}};
};

TEST_F(SlabReadsTest, EntriesLandInTheirPlacesAndNothingElseIsTouched) {
  auto channel = Connect();
  const auto slab = MakeSlab();
  ASSERT_TRUE(Register(*channel, 3, slab.fd()));
  net::BatchRead batch;
  batch.slab_id = 3;
  // Unaligned, neighbours that could be merged, one larger than a run, none at all, one to the end.
  batch.entries = {{0, 1, 999, 5000},
                   {0, 1000, 7, 4001},
                   {0, 100, 2'500'000, 1'000'003},
                   {0, 0, 0, 17},
                   {0, 2'999'999, 1, static_cast<std::uint32_t>(kSlabSize - 1)}};

  const auto done = Read(*channel, batch, slab);

  ASSERT_TRUE(done) << done.error().message;
  EXPECT_EQ(done.value().ok_count, 5U);
  EXPECT_EQ(done.value().size_bytes, 999U + 7 + 2'500'000 + 1);
  for (const auto& entry : batch.entries)
    ExpectRead(slab, entry.slab_offset_bytes, entry.offset_bytes, entry.size_bytes);
  ExpectUntouched(slab, 0, 4001);
  ExpectUntouched(slab, 4008, 5000);
  ExpectUntouched(slab, 5999, 1'000'003);
  ExpectUntouched(slab, 3'500'003, kSlabSize - 1);
}

// Reads extents into memory, or takes them out where the file system keeps them anywhere else.
void MakeWarm(const Daemon& daemon) {
  for (const auto& path : daemon.Extents()) (void)test::ReadFile(path);
}
void MakeCold(const Daemon& daemon) {
  for (const auto& path : daemon.Extents()) {
    const UniqueFd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
    (void)::posix_fadvise(file.get(), 0, 0, POSIX_FADV_DONTNEED);
  }
}

TEST_F(SlabReadsTest, WhatIsInMemoryIsCopiedWithoutTheEngine) {
  MakeWarm(daemon_);
  auto channel = Connect();
  const auto slab = MakeSlab();
  ASSERT_TRUE(Register(*channel, 1, slab.fd()));
  net::BatchRead batch;
  batch.slab_id = 1;
  batch.entries = {{0, 3, 4000, 1}, {0, 5000, 4096, 8192}, {0, 100, 2'500'000, 1'000'003}};
  engine_fails_ = true;

  const auto done = Read(*channel, batch, slab);

  ASSERT_TRUE(done) << done.error().message;
  EXPECT_EQ(done.value().ok_count, 3U);
  ExpectUntouched(slab, 0, 1);
  ExpectUntouched(slab, 4001, 8192);
  ExpectUntouched(slab, 8192 + 4096, 1'000'003);
  ExpectUntouched(slab, 3'500'003, kSlabSize);
}

TEST_F(SlabReadsTest, WhatIsNotInMemoryIsReadByTheEngine) {
  auto channel = Connect();
  const auto slab = MakeSlab();
  ASSERT_TRUE(Register(*channel, 1, slab.fd()));
  net::BatchRead batch;
  batch.slab_id = 1;
  batch.entries = {{0, 0, 2'500'000, 0}};
  MakeCold(daemon_);
  engine_fails_ = true;

  const auto failed = Read(*channel, batch, slab);

  ASSERT_TRUE(failed) << failed.error().message;
  if (failed.value().ok_count > 0) GTEST_SKIP() << "this file system keeps files in memory";
  EXPECT_EQ(failed.value().statuses, std::vector{EntryStatus::kIoError});
  engine_fails_ = false;
  const auto read = Read(*channel, batch, slab);
  ASSERT_TRUE(read) << read.error().message;
  EXPECT_EQ(read.value().ok_count, 1U);
}

TEST_F(SlabReadsTest, BytesAreTheSameWhetherTheyAreInMemoryOrNot) {
  std::mt19937 random(test::Seed());
  auto channel = Connect();
  auto slab = MakeSlab();
  ASSERT_TRUE(Register(*channel, 1, slab.fd()));
  const UniqueFd file(::open(daemon_.Extents().at(0).c_str(), O_RDONLY | O_CLOEXEC));
  for (int round = 0; round < 20; ++round) {
    for (int i = 0; i < 3; ++i)
      (void)::posix_fadvise(file.get(), static_cast<off_t>(random() % data_.size()), 300'000,
                            POSIX_FADV_DONTNEED);
    std::ranges::fill(slab.bytes(), kUntouched);
    net::BatchRead batch;
    batch.slab_id = 1;
    std::uint32_t place = 0;
    for (const std::uint32_t size_max : {5'000U, 200'000U, 2'000'000U})
      for (int i = 0; i < 3; ++i) {
        const auto size = static_cast<std::uint32_t>(random() % size_max);
        const auto offset = static_cast<std::uint32_t>(random() % (data_.size() - size));
        batch.entries.push_back({0, offset, size, place});
        place += size;
      }

    const auto done = Read(*channel, batch, slab);

    ASSERT_TRUE(done) << done.error().message;
    EXPECT_EQ(done.value().ok_count, batch.entries.size());
    for (const auto& entry : batch.entries)
      ExpectRead(slab, entry.slab_offset_bytes, entry.offset_bytes, entry.size_bytes);
    ExpectUntouched(slab, place, kSlabSize);
  }
}

TEST_F(SlabReadsTest, AnExtentThatTheDiskHasCutIsCorruptAndTheDaemonGoesOn) {
  MakeWarm(daemon_);
  auto channel = Connect();
  const auto slab = MakeSlab();
  ASSERT_TRUE(Register(*channel, 1, slab.fd()));
  net::BatchRead batch;
  batch.slab_id = 1;
  batch.entries = {{0, 0, 2'500'000, 0}};
  ASSERT_TRUE(Read(*channel, batch, slab));  // Open, mapped and in memory.
  std::filesystem::resize_file(daemon_.Extents().at(0), 1'000'001);

  const auto done = Read(*channel, batch, slab);

  ASSERT_TRUE(done) << done.error().message;
  EXPECT_EQ(done.value().statuses, std::vector{EntryStatus::kCorrupt});
}

// At any moment of the copy; what is told is whole all the same.
TEST_F(SlabReadsTest, ADiskThatCutsExtentsUnderACopyEndsNobody) {
  std::mt19937 random(test::Seed());
  const auto slab = MakeSlab();
  std::vector<std::filesystem::path> known = daemon_.Extents();
  for (std::uint32_t round = 0; round < 16; ++round) {
    const ExtentId id = MakeExtentId(78, 0, round);
    Put(id);
    auto paths = daemon_.Extents();
    const auto fresh = std::ranges::find_if(
        paths, [&](const auto& path) { return std::ranges::find(known, path) == known.end(); });
    ASSERT_NE(fresh, paths.end());
    (void)test::ReadFile(*fresh);
    auto channel = Connect();
    ASSERT_TRUE(channel->Call(FrameType::kExtentBind, net::ExtentBind{1, {id}}.Encode(), {}, Soon(),
                              "a binding"));
    ASSERT_TRUE(Register(*channel, 1, slab.fd()));
    net::BatchRead batch;
    batch.slab_id = 1;
    batch.entries = {{1, 0, 1'000, 0}};
    ASSERT_TRUE(Read(*channel, batch, slab));  // Open and mapped.
    batch.entries = {{1, 0, 2'900'000, 0}, {1, 9, 2'900'000, 2'900'000}};
    const auto pause = std::chrono::microseconds(random() % 2'000);
    std::thread cutter([&] {
      std::this_thread::sleep_for(pause);
      std::filesystem::resize_file(*fresh, 4096);
    });

    const auto done = Read(*channel, batch, slab);

    cutter.join();
    EXPECT_TRUE(done) << done.error().message;
    known = std::move(paths);
  }
  ExpectServing();
}

TEST_F(SlabReadsTest, PlacesOutsideTheSlabAreRefusedEntryByEntry) {
  auto channel = Connect();
  const auto slab = MakeSlab();
  ASSERT_TRUE(Register(*channel, 1, slab.fd()));
  constexpr auto kEnd = static_cast<std::uint32_t>(kSlabSize);
  net::BatchRead batch;
  batch.slab_id = 1;
  batch.entries = {{0, 0, 10, kEnd - 9},   {0, 0, 10, kEnd}, {0, 0, 10, 0xFFFFFFFF},
                   {0, 0, 10, 0xFFFFFFF6}, {0, 5, 10, 0},    {0, 2'999'995, 10, 100}};

  const auto done = Read(*channel, batch, slab);

  ASSERT_TRUE(done) << done.error().message;
  constexpr auto kOut = EntryStatus::kOutOfRange;
  EXPECT_EQ(done.value().statuses, (std::vector{kOut, kOut, kOut, kOut, EntryStatus::kOk, kOut}));
  ExpectUntouched(slab, 10, kSlabSize);
}

TEST_F(SlabReadsTest, ABatchForASlabThatIsNotThereIsAnError) {
  auto channel = Connect();
  net::BatchRead batch;
  batch.entries = {{0, 0, 10, 0}};
  for (const std::uint32_t id : {1U, 16U, 17U, 0xFFFFFFFFU}) {
    batch.slab_id = id;
    const auto done = Read(*channel, batch, MakeSlab());
    ASSERT_FALSE(done);
    EXPECT_EQ(done.error().code, ErrorCode::kInvalidArgument) << done.error().message;
  }
  ExpectServing();
}

TEST_F(SlabReadsTest, ASlabIsForTheLocalSocketOnly) {
  auto channel = Channel::Connect(daemon_.address(), Soon()).value();
  const auto reply = channel->Call(FrameType::kSlabRegister, net::SlabRegister{1, 4096}.Encode(),
                                   {}, Soon(), "a slab");
  ASSERT_FALSE(reply);
  EXPECT_EQ(reply.error().code, ErrorCode::kInvalidArgument) << reply.error().message;
}

TEST_F(SlabReadsTest, BadMemoryIsRefusedWithWordsAndTheConnectionGoesOn) {
  auto channel = Connect();
  const UniqueFd unsealed(::memfd_create("unsealed", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  ASSERT_EQ(::ftruncate(unsealed.get(), static_cast<off_t>(kSlabSize)), 0);
  const auto slab = MakeSlab();
  const UniqueFd file(::open("/proc/self/exe", O_RDONLY | O_CLOEXEC));
  for (const auto& [fd, size] : {std::pair{unsealed.get(), kSlabSize},
                                 {file.get(), kSlabSize},
                                 {slab.fd(), kSlabSize / 2},
                                 {slab.fd(), kSlabSize * 2}}) {
    const auto refused = Register(*channel, 1, fd, size);
    ASSERT_FALSE(refused);
    EXPECT_EQ(refused.error().code, ErrorCode::kInvalidArgument) << refused.error().message;
    EXPECT_NE(refused.error().message.find("slab"), std::string::npos) << refused.error().message;
  }
  ASSERT_TRUE(Register(*channel, 1, slab.fd()));
}

TEST_F(SlabReadsTest, TheSlabsOfAConnectionAreBoundedAndANumberCanBeGivenAgain) {
  auto channel = Connect();
  // Not allocated: a peer may well offer memory that it does not have.
  const auto sparse = [](std::uint64_t size) {
    UniqueFd fd(::memfd_create("sparse", MFD_CLOEXEC | MFD_ALLOW_SEALING));
    EXPECT_EQ(::ftruncate(fd.get(), static_cast<off_t>(size)), 0);
    EXPECT_EQ(::fcntl(fd.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW), 0);
    return fd;
  };
  const UniqueFd half = sparse(net::kSlabBytesMax / 2);
  ASSERT_TRUE(Register(*channel, 1, half.get(), net::kSlabBytesMax / 2));
  ASSERT_TRUE(Register(*channel, 2, half.get(), net::kSlabBytesMax / 2));
  const auto slab = MakeSlab();
  const auto refused = Register(*channel, 3, slab.fd());
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, ErrorCode::kInvalidArgument) << refused.error().message;
  ASSERT_TRUE(Register(*channel, 2, slab.fd()));  // In place of the other.
  net::BatchRead batch;
  batch.slab_id = 2;
  batch.entries = {{0, 0, 1000, 0}};
  EXPECT_TRUE(Read(*channel, batch, slab));
}

TEST_F(SlabReadsTest, WithoutADescriptorOrWithManyThePeerIsCutOff) {
  auto without = Connect();
  const auto request =
      without->Send(FrameType::kSlabRegister, net::SlabRegister{1, kSlabSize}.Encode()).value();
  EXPECT_EQ(without->Receive(request, Soon(), "an end").error().code, ErrorCode::kUnavailable);

  auto many = Connect();
  const auto slab = MakeSlab();
  for (int i = 0; i < 200; ++i) ASSERT_TRUE(many->SendDescriptor(FrameType::kPing, {}, slab.fd()));
  EXPECT_FALSE(many->Receive(1'000, Soon(), "an end"));
  EXPECT_FALSE(many->reusable());
  ExpectServing();
}

TEST_F(SlabReadsTest, ClientsThatVanishWithReadsUnderWayHarmNobody) {
  std::mt19937 random(test::Seed());
  for (int round = 0; round < 60; ++round) {
    auto channel = Connect();
    auto slab = MakeSlab();
    ASSERT_TRUE(Register(*channel, 1, slab.fd()));
    net::BatchRead batch;
    batch.slab_id = 1;
    batch.entries.assign(1 + random() % 50, {0, 0, 2'000'000, 0});
    for (int i = 0; i < 3; ++i) ASSERT_TRUE(channel->Send(FrameType::kBatchRead, batch.Encode()));
    // Pages are taken away as well, or all is dropped, at any moment.
    if (random() % 2 == 0) (void)channel->Flush(Soon());
    if (random() % 2 == 0)
      (void)::fallocate(slab.fd(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0,
                        static_cast<off_t>(kSlabSize));
  }
  ExpectServing();
}

TEST_F(SlabReadsTest, ACancelledBatchEndsWithAStatusForEachEntry) {
  auto channel = Connect();
  ASSERT_TRUE(channel->hello().capabilities & net::kCapabilityCancel);
  const auto slab = MakeSlab();
  ASSERT_TRUE(Register(*channel, 1, slab.fd()));
  net::BatchRead batch;
  batch.slab_id = 1;
  // Far more than may be read at one time, so that the request to cancel meets some not begun.
  batch.entries.assign(4'000, {0, 0, 1'000'000, 0});
  const auto request = channel->Send(FrameType::kBatchRead, batch.Encode());
  ASSERT_TRUE(request);
  ASSERT_TRUE(channel->Send(FrameType::kCancel, net::Cancel{request.value()}.Encode()));
  ASSERT_TRUE(channel->Send(FrameType::kCancel, net::Cancel{12345}.Encode()));  // Of nothing.

  net::BatchDone done;
  for (;;) {
    const auto header = channel->Receive(request.value(), Soon(), "the end of the batch");
    ASSERT_TRUE(header) << header.error().message;
    if (header.value().type == FrameType::kBatchData) continue;
    done = net::BatchDone::Decode(channel->body()).value();
    break;
  }
  EXPECT_EQ(done.ok_count + done.failed_count, 4'000U);
  EXPECT_GT(done.failed_count, 0U);
  for (const EntryStatus status : done.statuses)
    EXPECT_TRUE(status == EntryStatus::kOk || status == EntryStatus::kCancelled);
  EXPECT_TRUE(channel->Call(FrameType::kPing, {}, {}, Soon(), "a ping"));
}

TEST_F(SlabReadsTest, ADaemonThatOffersTcpAloneSaysSo) {
  Daemon daemon({.transport = Server::Options::Transport::kTcp});
  EXPECT_EQ(daemon.server().transports(), "tcp");
  EXPECT_EQ(daemon_.server().transports(), "tcp,shm");
  const auto channel = Channel::Connect(daemon.address(), Soon()).value();
  EXPECT_FALSE(channel->hello().local);
  const auto local = net::ConnectLocal(net::LocalSocketName(channel->hello().epoch), "x", Soon());
  ASSERT_FALSE(local);
  EXPECT_EQ(local.error().code, ErrorCode::kUnavailable);
}

}  // namespace
}  // namespace ffrecord::server
