// Goal: while the disk of the metadata hangs, what is published is read, listed and looked up;
// what would change the metadata is refused with an error that names the disk, and nothing piles
// up; when the disk answers again, what waited has its effect once, and the daemon goes on.
// Method: a daemon in this process whose syncs wait in the folder of its metadata, by a clock of
// the test.

#include <gtest/gtest.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <filesystem>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "daemon_metrics.h"
#include "hang.h"
#include "libffrecord/net/protocol/begun_request.h"
#include "server_peers.h"
#include "temp_folder.h"
#include "virtual_clock.h"

namespace {

ffrecord::test::Hang sync_hangs;
std::atomic<const char*> hung_folder{"/home/"};
std::atomic<int> hanging_count{0};

int Sync(long call, int fd) {
  if (sync_hangs) {
    std::error_code ignored;
    const auto path =
        std::filesystem::read_symlink("/proc/self/fd/" + std::to_string(fd), ignored).string();
    if (path.find(hung_folder.load()) != std::string::npos) {
      ++hanging_count;
      sync_hangs.Wait();
      --hanging_count;
    }
  }
  return static_cast<int>(::syscall(call, fd));
}

}  // namespace

// In place of the C library's, for the whole program: SQLite calls them.
extern "C" int fsync(int fd) { return Sync(SYS_fsync, fd); }
extern "C" int fdatasync(int fd) { return Sync(SYS_fdatasync, fd); }

namespace ffrecord::server {
namespace {

namespace fs = std::filesystem;
using test::Eventually;
using Mode = net::Publish::Mode;

constexpr std::string_view kData = "some data";
constexpr auto kAnswerTimeMax = 300ms;

class HangingMetadataTest : public ServerTest {
 protected:
  HangingMetadataTest() {
    fs::create_directories(folder_ / "home");
    home_.emplace(Server::Options{.data = {folder_ / "disk"},
                                  .metadata = folder_ / "home",
                                  .admin = net::Address{"127.0.0.1", 0},
                                  .answer_time_max = kAnswerTimeMax});
  }
  ~HangingMetadataTest() override {
    sync_hangs = false;
    hung_folder = "/home/";
  }

  std::unique_ptr<Channel> Connect() { return ConnectTo(*home_); }

  std::vector<std::byte> ManifestOf(const ExtentId& id) {
    DatasetManifest manifest;
    manifest.files.push_back({"file", kData.size(), {{id, kData.size(), Xxh3(AsBytes(kData))}}});
    return EncodeDatasetManifest(manifest).value();
  }

  Result<void> Publish(Channel& channel, const std::string& name, const ExtentId& id,
                       std::uint64_t attempt) {
    const auto bytes = ManifestOf(id);
    const std::span<const std::byte> piece(bytes);
    FFR_TRY(channel.Call(FrameType::kPublish,
                         net::Publish{Mode::kCreate, attempt, 0, name}.Encode(), {&piece, 1},
                         Soon(), "a publication"));
    return {};
  }

  std::vector<std::string> Names() {
    const auto reply =
        Connect()->Call(FrameType::kList, net::List{10, "", ""}.Encode(), {}, Soon(), "names");
    EXPECT_TRUE(reply) << reply.error().message;
    std::vector<std::string> names;
    if (!reply) return names;
    const auto list = net::ListReply::Decode(reply.value().body).value();
    for (const auto& entry : list.entries) names.push_back(entry.name);
    return names;
  }

  void ExpectReadable(const ExtentId& id) {
    const auto channel = Connect();
    const auto found = Read(*channel, {id}, {{0, 0, kData.size(), 0}});
    ASSERT_TRUE(found) << found.error().message;
    EXPECT_EQ(found.value().entries[0], kData);
  }

  void ExpectRefused(const Result<void>& outcome) {
    ASSERT_FALSE(outcome);
    EXPECT_EQ(outcome.error().code, ErrorCode::kUnavailable);
    EXPECT_NE(outcome.error().message.find((folder_ / "home").string()), std::string::npos)
        << outcome.error().message;
    EXPECT_NE(outcome.error().message.find("has not answered for"), std::string::npos);
  }

  // Begins a publication that hangs, and waits until the daemon refuses what comes.
  void Hang(const ExtentId& id) {
    sync_hangs = true;
    const auto given_up = Publish(*Connect(), "waits", id, 2);
    ExpectRefused(given_up);
    EXPECT_EQ(given_up.error().system_errno, net::kBegunErrno) << "it takes effect later";
    EXPECT_GT(hanging_count, 0);
  }

  test::VirtualClock clock_;
  test::TempFolder folder_;
  std::optional<Daemon> home_;
  const ExtentId first_ = MakeExtentId(1, 0, 0);
  const ExtentId second_ = MakeExtentId(2, 0, 0);
};

TEST_F(HangingMetadataTest, WhatIsPublishedIsReadAndTheRestIsRefusedUntilTheDiskAnswers) {
  const auto channel = Connect();
  ASSERT_TRUE(Put(*channel, first_, kData));
  ASSERT_TRUE(Put(*channel, second_, kData));
  ASSERT_TRUE(Publish(*channel, "first", first_, 1));

  Hang(second_);

  // Reads, lists and look-ups, on new connections and on one that was there.
  ExpectReadable(first_);
  EXPECT_EQ(Names(), std::vector<std::string>{"first"});
  EXPECT_TRUE(channel->Call(FrameType::kResolve, net::Resolve{"first"}.Encode(), {}, Soon(), "it"));
  EXPECT_TRUE(
      channel->Call(FrameType::kCheckRoom, net::CheckRoom{10, "x"}.Encode(), {}, Soon(), "room"));
  // At once now: nothing more waits for that disk.
  const auto begin = Clock::now();
  for (std::uint64_t i = 0; i < 20; ++i) {
    const auto again = Connect();
    const auto refused = Publish(*again, "more", second_, 10 + i);
    ExpectRefused(refused);
    EXPECT_EQ(refused.error().system_errno, 0) << "it was not begun";
    ExpectRefused(Put(*again, MakeExtentId(3, 0, 0), kData));
    const auto removal =
        again->Call(FrameType::kDelete, net::Delete{0, "first"}.Encode(), {}, Soon(), "a removal");
    ExpectRefused(removal ? Result<void>() : Result<void>(removal.error()));
    EXPECT_TRUE(again->Call(FrameType::kPing, {}, {}, Soon(), "a ping"));
  }
  EXPECT_LT(Clock::now() - begin, kAnswerTimeMax);
  const auto admin = *home_->server().admin_address();
  EXPECT_TRUE(
      Eventually([&] { return test::MetricOf(admin, "ffrecord_metadata_wait_seconds") >= 1; }));

  sync_hangs = false;

  // The one that waited has its effect, once; what was refused has none.
  EXPECT_TRUE(Eventually([&] { return Names().size() == 2; }));
  EXPECT_EQ(Names(), (std::vector<std::string>{"first", "waits"}));
  EXPECT_TRUE(Publish(*Connect(), "waits", second_, 2)) << "the same attempt";
  EXPECT_EQ(test::MetricOf(admin, "ffrecord_metadata_wait_seconds"), 0U);
  ASSERT_TRUE(Put(*channel, MakeExtentId(4, 0, 0), kData));
  ASSERT_TRUE(Publish(*channel, "later", MakeExtentId(4, 0, 0), 3));
  // Its extents are published ones also for what collects those that are not.
  ExpectReadable(second_);
  home_->Kill();
  home_->Start();
  EXPECT_EQ(Names(), (std::vector<std::string>{"first", "later", "waits"}));
  ExpectReadable(second_);
}

TEST_F(HangingMetadataTest, UploadsThatWaitAreToldAndTheirConnectionsEnd) {
  ASSERT_TRUE(Put(*Connect(), second_, kData));
  sync_hangs = true;
  std::vector<std::thread> clients;
  std::atomic<int> refused_count{0};
  for (std::uint64_t i = 0; i < 16; ++i)
    clients.emplace_back([this, i, &refused_count] {
      const auto channel = Connect();
      ExpectRefused(Put(*channel, MakeExtentId(100 + i, 0, 0), kData));
      ++refused_count;
    });
  for (std::thread& client : clients) client.join();
  EXPECT_EQ(refused_count, 16);
  EXPECT_EQ(Names(), std::vector<std::string>{});

  sync_hangs = false;

  EXPECT_TRUE(Eventually([&] { return static_cast<bool>(Put(*Connect(), first_, kData)); }));
  EXPECT_TRUE(Publish(*Connect(), "first", first_, 1));
}

// A batch that the client takes nothing of keeps its connection, on which the job then ends.
TEST_F(HangingMetadataTest, AJobThatEndsLateOnAConnectionThatIsStillThereIsNoReply) {
  const auto channel = Connect();
  ASSERT_TRUE(Put(*channel, first_, kData));
  ASSERT_TRUE(Put(*channel, second_, kData));
  ASSERT_TRUE(channel->Call(FrameType::kExtentBind, net::ExtentBind{0, {first_}}.Encode(), {},
                            Soon(), "a binding"));
  net::BatchRead batch;
  batch.initial_grant_bytes = 0;
  batch.entries = {{0, 0, kData.size(), 0}};
  const auto request = channel->Send(FrameType::kBatchRead, batch.Encode());
  ASSERT_TRUE(request);
  sync_hangs = true;
  ExpectRefused(Publish(*channel, "waits", second_, 2));

  sync_hangs = false;
  EXPECT_TRUE(Eventually([&] { return Names().size() == 1; }));

  // The batch is sent to its end all the same.
  ASSERT_TRUE(channel->Send(FrameType::kGrant, net::Grant{request.value(), 1 << 20}.Encode()));
  const auto found = Receive(*channel, request.value(), 1);
  ASSERT_TRUE(found) << found.error().message;
  EXPECT_EQ(found.value().entries[0], kData);
}

// A batch keeps the connection; the disk answers again before the piece is complete.
TEST_F(HangingMetadataTest, APieceThatArrivesAfterItsJobsWereGivenUpDoesNotKeepTheConnection) {
  ASSERT_TRUE(Put(*Connect(), second_, kData));
  const auto piece = AsBytes(kData);
  const auto manifest = ManifestOf(second_);
  net::BatchRead batch;
  batch.initial_grant_bytes = 0;
  batch.entries = {{0, 0, kData.size(), 0}};
  RawPeer peer(home_->address());
  peer.Write(HelloFrame());
  ASSERT_TRUE(peer.Gets(0));
  peer.Write(FrameOf(FrameType::kExtentBind, net::ExtentBind{0, {second_}}.Encode()));
  ASSERT_TRUE(peer.Gets(0));
  peer.Write(FrameOf(FrameType::kBatchRead, batch.Encode()));
  peer.Write(FrameOf(FrameType::kPutBegin, net::PutBegin{first_, kData.size()}.Encode()));
  ASSERT_TRUE(peer.Gets(0));
  sync_hangs = true;
  peer.Write(FrameOf(FrameType::kPublish, net::Publish{Mode::kCreate, 2, 0, "waits"}.Encode(),
                     static_cast<std::uint32_t>(manifest.size())));
  peer.Write(manifest);
  peer.Write(FrameOf(FrameType::kPutData, net::PutData{first_, 0}.Encode(), kData.size()));
  peer.Write(piece.first(1));
  ASSERT_TRUE(peer.Gets(0)) << "why the publication was given up";

  sync_hangs = false;
  ASSERT_TRUE(Eventually([&] { return Names() == std::vector<std::string>{"waits"}; }));
  peer.Write(piece.subspan(1));
  peer.Write(FrameOf(FrameType::kGrant, net::Grant{1, 1 << 20}.Encode()));

  EXPECT_TRUE(peer.IsClosedWithin(10s));
}

TEST_F(HangingMetadataTest, WhatWaitsForAnotherDiskIsNotGivenUp) {
  hung_folder = "/disk/";
  sync_hangs = true;
  std::thread client([this] { EXPECT_TRUE(Put(*Connect(), first_, kData)); });
  EXPECT_TRUE(Eventually([] { return hanging_count > 0; }));
  clock_.RunFor(100 * kAnswerTimeMax);  // In which it would be.
  sync_hangs = false;
  client.join();
  EXPECT_TRUE(Publish(*Connect(), "first", first_, 1));
}

TEST_F(HangingMetadataTest, ADiskWithBothIsSuspectWhileItHangs) {
  test::TempFolder folder;
  Daemon daemon({.data = {folder / "home"},
                 .admin = net::Address{"127.0.0.1", 0},
                 .answer_time_max = kAnswerTimeMax});
  const auto admin = *daemon.server().admin_address();
  const std::string state =
      "ffrecord_disk_state{disk=\"" + (folder / "home").string() + "\",state=\"suspect\"}";
  EXPECT_EQ(test::MetricOf(admin, state), 0U);
  sync_hangs = true;
  EXPECT_FALSE(Put(*ConnectTo(daemon), first_, kData));
  EXPECT_TRUE(Eventually([&] { return test::MetricOf(admin, state) == 1; }));
  sync_hangs = false;
  EXPECT_TRUE(
      Eventually([&] { return static_cast<bool>(Put(*ConnectTo(daemon), first_, kData)); }));
}

// It keeps there what it knows of its cluster.
TEST_F(HangingMetadataTest, ANodeOfAClusterTellsOfTheDiskToo) {
  fs::create_directories(folder_ / "n1");
  Server::Options options{.data = {folder_ / "node"},
                          .metadata = folder_ / "n1" / "home",
                          .admin = net::Address{"127.0.0.1", 0},
                          .answer_time_max = kAnswerTimeMax};
  options.cluster.emplace();
  options.cluster->connect = [this]() -> Result<std::shared_ptr<MetaStore>> {
    return std::shared_ptr<MetaStore>(FFR_TRY(OpenSqliteStore(folder_ / "store.sqlite")));
  };
  options.cluster->service.node = "n1";
  options.cluster->service.replicas = 1;
  const Daemon node(options);
  const auto admin = *node.server().admin_address();
  const auto waits = [&] { return test::MetricOf(admin, "ffrecord_metadata_wait_seconds") >= 1; };
  const auto remarks = [&] {
    return test::PageOf(admin, "/readyz").find("has not answered for") != std::string::npos;
  };
  // Once it has its lease, and there is a map.
  ASSERT_TRUE(Eventually([&] { return bool{Put(*ConnectTo(node), first_, kData)}; }));
  ASSERT_TRUE(Eventually([&] { return bool{Publish(*ConnectTo(node), "first", first_, 1)}; }));
  ASSERT_TRUE(Put(*ConnectTo(node), second_, kData));
  EXPECT_FALSE(waits());

  sync_hangs = true;
  const auto published = Publish(*ConnectTo(node), "second", second_, 2);
  EXPECT_TRUE(published) << published.error().message;  // The cluster has it.
  EXPECT_TRUE(Eventually([&] { return waits() && remarks(); }));

  sync_hangs = false;
  EXPECT_TRUE(Eventually([&] { return !waits() && !remarks(); }));
}

TEST_F(HangingMetadataTest, ADaemonStopsWhenTheDiskAnswersAgain) {
  ASSERT_TRUE(Put(*Connect(), second_, kData));
  Hang(second_);
  EXPECT_FALSE(home_->Stop(200ms));
  sync_hangs = false;
  EXPECT_TRUE(home_->Stop(30s));
}

}  // namespace
}  // namespace ffrecord::server
