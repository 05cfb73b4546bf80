// Goal: the transport that serves a reader is the one that was asked for, or a failure that says
// why; and a daemon that breaks off in a batch never has a hand in what the reader is given later.
// Method: real daemons with and without shared memory; a daemon by hand that lies about where it
// is, or that drops a batch over shared memory and writes into it when it should not.

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <random>
#include <string_view>
#include <thread>

#include <ffrecord/client/dataset.h>

#include "bytes.h"
#include "daemon.h"
#include "libffrecord/base/machine_identity.h"
#include "libffrecord/net/protocol/batch_messages.h"
#include "libffrecord/net/protocol/storage_messages.h"
#include "libffrecord/net/rpc/remote_files.h"
#include "libffrecord/net/rpc/session.h"
#include "libffrecord/net/rpc/slab_pool.h"
#include "libffrecord/net/transport/descriptor_passing.h"
#include "libffrecord/net/transport/slab.h"
#include "local_daemon.h"
#include "queued_reader.h"
#include "test_file.h"
#include "tokens.h"

namespace ffrecord::client {
namespace {

using server::Server;
using test::Daemon;
using namespace std::chrono_literals;

constexpr SessionOptions kAuto{20s, Transport::kAuto};
constexpr SessionOptions kShm{20s, Transport::kShm};
constexpr SessionOptions kTcp{20s, Transport::kTcp};

TEST(TransportChoiceTest, AnAddressMaySayItAndNothingElse) {
  const auto parsed = [](const std::string& text) { return net::Location::Parse(text); };
  EXPECT_EQ(parsed("ffrecord://h/x").value().transport, std::nullopt);
  EXPECT_EQ(parsed("ffrecord://h/x?transport=shm").value().transport, Transport::kShm);
  EXPECT_EQ(parsed("ffrecord://h/x?transport=rdma").value().transport, Transport::kRdma);
  EXPECT_EQ(parsed("ffrecord://h/x?transport=tcp").value().name, "x");
  EXPECT_EQ(parsed("ffrecord://h:7?transport=auto").value().address.port, 7);
  EXPECT_EQ(parsed("ffrecord://h/x?rdma_devices=a,b:2&transport=rdma").value().rdma.devices,
            (std::vector<std::string>{"a", "b:2"}));
  const auto qos =
      parsed("ffrecord://h/x?rdma_traffic_class=104&rdma_service_level=3").value().rdma.qos;
  EXPECT_EQ(qos.traffic_class, 104);
  EXPECT_EQ(qos.service_level, 3);
  for (const char* bad : {"ffrecord://h/x?", "ffrecord://h/x?transport=", "ffrecord://h/x?shm",
                          "ffrecord://h/x?transport=ib", "ffrecord://h/x?rdma_devices=a,a",
                          "ffrecord://h/x?rdma_service_level=16", "ffrecord://h/x?rdma_x=1",
                          "ffrecord://h/x?rdma_traffic_class=256", "ffrecord://h/x?rdma_devices",
                          "ffrecord://h/x?transport=shm&a=b"}) {
    ASSERT_FALSE(parsed(bad)) << bad;
    EXPECT_EQ(parsed(bad).error().code, ErrorCode::kInvalidArgument) << bad;
  }
}

TEST(TransportChoiceTest, OnOneMachineAutoIsSharedMemoryAndEachCanBeDemanded) {
  const Daemon daemon;
  const auto link = [&](const SessionOptions& options) {
    return ProbeDaemon(daemon.Uri(""), options).value();
  };
  EXPECT_EQ(link(kAuto).transport, "shm");
  EXPECT_EQ(link(kAuto).reason, "the daemon is on this machine");
  EXPECT_EQ(link(kShm).transport, "shm");
  EXPECT_EQ(link(kTcp).transport, "tcp");
  EXPECT_EQ(link(kTcp).reason, "asked for");
  EXPECT_GT(link(kTcp).round_trip, 0us);
  // The address has the last word.
  EXPECT_EQ(ProbeDaemon(daemon.Uri("x") + "?transport=tcp", kShm).value().transport, "tcp");
}

TEST(TransportChoiceTest, WithoutSharedMemoryAutoSaysWhyAndADemandFailsAtOnceWithTheRemedy) {
  const Daemon daemon({.transport = Server::Options::Transport::kTcp});

  const auto link = ProbeDaemon(daemon.Uri(""), kAuto);
  const auto demanded = ProbeDaemon(daemon.Uri(""), kShm);
  const auto opened = OpenDataset({{daemon.Uri("x") + "?transport=shm"}}, {}, kAuto);

  ASSERT_TRUE(link) << link.error().message;
  EXPECT_EQ(link.value().transport, "tcp");
  EXPECT_EQ(link.value().reason, "no shared memory: the daemon does not offer it");
  for (const Error& error : {demanded.error(), opened.error()}) {
    EXPECT_EQ(error.code, ErrorCode::kInvalidArgument);
    EXPECT_NE(error.message.find("transport=shm"), std::string::npos) << error.message;
    EXPECT_NE(error.message.find("daemon's machine"), std::string::npos) << error.message;
  }
}

// The daemon has room for the connection over TCP, but not for the one on its local socket.
TEST(TransportChoiceTest, WhileTheLocalSocketIsBusyTheClientRetriesAndDoesNotFallBackToTcp) {
  const Daemon full({.connection_count_max = 2});
  auto guest = net::Channel::Connect(full.address(), net::Clock::now() + 20s);
  ASSERT_TRUE(guest) << guest.error().message;

  for (const auto transport : {Transport::kAuto, Transport::kShm}) {
    const auto link = ProbeDaemon(full.Uri(""), {900ms, transport});
    ASSERT_FALSE(link) << link.value().reason;
    EXPECT_EQ(link.error().code, ErrorCode::kUnavailable);
    EXPECT_NE(link.error().message.find("busy"), std::string::npos) << link.error().message;
  }
  guest.value().reset();

  const auto link = ProbeDaemon(full.Uri(""), kAuto);
  ASSERT_TRUE(link) << link.error().message;
  EXPECT_EQ(link.value().transport, "shm") << link.value().reason;
}

// --- A daemon by hand ----------------------------------------------------------------------------

constexpr std::string_view kTicket = "a ticket of 16 B";
constexpr std::string_view kClientSecret = "the secret that only the client ";

net::LocalOffer KnownOffer() {
  net::LocalOffer offer;
  std::ranges::copy(test::AsBytes(kTicket), offer.ticket.begin());
  std::ranges::copy(test::AsBytes(kClientSecret), offer.client_secret.begin());
  return offer;
}

// Anybody may listen under that name where the daemon does not.
TEST(LocalDaemonTest, WhoeverHasTheLocalSocketIsShownNeitherATokenNorASecret) {
  const auto ignore = [](LocalDaemon::Request&) { return true; };
  LocalDaemon daemon(ignore, LocalDaemon::Stops::kNever, KnownOffer(), /*is_impostor=*/true);
  const test::TempFolder folder;
  const std::string token(100, 'T');
  test::WriteToken(folder / "token", test::AsBytes(token));
  const std::string uri =
      "ffrecord://" + daemon.address().ToString() + "?token_file=" + (folder / "token").string();

  const auto link = ProbeDaemon(uri, kAuto);
  const auto demanded = ProbeDaemon(uri, kShm);

  ASSERT_TRUE(link) << link.error().message;
  EXPECT_EQ(link.value().transport, "tcp");
  EXPECT_NE(link.value().reason.find("is not the daemon"), std::string::npos)
      << link.value().reason;
  ASSERT_FALSE(demanded);
  EXPECT_EQ(demanded.error().code, ErrorCode::kInvalidArgument);
  const auto heard = daemon.heard();
  ASSERT_EQ(heard.size(), 2U);
  for (const auto& body : heard) EXPECT_TRUE(std::ranges::equal(body, test::AsBytes(kTicket)));
}

// Through a tunnel, or on another machine that says so.
TEST(LocalDaemonTest, ADaemonOfAnotherMachineIsNotLookedForOnThisOne) {
  net::LocalOffer offer = KnownOffer();
  offer.machine = MachineIdentity().value() + 1;
  const auto ignore = [](LocalDaemon::Request&) { return true; };
  const LocalDaemon daemon(ignore, LocalDaemon::Stops::kNever, offer);

  const auto link = ProbeDaemon("ffrecord://" + daemon.address().ToString(), kAuto);

  ASSERT_TRUE(link) << link.error().message;
  EXPECT_EQ(link.value().transport, "tcp");
  EXPECT_NE(link.value().reason.find("another machine"), std::string::npos) << link.value().reason;
  EXPECT_EQ(daemon.local_count(), 0);
}

// It gives shared memory once it goes on: nobody may be told that it does not.
TEST(LocalDaemonTest, ADaemonThatStopsWhileSharedMemoryIsDemandedIsLateAndNotWithoutIt) {
  for (const auto stops :
       {LocalDaemon::Stops::kOnceGreetedByTcp, LocalDaemon::Stops::kOnceGreetedByBoth}) {
    const LocalDaemon daemon([](LocalDaemon::Request&) { return true; }, stops);
    const auto link =
        ProbeDaemon("ffrecord://" + daemon.address().ToString(), {300ms, Transport::kShm});
    ASSERT_FALSE(link);
    EXPECT_EQ(link.error().code, ErrorCode::kDeadlineExceeded) << link.error().message;
  }
}

// --- Late writes ---------------------------------------------------------------------------------

DatasetManifest OneFile(std::uint64_t size) {
  ManifestFile file;
  file.name = "file";
  file.size_bytes = size;
  file.extents.push_back({MakeExtentId(1, 0, 0), size, 0});
  return {{file}};
}

// The first connection drops the batch after its first entry. What it was given it keeps, and
// writes into all of it once the reader has been served by the second connection.
TEST(LocalDaemonTest, LateWritesOfABatchThatBrokeOffAreNeverSeen) {
  constexpr std::uint32_t kEntry = 100'000;
  std::shared_ptr<const net::RemoteSlab> slab;
  std::vector<net::BatchEntry> asked_first;
  std::vector<net::BatchEntry> asked_again;
  std::uint32_t slab_id_again = 99;
  const std::vector<std::byte> truth(kEntry, std::byte{0x22});
  const auto script = [&](LocalDaemon::Request& request) {
    net::Endpoint& endpoint = request.endpoint;
    const auto reply = [&](FrameType type, std::span<const std::byte> body,
                           std::span<const std::byte> payload = {}) {
      (void)endpoint.Send(ReplyHeader(type, request.header), body, {&payload, 1});
    };
    if (request.header.type == FrameType::kExtentBind) {
      reply(net::ReplyTo(FrameType::kExtentBind), net::ExtentBindReply{1, 0, {}}.Encode());
    } else if (request.header.type == FrameType::kSlabRegister) {
      const auto given = net::SlabRegister::Decode(endpoint.body()).value();
      slab =
          net::RemoteSlab::Map(endpoint.descriptors()->TakeDescriptor(), given.size_bytes).value();
      reply(net::ReplyTo(FrameType::kSlabRegister), {});
    } else if (request.header.type == FrameType::kBatchRead) {
      const auto batch = net::BatchRead::Decode(endpoint.body()).value();
      if (request.connection == 0) {
        asked_first = batch.entries;
        const auto place = slab->At(asked_first[0].slab_offset_bytes, kEntry).value();
        std::memset(place.data(), 0x11, kEntry);
        reply(FrameType::kBatchData, net::BatchData{{{0, 0, kEntry}}}.Encode());
        // Sent before the end: the connection closes in good order behind it.
        (void)endpoint.Poll();
        return false;
      }
      asked_again = batch.entries;
      slab_id_again = batch.slab_id;
      for (std::uint32_t entry = 0; entry < asked_again.size(); ++entry)
        reply(FrameType::kBatchData, net::BatchData{{{entry, 0, kEntry}}}.Encode(), truth);
      reply(net::ReplyTo(FrameType::kBatchRead),
            net::BatchDone{2, 0, 2 * kEntry, 0, 0, 0, 0, {}}.Encode());
    }
    return true;
  };
  const LocalDaemon daemon(script);
  const auto session = net::Session::Get(daemon.address(), Transport::kShm);
  ASSERT_TRUE(session->Ping(net::Clock::now() + 20s));
  const net::RemoteFiles files(session, OneFile(1'000'000), "location", kShm);
  const auto memory = files.TakeMemory(2 * kEntry).value();
  ASSERT_TRUE(net::SlabPool::Process().Find(*memory));
  const std::uint64_t quarantined_before = net::SlabPool::Process().quarantined_bytes();
  const auto apart = files.TakeMemory(kEntry).value();  // Nothing in it has arrived at the break.
  RangeRead ranges[] = {
      {0, 0, memory->first(kEntry)}, {0, 500'000, memory->subspan(kEntry)}, {0, 700'000, *apart}};

  const auto read = files.Read(ranges);

  ASSERT_TRUE(read) << read.error().message;
  for (const RangeRead& range : ranges) EXPECT_EQ(range.status, ErrorCode::kOk);
  // Only what was missing was asked for again, and not by shared memory any more.
  ASSERT_EQ(asked_again.size(), 2U);
  EXPECT_EQ(asked_again[0].offset_bytes, 500'000U);
  EXPECT_EQ(slab_id_again, 0U);
  EXPECT_GE(net::SlabPool::Process().quarantined_bytes(), quarantined_before + 2 * kEntry);
  for (const auto& entry : asked_first) {
    const auto place = slab->At(entry.slab_offset_bytes, entry.size_bytes).value();
    std::memset(place.data(), 0xEE, place.size());
  }
  EXPECT_TRUE(std::ranges::all_of(memory->first(kEntry),
                                  [](std::byte byte) { return byte == std::byte{0x11}; }));
  EXPECT_TRUE(std::ranges::equal(memory->subspan(kEntry), truth));
  EXPECT_TRUE(std::ranges::equal(*apart, truth));
}

// Hazard H1 through a queue: a daemon that is slow may write into what it was given at any time
// after nobody waits for it any more. Method: a daemon by hand that answers nothing, and writes
// into all that it was asked for once the memory has been given back and taken again.
enum class Left { kGivenUp, kLate, kWithItsQueue };

class LateWritesTest : public testing::TestWithParam<Left> {
 protected:
  static constexpr std::uint32_t kEntry = 100'000;

  bool Answer(LocalDaemon::Request& request) {
    net::Endpoint& endpoint = request.endpoint;
    const auto reply = [&](FrameType type, std::span<const std::byte> body) {
      (void)endpoint.Send(ReplyHeader(type, request.header), body, {});
    };
    const std::lock_guard lock(mutex_);
    if (request.header.type == FrameType::kExtentBind) {
      reply(net::ReplyTo(FrameType::kExtentBind), net::ExtentBindReply{1, 0, {}}.Encode());
    } else if (request.header.type == FrameType::kSlabRegister) {
      const auto given = net::SlabRegister::Decode(endpoint.body()).value();
      slabs_[given.slab_id] =
          net::RemoteSlab::Map(endpoint.descriptors()->TakeDescriptor(), given.size_bytes).value();
      reply(net::ReplyTo(FrameType::kSlabRegister), {});
    } else if (request.header.type == FrameType::kBatchRead) {
      const auto batch = net::BatchRead::Decode(endpoint.body()).value();
      for (const auto& entry : batch.entries)
        places_.push_back(slabs_.at(batch.slab_id)->At(entry.slab_offset_bytes, kEntry).value());
      asked_.push_back(request.header);
      if (answers_) EndAll(endpoint);
    }
    return true;
  }
  // Ends all batches, without a byte.
  void EndAll(net::Endpoint& endpoint) {
    const std::vector<net::EntryStatus> statuses(2, net::EntryStatus::kIoError);
    for (const net::FrameHeader& header : std::exchange(asked_, {}))
      (void)endpoint.Send(ReplyHeader(net::ReplyTo(FrameType::kBatchRead), header),
                          net::BatchDone{0, 2, 0, 0, 0, 0, 0, statuses}.Encode(), {});
  }
  std::size_t asked_count() {
    const std::lock_guard lock(mutex_);
    return places_.size();
  }
  void WriteLate() {
    const std::lock_guard lock(mutex_);
    for (const auto place : places_) std::memset(place.data(), 0xEE, place.size());
  }

  std::mutex mutex_;
  std::map<std::uint32_t, std::shared_ptr<const net::RemoteSlab>> slabs_;
  std::vector<std::span<std::byte>> places_;
  std::vector<net::FrameHeader> asked_;  // Batches that have no answer.
  std::atomic<bool> answers_ = false;
};

TEST_P(LateWritesTest, WhatIsTakenAgainIsNeverWrittenTo) {
  const LocalDaemon daemon([this](LocalDaemon::Request& request) { return Answer(request); });
  const auto session = net::Session::Get(daemon.address(), Transport::kShm);
  ASSERT_TRUE(session->Ping(net::Clock::now() + 20s));
  const net::RemoteFiles files(session, OneFile(1'000'000), "location",
                               {GetParam() == Left::kLate ? 300ms : 20'000ms, Transport::kShm});
  auto queue = files.MakeQueue(RangeReader::QueueUse::kAnyThread).value();
  auto memory = files.TakeMemory(2 * kEntry).value();
  ASSERT_TRUE(net::SlabPool::Process().Find(*memory));
  RangeRead ranges[] = {{0, 0, memory->first(kEntry)}, {0, 500'000, memory->subspan(kEntry)}};
  test::NotedGroup group(ranges);
  queue->Submit(group);
  const auto end = std::chrono::steady_clock::now() + 20s;
  while (asked_count() < 2 && std::chrono::steady_clock::now() < end) queue->Poll(1ms);
  ASSERT_EQ(asked_count(), 2U);

  if (GetParam() == Left::kGivenUp) queue->GiveUp(group);
  if (GetParam() == Left::kWithItsQueue)
    queue.reset();
  else
    while (!group.ended && std::chrono::steady_clock::now() < end) queue->Poll(20ms);

  // It is the owner's again as it is, and whoever's who takes it next.
  std::memset(memory->data(), 0x33, memory->size());
  WriteLate();
  const auto is_untouched = [](const PooledBuffer& buffer) {
    return std::ranges::all_of(*buffer, [](std::byte byte) { return byte == std::byte{0x33}; });
  };
  EXPECT_TRUE(is_untouched(memory));
  memory = nullptr;
  std::vector<PooledBuffer> taken;
  for (int i = 0; i < 8; ++i) {
    taken.push_back(files.TakeMemory(2 * kEntry).value());
    std::memset(taken.back()->data(), 0x33, taken.back()->size());
  }
  WriteLate();
  EXPECT_TRUE(std::ranges::all_of(taken, is_untouched));
}

// A daemon keeps memory that it was given as long as the connection lives, and with each batch that
// is too late the client gives it more: gigabytes that nobody uses any more.
using RetiredSlabTest = LateWritesTest;
TEST_P(RetiredSlabTest, ItsConnectionEndsWithTheLastBatch) {
  const LocalDaemon daemon([this](LocalDaemon::Request& request) { return Answer(request); });
  const auto session = net::Session::Get(daemon.address(), Transport::kShm);
  ASSERT_TRUE(session->Ping(net::Clock::now() + 20s));
  const net::RemoteFiles files(session, OneFile(1'000'000), "location",
                               {20'000ms, Transport::kShm});
  const auto queue = files.MakeQueue(RangeReader::QueueUse::kAnyThread).value();
  const auto end = std::chrono::steady_clock::now() + 20s;
  const auto read = [&](bool is_late) {
    const auto memory = files.TakeMemory(2 * kEntry).value();
    RangeRead ranges[] = {{0, 0, memory->first(kEntry)}, {0, 500'000, memory->subspan(kEntry)}};
    test::NotedGroup group(ranges);
    const std::size_t before = asked_count();
    answers_ = !is_late;
    queue->Submit(group);
    while (asked_count() == before && std::chrono::steady_clock::now() < end) queue->Poll(1ms);
    if (is_late) queue->GiveUp(group);
    while (!group.ended && std::chrono::steady_clock::now() < end) queue->Poll(20ms);
    EXPECT_TRUE(group.ended);
  };
  read(false);
  ASSERT_TRUE(session->Ping(net::Clock::now() + 20s));
  EXPECT_EQ(daemon.local_count(), 1) << "it was in time";

  read(true);
  read(false);  // With this one the daemon ends the other, too: the connection is in good order.
  ASSERT_TRUE(session->Ping(net::Clock::now() + 20s));
  EXPECT_EQ(daemon.local_count(), 2);
}
INSTANTIATE_TEST_SUITE_P(All, RetiredSlabTest, testing::Values(Left::kGivenUp));

INSTANTIATE_TEST_SUITE_P(All, LateWritesTest,
                         testing::Values(Left::kGivenUp, Left::kLate, Left::kWithItsQueue));

}  // namespace
}  // namespace ffrecord::client
