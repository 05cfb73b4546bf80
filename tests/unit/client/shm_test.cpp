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
#include "client/dataset/upload.h"
#include "daemon.h"
#include "libffrecord/base/checksum.h"
#include "libffrecord/base/machine_identity.h"
#include "libffrecord/net/protocol/batch_messages.h"
#include "libffrecord/net/protocol/storage_messages.h"
#include "libffrecord/net/rpc/remote_files.h"
#include "libffrecord/net/rpc/session.h"
#include "libffrecord/net/rpc/slab_pool.h"
#include "libffrecord/net/transport/descriptor_passing.h"
#include "libffrecord/net/transport/slab.h"
#include "queued_reader.h"
#include "test_file.h"
#include "tokens.h"

namespace ffrecord::client {
namespace {

using net::FrameType;
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

net::FrameHeader ReplyHeader(FrameType type, const net::FrameHeader& request) {
  net::FrameHeader header;
  header.type = type;
  header.request_id = request.request_id;
  return header;
}

std::uint64_t FreshEpoch() {
  static std::atomic<std::uint64_t> next{0};
  return (static_cast<std::uint64_t>(::getpid()) << 32) + 0xABC00000 + next++;
}

// Greets on TCP and on a local socket, and leaves the requests on the latter to a script: false
// closes that connection.
class LocalDaemon {
 public:
  // From when on it hears nothing more, as if it were stopped: connections to it stay whole.
  enum class Stops { kNever, kOnceGreetedByTcp, kOnceGreetedByBoth };
  struct Request {
    net::Endpoint& endpoint;
    const net::FrameHeader& header;
    int connection;  // On the local socket, from 0.
  };
  using Script = std::function<bool(Request&)>;

  explicit LocalDaemon(Script script, Stops stops = Stops::kNever, net::LocalOffer offer = {},
                       bool is_impostor = false)
      : script_(std::move(script)),
        stops_(stops),
        offer_(WithMachine(offer)),
        is_impostor_(is_impostor),
        tcp_(net::TcpListener::Listen({"127.0.0.1", 0}).value()),
        local_(net::LocalListener::Listen(net::LocalSocketName(epoch_)).value()),
        thread_([this] { Run(); }) {}
  ~LocalDaemon() {
    is_over_ = true;
    thread_.join();
  }
  const net::Address& address() const { return tcp_.address(); }
  int local_count() const { return local_count_; }
  // The bodies of all that came on the local socket before it was left to the script.
  std::vector<std::vector<std::byte>> heard() {
    const std::lock_guard lock(mutex_);
    return heard_;
  }

 private:
  struct Member {
    std::unique_ptr<net::Endpoint> endpoint;
    int connection;  // -1: TCP.
  };

  void Run() {
    while (!is_over_) {
      if (auto one = tcp_.Accept(); one && one.value())
        members_.push_back({std::move(one).value(), -1});
      if (auto one = local_.Accept(); one && one.value())
        members_.push_back({std::move(one).value(), local_count_++});
      for (Member& member : members_) Poll(member);
      std::erase_if(members_, [](const Member& member) { return member.endpoint->fd() < 0; });
      std::this_thread::sleep_for(200us);
    }
  }

  void Poll(Member& member) {
    if (is_stopped_) return;
    net::Endpoint& endpoint = *member.endpoint;
    endpoint.SetLimits({.descriptor_count_max = 1});
    const auto event = endpoint.Poll();
    if (!event || event.value() != net::Endpoint::Event::kFrame) return;
    const net::FrameHeader header = endpoint.header();
    const bool is_local = member.connection >= 0;
    if (is_local && (header.type == FrameType::kLocalOpen || header.type == FrameType::kHello)) {
      const std::lock_guard lock(mutex_);
      heard_.emplace_back(endpoint.body().begin(), endpoint.body().end());
    }
    if (header.type == FrameType::kLocalOpen) {
      auto secret = offer_.daemon_secret;
      if (is_impostor_) secret[0] ^= std::byte{1};
      (void)endpoint.Send(ReplyHeader(net::ReplyTo(FrameType::kLocalOpen), header),
                          net::LocalOpenReply{secret}.Encode(), {});
      return;
    }
    if (header.type == FrameType::kHello) {
      net::HelloReply reply;
      reply.body_size_bytes_max = 2U << 20;
      reply.payload_size_bytes_max = 8U << 20;
      reply.capabilities = net::kCapabilityPulls;
      reply.epoch = epoch_;
      if (!is_local) {
        reply.capabilities |= net::kCapabilityLocal;
        reply.local = offer_;
      }
      (void)endpoint.Send(ReplyHeader(net::ReplyTo(FrameType::kHello), header), reply.Encode(), {});
      (void)endpoint.Poll();  // It is on its way.
      is_stopped_ = stops_ == (is_local ? Stops::kOnceGreetedByBoth : Stops::kOnceGreetedByTcp);
      return;
    }
    if (header.type == FrameType::kPing) {
      (void)endpoint.Send(ReplyHeader(net::ReplyTo(FrameType::kPing), header), {}, {});
      return;
    }
    Request request{endpoint, header, member.connection};
    if (!script_(request)) endpoint.Close();
  }

  static net::LocalOffer WithMachine(net::LocalOffer offer) {
    if (offer.machine == 0) offer.machine = MachineIdentity().value();
    return offer;
  }

  const std::uint64_t epoch_ = FreshEpoch();
  const Script script_;
  const Stops stops_;
  const net::LocalOffer offer_;
  const bool is_impostor_;  // Who listens on the local socket knows no secret.
  std::atomic<int> local_count_{0};
  std::mutex mutex_;
  std::vector<std::vector<std::byte>> heard_;
  bool is_stopped_ = false;
  net::TcpListener tcp_;
  net::LocalListener local_;
  std::vector<Member> members_;
  std::atomic<bool> is_over_{false};
  std::thread thread_;
};

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

// --- Uploads -------------------------------------------------------------------------------------

// The daemon's side of uploads through shared memory, by hand: keeps what it took.
class UploadsTest : public testing::Test {
 protected:
  bool Answer(LocalDaemon::Request& request) {
    net::Endpoint& endpoint = request.endpoint;
    const auto reply = [&](std::span<const std::byte> body) {
      (void)endpoint.Send(ReplyHeader(net::ReplyTo(request.header.type), request.header), body, {});
    };
    if (request.header.type == FrameType::kSlabRegister) {
      const auto given = net::SlabRegister::Decode(endpoint.body()).value();
      EXPECT_EQ(given.use, net::SlabRegister::Use::kIsRead);
      ForeignFd memory = endpoint.descriptors()->TakeDescriptor();
      EXPECT_LT(::pwrite(memory.get(), "x", 1, 0), 0);  // It is there to be read.
      slab_ = net::UploadSlab::Take(std::move(memory), given.size_bytes).value();
      if (refuses_slabs_) return Refuse(request);
      reply({});
    } else if (request.header.type == FrameType::kPutBegin) {
      ++begun_count_;
      connection_ = request.connection;
      taken_.clear();
      reply(net::PutBeginReply{false}.Encode());
    } else if (request.header.type == FrameType::kPutPull) {
      const auto pull = net::PutPull::Decode(endpoint.body()).value();
      if (refuses_pieces_) return Refuse(request);
      EXPECT_EQ(pull.offset_bytes, taken_.size());
      taken_.resize(taken_.size() + pull.size_bytes);
      EXPECT_TRUE(slab_->Read(pull.slab_offset_bytes,
                              std::span(taken_).subspan(pull.offset_bytes, pull.size_bytes)));
      ++pulled_count_;
      reply({});
    } else if (request.header.type == FrameType::kPutSeal) {
      EXPECT_EQ(net::PutSeal::Decode(endpoint.body()).value().xxh3, Xxh3(taken_));
      reply({});
    } else {
      ADD_FAILURE() << static_cast<int>(request.header.type);
    }
    return true;
  }
  static bool Refuse(LocalDaemon::Request& request) {
    (void)request.endpoint.Send(ReplyHeader(FrameType::kError, request.header),
                                net::ErrorReply{ErrorCode::kIo, ENOSPC, "no room"}.Encode(), {});
    return true;
  }

  bool refuses_slabs_ = false, refuses_pieces_ = false;
  std::shared_ptr<const net::UploadSlab> slab_;
  std::vector<std::byte> taken_;
  std::atomic<int> begun_count_ = 0, pulled_count_ = 0, connection_ = -1;
  const LocalDaemon daemon_{[this](auto& request) { return Answer(request); }};
  std::mt19937_64 random_{5};
  const std::string data_ = test::RandomText(9'500'000, random_);
};

TEST_F(UploadsTest, TheDaemonTakesThePiecesOutOfMemoryThatItMayOnlyRead) {
  Upload upload(net::Session::Get(daemon_.address(), Transport::kShm), {20s});
  const test::TempFolder folder;
  test::WriteFile(folder / "file", data_);
  const auto bytes = test::AsBytes(data_);
  const std::span<const std::byte> pieces[] = {bytes.first(1), bytes.subspan(1, 5'000'000),
                                               bytes.subspan(5'000'001)};
  for (const bool is_file : {true, false}) {
    const auto put = [&]() -> Result<ManifestFile> {
      if (!is_file) return upload.PutBytes("name", pieces);
      const std::vector<Upload::LocalFile> files{{"name", folder / "file"}};
      return FFR_TRY(upload.PutFiles(files)).front();
    }();
    ASSERT_TRUE(put) << put.error().message;
    EXPECT_TRUE(std::ranges::equal(taken_, bytes));
    EXPECT_EQ(put.value().extents[0].xxh3, Xxh3(bytes));
  }
  EXPECT_GE(pulled_count_, 20);
}

TEST_F(UploadsTest, AnErrorForAPieceEndsTheUploadAtOnce) {
  refuses_pieces_ = true;
  Upload upload(net::Session::Get(daemon_.address(), Transport::kShm), {20s});
  const auto bytes = test::AsBytes(data_);
  const auto put = upload.PutBytes("name", {&bytes, 1});
  ASSERT_FALSE(put);
  EXPECT_EQ(put.error().code, ErrorCode::kIo) << put.error().message;
  EXPECT_EQ(put.error().system_errno, ENOSPC);
  EXPECT_EQ(begun_count_, 1);
}

// Answers to its pieces may still come: nobody else gets that connection.
TEST_F(UploadsTest, AFileThatCannotBeReadOnEndsItsConnectionAndTheNextUploadHasAnother) {
  Upload upload(net::Session::Get(daemon_.address(), Transport::kShm), {20s});
  const auto bytes = test::AsBytes(data_);
  const auto failed = upload.PutFrom(
      "name", bytes.size(),
      [&](std::uint64_t offset, std::span<std::byte> room) -> Result<std::span<const std::byte>> {
        if (offset > 2'000'000) return Error{ErrorCode::kCorruption, "the file is gone"};
        return bytes.subspan(offset, room.size());
      });
  ASSERT_FALSE(failed);
  EXPECT_EQ(failed.error().code, ErrorCode::kCorruption);
  const int connection = connection_;

  ASSERT_TRUE(upload.PutBytes("name", {&bytes, 1}));
  EXPECT_NE(connection_, connection);
  EXPECT_TRUE(std::ranges::equal(taken_, bytes));
}

TEST_F(UploadsTest, MemoryThatIsRefusedIsAnErrorWhereItWasDemanded) {
  refuses_slabs_ = true;
  Upload upload(net::Session::Get(daemon_.address(), Transport::kShm), {20s});
  const auto bytes = test::AsBytes(data_);
  const auto put = upload.PutBytes("name", {&bytes, 1});
  ASSERT_FALSE(put);
  EXPECT_EQ(put.error().code, ErrorCode::kInvalidArgument);
  EXPECT_NE(put.error().message.find("transport=shm was asked for"), std::string::npos)
      << put.error().message;
}

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
