// Goal: whatever a daemon answers, and whenever, readers that cancel, come late, stop or leave get
// right bytes or an error, each group ends once, and memory that was given back is not written to.
// Method: a daemon that draws what to do next: honest pieces in any order and size, stalls, closed
// connections, late writes, and one frame in some that no daemon may send. Readers in several
// threads, which draw what they do as well.

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <thread>
#include <utility>
#include <vector>

#include "fake_daemon.h"
#include "libffrecord/base/machine_identity.h"
#include "libffrecord/net/protocol/batch_messages.h"
#include "libffrecord/net/rpc/remote_files.h"
#include "libffrecord/net/rpc/remote_queue.h"
#include "libffrecord/net/rpc/session.h"
#include "libffrecord/net/rpc/slab_pool.h"
#include "libffrecord/net/transport/descriptor_passing.h"
#include "libffrecord/net/transport/slab.h"
#include "queued_reader.h"
#include "seed.h"

namespace ffrecord::client {
namespace {

using net::EntryStatus;
using net::FrameType;
using namespace std::chrono_literals;
using SteadyClock = std::chrono::steady_clock;

constexpr std::uint64_t kFileBytes = 4'000'000;
constexpr std::byte kGuard{0x33};
constexpr std::byte kLate{0xEE};

// Of the file; none of them is one of the two above.
const std::vector<std::byte>& Content() {
  static const std::vector<std::byte> content = [] {
    std::vector<std::byte> bytes(kFileBytes);
    for (std::size_t i = 0; i < bytes.size(); ++i)
      bytes[i] = std::byte{static_cast<unsigned char>(0x40 + (i * 7 + i / 4096) % 64)};
    return bytes;
  }();
  return content;
}

void Fill(std::span<std::byte> bytes) {
  std::memset(bytes.data(), static_cast<int>(kGuard), bytes.size());
}

bool IsContent(std::span<const std::byte> bytes, std::uint64_t offset) {
  return bytes.empty() || std::memcmp(bytes.data(), &Content()[offset], bytes.size()) == 0;
}

bool IsGuard(std::span<const std::byte> bytes) {
  return bytes[0] == kGuard && std::memcmp(bytes.data(), bytes.data() + 1, bytes.size() - 1) == 0;
}

// Greets over TCP and a local socket, and reads batches as it likes.
class HostileDaemon {
 public:
  explicit HostileDaemon(std::uint64_t seed) : random_(seed), thread_([this] { Run(); }) {}
  ~HostileDaemon() {
    is_over_ = true;
    thread_.join();
  }
  const net::Address& address() const { return tcp_.address(); }

  std::atomic<std::uint64_t> lie_count = 0;
  std::atomic<std::uint64_t> done_count = 0;

 private:
  struct Batch {
    std::uint64_t request = 0;
    std::vector<net::BatchEntry> entries;
    std::shared_ptr<const net::RemoteSlab> slab;  // Null: as payload.
    std::vector<std::uint32_t> sent;              // Of each entry.
    std::uint64_t sent_bytes = 0;
    std::uint64_t granted_bytes = 0;
    bool is_cancelled = false;
  };
  struct Member {
    std::unique_ptr<net::Endpoint> endpoint;
    bool is_local = false;
    std::map<std::uint32_t, std::shared_ptr<const net::RemoteSlab>> slabs;
    std::vector<Batch> batches;
    std::uint64_t last_request = 0;
    std::deque<std::vector<std::byte>> payloads;
  };

  std::uint64_t Draw(std::uint64_t below) { return random_() % below; }
  bool OneIn(std::uint64_t count) { return Draw(count) == 0; }

  void Run() {
    while (!is_over_) {
      if (auto one = tcp_.Accept(); one && one.value()) Add(std::move(one).value(), false);
      if (auto one = local_.Accept(); one && one.value()) Add(std::move(one).value(), true);
      for (const auto& member : members_) {
        for (int i = 0; i < 4 && Listen(*member); ++i) {
        }
        for (std::uint64_t i = Draw(8); i > 0 && !member->batches.empty(); --i) Act(*member);
        (void)Listen(*member);
      }
      std::erase_if(members_, [&](const auto& member) {
        if (member->endpoint->fd() >= 0) return false;
        // What it was asked for it may write late, for ever.
        for (Batch& batch : member->batches)
          if (batch.slab) broken_.push_back(std::move(batch));
        return true;
      });
      while (broken_.size() > 64) broken_.pop_front();
      if (!broken_.empty()) WriteLate(broken_[Draw(broken_.size())]);
      std::this_thread::sleep_for(std::chrono::microseconds(Draw(300)));
    }
  }

  void Add(std::unique_ptr<net::Endpoint> endpoint, bool is_local) {
    members_.push_back(std::make_unique<Member>());
    members_.back()->endpoint = std::move(endpoint);
    members_.back()->is_local = is_local;
  }

  static void Send(Member& member, FrameType type, std::uint64_t request,
                   std::span<const std::byte> body, std::vector<std::byte> payload = {}) {
    net::FrameHeader header;
    header.type = type;
    header.request_id = request;
    member.payloads.push_back(std::move(payload));
    const std::span<const std::byte> kept = member.payloads.back();
    (void)member.endpoint->Send(header, body, {&kept, 1});
    if (member.endpoint->payload_bytes_queued() == 0)
      while (member.payloads.size() > 1) member.payloads.pop_front();
  }

  // False: nothing has come.
  bool Listen(Member& member) {
    net::Endpoint& endpoint = *member.endpoint;
    endpoint.SetLimits({.descriptor_count_max = member.is_local ? 1U : 0U});
    const auto event = endpoint.Poll();
    if (!event || event.value() != net::Endpoint::Event::kFrame) return false;
    const net::FrameHeader header = endpoint.header();
    member.last_request = header.request_id;
    const auto reply = [&](std::span<const std::byte> body) {
      Send(member, net::ReplyTo(header.type), header.request_id, body);
    };
    switch (header.type) {
      case FrameType::kHello:
        reply(Greeting(member.is_local).Encode());
        break;
      case FrameType::kLocalOpen:
        reply(net::LocalOpenReply{offer_.daemon_secret}.Encode());
        break;
      case FrameType::kPing:
        reply({});
        break;
      case FrameType::kExtentBind:
        reply(net::ExtentBindReply{1, 0, {}}.Encode());
        break;
      case FrameType::kSlabRegister: {
        const auto given = net::SlabRegister::Decode(endpoint.body()).value();
        member.slabs[given.slab_id] =
            net::RemoteSlab::Map(endpoint.descriptors()->TakeDescriptor(), given.size_bytes)
                .value();
        reply({});
        break;
      }
      case FrameType::kBatchRead:
        Take(member, net::BatchRead::Decode(endpoint.body()).value());
        break;
      case FrameType::kGrant: {
        const auto grant = net::Grant::Decode(endpoint.body()).value();
        for (Batch& batch : member.batches)
          if (batch.request == grant.request_id) batch.granted_bytes = grant.total_bytes;
        break;
      }
      case FrameType::kCancel: {
        const auto cancel = net::Cancel::Decode(endpoint.body()).value();
        for (Batch& batch : member.batches)
          if (batch.request == cancel.request_id) batch.is_cancelled = true;
        break;
      }
      default:
        ADD_FAILURE() << "an unexpected frame, type " << static_cast<int>(header.type);
    }
    return true;
  }

  net::HelloReply Greeting(bool is_local) const {
    net::HelloReply reply;
    reply.body_size_bytes_max = 2U << 20;
    reply.payload_size_bytes_max = 8U << 20;
    reply.capabilities = net::kCapabilityCancel;
    reply.epoch = epoch_;
    if (is_local) return reply;
    reply.capabilities |= net::kCapabilityLocal;
    reply.local = offer_;
    return reply;
  }

  void Take(Member& member, net::BatchRead request) {
    if (OneIn(15)) {
      Send(member, FrameType::kBusy, member.last_request,
           net::Busy{static_cast<std::uint32_t>(Draw(20))}.Encode());
      return;
    }
    Batch batch;
    batch.request = member.last_request;
    batch.entries = std::move(request.entries);
    batch.sent.resize(batch.entries.size());
    if (request.slab_id != 0) batch.slab = member.slabs.at(request.slab_id);
    batch.granted_bytes = request.initial_grant_bytes;
    member.batches.push_back(std::move(batch));
  }

  void Act(Member& member) {
    const std::size_t number = Draw(member.batches.size());
    Batch& batch = member.batches[number];
    if (OneIn(100)) {
      ++lie_count;
      return Lie(member, batch);
    }
    if (OneIn(400)) return member.endpoint->Close();
    if (batch.slab && OneIn(4)) WriteLate(batch);
    if (batch.is_cancelled || OneIn(30)) return Finish(member, number);
    for (std::uint64_t i = Draw(4); i > 0; --i) SendPiece(member, batch);
    if (IsWhole(batch)) Finish(member, number);
  }

  static bool IsWhole(const Batch& batch) {
    for (std::size_t i = 0; i < batch.entries.size(); ++i)
      if (batch.sent[i] < batch.entries[i].size_bytes) return false;
    return true;
  }

  void SendPiece(Member& member, Batch& batch) {
    const auto number = static_cast<std::uint32_t>(Draw(batch.entries.size()));
    const net::BatchEntry& entry = batch.entries[number];
    const std::uint32_t begin = batch.sent[number];
    std::uint64_t size = entry.size_bytes - begin;
    if (OneIn(3)) size = std::min<std::uint64_t>(size, 1 + Draw(50'000));
    if (!batch.slab)
      size = std::min(size, batch.granted_bytes - std::min(batch.granted_bytes, batch.sent_bytes));
    if (size == 0) return;
    const std::byte* const from = &Content()[entry.offset_bytes + begin];
    std::vector<std::byte> bytes(from, from + size);
    const net::BatchData data{{{number, begin, static_cast<std::uint32_t>(size)}}};
    batch.sent[number] += static_cast<std::uint32_t>(size);
    if (batch.slab) {
      const auto place = batch.slab->At(std::uint64_t{entry.slab_offset_bytes} + begin, size);
      std::memcpy(place.value().data(), bytes.data(), size);
      return Send(member, FrameType::kBatchData, batch.request, data.Encode());
    }
    batch.sent_bytes += size;
    Send(member, FrameType::kBatchData, batch.request, data.Encode(), std::move(bytes));
  }

  void Finish(Member& member, std::size_t number) {
    const Batch& batch = member.batches[number];
    static constexpr EntryStatus kReasons[] = {EntryStatus::kBusy, EntryStatus::kCancelled,
                                               EntryStatus::kIoError, EntryStatus::kNotHere,
                                               EntryStatus::kDeadline};
    net::BatchDone done;
    for (std::size_t i = 0; i < batch.entries.size(); ++i) {
      const bool is_whole = batch.sent[i] == batch.entries[i].size_bytes;
      done.statuses.push_back(is_whole ? EntryStatus::kOk : kReasons[Draw(std::size(kReasons))]);
      is_whole ? ++done.ok_count : ++done.failed_count;
      if (is_whole) done.size_bytes += batch.entries[i].size_bytes;
    }
    if (done.failed_count == 0) done.statuses.clear();
    Send(member, net::ReplyTo(FrameType::kBatchRead), batch.request, done.Encode());
    ++done_count;
    member.batches.erase(member.batches.begin() + static_cast<std::ptrdiff_t>(number));
  }

  // Into what was asked for and not sent, as a read does that was under way.
  void WriteLate(const Batch& batch) {
    const std::size_t number = Draw(batch.entries.size());
    const net::BatchEntry& entry = batch.entries[number];
    if (batch.sent[number] != 0) return;
    const auto place = batch.slab->At(entry.slab_offset_bytes, entry.size_bytes).value();
    std::memset(place.data(), static_cast<int>(kLate), place.size());
  }

  // A frame that is never right here. It may not be believed.
  void Lie(Member& member, Batch& batch) {
    const std::uint32_t size = batch.entries[0].size_bytes;
    const std::uint32_t sent = batch.sent[0];
    const auto count = static_cast<std::uint32_t>(batch.entries.size());
    const auto data = [&](net::BatchPiece piece, std::size_t payload_bytes, std::uint64_t request) {
      Send(member, FrameType::kBatchData, request, net::BatchData{{piece}}.Encode(),
           std::vector<std::byte>(payload_bytes, kLate));
    };
    const auto done = [&](const net::BatchDone& body, std::uint64_t request) {
      Send(member, net::ReplyTo(FrameType::kBatchRead), request, body.Encode());
    };
    const std::size_t one = batch.slab ? 0 : 1;
    switch (Draw(12)) {
      case 0:
        return data({count, 0, 1}, one, batch.request);
      case 1:
        return data({0, sent + 1, 1}, one, batch.request);
      case 2:
        return data({0, sent, size - sent + 1}, batch.slab ? 0 : size - sent + 1, batch.request);
      case 3:
        return data({0, sent, 0}, 0, batch.request);
      case 4:
        return data({0, sent, 1}, one + 1, batch.request);
      case 5:
        return data({0, 0, 1}, one, member.last_request + 1000);
      case 6:
        return done({count, 0, 1, 0, 0, 0, 0, {}}, member.last_request + 1000);
      case 7:
        return done({count + 1, 0, 1, 0, 0, 0, 0, {}}, batch.request);
      case 8:
        if (IsWhole(batch)) return member.endpoint->Close();
        return done({count, 0, 1, 0, 0, 0, 0, {}}, batch.request);
      case 9: {
        net::BatchDone twice{0, count, 0, 0, 0, 0, 0, {}};
        twice.statuses.assign(count, EntryStatus::kBusy);
        // Far ahead: the next number may be under way by now, and its end would be right.
        done(twice, member.last_request + 1000);
        return done(twice, member.last_request + 1000);
      }
      case 10:
        return Send(member, net::ReplyTo(FrameType::kPing), batch.request, {});
      default:
        return Send(member, FrameType::kBatchData, batch.request, {}, {});
    }
  }

  static net::LocalOffer Offer() {
    net::LocalOffer offer;
    offer.machine = MachineIdentity().value();
    return offer;
  }
  static std::uint64_t FreshEpoch() {
    static std::atomic<std::uint64_t> next{0};
    return (static_cast<std::uint64_t>(::getpid()) << 32) + 0x0B5E0000 + next++;
  }

  std::mt19937_64 random_;
  const std::uint64_t epoch_ = FreshEpoch();
  const net::LocalOffer offer_ = Offer();
  net::TcpListener tcp_ = net::TcpListener::Listen({"127.0.0.1", 0}).value();
  net::LocalListener local_ = net::LocalListener::Listen(net::LocalSocketName(epoch_)).value();
  std::vector<std::unique_ptr<Member>> members_;
  std::deque<Batch> broken_;  // Of connections that are gone.
  std::atomic<bool> is_over_{false};
  std::thread thread_;
};

// One reader with its queue, in a thread of its own.
class Reader {
 public:
  Reader(const net::RemoteFiles& files, std::uint64_t seed) : files_(files), random_(seed) {}

  void Run(const std::function<bool()>& is_enough) {
    Renew();
    while (!is_enough()) {
      if (groups_.size() < 12 && Draw(3) > 0) Submit();
      if (Draw(8) == 0) GiveUp();
      if (Draw(150) == 0) Leave();
      if (Draw(60) == 0) std::this_thread::sleep_for(std::chrono::milliseconds(Draw(150)));
      queue_->Poll(std::chrono::milliseconds(Draw(4)));
      TakeEnded();
      CheckFree();
    }
    const auto last = SteadyClock::now() + 20s;
    while (!groups_.empty() && SteadyClock::now() < last) {
      queue_->Poll(20ms);
      TakeEnded();
    }
    EXPECT_TRUE(groups_.empty()) << "a group never ends";
    Leave();
    CheckFree();
  }

  std::uint64_t good_count = 0;  // Ranges.
  std::uint64_t bad_count = 0;
  std::uint64_t given_up_count = 0;  // Groups.

 private:
  struct Asked {
    PooledBuffer memory;
    std::vector<RangeRead> ranges;
    std::vector<int> told;  // How often, of each range.
    std::unique_ptr<test::NotedGroup> group;
    bool is_given_up = false;
  };

  std::uint64_t Draw(std::uint64_t below) { return random_() % below; }

  void Renew() {
    using net::RemoteQueue;
    queue_ = std::make_unique<RemoteQueue>(
        files_, Draw(4) == 0 ? RemoteQueue::Connects::kInPoll : RemoteQueue::Connects::kApart,
        Draw(3) == 0 ? RemoteQueue::Retries::kNever : RemoteQueue::Retries::kUntilTimeout);
    if (Draw(2) == 0) (void)queue_->EventDescriptor();
  }

  void Submit() {
    auto asked = std::make_unique<Asked>();
    const std::size_t count = 1 + Draw(6);
    std::vector<std::uint64_t> sizes;
    std::uint64_t total = 0;
    for (std::size_t i = 0; i < count; ++i) {
      sizes.push_back(Draw(20) == 0 ? 0 : 1 + Draw(Draw(10) == 0 ? 300'000 : 20'000));
      total += sizes.back();
    }
    asked->memory = files_.TakeMemory(std::max<std::uint64_t>(total, 1)).value();
    Fill(*asked->memory);
    std::uint64_t begin = 0;
    for (const std::uint64_t size : sizes) {
      const std::uint64_t offset = Draw(40) == 0 ? kFileBytes : Draw(kFileBytes - size);
      asked->ranges.push_back({0, offset, asked->memory->subspan(begin, size)});
      begin += size;
    }
    asked->told.resize(count);
    Asked* const one = asked.get();
    asked->group = std::make_unique<test::NotedGroup>(asked->ranges, [one](RangeRead& range) {
      ++one->told[static_cast<std::size_t>(&range - one->ranges.data())];
      EXPECT_FALSE(one->group->ended) << "told after its end";
    });
    groups_.push_back(std::move(asked));
    queue_->Submit(*groups_.back()->group);
  }

  void GiveUp() {
    if (groups_.empty()) return;
    Asked& asked = *groups_[Draw(groups_.size())];
    if (asked.group->ended) return;
    queue_->GiveUp(*asked.group);
    asked.is_given_up = true;
  }

  // With what is under way.
  void Leave() {
    queue_.reset();
    for (auto& asked : groups_) Free(std::move(asked->memory));
    groups_.clear();
    Renew();
  }

  void TakeEnded() {
    for (auto& asked : groups_) {
      if (!asked->group->ended) continue;
      Check(*asked);
      Free(std::move(asked->memory));
      asked.reset();
    }
    std::erase(groups_, nullptr);
  }

  void Check(const Asked& asked) {
    given_up_count += asked.is_given_up ? 1 : 0;
    for (std::size_t i = 0; i < asked.ranges.size(); ++i) {
      const RangeRead& range = asked.ranges[i];
      ASSERT_LE(asked.told[i], 1);
      if (*asked.group->ended) {
        ASSERT_EQ(asked.told[i], 1);
      }
      if (asked.told[i] == 0) continue;
      if (range.status != ErrorCode::kOk) {
        ++bad_count;
        continue;
      }
      ++good_count;
      ASSERT_TRUE(IsContent(range.destination, range.offset_bytes));
    }
  }

  // It is ours again, and is given to others later.
  void Free(PooledBuffer memory) {
    Fill(*memory);
    free_.push_back(std::move(memory));
    if (free_.size() > 12) free_.pop_front();
  }
  void CheckFree() {
    for (const PooledBuffer& memory : free_)
      ASSERT_TRUE(IsGuard(*memory)) << "memory that was given back is written to";
  }

  const net::RemoteFiles& files_;
  std::mt19937_64 random_;
  std::unique_ptr<net::RemoteQueue> queue_;
  std::vector<std::unique_ptr<Asked>> groups_;
  std::deque<PooledBuffer> free_;
};

class HostileDaemonTest : public testing::TestWithParam<Transport> {};

TEST_P(HostileDaemonTest, NothingItDoesIsBelievedThatIsNotRight) {
  const std::uint64_t seed = test::Seed();
  HostileDaemon daemon(seed);
  const auto session = net::Session::Get(daemon.address(), GetParam());
  ASSERT_TRUE(session->Ping(net::Clock::now() + 20s));
  const net::RemoteFiles quick(session, test::OneFile(kFileBytes), "quick", {120ms, GetParam()});
  const net::RemoteFiles patient(session, test::OneFile(kFileBytes), "patient", {3s, GetParam()});
  std::deque<Reader> readers;
  for (std::uint64_t i = 0; i < 3; ++i)
    readers.emplace_back(i == 0 ? quick : patient, seed + 1 + i);
  // On a machine with nothing else to do that takes a second.
  const auto end = SteadyClock::now() + 4s;
  const auto is_enough = [&] {
    return (daemon.done_count > 200 && daemon.lie_count > 20) || SteadyClock::now() > end;
  };
  std::vector<std::thread> threads;
  for (Reader& reader : readers) threads.emplace_back([&] { reader.Run(is_enough); });
  for (std::thread& thread : threads) thread.join();

  std::uint64_t good_count = 0;
  for (const Reader& reader : readers) good_count += reader.good_count;
  EXPECT_GT(good_count, 0U);
  RecordProperty("good_ranges", std::to_string(good_count));
  RecordProperty("lies", std::to_string(daemon.lie_count));
}

INSTANTIATE_TEST_SUITE_P(Transports, HostileDaemonTest,
                         testing::Values(Transport::kTcp, Transport::kShm), [](const auto& form) {
                           return form.param == Transport::kTcp ? "tcp" : "shm";
                         });

}  // namespace
}  // namespace ffrecord::client
