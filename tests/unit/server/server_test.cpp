// Goal: what is asked for is answered, and what is wrong about it is said; what the daemon has
// acknowledged stays.
// Method: a daemon in this process; clients that speak the protocol by hand.

#include "server/service/core/server.h"

#include <fcntl.h>
#include <gtest/gtest.h>

#include <random>

#include "seed.h"
#include "server_peers.h"

namespace ffrecord::server {
namespace {

TEST_F(ServerTest, GreetsWithItsLimitsAndANewEpochAtEachStart) {
  const auto first = Connect()->hello();
  EXPECT_EQ(first.body_size_bytes_max, 2U << 20);
  EXPECT_EQ(first.payload_size_bytes_max, 8U << 20);
  EXPECT_EQ(first.batch_entry_count_max, net::kBatchEntryCountMax);
  EXPECT_EQ(Connect()->hello().epoch, first.epoch);
  daemon_.Kill();
  daemon_.Start();
  EXPECT_NE(Connect()->hello().epoch, first.epoch);
}

TEST_F(ServerTest, ABatchHasAStatusForEachEntry) {
  auto channel = Connect();
  ASSERT_TRUE(Put(*channel, id_, "0123456789"));

  const auto read = Read(*channel, {id_, MakeExtentId(1, 1, 1)},
                         {{0, 2, 3, 0}, {1, 0, 1, 0}, {0, 8, 3, 0}, {5, 0, 1, 0}, {0, 0, 10, 0}});

  ASSERT_TRUE(read) << read.error().message;
  EXPECT_EQ(read.value().entries, (std::vector<std::string>{"234", "", "", "", "0123456789"}));
  using net::EntryStatus;
  EXPECT_EQ(read.value().done.statuses,
            (std::vector{EntryStatus::kOk, EntryStatus::kNotHere, EntryStatus::kOutOfRange,
                         EntryStatus::kNotHere, EntryStatus::kOk}));
  EXPECT_EQ(read.value().done.ok_count, 2U);
  EXPECT_EQ(read.value().done.size_bytes, 13U);
}

TEST_F(ServerTest, TheSameBytesManyTimesOverAreSentManyTimesOver) {
  auto channel = Connect();
  const std::string data(300'000, 'd');
  ASSERT_TRUE(Put(*channel, id_, data));
  // 100 entries in one run: their frames stay within the limit of a payload.
  const auto read = Read(*channel, {id_}, std::vector<net::BatchEntry>(100, {0, 0, 300'000, 0}));
  ASSERT_TRUE(read) << read.error().message;
  for (const auto& entry : read.value().entries) ASSERT_EQ(entry, data);
}

// What is in memory is sent from there, the rest is read: nobody can tell which was which.
TEST_F(ServerTest, BytesAreTheSameWhetherTheyAreInMemoryOrNot) {
  std::mt19937 random(test::Seed());
  std::string data(6 << 20, '\0');
  for (char& byte : data) byte = static_cast<char>(random());
  for (const std::size_t mapped_count_max : {std::size_t{16}, std::size_t{0}}) {
    Daemon daemon({.mapped_count_max = mapped_count_max});
    auto channel = ConnectTo(daemon);
    ASSERT_TRUE(Put(*channel, id_, data));
    const UniqueFd file(::open(daemon.Extents().at(0).c_str(), O_RDONLY | O_CLOEXEC));
    for (int round = 0; round < 8; ++round) {
      // Takes pages out of memory where the file system keeps them anywhere else.
      for (int i = 0; i < 4; ++i)
        (void)::posix_fadvise(file.get(), static_cast<off_t>(random() % data.size()), 300'000,
                              POSIX_FADV_DONTNEED);
      std::vector<net::BatchEntry> entries;
      for (const std::uint32_t size_max : {5'000U, 5'000U, 200'000U, 200'000U, 3U << 20})
        for (int i = 0; i < 3; ++i) {
          const auto size = static_cast<std::uint32_t>(random() % size_max);
          const auto offset = static_cast<std::uint32_t>(random() % (data.size() - size));
          entries.push_back({0, offset, size, 0});
        }

      const auto read = Read(*channel, {id_}, entries);

      ASSERT_TRUE(read) << read.error().message;
      for (std::size_t i = 0; i < entries.size(); ++i)
        ASSERT_TRUE(read.value().entries[i] ==
                    data.substr(entries[i].offset_bytes, entries[i].size_bytes))
            << i << " of round " << round;
    }
  }
}

TEST_F(ServerTest, AnExtentThatTheDiskHasCutIsCorruptAndTheOthersAreServed) {
  auto channel = Connect();
  const ExtentId other = MakeExtentId(77, 0, 1);
  const std::string data(300'000, 'd');
  ASSERT_TRUE(Put(*channel, id_, data));
  const auto cut = daemon_.Extents().at(0);
  ASSERT_TRUE(Put(*channel, other, data));
  ASSERT_TRUE(Read(*channel, {id_, other}, {{0, 0, 300'000, 0}}));  // Open and in memory.
  std::filesystem::resize_file(cut, 100'001);

  const auto read =
      Read(*channel, {id_, other}, {{0, 0, 300'000, 0}, {1, 0, 300'000, 0}, {0, 0, 50'000, 0}});

  ASSERT_TRUE(read) << read.error().message;
  const auto& statuses = read.value().done.statuses;
  ASSERT_EQ(statuses.size(), 3U);
  EXPECT_EQ(statuses[0], net::EntryStatus::kCorrupt);
  EXPECT_EQ(statuses[1], net::EntryStatus::kOk);
  EXPECT_EQ(read.value().entries[1], data);
}

TEST_F(ServerTest, WhatIsCancelledOrLateEndsWithAStatusForEachEntryAndTheRestIsWhole) {
  using net::EntryStatus;
  auto channel = Connect();
  const std::string data(8 << 20, 'd');
  ASSERT_TRUE(Put(*channel, id_, data));
  ASSERT_TRUE(Read(*channel, {id_}, {{0, 0, 1, 0}}));
  for (const EntryStatus end : {EntryStatus::kCancelled, EntryStatus::kDeadline}) {
    net::BatchRead batch;
    // 800 MiB: far more than leaves in a millisecond, or before the request to cancel is read.
    batch.entries.assign(100, {0, 0, 8 << 20, 0});
    if (end == EntryStatus::kDeadline) batch.deadline_ms = 1;
    const auto request = channel->Send(FrameType::kBatchRead, batch.Encode());
    ASSERT_TRUE(request);
    if (end == EntryStatus::kCancelled) {
      ASSERT_TRUE(channel->Send(FrameType::kCancel, net::Cancel{request.value()}.Encode()));
    }

    const auto read = Receive(*channel, request.value(), batch.entries.size());

    ASSERT_TRUE(read) << read.error().message;
    const auto& statuses = read.value().done.statuses;
    ASSERT_EQ(statuses.size(), batch.entries.size());  // Not all are good.
    for (std::size_t i = 0; i < statuses.size(); ++i) {
      if (statuses[i] == end) continue;
      ASSERT_EQ(statuses[i], EntryStatus::kOk) << i;
      ASSERT_TRUE(read.value().entries[i] == data) << i;
    }
  }
  EXPECT_TRUE(channel->Call(FrameType::kPing, {}, {}, Soon(), "a ping"));
}

// Reads of one MiB: the daemon may be one of them ahead of what is granted, and no more.
TEST_F(ServerTest, NoMoreIsSentThanTheClientGrants) {
  constexpr std::uint32_t kEntryBytes = 1U << 20;
  constexpr std::size_t kEntryCount = 6;
  auto channel = Connect();
  const std::string data(kEntryBytes * kEntryCount, 'g');
  ASSERT_TRUE(Put(*channel, id_, data));
  ASSERT_TRUE(Read(*channel, {id_}, {{0, 0, 1, 0}}));
  net::BatchRead batch;
  for (std::uint32_t i = 0; i < kEntryCount; ++i)
    batch.entries.push_back({0, i * kEntryBytes, kEntryBytes, 0});
  batch.initial_grant_bytes = 0;
  const auto request = channel->Send(FrameType::kBatchRead, batch.Encode()).value();
  std::uint64_t granted_bytes = 0;
  const auto grant = [&](std::uint64_t total_bytes) {
    ASSERT_TRUE(channel->Send(FrameType::kGrant, net::Grant{request, total_bytes}.Encode()));
    granted_bytes = std::max(granted_bytes, total_bytes);
  };
  grant(1);

  std::uint64_t received_bytes = 0;
  std::string payload(kEntryBytes, '\0');
  for (net::FrameHeader header;;) {
    header = channel->Receive(request, Soon(), "records").value();
    if (header.type != FrameType::kBatchData) break;
    received_bytes += header.payload_size_bytes;
    EXPECT_LT(received_bytes, granted_bytes + kEntryBytes);
    const auto place = std::as_writable_bytes(std::span(payload)).first(header.payload_size_bytes);
    ASSERT_TRUE(channel->ReceivePayload({&place, 1}, Soon()));
    grant(received_bytes / 2);  // Nothing new, or too little to go on.
    grant(received_bytes + 1);
    grant(1);  // Totals rise only.
  }

  const auto done = net::BatchDone::Decode(channel->body()).value();
  EXPECT_EQ(done.ok_count, kEntryCount);
  EXPECT_EQ(received_bytes, data.size());
}

TEST_F(ServerTest, ABatchThatIsGrantedNothingEndsAtItsDeadlineAndHoldsUpNoOther) {
  auto channel = Connect();
  ASSERT_TRUE(Put(*channel, id_, "0123456789"));
  ASSERT_TRUE(Read(*channel, {id_}, {{0, 0, 1, 0}}));
  net::BatchRead batch;
  batch.entries = {{0, 0, 10, 0}};
  batch.initial_grant_bytes = 0;
  batch.deadline_ms = 300;
  const auto request = channel->Send(FrameType::kBatchRead, batch.Encode()).value();

  auto other = Connect();
  EXPECT_TRUE(Read(*other, {id_}, {{0, 0, 10, 0}}));
  const auto read = Receive(*channel, request, 1);

  ASSERT_TRUE(read) << read.error().message;
  EXPECT_EQ(read.value().done.statuses, (std::vector{net::EntryStatus::kDeadline}));
  EXPECT_GT(read.value().done.grant_us, 0U);
  EXPECT_EQ(read.value().entries[0], "");
  // The grant of a batch that is over, or of none, is nobody's.
  ASSERT_TRUE(channel->Send(FrameType::kGrant, net::Grant{request, 10}.Encode()));
  EXPECT_TRUE(Read(*channel, {id_}, {{0, 0, 10, 0}}));
}

TEST_F(ServerTest, UnknownRequestsAreAnsweredAndTheConnectionGoesOn) {
  auto channel = Connect();
  for (const auto type : {FrameType::kStat, FrameType::kExtentList, static_cast<FrameType>(0x7E)}) {
    const auto reply = channel->Call(type, {}, {}, Soon(), "something new");
    ASSERT_FALSE(reply);
    EXPECT_EQ(reply.error().code, ErrorCode::kInvalidArgument) << reply.error().message;
  }
  EXPECT_TRUE(channel->Call(FrameType::kPing, {}, {}, Soon(), "a ping"));
}

TEST_F(ServerTest, ANameThatIsAPathIsTheCallersMistakeInEveryRequest) {
  auto channel = Connect();
  for (const char* name : {"../etc", "/etc/passwd", "a/../../b", "a//b", "./a", ""}) {
    const std::pair<FrameType, std::vector<std::byte>> requests[] = {
        {FrameType::kResolve, net::Resolve{name}.Encode()},
        {FrameType::kDelete, net::Delete{0, name}.Encode()},
        {FrameType::kCheckRoom, net::CheckRoom{1, name}.Encode()},
        {FrameType::kPublish, net::Publish{net::Publish::Mode::kCreate, 1, 0, name}.Encode()},
    };
    for (const auto& [type, body] : requests) {
      const auto reply = channel->Call(type, body, {}, Soon(), "an answer");
      ASSERT_FALSE(reply) << name;
      EXPECT_EQ(reply.error().code, ErrorCode::kInvalidArgument) << name;
      ASSERT_TRUE(channel->reusable()) << name;
    }
  }
}

TEST_F(ServerTest, AClientOfAnotherVersionIsToldBothRanges) {
  auto endpoint = net::ConnectTcp(daemon_.address(), Soon()).value();
  net::Hello hello;
  hello.version_min = 2;
  hello.version_max = 9;
  net::FrameHeader header;
  header.type = FrameType::kHello;
  header.request_id = 1;
  ASSERT_TRUE(endpoint->Send(header, hello.Encode(), {}));
  ASSERT_EQ(net::NextEvent(*endpoint, Soon(), "a reply").value(), net::Endpoint::Event::kFrame);
  ASSERT_EQ(endpoint->header().type, FrameType::kError);
  const auto error = net::ErrorReply::Decode(endpoint->body()).value();
  EXPECT_NE(error.message.find("2 to 9"), std::string::npos) << error.message;
  const auto end = net::NextEvent(*endpoint, Soon(), "the end");
  EXPECT_TRUE(!end || end.value() == net::Endpoint::Event::kClosed);
}

TEST_F(ServerTest, WhatASealAcknowledgedSurvivesAKill) {
  auto channel = Connect();
  ASSERT_TRUE(Put(*channel, id_, "acknowledged"));
  daemon_.Kill();
  daemon_.Start();
  auto again = Connect();
  const auto begun =
      again->Call(FrameType::kPutBegin, net::PutBegin{id_, 12}.Encode(), {}, Soon(), "a place");
  ASSERT_TRUE(begun) << begun.error().message;
  EXPECT_TRUE(net::PutBeginReply::Decode(begun.value().body).value().already_sealed);
}

TEST_F(ServerTest, AnUploadThatBreaksOffLeavesNothing) {
  {
    auto channel = Connect();
    ASSERT_TRUE(channel->Call(FrameType::kPutBegin, net::PutBegin{id_, 1 << 20}.Encode(), {},
                              Soon(), "a place"));
    const auto bytes = AsBytes("the beginning");
    ASSERT_TRUE(channel->Send(FrameType::kPutData, net::PutData{id_, 0}.Encode(), {&bytes, 1}));
    ASSERT_TRUE(channel->Flush(Soon()));
  }
  ExpectServing();
  EXPECT_TRUE(daemon_.Extents().empty());
}

TEST_F(ServerTest, BytesThatDoNotFitTheirChecksumAreNotSealed) {
  auto channel = Connect();
  ASSERT_TRUE(channel->Call(FrameType::kPutBegin, net::PutBegin{id_, 4}.Encode(), {}, Soon(), "a"));
  const auto bytes = AsBytes("data");
  ASSERT_TRUE(channel->Send(FrameType::kPutData, net::PutData{id_, 0}.Encode(), {&bytes, 1}));
  const auto sealed =
      channel->Call(FrameType::kPutSeal, net::PutSeal{id_, 1}.Encode(), {}, Soon(), "a seal");
  ASSERT_FALSE(sealed);
  EXPECT_EQ(sealed.error().code, ErrorCode::kCorruption);
  EXPECT_TRUE(daemon_.Extents().empty());
}

// A disk that is full is given room so.
TEST_F(ServerTest, ADiskIsAddedWhileNothingIsTakenButDeletions) {
  const test::TempFolder folder;
  Server::Options options{.data = {folder / "old"}, .core_count = 1};
  test::Daemon daemon(options);
  ASSERT_TRUE(Put(*ConnectTo(daemon), MakeExtentId(1, 0, 0), "data"));
  daemon.Kill();
  std::filesystem::remove(folder / "old" / "reserve");
  std::filesystem::create_directory(folder / "old" / "reserve");  // It cannot be taken.

  options.data.push_back(folder / "new");
  const test::Daemon larger(options);

  const auto refused = Put(*ConnectTo(larger), MakeExtentId(2, 0, 0), "data");
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().system_errno, ENOSPC) << refused.error().message;
  EXPECT_TRUE(std::filesystem::exists(folder / "new" / "identity"));
}

}  // namespace
}  // namespace ffrecord::server
