// Goal: whatever one peer does, the daemon serves the others, and what it has acknowledged stays.
// Method: a daemon in this process; peers that speak the protocol by hand, badly or too much,
// beside one that goes on working.

#include "server/service/server.h"

#include <fcntl.h>
#include <ffrecord/memory.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <map>
#include <random>
#include <thread>

#include "bytes.h"
#include "daemon.h"
#include "libffrecord/format/dataset_manifest.h"
#include "libffrecord/net/protocol/batch_messages.h"
#include "libffrecord/net/protocol/storage_messages.h"
#include "libffrecord/net/rpc/channel.h"
#include "seed.h"
#include "server/service/connection.h"

namespace ffrecord::server {
namespace {

using net::Channel;
using net::FrameType;
using test::AsBytes;
using test::Daemon;
using namespace std::chrono_literals;

net::Deadline Soon() { return net::Clock::now() + 60s; }

// A client that keeps no rules: bytes in, bytes out.
class RawPeer {
 public:
  explicit RawPeer(const net::Address& address)
      : endpoint_(net::ConnectTcp(address, Soon()).value()) {}

  void Write(std::span<const std::byte> bytes) {
    for (std::size_t done = 0; done < bytes.size();) {
      const ssize_t sent =
          ::send(endpoint_->fd(), bytes.data() + done, bytes.size() - done, MSG_NOSIGNAL);
      if (sent > 0) {
        done += static_cast<std::size_t>(sent);
        continue;
      }
      if (errno != EAGAIN) return;  // The daemon has closed: as it should.
      pollfd waited{endpoint_->fd(), POLLOUT, 0};
      if (::poll(&waited, 1, 5000) <= 0) return;
    }
  }

  // Waits until the daemon has sent more than `size_bytes`. False if it does not.
  bool Gets(std::size_t size_bytes) {
    std::array<char, 4096> ignored;
    for (std::size_t got_bytes = 0; got_bytes <= size_bytes;) {
      pollfd waited{endpoint_->fd(), POLLIN, 0};
      if (::poll(&waited, 1, 60'000) <= 0) return false;
      const ssize_t got = ::recv(endpoint_->fd(), ignored.data(), ignored.size(), 0);
      if (got == 0 || (got < 0 && errno != EAGAIN)) return false;
      if (got > 0) got_bytes += static_cast<std::size_t>(got);
    }
    return true;
  }

  // Whether the daemon closes the connection within `time`, whatever it says before.
  bool IsClosedWithin(std::chrono::milliseconds time) {
    const auto deadline = std::chrono::steady_clock::now() + time;
    std::array<char, 4096> ignored;
    while (std::chrono::steady_clock::now() < deadline) {
      pollfd waited{endpoint_->fd(), POLLIN, 0};
      if (::poll(&waited, 1, 50) <= 0) continue;
      const ssize_t got = ::recv(endpoint_->fd(), ignored.data(), ignored.size(), 0);
      if (got == 0 || (got < 0 && errno != EAGAIN)) return true;
    }
    return false;
  }

 private:
  std::unique_ptr<net::Endpoint> endpoint_;
};

std::vector<std::byte> FrameOf(FrameType type, std::span<const std::byte> body,
                               std::uint32_t payload_size = 0) {
  net::FrameHeader header;
  header.type = type;
  header.request_id = 1;
  header.payload_size_bytes = payload_size;
  std::vector<std::byte> frame(net::FrameHeader::kEncodedSizeBytes);
  net::EncodeFrameHeader(header, body,
                         std::span(frame).first<net::FrameHeader::kEncodedSizeBytes>());
  frame.insert(frame.end(), body.begin(), body.end());
  return frame;
}

std::vector<std::byte> HelloFrame() {
  net::Hello hello;
  hello.body_size_bytes_max = net::FrameLimits{}.body_size_bytes_max;
  hello.payload_size_bytes_max = net::FrameLimits{}.payload_size_bytes_max;
  return FrameOf(FrameType::kHello, hello.Encode());
}

std::vector<std::byte> Joined(std::vector<std::byte> first, const std::vector<std::byte>& second) {
  first.insert(first.end(), second.begin(), second.end());
  return first;
}

// What the admin port answers to GET: "200", "503".
std::string HttpStatus(const net::Address& address, const std::string& path) {
  const auto socket = net::ConnectTcp(address, Soon()).value();
  const std::string request =
      "GET " + path + " HTTP/1.1\r\nHost: " + address.ToString() + "\r\nConnection: close\r\n\r\n";
  EXPECT_EQ(::send(socket->fd(), request.data(), request.size(), MSG_NOSIGNAL),
            static_cast<ssize_t>(request.size()));
  std::string answer;
  for (std::array<char, 256> some; answer.size() < 12;) {
    pollfd waited{socket->fd(), POLLIN, 0};
    if (::poll(&waited, 1, 60'000) <= 0) return "none";
    const ssize_t got = ::recv(socket->fd(), some.data(), some.size(), 0);
    if (got <= 0) return "none";
    answer.append(some.data(), static_cast<std::size_t>(got));
  }
  return answer.substr(9, 3);
}

class ServerTest : public testing::Test {
 protected:
  std::unique_ptr<Channel> Connect() { return ConnectTo(daemon_); }
  std::unique_ptr<Channel> ConnectTo(const Daemon& daemon) {
    auto channel = Channel::Connect(daemon.address(), Soon());
    EXPECT_TRUE(channel) << channel.error().message;
    return std::move(channel).value();
  }

  // Sends and seals one extent.
  Result<void> Put(Channel& channel, const ExtentId& id, std::string_view data) {
    FFR_TRY(channel.Call(FrameType::kPutBegin, net::PutBegin{id, data.size()}.Encode(), {}, Soon(),
                         "a place"));
    const auto bytes = AsBytes(data);
    FFR_TRY(channel.Send(FrameType::kPutData, net::PutData{id, 0}.Encode(), {&bytes, 1}));
    FFR_TRY(channel.Call(FrameType::kPutSeal, net::PutSeal{id, Xxh3(bytes)}.Encode(), {}, Soon(),
                         "a seal"));
    return {};
  }

  struct BatchResult {
    std::vector<std::string> entries;
    net::BatchDone done;
  };
  // Binds `ids` at 0 and reads `entries`; `begun` is set when the first data has come.
  Result<BatchResult> Read(Channel& channel, const std::vector<ExtentId>& ids,
                           const std::vector<net::BatchEntry>& entries,
                           std::atomic<bool>* begun = nullptr) {
    FFR_TRY(channel.Call(FrameType::kExtentBind, net::ExtentBind{0, ids}.Encode(), {}, Soon(),
                         "a binding"));
    net::BatchRead batch;
    batch.entries = entries;
    const auto request = FFR_TRY(channel.Send(FrameType::kBatchRead, batch.Encode()));
    BatchResult result;
    result.entries.resize(entries.size());
    for (;;) {
      const auto header = FFR_TRY(channel.Receive(request, Soon(), "records"));
      if (header.type != FrameType::kBatchData) {
        result.done = FFR_TRY(net::BatchDone::Decode(channel.body()));
        return result;
      }
      if (begun != nullptr) *begun = true;
      const auto data = FFR_TRY(net::BatchData::Decode(channel.body()));
      std::string payload(header.payload_size_bytes, '\0');
      const auto place = std::as_writable_bytes(std::span(payload));
      FFR_TRY(channel.ReceivePayload({&place, 1}, Soon()));
      std::size_t at = 0;
      for (const auto& piece : data.pieces) {
        EXPECT_EQ(piece.offset_bytes, result.entries[piece.entry].size());
        result.entries[piece.entry] += payload.substr(at, piece.size_bytes);
        at += piece.size_bytes;
      }
      EXPECT_EQ(at, payload.size());
    }
  }

  void ExpectServing() {
    auto channel = Channel::Connect(daemon_.address(), Soon());
    ASSERT_TRUE(channel) << channel.error().message;
    const auto pong = channel.value()->Call(FrameType::kPing, {}, {}, Soon(), "a ping");
    EXPECT_TRUE(pong) << pong.error().message;
  }

  const ExtentId id_ = MakeExtentId(77, 0, 0);
  Daemon daemon_;
};

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

TEST_F(ServerTest, UnknownRequestsAreAnsweredAndTheConnectionGoesOn) {
  auto channel = Connect();
  for (const auto type : {FrameType::kStat, FrameType::kPlanSet, FrameType::kPlanCancel,
                          static_cast<FrameType>(0x7E)}) {
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

// --- Peers that keep no rules --------------------------------------------------------------------

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
  EXPECT_TRUE(test::Eventually([] { return GetMemoryUse().used_bytes == 0; }));
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
            static_cast<int>(Connection::kBatchCountMax));
  EXPECT_EQ(replies[FrameType::kBusy], 12 - static_cast<int>(Connection::kBatchCountMax));
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

// --- Uploads and the end -------------------------------------------------------------------------

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

TEST_F(ServerTest, StoppingFinishesWhatWasTakenAndSaysGoodbye) {
  auto idle = Connect();
  auto channel = Connect();
  const std::string data(4 << 20, 'd');
  ASSERT_TRUE(Put(*channel, id_, data));
  Result<BatchResult> read = Error{ErrorCode::kIo, ""};
  std::atomic<bool> begun = false;
  std::thread reader([&] {
    read = Read(*channel, {id_}, std::vector<net::BatchEntry>(12, {0, 0, 4 << 20, 0}), &begun);
  });
  EXPECT_TRUE(test::Eventually([&] { return begun.load(); }));

  const bool drained = daemon_.Stop(60s);

  reader.join();
  EXPECT_TRUE(drained);
  ASSERT_TRUE(read) << read.error().message;
  EXPECT_EQ(read.value().done.ok_count, 12U);
  EXPECT_FALSE(idle->Alive());
}

TEST_F(ServerTest, WhileItDrainsItIsAliveAndNotReady) {
  Daemon daemon({.admin = net::Address{"127.0.0.1", 0}});
  const net::Address admin = daemon.server().admin_address().value();
  ASSERT_TRUE(Put(*ConnectTo(daemon), id_, std::string(8 << 20, 'd')));
  net::BatchRead batch;
  batch.entries.assign(100, {0, 0, 8 << 20, 0});
  auto stuck = std::make_unique<RawPeer>(daemon.address());
  stuck->Write(Joined(
      Joined(HelloFrame(), FrameOf(FrameType::kExtentBind, net::ExtentBind{0, {id_}}.Encode())),
      FrameOf(FrameType::kBatchRead, batch.Encode())));
  ASSERT_TRUE(stuck->Gets(4096));  // The batch has begun.
  EXPECT_EQ(HttpStatus(admin, "/readyz"), "200");
  bool is_drained = false;
  std::thread stopper([&] { is_drained = daemon.Stop(60s); });

  EXPECT_TRUE(test::Eventually([&] { return HttpStatus(admin, "/readyz") == "503"; }));

  EXPECT_EQ(HttpStatus(admin, "/healthz"), "200");
  stuck.reset();
  stopper.join();
  EXPECT_TRUE(is_drained);
}

TEST_F(ServerTest, StoppingDoesNotWaitForAClientThatTakesNothing) {
  auto channel = Connect();
  ASSERT_TRUE(Put(*channel, id_, std::string(8 << 20, 'd')));
  net::BatchRead batch;
  batch.entries.assign(100, {0, 0, 8 << 20, 0});
  RawPeer stuck(daemon_.address());
  stuck.Write(Joined(
      Joined(HelloFrame(), FrameOf(FrameType::kExtentBind, net::ExtentBind{0, {id_}}.Encode())),
      FrameOf(FrameType::kBatchRead, batch.Encode())));
  ASSERT_TRUE(stuck.Gets(4096));  // More than its greeting: the batch has begun.
  const auto started = std::chrono::steady_clock::now();

  EXPECT_FALSE(daemon_.Stop(500ms));

  EXPECT_LT(std::chrono::steady_clock::now() - started, 20s);
}

TEST(ServerStartTest, RefusesWithWordsThatHelp) {
  const Daemon daemon;
  const test::TempFolder folder;
  const auto start = [&](const std::filesystem::path& data, const net::Address& listen) {
    Server::Options options;
    options.data = data;
    options.listen = listen;
    const auto server = Server::Start(options);
    return server ? Error{ErrorCode::kOk, ""} : server.error();
  };
  const net::Address any{"127.0.0.1", 0};
  test::WriteFile(folder / "file", "");

  const Error in_use = start(folder / "data", daemon.address());
  EXPECT_EQ(in_use.code, ErrorCode::kConflict);
  EXPECT_NE(in_use.message.find(daemon.address().ToString()), std::string::npos) << in_use.message;
  const Error locked = start(daemon.data(), any);
  EXPECT_EQ(locked.code, ErrorCode::kConflict);
  EXPECT_NE(locked.message.find("another ffrecordd uses"), std::string::npos) << locked.message;
  EXPECT_NE(start(folder / "file", any).code, ErrorCode::kOk);
  EXPECT_EQ(start(folder / "no" / "parent", any).code, ErrorCode::kNotFound);
}

}  // namespace
}  // namespace ffrecord::server
