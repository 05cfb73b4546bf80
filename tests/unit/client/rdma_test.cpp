// Goal: reading over RDMA is asked for, chosen or refused in plain words, ends as promised when a
// daemon dies, and never writes into memory that the reader has taken back.
// Method: daemons in this process, in one of their own that is killed, and by hand. What needs a
// device is skipped where there is none: tests/rdma/run runs it in a machine that has one. Links
// and devices that go are rdma_rails_test's; that the bytes are right is dataset_test's.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <linux/capability.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <optional>
#include <random>
#include <thread>

#include <ffrecord/client/dataset.h>

#include "child.h"
#include "client/dataset/upload.h"
#include "daemon_process.h"
#include "endpoint_pairs.h"
#include "libffrecord/net/protocol/batch_messages.h"
#include "libffrecord/net/protocol/storage_messages.h"
#include "libffrecord/net/rpc/remote_files.h"
#include "libffrecord/net/rpc/session.h"
#include "libffrecord/net/rpc/slab_pool.h"
#include "libffrecord/net/transport/remote_memory.h"
#include "one_daemon.h"
#include "rdma_clients.h"
#include "test_file.h"

namespace ffrecord::client {
namespace {

using net::FrameType;
using namespace rdma;
using test::DaemonProcess;
using testing::HasSubstr;
using namespace std::chrono_literals;

TEST(RdmaChoiceTest, WhereTheDaemonOffersNoneADemandFailsAtOnceWithTheRemedy) {
  const Daemon daemon(Offering(Server::Options::Transport::kTcp));

  const auto demanded = ProbeDaemon(daemon.Uri(""), kRdma);
  const auto opened = OpenDataset({{daemon.Uri("x") + "?transport=rdma"}}, {}, kAuto);

  ASSERT_FALSE(demanded);
  ASSERT_FALSE(opened);
  for (const Error& error : {demanded.error(), opened.error()}) {
    EXPECT_EQ(error.code, ErrorCode::kInvalidArgument) << error.message;
    EXPECT_THAT(error.message, HasSubstr("transport=rdma was asked for"));
    EXPECT_THAT(error.message, HasSubstr("doctor rdma"));
  }
}

TEST(RdmaChoiceTest, ADaemonThatMustOfferItDoesNotStartWithoutItsDevice) {
  test::TempFolder folder;
  auto options = Offering(Server::Options::Transport::kRdma);
  options.data = {folder / "data"};
  options.rdma.devices = {"no-such-device"};

  const auto server = Server::Start(options);

  ASSERT_FALSE(server);
  EXPECT_EQ(server.error().code, ErrorCode::kUnavailable) << server.error().message;
}

// --- With a device -------------------------------------------------------------------------------

TEST_F(RdmaClientTest, AutoTakesItWhereThereIsNoSharedMemoryAndSaysSo) {
  const Daemon all;
  EXPECT_EQ(all.server().transports(), "tcp,shm,rdma");
  EXPECT_EQ(Linked(all.Uri(""), kAuto), "shm");
  EXPECT_EQ(Linked(all.Uri(""), kRdma), "rdma");

  const Daemon remote(Offering(Server::Options::Transport::kRdma));
  EXPECT_EQ(remote.server().transports(), "tcp,rdma");
  EXPECT_EQ(Linked(remote.Uri(""), kTcp), "tcp");
  const auto link = ProbeDaemon(remote.Uri(""), kAuto);
  ASSERT_TRUE(link) << link.error().message;
  EXPECT_EQ(link.value().transport, "rdma");
  EXPECT_THAT(link.value().reason, HasSubstr("both ends support it, "));
}

// From then on the limit holds for this process, though it is root's: for good, and before it opens
// a device, which the kernel lets nobody use who was somebody else when it was opened.
bool GiveUpLockingMemory() {
  __user_cap_header_struct header{_LINUX_CAPABILITY_VERSION_3, 0};
  std::array<__user_cap_data_struct, _LINUX_CAPABILITY_U32S_3> sets{};
  if (::syscall(SYS_capget, &header, sets.data()) != 0) return false;
  sets[CAP_TO_INDEX(CAP_IPC_LOCK)].effective &= ~CAP_TO_MASK(CAP_IPC_LOCK);
  sets[CAP_TO_INDEX(CAP_IPC_LOCK)].permitted &= ~CAP_TO_MASK(CAP_IPC_LOCK);
  return ::syscall(SYS_capset, &header, sets.data()) == 0;
}

TEST_F(RdmaClientTest, MemoryThatMayNotBeLockedIsNamedAndAutoGoesOnOverTcp) {
  const Daemon daemon(Offering(Server::Options::Transport::kRdma));
  for (const Transport transport : {Transport::kAuto, Transport::kRdma}) {
    const int code = ffrecord::test::RunInChild([&] {
      const auto session = net::Session::Get(daemon.address(), transport);
      const rlimit limit{1 << 20, 1 << 20};
      if (::setrlimit(RLIMIT_MEMLOCK, &limit) != 0 || !GiveUpLockingMemory()) return 2;
      const auto answered = session->Ping(net::Clock::now() + 20s);
      const std::string said = answered ? session->link().reason : answered.error().message;
      if (said.find("ulimit -l") == std::string::npos) {
        std::fprintf(stderr, "%s: %s\n", session->link().transport.c_str(), said.c_str());
        return 3;
      }
      if (transport == Transport::kRdma) return answered ? 4 : 0;
      return answered && session->link().transport == "tcp" ? 0 : 5;
    });
    EXPECT_EQ(code, 0) << static_cast<int>(transport);
  }
}

// Enough for the connection and for what is read, and not for uploads.
TEST_F(RdmaClientTest, UploadsWhoseMemoryMayNotBeLockedGoAsMessagesOrAreRefusedAsWasAskedFor) {
  const Daemon daemon(Offering(Server::Options::Transport::kRdma));
  const std::string data(3'000'000, 'u');
  for (const Transport transport : {Transport::kAuto, Transport::kRdma}) {
    const int code = ffrecord::test::RunInChild([&] {
      const auto session = net::Session::Get(daemon.address(), transport);
      constexpr rlim_t kLimit = 18 << 20;
      const rlimit limit{kLimit, kLimit};
      if (::setrlimit(RLIMIT_MEMLOCK, &limit) != 0 || !GiveUpLockingMemory()) return 2;
      const auto bytes = std::as_bytes(std::span(data));
      const auto put =
          Upload(test::OneDaemon(daemon.address(), {20s, transport})).PutBytes("file", {&bytes, 1});
      const std::string said = put ? session->link().reason : put.error().message;
      if (said.find("ulimit -l") != std::string::npos && session->link().transport == "rdma" &&
          put.operator bool() == (transport == Transport::kAuto))
        return 0;
      std::fprintf(stderr, "%s: %s\n", session->link().transport.c_str(), said.c_str());
      return 3;
    });
    EXPECT_EQ(code, 0) << static_cast<int>(transport);
  }
}

TEST_F(RdmaClientTest, ConnectionsWithTheirSlabsLeaveNothingBehind) {
  const Daemon daemon(Offering(Server::Options::Transport::kRdma));
  const auto session = net::Session::Get(daemon.address(), Transport::kRdma);
  const auto close = [&] { session->CloseIdle([](net::Channel&) { return true; }); };
  ASSERT_TRUE(session->Ping(net::Clock::now() + 20s));
  const std::string data(100'000, 'u');
  const auto bytes = std::as_bytes(std::span(data));
  const std::size_t with_one = net::test::CountRdmaResources();
  close();
  std::size_t before = with_one;
  ASSERT_TRUE(
      test::Eventually([&] { return (before = net::test::CountRdmaResources()) < with_one; }));

  const auto one = test::OneDaemon(daemon.address(), {20s, Transport::kRdma});
  for (int i = 0; i < 50; ++i) {
    const auto put = Upload(one).PutBytes("file", {&bytes, 1});
    ASSERT_TRUE(put) << i << ": " << put.error().message;
    close();
  }

  EXPECT_TRUE(test::Eventually([&] { return net::test::CountRdmaResources() <= before; }))
      << net::test::CountRdmaResources();
}

class RdmaDaemonDeathTest : public RdmaClientTest {
 protected:
  // A process that can be killed; over the same data each time.
  std::unique_ptr<DaemonProcess> StartDaemon(const std::string& listen) const {
    return std::make_unique<DaemonProcess>(
        FFRECORDD, std::vector<std::string>{"--data", (folder_ / "data").string(), "--listen",
                                            listen, "--transport", "rdma"});
  }

  test::TempFolder folder_;
};

TEST_F(RdmaDaemonDeathTest, ADaemonThatIsKilledInABatchIsAnErrorInTimeAndTheNextOneServes) {
  const std::vector<std::string> records = Records(64, 200'000);
  const test::TestFile file(records);
  auto daemon = StartDaemon("127.0.0.1:0");
  const std::string address = daemon->WaitReady();
  ASSERT_FALSE(address.empty()) << daemon->output();
  const std::string uri = "ffrecord://" + address + "/x?transport=rdma";
  ASSERT_TRUE(PublishDataset({{file.path()}}, uri, false, kRdma, {}));
  const auto reader = OpenDataset({{uri}}, {}, {3s, Transport::kRdma});
  ASSERT_TRUE(reader) << reader.error().message;
  std::vector<std::uint64_t> indices(records.size());
  for (std::size_t i = 0; i < indices.size(); ++i) indices[i] = i;
  std::atomic<int> batch_count = 0;
  std::atomic<bool> is_killed = false;
  std::chrono::nanoseconds longest{};
  bool was_wrong = false;
  std::thread reading([&] {
    bool has_failed = false;
    while (!has_failed) {
      const bool was_killed = is_killed;
      const auto begin = net::Clock::now();
      const auto batch = reader.value().ReadBatch(indices);
      longest = std::max<std::chrono::nanoseconds>(longest, net::Clock::now() - begin);
      ++batch_count;
      if (!batch) break;
      for (std::size_t i = 0; i < records.size(); ++i) {
        const bool is_ok = batch.value().statuses()[i] == ErrorCode::kOk;
        has_failed = has_failed || !is_ok;
        was_wrong =
            was_wrong || (is_ok && !std::ranges::equal(batch.value().record(i),
                                                       std::as_bytes(std::span(records[i]))));
      }
      was_wrong = was_wrong || (was_killed && !has_failed);
    }
  });
  ASSERT_TRUE(test::Eventually([&] { return batch_count > 2; }));
  std::this_thread::sleep_for(5ms);  // Into some batch.

  daemon->Signal(SIGKILL);
  EXPECT_EQ(daemon->Wait(60s), -SIGKILL);
  is_killed = true;
  reading.join();

  EXPECT_FALSE(was_wrong);
  EXPECT_LT(longest, 9s);  // The timeout is 3 s; the machine may be busy.
  daemon = StartDaemon(address);
  ASSERT_EQ(daemon->WaitReady(), address) << daemon->output();
  ExpectReads(OpenDataset({{uri}}, {}, kRdma).value(), records);
  EXPECT_EQ(Linked(uri, kRdma), "rdma");
}

// Random bytes without an end, as one file after another.
[[noreturn]] void UploadForEver(const net::Address& address) {
  const std::string data = Records(1, 8 << 20)[0];
  const auto bytes = std::as_bytes(std::span(data));
  for (Upload upload(test::OneDaemon(address, {20s, Transport::kRdma}));;)
    (void)upload.PutBytes("file", {&bytes, 1});
}

TEST_F(RdmaClientTest, AClientThatIsKilledWhileItIsReadLeavesNothingBehind) {
  const Daemon daemon(Offering(Server::Options::Transport::kRdma));
  const auto address = daemon.address();
  const std::size_t before = net::test::CountRdmaResources();
  for (int i = 0; i < 5; ++i) {
    const auto extent_count = daemon.Extents().size();
    const pid_t child = ::fork();
    if (child == 0) UploadForEver(address);
    EXPECT_TRUE(test::Eventually([&] { return daemon.Extents().size() > extent_count + 1; }));
    ::kill(child, SIGKILL);
    EXPECT_EQ(ffrecord::test::WaitForChild(child), -SIGKILL);
  }
  const auto session = net::Session::Get(address, Transport::kRdma);
  const std::string data(100'000, 'u');
  const auto bytes = std::as_bytes(std::span(data));
  Upload upload(test::OneDaemon(address, {20s, Transport::kRdma}));
  EXPECT_TRUE(upload.PutBytes("file", {&bytes, 1}));
  session->CloseIdle([](net::Channel&) { return true; });
  EXPECT_TRUE(test::Eventually([&] { return net::test::CountRdmaResources() <= before; }))
      << net::test::CountRdmaResources();
}

TEST_F(RdmaDaemonDeathTest, AnUploadGoesOnWithTheDaemonThatComesAfterOneThatWasKilled) {
  auto daemon = StartDaemon("127.0.0.1:0");
  const std::string address = daemon->WaitReady();
  ASSERT_FALSE(address.empty()) << daemon->output();
  const std::vector<std::string> records = Records(40, 500'000);
  const test::TestFile file(records);
  const std::string uri = "ffrecord://" + address + "/x?transport=rdma";
  bool was_killed = false;

  const auto published = PublishDataset(
      {{file.path()}}, uri, false, {60s, Transport::kRdma}, [&](std::uint64_t done, std::uint64_t) {
        if (done < 8'000'000 || std::exchange(was_killed, true)) return;
        daemon->Signal(SIGKILL);
        EXPECT_EQ(daemon->Wait(60s), -SIGKILL);
        daemon = StartDaemon(address);
        EXPECT_EQ(daemon->WaitReady(), address) << daemon->output();
      });

  ASSERT_TRUE(published) << published.error().message;
  EXPECT_TRUE(was_killed);
  ExpectReads(OpenDataset({{uri}}, {}, kRdma).value(), records);
}

// --- A daemon that lies, and a link that is gone -------------------------------------------------

// Greets, goes over to RDMA, and leaves the other requests to a script; one connection at a time.
class RdmaDaemon {
 public:
  struct Request {
    net::Endpoint& endpoint;
    const net::FrameHeader& header;
    void Reply(FrameType type, std::span<const std::byte> body) const {
      (void)endpoint.Send({.type = type, .request_id = header.request_id}, body, {});
    }
  };
  using Script = std::function<void(const Request&)>;

  explicit RdmaDaemon(Script script)
      : script_(std::move(script)),
        tcp_(net::TcpListener::Listen({"127.0.0.1", 0}).value()),
        thread_([this] { Run(); }) {}
  ~RdmaDaemon() {
    is_over_ = true;
    thread_.join();
  }
  const net::Address& address() const { return tcp_.address(); }

 private:
  void Run() {
    while (!is_over_) {
      if (auto one = tcp_.Accept(); one && one.value()) ends_.push_back(std::move(one).value());
      for (auto& end : ends_) Poll(end);
      std::this_thread::sleep_for(200us);
    }
  }
  void Poll(std::unique_ptr<net::Endpoint>& end) {
    if (end->fd() < 0) return;
    end->SetLimits({});
    const auto event = end->Poll();
    if (!event || event.value() != net::Endpoint::Event::kFrame) return;
    const net::FrameHeader header = end->header();
    const Request request{*end, header};
    if (header.type == FrameType::kHello) {
      net::HelloReply reply;
      reply.body_size_bytes_max = 2U << 20;
      reply.payload_size_bytes_max = 8U << 20;
      reply.capabilities = net::kCapabilityRdma | net::kCapabilityPulls;
      request.Reply(net::ReplyTo(header.type), reply.Encode());
    } else if (header.type == FrameType::kRdmaConnect) {
      if (!rails_) rails_ = net::RdmaRails::Open({}).value();
      auto made = rails_->Accept(end);
      ASSERT_TRUE(made) << made.error().message;
      end = std::move(made).value();
    } else if (header.type == FrameType::kPing) {
      request.Reply(net::ReplyTo(header.type), {});
    } else if (header.type == FrameType::kExtentBind) {
      request.Reply(net::ReplyTo(header.type), net::ExtentBindReply{1, 0, {}}.Encode());
    } else {
      script_(request);
    }
  }

  const Script script_;
  std::unique_ptr<net::RdmaRails> rails_;  // Once they are wanted.
  net::TcpListener tcp_;
  std::vector<std::unique_ptr<net::Endpoint>> ends_;
  std::atomic<bool> is_over_{false};
  std::thread thread_;
};

// H1. The daemon answers a part of a batch, is given up, and writes the rest when nobody waits for
// it any more; the reader has its memory back by then.
TEST_F(RdmaClientTest, LateWritesOfABatchThatTimedOutAreNeverSeen) {
  constexpr std::uint32_t kEntry = 100'000;
  const std::vector<std::byte> good(kEntry, std::byte{0x11});
  const std::vector<std::byte> late(kEntry, std::byte{0xEE});
  net::RemoteRegion slab;
  net::Endpoint* first = nullptr;
  std::vector<net::BatchEntry> asked;
  std::atomic<bool> is_late = false;
  std::atomic<bool> was_written_late = false;
  const auto place_of = [&](const net::BatchEntry& entry) {
    return net::RemoteRegion{slab.address + entry.slab_offset_bytes, slab.key};
  };
  const RdmaDaemon daemon([&](const RdmaDaemon::Request& request) {
    if (request.header.type == FrameType::kSlabRegister) {
      slab = net::SlabRegister::Decode(request.endpoint.body()).value().remote.value();
      request.Reply(net::ReplyTo(request.header.type), {});
    } else if (request.header.type == FrameType::kBatchRead && first == nullptr) {
      first = &request.endpoint;
      asked = net::BatchRead::Decode(request.endpoint.body()).value().entries;
      const net::RemoteMemory::PlacedPiece piece{{good}, place_of(asked[0])};
      (void)request.endpoint.remote_memory()->SendPlaced(
          {.type = FrameType::kBatchData, .request_id = request.header.request_id},
          net::BatchData{{{0, 0, kEntry}}}.Encode(), {&piece, 1});
      (void)request.endpoint.Poll();
      while (!is_late) std::this_thread::sleep_for(1ms);
      for (const net::BatchEntry& entry : asked) {
        const net::RemoteMemory::PlacedPiece all{{late}, place_of(entry)};
        (void)request.endpoint.remote_memory()->SendPlaced({.type = FrameType::kBatchData}, {},
                                                           {&all, 1});
      }
      (void)net::NextEvent(request.endpoint, net::Clock::now() + 5s, "the end");
      was_written_late = true;
    }
  });
  const auto session = net::Session::Get(daemon.address(), Transport::kRdma);
  ASSERT_TRUE(session->Ping(net::Clock::now() + 20s));
  ManifestFile one{"file", 1'000'000, {{MakeExtentId(1, 0, 0), 1'000'000, 0}}};
  const net::RemoteFiles files(session, DatasetManifest{{one}}, "location", {2s, Transport::kRdma});
  const auto memory = files.TakeMemory(2 * kEntry).value();
  ASSERT_TRUE(net::SlabPool::Process().Find(*memory));
  std::ranges::fill(*memory, std::byte{0x55});
  RangeRead ranges[] = {{0, 0, memory->first(kEntry)}, {0, 500'000, memory->subspan(kEntry)}};

  ASSERT_TRUE(files.Read(ranges));

  EXPECT_EQ(ranges[0].status, ErrorCode::kOk);
  EXPECT_EQ(ranges[1].status, ErrorCode::kDeadlineExceeded);
  is_late = true;
  ASSERT_TRUE(test::Eventually([&] { return was_written_late.load(); }));
  EXPECT_TRUE(std::ranges::equal(memory->first(kEntry), good));
  EXPECT_TRUE(std::ranges::all_of(memory->subspan(kEntry),
                                  [](std::byte byte) { return byte == std::byte{0x55}; }));
}

// The daemon writes to a place that it was not given, which its device and ours refuse.
TEST_F(RdmaClientTest, AQueuePairThatBreaksInABatchCostsOnlyWhatHadNotArrived) {
  constexpr std::uint32_t kEntry = 100'000;
  const std::vector<std::byte> good(kEntry, std::byte{0x11});
  net::RemoteRegion slab;
  std::vector<std::size_t> asked;  // Entries of each batch.
  const RdmaDaemon daemon([&](const RdmaDaemon::Request& request) {
    if (request.header.type == FrameType::kSlabRegister) {
      slab = net::SlabRegister::Decode(request.endpoint.body()).value().remote.value();
      return request.Reply(net::ReplyTo(request.header.type), {});
    }
    if (request.header.type != FrameType::kBatchRead) return;
    const auto batch = net::BatchRead::Decode(request.endpoint.body()).value();
    asked.push_back(batch.entries.size());
    const net::FrameHeader data{.type = FrameType::kBatchData,
                                .request_id = request.header.request_id};
    const auto body = net::BatchData{{{0, 0, kEntry}}}.Encode();
    if (batch.slab_id == 0) {  // That memory is out of our reach by now.
      const std::span<const std::byte> payload(good);
      (void)request.endpoint.Send(data, body, {&payload, 1});
      net::BatchDone done;
      done.ok_count = 1;
      done.size_bytes = kEntry;
      return request.Reply(net::ReplyTo(request.header.type), done.Encode());
    }
    const net::RemoteRegion first{slab.address + batch.entries[0].slab_offset_bytes, slab.key};
    const net::RemoteRegion astray{slab.address, slab.key ^ 0x5500};
    for (const net::RemoteRegion& place : {first, astray}) {
      const net::RemoteMemory::PlacedPiece piece{{good}, place};
      (void)request.endpoint.remote_memory()->SendPlaced(data, body, {&piece, 1});
    }
  });
  const auto session = net::Session::Get(daemon.address(), Transport::kRdma);
  ManifestFile one{"file", 1'000'000, {{MakeExtentId(1, 0, 0), 1'000'000, 0}}};
  const net::RemoteFiles files(session, DatasetManifest{{one}}, "location",
                               {60s, Transport::kRdma});
  ASSERT_TRUE(session->Ping(net::Clock::now() + 20s));
  const auto memory = files.TakeMemory(2 * kEntry).value();
  std::ranges::fill(*memory, std::byte{0x55});
  RangeRead ranges[] = {{0, 0, memory->first(kEntry)}, {0, 500'000, memory->subspan(kEntry)}};

  ASSERT_TRUE(files.Read(ranges));

  for (const RangeRead& range : ranges) {
    EXPECT_EQ(range.status, ErrorCode::kOk);
    EXPECT_TRUE(std::ranges::equal(range.destination, good));
  }
  EXPECT_EQ(asked, (std::vector<std::size_t>{2, 1}));
}

// The daemon's side of uploads, by hand: keeps what it took.
class UploadsOverRdmaTest : public RdmaClientTest {
 protected:
  void Answer(const RdmaDaemon::Request& request) {
    net::Endpoint& endpoint = request.endpoint;
    const FrameType type = request.header.type;
    if (type == FrameType::kSlabRegister) {
      const auto slab = net::SlabRegister::Decode(endpoint.body()).value();
      // The client's first slab is for reads.
      if (slab.use == net::SlabRegister::Use::kIsRead) {
        slab_ = slab.remote.value();
        staging_ = endpoint.remote_memory()->MakeStaging(net::PutPull::kSizeBytesMax).value();
        if (refuses_slabs_ != 0)
          return (void)endpoint.Send(
              {.type = FrameType::kError, .request_id = request.header.request_id},
              net::ErrorReply{ErrorCode::kIo, refuses_slabs_, "there is no such memory"}.Encode(),
              {});
      }
    } else if (type == FrameType::kPutBegin) {
      ++begun_count_;
      taken_.clear();
      return request.Reply(net::ReplyTo(type), net::PutBeginReply{false}.Encode());
    } else if (type == FrameType::kPutPull) {
      const auto pull = net::PutPull::Decode(endpoint.body()).value();
      const bool is_astray = std::exchange(goes_astray_, false);
      const auto place = staging_->first(pull.size_bytes);
      EXPECT_TRUE(endpoint.remote_memory()->FetchPayload(
          {slab_.address + pull.slab_offset_bytes, slab_.key ^ (is_astray ? 0x5500U : 0U)}, place));
      const auto received = net::NextEvent(endpoint, net::Clock::now() + 20s, "a piece");
      EXPECT_EQ(received.operator bool(), !is_astray);
      if (!received) return;
      taken_.insert(taken_.end(), place.begin(), place.end());
      ++pulled_count_;
    } else if (type == FrameType::kPutData) {
      taken_.resize(taken_.size() + request.header.payload_size_bytes);
      const auto place = std::span(taken_).last(request.header.payload_size_bytes);
      EXPECT_TRUE(endpoint.ReceivePayload({&place, 1}));
      EXPECT_TRUE(net::NextEvent(endpoint, net::Clock::now() + 20s, "a payload"));
      return;
    }
    request.Reply(net::ReplyTo(type), {});
  }

  std::uint32_t refuses_slabs_ = 0;  // An errno.
  bool goes_astray_ = false;
  net::RemoteRegion slab_;
  PooledBuffer staging_;
  std::vector<std::byte> taken_;
  std::atomic<int> begun_count_ = 0, pulled_count_ = 0;
  const RdmaDaemon daemon_{[this](const auto& request) { Answer(request); }};
  const std::string data_ = Records(1, 9'500'000)[0];
  const std::span<const std::byte> bytes_ = std::as_bytes(std::span(data_));
};

TEST_F(UploadsOverRdmaTest, TheDaemonReadsThePiecesAndNoneIsSent) {
  Upload upload(test::OneDaemon(daemon_.address(), {20s, Transport::kRdma}));
  const auto put = upload.PutBytes("name", {&bytes_, 1});
  ASSERT_TRUE(put) << put.error().message;
  EXPECT_TRUE(std::ranges::equal(taken_, bytes_));
  EXPECT_EQ(pulled_count_, 10);
  EXPECT_EQ(begun_count_, 1);
}

TEST_F(UploadsOverRdmaTest, AQueuePairThatBreaksInAnUploadCostsOnlyThatExtentsTry) {
  goes_astray_ = true;
  Upload upload(test::OneDaemon(daemon_.address(), {60s, Transport::kRdma}));
  const auto put = upload.PutBytes("name", {&bytes_, 1});
  ASSERT_TRUE(put) << put.error().message;
  EXPECT_TRUE(std::ranges::equal(taken_, bytes_));
  EXPECT_EQ(begun_count_, 2);
}

TEST_F(UploadsOverRdmaTest, WhereADeviceCannotReadTheyGoAsMessagesThoughRdmaWasDemanded) {
  refuses_slabs_ = EOPNOTSUPP;
  const auto session = net::Session::Get(daemon_.address(), Transport::kRdma);
  const auto put = Upload(test::OneDaemon(daemon_.address(), {20s, Transport::kRdma}))
                       .PutBytes("name", {&bytes_, 1});
  ASSERT_TRUE(put) << put.error().message;
  EXPECT_TRUE(std::ranges::equal(taken_, bytes_));
  EXPECT_EQ(pulled_count_, 0);
  EXPECT_THAT(session->link().reason, HasSubstr("uploads go as messages"));
}

TEST_F(UploadsOverRdmaTest, WhereTheDaemonMayNotLockMemoryTheyGoAsMessagesAndTheLinkSaysSo) {
  refuses_slabs_ = ENOMEM;
  const auto session = net::Session::Get(daemon_.address(), Transport::kAuto);
  const auto put = Upload(test::OneDaemon(daemon_.address(), {20s, Transport::kAuto}))
                       .PutBytes("name", {&bytes_, 1});
  ASSERT_TRUE(put) << put.error().message;
  EXPECT_TRUE(std::ranges::equal(taken_, bytes_));
  EXPECT_EQ(pulled_count_, 0);
  EXPECT_THAT(session->link().reason, HasSubstr("uploads go as messages"));
  EXPECT_THAT(session->link().reason, HasSubstr("there is no such memory"));
}

}  // namespace
}  // namespace ffrecord::client
