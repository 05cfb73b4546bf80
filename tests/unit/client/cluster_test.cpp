// Goal: a client of a cluster writes each extent to its owners and reads it from them; goes on
// while a node is down, silent, elsewhere, or lacks what it should have; and follows the map.
// Method: real daemons hold the extents; scripts hand out the map and answer for names
// (fake_cluster.h). Extents are looked for on the daemons' disks.

#include "client/dataset/cluster.h"

#include <ffrecord/client/dataset.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <map>
#include <set>
#include <thread>

#include "client/dataset/catalog.h"
#include "client/dataset/cluster_files.h"
#include "client/dataset/upload.h"
#include "fake_cluster.h"
#include "replicated_daemons.h"
#include "test_file.h"

namespace ffrecord::client {
namespace {

using test::Eventually;
using test::FakeCluster;
using namespace std::chrono_literals;

constexpr SessionOptions kOptions{20s, Transport::kTcp};
constexpr std::size_t kFileCount = 12;

class ClusterTest : public testing::Test {
 protected:
  ClusterTest() {
    for (std::size_t i = 0; i < kFileCount; ++i)
      contents_.push_back(std::string(1000 + i, static_cast<char>('a' + i)));
  }

  std::vector<net::Location> Locations() const { return {Location(cluster_.seed())}; }
  static net::Location Location(const net::Address& address) {
    net::Location location;
    location.address = address;
    location.name = "x";
    return location;
  }
  std::shared_ptr<Cluster> Find(const SessionOptions& options = kOptions) const {
    auto found = Cluster::Find(Locations(), options);
    EXPECT_TRUE(found) << found.error().message;
    return found ? found.value() : nullptr;
  }

  // Uploads a file of one extent for each of the contents.
  Result<DatasetManifest> Put(Upload& upload) const {
    DatasetManifest manifest;
    for (const std::string& content : contents_) {
      const auto bytes = std::as_bytes(std::span(content));
      manifest.files.push_back(FFR_TRY(upload.PutBytes("f", {&bytes, 1})));
    }
    return manifest;
  }
  // Which nodes have the extent.
  std::set<std::uint16_t> HoldersOf(const ExtentId& id) {
    std::set<std::uint16_t> holders;
    for (std::uint16_t i = 0; i < FakeCluster::kNodeCount; ++i) {
      const auto name = HexOf(id);
      for (const auto& path : cluster_.node(i).Extents())
        if (path.filename() == name) holders.insert(i);
    }
    return holders;
  }
  // Of the first extent of each file.
  void ExpectHolders(const DatasetManifest& manifest, const std::set<std::uint16_t>& holders) {
    for (const ManifestFile& file : manifest.files)
      EXPECT_EQ(HoldersOf(file.extents[0].id), holders);
  }
  static std::string HexOf(const ExtentId& id) {
    std::string hex;
    for (const std::byte one : id) {
      constexpr std::string_view kDigits = "0123456789abcdef";
      hex += kDigits[std::to_integer<std::size_t>(one >> 4)];
      hex += kDigits[std::to_integer<std::size_t>(one & std::byte{15})];
    }
    return hex;
  }
  static std::set<std::uint16_t> OwnersOf(const ExtentId& id) {
    const std::uint32_t slot = SlotOf(id);
    return {FakeCluster::OwnerOf(slot, 0), FakeCluster::OwnerOf(slot, 1)};
  }

  // All files in one batch; each must be right.
  void ReadAll(const RangeReader& files) const {
    std::vector<std::vector<std::byte>> places;
    std::vector<RangeRead> ranges;
    for (std::uint32_t i = 0; i < kFileCount; ++i) {
      places.emplace_back(contents_[i].size());
      ranges.push_back({i, 0, places.back(), ErrorCode::kOk});
    }
    const auto read = files.Read(ranges);
    ASSERT_TRUE(read) << read.error().message;
    for (std::size_t i = 0; i < kFileCount; ++i) {
      ASSERT_EQ(ranges[i].status, ErrorCode::kOk)
          << i << ": " << files.Trouble(static_cast<std::uint32_t>(i), ranges[i].status);
      ASSERT_TRUE(std::ranges::equal(places[i], std::as_bytes(std::span(contents_[i])))) << i;
    }
  }

  mutable FakeCluster cluster_;
  std::vector<std::string> contents_;
};

// --- Writing -------------------------------------------------------------------------------------

// A daemon that is adopted greets by itself until it is on the map of its cluster.
TEST_F(ClusterTest, ADaemonThatIsToBeANodeDoesNotSpeakForTheOthers) {
  net::NodeIdentity identity{{}, "n9"};
  server::Server::Options options;
  options.identity = identity;
  const test::Daemon to_be(std::move(options));
  const net::Location alone = Location(to_be.address());

  for (int i = 0; i < 5; ++i) {  // Whoever answers first.
    const auto found = Cluster::Find(std::array{alone, Location(cluster_.seed())}, kOptions);
    ASSERT_TRUE(found) << found.error().message;
    EXPECT_TRUE(found.value());
  }
  const auto found = Cluster::Find(std::array{alone}, kOptions);
  ASSERT_TRUE(found) << found.error().message;
  EXPECT_FALSE(found.value());
}

// It may know names that others do not list yet, as while a daemon is adopted.
TEST_F(ClusterTest, TheNodeThatTheViewCameFromIsAskedFirst) {
  std::string second;  // "a1", which is not the first of the view.
  cluster_.Alter([&](const auto& reply, auto&) { second = reply.nodes[1].address; });
  const auto cluster =
      Cluster::Find(std::array{Location(net::Address::Parse(second, 0).value())}, kOptions);
  ASSERT_TRUE(cluster && cluster.value());
  cluster_.is_silent = true;  // "a0".
  int count = 0;
  const Cluster::Attempt attempt = [&](net::Connection& connection,
                                       net::Deadline until) -> Result<void> {
    ++count;
    return connection.Call(net::FrameType::kResolve, net::Resolve{"x"}.Encode(), {}, until, "x")
        .error();
  };

  const auto found = cluster.value()->Run(attempt, net::Clock::now() + 20s, 5s);

  EXPECT_EQ(found.error().code, ErrorCode::kNotFound) << found.error().message;
  EXPECT_EQ(count, 1);
}

TEST_F(ClusterTest, EachExtentIsWrittenToItsOwnersAndNowhereElse) {
  Upload upload(Find(), kOptions);
  const auto manifest = Put(upload);
  ASSERT_TRUE(manifest) << manifest.error().message;
  for (const ManifestFile& file : manifest.value().files)
    EXPECT_EQ(HoldersOf(file.extents[0].id), OwnersOf(file.extents[0].id));
}

TEST_F(ClusterTest, AnOwnerThatIsDownIsReplacedByTheNextNode) {
  cluster_.node(1).Kill();
  Upload upload(Find(), kOptions);
  const auto manifest = Put(upload);
  ASSERT_TRUE(manifest) << manifest.error().message;
  ExpectHolders(manifest.value(), {0, 2});
}

TEST_F(ClusterTest, AnOwnerThatDiesUnderAnUploadIsReplacedToo) {
  Upload upload(Find(), kOptions);
  const std::vector<std::byte> bytes(8 << 20, std::byte{7});
  const auto owner = FakeCluster::OwnerOf(SlotOf(MakeExtentId(upload.id(), 0, 0)), 1);
  bool has_killed = false;
  const auto put =
      upload.PutFrom("f", bytes.size(), [&](std::uint64_t offset_bytes, std::span<std::byte> room) {
        if (offset_bytes > 0 && !std::exchange(has_killed, true)) cluster_.node(owner).Kill();
        return Result<std::span<const std::byte>>(std::span(bytes).subspan(
            offset_bytes, std::min<std::uint64_t>(room.size(), bytes.size() - offset_bytes)));
      });
  ASSERT_TRUE(put) << put.error().message;
  EXPECT_TRUE(has_killed);
  std::set<std::uint16_t> others{0, 1, 2};
  others.erase(owner);
  EXPECT_EQ(HoldersOf(put.value().extents[0].id), others);
}

TEST_F(ClusterTest, ANodeThatDrainsTakesNoUploads) {
  cluster_.Alter([](auto& reply, auto&) { reply.nodes[2].state = net::MemberState::kDraining; });
  Upload upload(Find(), kOptions);
  const auto manifest = Put(upload);
  ASSERT_TRUE(manifest) << manifest.error().message;
  const std::set<std::uint16_t> others{1, 2};
  for (const ManifestFile& file : manifest.value().files)
    EXPECT_EQ(HoldersOf(file.extents[0].id), others);
}

// Two of them would be one.
TEST_F(ClusterTest, AReplicaForOneNodeIsNotGivenToAnotherThatHasItsAddress) {
  cluster_.Alter([](auto& reply, auto&) { reply.nodes[3].address = reply.nodes[2].address; });
  Upload upload(Find(), kOptions);
  const auto manifest = Put(upload);
  ASSERT_TRUE(manifest) << manifest.error().message;
  ExpectHolders(manifest.value(), {0, 2});
}

TEST_F(ClusterTest, TwoReplicasNeverLieInOneDomain) {
  cluster_.Alter([](auto& reply, auto& map) {
    for (const std::size_t i : {2U, 3U}) reply.nodes[i].domain = map.nodes[i].domain = "rack";
  });
  Upload upload(Find(), kOptions);
  const auto manifest = Put(upload);
  ASSERT_TRUE(manifest) << manifest.error().message;
  for (const ManifestFile& file : manifest.value().files) {
    const auto holders = HoldersOf(file.extents[0].id);
    EXPECT_EQ(holders.size(), 2U);
    EXPECT_TRUE(holders.contains(2));
  }
}

TEST_F(ClusterTest, AnUploadWaitsForNodesUntilItsTimeoutAndSaysWhatIsMissing) {
  cluster_.node(1).Kill();
  cluster_.node(2).Kill();
  const SessionOptions options{1s, Transport::kTcp};
  Upload upload(Find(options), options);
  const auto begin = net::Clock::now();
  const auto manifest = Put(upload);
  ASSERT_FALSE(manifest);
  EXPECT_EQ(manifest.error().code, ErrorCode::kUnavailable);
  EXPECT_NE(manifest.error().message.find("1 of 2 failure domains"), std::string::npos)
      << manifest.error().message;
  EXPECT_LT(net::Clock::now() - begin, 10s);
}

TEST_F(ClusterTest, AFailureOfTheSourceEndsTheUploadAtOnce) {
  Upload upload(Find(), kOptions);
  const auto put = upload.PutFrom("f", 1000, [](std::uint64_t, std::span<std::byte>) {
    return Result<std::span<const std::byte>>(Error{ErrorCode::kIo, "the disk of the source"});
  });
  ASSERT_FALSE(put);
  EXPECT_EQ(put.error().message, "the disk of the source");
  const auto manifest = Put(upload);  // The nodes were not to blame.
  ASSERT_TRUE(manifest) << manifest.error().message;
}

// --- Names ---------------------------------------------------------------------------------------

TEST_F(ClusterTest, ADatasetIsPublishedAndReadThroughAnyNode) {
  const test::TestFile file({"one", "two", "three"});
  const auto published = PublishDataset({{file.path()}}, cluster_.Uri("x"), false, kOptions, {});
  ASSERT_TRUE(published) << published.error().message;
  EXPECT_EQ(cluster_.publications().size(), 1U);
  const auto reader = OpenDataset({{cluster_.Uri("x")}}, {}, kOptions);
  ASSERT_TRUE(reader) << reader.error().message;
  const std::vector<std::uint64_t> indices{2, 0, 1};
  const auto batch = reader.value().ReadBatch(indices);
  ASSERT_TRUE(batch) << batch.error().message;
  EXPECT_TRUE(std::ranges::equal(batch.value().record(0),
                                 std::as_bytes(std::span(std::string_view("three")))));
  EXPECT_EQ(PublishDataset({{file.path()}}, cluster_.Uri("x"), false, kOptions, {}).error().code,
            ErrorCode::kConflict);
}

TEST_F(ClusterTest, APublicationWithoutAnAnswerIsRepeatedAtTheNextNodeAsTheSameAttempt) {
  cluster_.lost_answers = 1;
  const auto revision =
      Catalog(Find()).Publish("x", {{{"empty", 0, {}}}}, net::Publish::Mode::kCreate, 0,
                              net::Clock::now() + kOptions.timeout);
  ASSERT_TRUE(revision) << revision.error().message;
  const auto publications = cluster_.publications();
  ASSERT_EQ(publications.size(), 2U);
  EXPECT_EQ(publications[0].attempt, publications[1].attempt);
}

TEST_F(ClusterTest, WhyANameCannotBeChangedIsToldThoughALaterNodeDidNotAnswer) {
  const Catalog catalog(Find());
  cluster_.is_stuck = true;
  const auto published = catalog.Publish("x", {{{"empty", 0, {}}}}, net::Publish::Mode::kCreate, 0,
                                         net::Clock::now() + 2s);
  const auto removed = catalog.Remove("x", net::Clock::now() + 2s);
  ASSERT_FALSE(published);
  ASSERT_FALSE(removed);
  for (const Error& error : {published.error(), removed.error()}) {
    EXPECT_EQ(error.code, ErrorCode::kUnavailable) << error.message;
    EXPECT_NE(error.message.find("as the test wants it"), std::string::npos) << error.message;
    EXPECT_NE(error.message.find("may still take effect"), std::string::npos) << error.message;
  }
}

// Whatever the next node's reason is.
TEST_F(ClusterTest, ATryWithoutAnAnswerIsToldOfWhereTheNextNodeRefuses) {
  const Catalog catalog(Find());
  for (const ErrorCode refusal : {ErrorCode::kIo, ErrorCode::kConflict}) {
    cluster_.change_refusal = refusal;
    for (const int lost : {1, 0}) {
      cluster_.lost_answers = lost;
      const auto published =
          catalog.Publish("x", {{{"empty", 0, {}}}}, net::Publish::Mode::kReplace, 0,
                          net::Clock::now() + kOptions.timeout);
      ASSERT_FALSE(published);
      EXPECT_EQ(published.error().code, refusal) << published.error().message;
      const bool is_told =
          published.error().message.find("may still take effect") != std::string::npos;
      EXPECT_EQ(is_told, lost == 1) << published.error().message;
    }
  }
}

// One that would take the field for a fault is not told.
TEST_F(ClusterTest, ANodeThatUnderstandsItIsToldHowLongItsAnswerIsWaitedFor) {
  for (const bool understands : {true, false}) {
    FakeCluster cluster(understands ? net::kCapabilityPatience : net::kCapabilityNone);
    const net::Location seed = Location(cluster.seed());
    const Catalog catalog(Cluster::Find({&seed, 1}, kOptions).value());
    for (const auto timeout : {std::chrono::seconds(5), std::chrono::seconds(60)})
      ASSERT_TRUE(catalog.Publish("x", {{{"empty", 0, {}}}}, net::Publish::Mode::kReplace, 0,
                                  net::Clock::now() + timeout));
    const auto publications = cluster.publications();
    ASSERT_EQ(publications.size(), 2U);
    EXPECT_LE(publications[0].patience_ms, 5'000U);
    EXPECT_EQ(publications[0].patience_ms > 0, understands);
    // Another node is asked before a long timeout is over.
    EXPECT_LE(publications[1].patience_ms, 10'000U);
    EXPECT_EQ(publications[1].patience_ms > 0, understands);
  }
}

TEST_F(ClusterTest, ARemovalWhoseAnswerWasLostHasHappened) {
  const Catalog catalog(Find());
  const auto deadline = net::Clock::now() + kOptions.timeout;
  ASSERT_TRUE(catalog.Publish("x", {{{"empty", 0, {}}}}, net::Publish::Mode::kCreate, 0, deadline));
  cluster_.lost_answers = 1;
  const auto removed = catalog.Remove("x", deadline);
  EXPECT_TRUE(removed) << removed.error().message;
  EXPECT_EQ(catalog.Remove("x", deadline).error().code, ErrorCode::kNotFound);
}

// Published through one node, it may not be known to the next one yet.
// What a daemon of no cluster has is no name of the cluster.
TEST_F(ClusterTest, ADaemonOfNoClusterAtTheAddressOfANodeIsNotAskedForNames) {
  const test::Daemon daemon;
  cluster_.Alter([&](auto& reply, auto&) { reply.nodes[4].address = daemon.address().ToString(); });
  const auto deadline = net::Clock::now() + kOptions.timeout;
  const auto session = net::Session::Get(daemon.address(), Transport::kTcp);
  ASSERT_TRUE(Catalog(session).Publish("stray", {{{"empty", 0, {}}}}, net::Publish::Mode::kCreate,
                                       0, deadline));
  const auto found = Catalog(Find()).Resolve("stray", deadline);
  ASSERT_FALSE(found);
  EXPECT_EQ(found.error().code, ErrorCode::kNotFound) << found.error().message;
}

// Of one that does not know it yet, whose disk fails, or that has a damaged manifest, the others do
// not suffer.
TEST_F(ClusterTest, ANameThatOneNodeDoesNotKnowOrCannotReadIsReadAtAnother) {
  const auto deadline = net::Clock::now() + kOptions.timeout;
  const Catalog catalog(Find());
  ASSERT_TRUE(catalog.Publish("x", {{{"empty", 0, {}}}}, net::Publish::Mode::kCreate, 0, deadline));
  for (const ErrorCode refusal : {ErrorCode::kNotFound, ErrorCode::kIo, ErrorCode::kCorruption}) {
    cluster_.refusal = refusal;
    const auto found = Catalog(Find()).Resolve("x", deadline);
    ASSERT_TRUE(found) << found.error().message;
    EXPECT_EQ(found.value().manifest.files.size(), 1U);
  }
}

// Nobody else knows the name: what the one node says is more than that.
TEST_F(ClusterTest, ANameThatOnlyOneNodeKnowsAndCannotReadIsNotReportedMissing) {
  cluster_.refusal = ErrorCode::kCorruption;
  const auto begin = net::Clock::now();
  const auto found = Catalog(Find()).Resolve("nowhere", begin + kOptions.timeout);
  ASSERT_FALSE(found);
  EXPECT_EQ(found.error().code, ErrorCode::kCorruption) << found.error().message;
  EXPECT_LT(net::Clock::now() - begin, kOptions.timeout);
}

TEST_F(ClusterTest, ANodeThatIsSilentIsGivenUpForTheNextOne) {
  const auto cluster = Find();
  cluster_.is_silent = true;
  const Catalog catalog(cluster);
  const auto begin = net::Clock::now();
  EXPECT_EQ(catalog.Resolve("x", begin + kOptions.timeout).error().code, ErrorCode::kNotFound);
  EXPECT_LT(net::Clock::now() - begin, 15s);
  const auto again = net::Clock::now();  // It is not asked first any more.
  EXPECT_EQ(catalog.Resolve("x", again + kOptions.timeout).error().code, ErrorCode::kNotFound);
  EXPECT_LT(net::Clock::now() - again, 3s);
}

// Its certificate may be over, or its keys are others.
TEST_F(ClusterTest, ANodeThatDeniesIsLeftForTheNextOne) {
  const auto cluster = Find();
  cluster_.denying_count = 1;
  const Catalog catalog(cluster);
  const auto deadline = net::Clock::now() + kOptions.timeout;
  const auto published =
      catalog.Publish("x", {{{"empty", 0, {}}}}, net::Publish::Mode::kCreate, 0, deadline);
  ASSERT_TRUE(published) << published.error().message;
  EXPECT_EQ(cluster_.publications().size(), 1U);
  EXPECT_TRUE(catalog.Resolve("x", deadline));
}

TEST_F(ClusterTest, WhereNodesDenyAndTheOthersAreDownTheDenialIsTold) {
  cluster_.Alter([](auto& reply, auto&) {
    for (std::size_t i = FakeCluster::kScriptCount; i < reply.nodes.size(); ++i)
      reply.nodes[i].address = "127.0.0.1:1";
  });
  const auto cluster = Find();
  cluster_.denying_count = FakeCluster::kScriptCount;
  const auto found = Catalog(cluster).Resolve("x", net::Clock::now() + 3s);
  ASSERT_FALSE(found);
  EXPECT_EQ(found.error().code, ErrorCode::kDenied) << found.error().message;
}

TEST_F(ClusterTest, AnOwnerThatDeniesIsReplacedByTheNextNode) {
  cluster_.Alter([&](auto& reply, auto&) {
    reply.nodes[FakeCluster::kScriptCount + 1].address = cluster_.seed().ToString();
  });
  cluster_.denying_count = 1;
  Upload upload(Find(), kOptions);
  const auto manifest = Put(upload);
  ASSERT_TRUE(manifest) << manifest.error().message;
  ExpectHolders(manifest.value(), {0, 2});
}

// --- Finding -------------------------------------------------------------------------------------

TEST_F(ClusterTest, AnyNodeThatAnswersTellsOfTheCluster) {
  const net::Address nobody{"127.0.0.1", 1};
  const auto found =
      Cluster::Find(std::vector{Location(nobody), Location(cluster_.seed())}, kOptions);
  ASSERT_TRUE(found) << found.error().message;
  EXPECT_NE(found.value(), nullptr);
  const auto nowhere = Cluster::Find(std::vector{Location(nobody)}, kOptions);
  ASSERT_FALSE(nowhere);
  EXPECT_EQ(nowhere.error().code, ErrorCode::kUnavailable);
}

TEST_F(ClusterTest, ADaemonOfItsOwnIsOfNoCluster) {
  const auto found = Cluster::Find(std::vector{Location(cluster_.node(0).address())}, kOptions);
  ASSERT_TRUE(found) << found.error().message;
  EXPECT_EQ(found.value(), nullptr);
}

TEST_F(ClusterTest, AClusterWithoutAMapIsNotReadyYet) {
  cluster_.Alter([](auto& reply, auto& map) { reply.version = map.version = 0; });
  const SessionOptions options{300ms, Transport::kTcp};
  const auto found = Cluster::Find(Locations(), options);
  ASSERT_FALSE(found);
  EXPECT_EQ(found.error().code, ErrorCode::kUnavailable);
  EXPECT_NE(found.error().message.find("has no slot map yet"), std::string::npos)
      << found.error().message;
}

// --- Reading -------------------------------------------------------------------------------------

class ClusterReadsTest : public ClusterTest {
 protected:
  void SetUp() override {
    cluster_client_ = Find();
    Upload upload(cluster_client_, kOptions);
    auto manifest = Put(upload);
    ASSERT_TRUE(manifest) << manifest.error().message;
    manifest_ = std::move(manifest).value();
    files_ = OpenClusterFiles(cluster_client_, manifest_, "ffrecord://cluster/x");
  }

  std::shared_ptr<Cluster> cluster_client_;
  DatasetManifest manifest_;
  std::unique_ptr<RangeReader> files_;
};

TEST_F(ClusterReadsTest, OwnersServeAndOneOfThemMayBeDown) {
  ReadAll(*files_);
  for (std::size_t i = 0; i < FakeCluster::kNodeCount; ++i) {
    cluster_.node(i).Kill();
    ReadAll(*files_);
    cluster_.node(i).Start();
    ReadAll(*files_);
  }
}

TEST_F(ClusterReadsTest, AnExtentThatIsNotWithItsOwnersIsFoundElsewhere) {
  cluster_.Alter([](auto& reply, auto& map) {  // Owners are other nodes from now on.
    reply.version = map.version = 6;
    for (auto& ordinal : map.rows)
      ordinal = ordinal == 4 ? 2 : static_cast<std::uint16_t>(ordinal + 1);
    for (std::size_t i = 0; i < map.rows.size(); i += 2) map.rows[i + 1] = map.rows[i];
    for (std::size_t i = 1; i < map.rows.size(); i += 2) map.rows[i] = SlotMap::kNoNode;
  });
  const auto later = Find();
  ASSERT_EQ(later->view()->map.version, 6U);
  ReadAll(*OpenClusterFiles(later, manifest_, "ffrecord://cluster/x"));
}

TEST_F(ClusterReadsTest, ANewerMapIsFetchedOnce) {
  ReadAll(*files_);
  const int before = cluster_.map_count();
  cluster_.Alter([](auto& reply, auto& map) { reply.version = map.version = 6; });
  cluster_client_->NoteVersion(5);
  EXPECT_EQ(cluster_.map_count(), before);
  cluster_client_->NoteVersion(6);
  ASSERT_TRUE(Eventually([&] { return cluster_client_->view()->map.version == 6; }));
  cluster_client_->NoteVersion(6);
  EXPECT_EQ(cluster_.map_count(), before + 1);
  ReadAll(*files_);
}

TEST_F(ClusterReadsTest, AnOlderMapNeverTakesThePlaceOfANewerOne) {
  cluster_.Alter([](auto& reply, auto& map) { reply.version = map.version = 4; });
  ASSERT_TRUE(cluster_client_->Refresh(net::Clock::now() + 5s));
  EXPECT_EQ(cluster_client_->view()->map.version, 5U);
}

// The node keeps its data and comes back under another address, which nobody tells the client of.
TEST_F(ClusterReadsTest, ANodeThatMovesIsFoundAtItsNewAddress) {
  ReadAll(*files_);
  server::Server::Options options;
  options.data = {cluster_.node(0).data()};
  options.core_count = 1;
  options.identity = cluster_.IdentityOf(0);
  cluster_.node(0).Kill();
  auto moved = server::Server::Start(options);
  ASSERT_TRUE(moved) << moved.error().message;
  cluster_.Alter(
      [&](auto& reply, auto&) { reply.nodes[2].address = moved.value()->address().ToString(); });
  ReadAll(*files_);  // From the others; it shows that one is away.
  ASSERT_TRUE(Eventually([&] {
    ReadAll(*files_);
    return cluster_client_->view()->places.size() == FakeCluster::kScriptCount + 4;
  }));
  cluster_.node(1).Kill();  // What only the moved one has now.
  ReadAll(*files_);
}

// A batch begins by addresses at which nobody answers; only then do those who are asked for the map
// say the right ones: nodes at addresses that are known, or the seed.
class MovedNodesTest : public ClusterReadsTest, public testing::WithParamInterface<bool> {};

TEST_P(MovedNodesTest, ABatchUnderWayFindsItsNodesAtTheirNewAddresses) {
  const bool all_have_moved = GetParam();
  std::vector<std::string> right;
  cluster_.Alter([&](auto& reply, auto&) {
    for (auto& node : reply.nodes) {
      right.push_back(node.address);
      if (all_have_moved || node.id.starts_with('n')) node.address = "127.0.0.1:1";
    }
  });
  const auto client = Find();
  const auto files = OpenClusterFiles(client, manifest_, "ffrecord://cluster/x");
  const int before = cluster_.map_count();
  std::thread moves([&] {
    EXPECT_TRUE(Eventually([&] { return cluster_.map_count() > before; }));
    cluster_.Alter([&](auto& reply, auto&) {
      for (std::size_t i = 0; i < right.size(); ++i) reply.nodes[i].address = right[i];
    });
  });
  ReadAll(*files);
  moves.join();
  EXPECT_LE(cluster_.map_count(), before + 20);  // One a second.
}

INSTANTIATE_TEST_SUITE_P(Nodes, MovedNodesTest, testing::Bool());

// At each time one node is said to be where nobody answers, and all have other slots than before.
TEST_F(ClusterReadsTest, BatchesGoOnWhileTheMapChangesAllTheTime) {
  std::atomic<bool> is_over{false};
  std::vector<std::thread> readers;
  for (int i = 0; i < 3; ++i)
    readers.emplace_back([&] {
      while (!is_over) ReadAll(*files_);
    });
  std::uint32_t version = 5;
  for (std::uint16_t i = 0; i < 20; ++i) {
    const auto away = static_cast<std::uint16_t>(i % FakeCluster::kNodeCount);
    ++version;
    cluster_.Alter([&](auto& reply, auto& map) {
      reply.version = map.version = version;
      for (std::uint16_t node = 0; node < FakeCluster::kNodeCount; ++node)
        reply.nodes[FakeCluster::kScriptCount + node].address =
            node == away ? "127.0.0.1:1" : cluster_.node(node).address().ToString();
      for (auto& ordinal : map.rows)
        ordinal = ordinal == 4 ? 2 : static_cast<std::uint16_t>(ordinal + 1);
    });
    cluster_client_->NoteVersion(version);
    std::this_thread::sleep_for(110ms);
  }
  is_over = true;
  for (std::thread& reader : readers) reader.join();
  EXPECT_GT(cluster_client_->view()->map.version, 6U);
}

TEST_F(ClusterReadsTest, ASilentNodeDelaysTheMapByLittle) {
  cluster_.is_silent = true;
  EXPECT_TRUE(cluster_client_->Refresh(net::Clock::now() + 1'900ms));
}

TEST_F(ClusterReadsTest, AMapThatSaysNothingNewChangesNothing) {
  const auto before = cluster_client_->view();
  ASSERT_TRUE(cluster_client_->Refresh(net::Clock::now() + 5s));
  EXPECT_EQ(cluster_client_->view(), before);
  cluster_.is_silent = true;  // So that another node says it.
  ASSERT_TRUE(cluster_client_->Refresh(net::Clock::now() + 5s));
  EXPECT_EQ(cluster_client_->view(), before);
  cluster_.Alter([](auto& reply, auto&) { reply.nodes.back().is_up = false; });
  ASSERT_TRUE(cluster_client_->Refresh(net::Clock::now() + 5s));
  EXPECT_NE(cluster_client_->view(), before);
}

TEST_F(ClusterReadsTest, AnExtentThatComesLaterToANodeIsFoundOverAnOpenConnection) {
  const ManifestExtent& extent = manifest_.files[0].extents[0];
  const std::uint32_t slot = SlotOf(extent.id);
  const auto second = FakeCluster::OwnerOf(slot, 1);
  // Without this extent at one owner, a reader binds there what is there.
  for (const auto& path : cluster_.node(second).Extents())
    if (path.filename() == HexOf(extent.id)) std::filesystem::remove(path);
  cluster_.node(second).Kill();
  cluster_.node(second).Start();
  const auto late = OpenClusterFiles(cluster_client_, manifest_, "ffrecord://cluster/late");
  for (int i = 0; i < 4; ++i) ReadAll(*late);
  ASSERT_TRUE(
      test::PutFiles(cluster_.node(second).address(), {&contents_[0], 1}, UploadOf(extent.id)));
  cluster_.node(FakeCluster::OwnerOf(slot, 0)).Kill();
  ReadAll(*late);
}

}  // namespace
}  // namespace ffrecord::client
