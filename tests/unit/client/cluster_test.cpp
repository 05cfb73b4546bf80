// Goal: a client of a cluster finds its nodes, writes each extent to its owners and names the files
// at any of them; goes on while a node is down, silent, or does not know what it should.
// Method: real daemons hold the extents; scripts hand out the map and answer for names
// (fake_cluster.h). Extents are looked for on the daemons' disks.

#include "client/dataset/cluster.h"

#include <ffrecord/client/dataset.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <map>
#include <set>
#include <thread>

#include "client/dataset/catalog.h"
#include "client/dataset/cluster_files.h"
#include "client/dataset/upload.h"
#include "cluster_fixture.h"
#include "one_daemon.h"
#include "replicated_daemons.h"
#include "test_file.h"
#include "virtual_clock.h"

namespace ffrecord::client {
namespace {

using test::Eventually;
using namespace std::chrono_literals;

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
    EXPECT_FALSE(found.value()->is_one_daemon());
  }
  const auto found = Cluster::Find(std::array{alone}, kOptions);
  ASSERT_TRUE(found) << found.error().message;
  EXPECT_TRUE(found.value()->is_one_daemon());
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

// While that node cannot tell what is published, as right after its start, what the others do not
// have may well be there.
TEST_F(ClusterTest, WhatANodeWithNamesOfItsOwnMayHaveIsNotMissing) {
  for (const bool has_own_names : {true, false}) {
    FakeCluster cluster(has_own_names ? net::kCapabilityOwnNames : net::kCapabilityNone);
    cluster.Alter([](auto& reply, auto&) { reply.nodes.resize(FakeCluster::kScriptCount); });
    const net::Location seed = Location(cluster.seed());  // "a0".
    const Catalog catalog(Cluster::Find({&seed, 1}, kOptions).value());
    const auto in_time = [] { return net::Clock::now() + kOptions.timeout; };
    const auto soon = [&] { return has_own_names ? net::Clock::now() + 500ms : in_time(); };
    cluster.refusal = ErrorCode::kUnavailable;  // Of "a0".

    const auto list = catalog.List("", soon());
    const auto absent = catalog.Resolve("nowhere", soon());

    EXPECT_EQ(bool(list), !has_own_names);
    ASSERT_FALSE(absent);
    EXPECT_EQ(absent.error().code, has_own_names ? ErrorCode::kUnavailable : ErrorCode::kNotFound)
        << absent.error().message;
    if (has_own_names) {
      EXPECT_EQ(list.error().code, ErrorCode::kUnavailable) << list.error().message;
      EXPECT_NE(absent.error().message.find("node a0"), std::string::npos)
          << absent.error().message;
    }
    cluster.refusal = ErrorCode::kOk;
    EXPECT_TRUE(catalog.List("", in_time()));
    EXPECT_EQ(catalog.Resolve("nowhere", in_time()).error().code, ErrorCode::kNotFound);
    cluster.refusal = ErrorCode::kUnavailable;
    ASSERT_TRUE(
        catalog.Publish("x", {{{"empty", 0, {}}}}, net::Publish::Mode::kCreate, 0, in_time()));
    EXPECT_TRUE(catalog.Resolve("x", in_time()));  // The other one knows it.
  }
}

TEST_F(ClusterTest, EachExtentIsWrittenToItsOwnersAndNowhereElse) {
  Upload upload(Find());
  const auto manifest = Put(upload);
  ASSERT_TRUE(manifest) << manifest.error().message;
  for (const ManifestFile& file : manifest.value().files)
    EXPECT_EQ(HoldersOf(file.extents[0].id), OwnersOf(file.extents[0].id));
}

TEST_F(ClusterTest, AnOwnerThatIsDownIsReplacedByTheNextNode) {
  cluster_.node(1).Kill();
  Upload upload(Find());
  const auto manifest = Put(upload);
  ASSERT_TRUE(manifest) << manifest.error().message;
  ExpectHolders(manifest.value(), {0, 2});
}

TEST_F(ClusterTest, AnOwnerThatDiesUnderAnUploadIsReplacedToo) {
  Upload upload(Find());
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
  Upload upload(Find());
  const auto manifest = Put(upload);
  ASSERT_TRUE(manifest) << manifest.error().message;
  const std::set<std::uint16_t> others{1, 2};
  for (const ManifestFile& file : manifest.value().files)
    EXPECT_EQ(HoldersOf(file.extents[0].id), others);
}

// Two of them would be one.
TEST_F(ClusterTest, AReplicaForOneNodeIsNotGivenToAnotherThatHasItsAddress) {
  cluster_.Alter([](auto& reply, auto&) { reply.nodes[3].address = reply.nodes[2].address; });
  Upload upload(Find());
  const auto manifest = Put(upload);
  ASSERT_TRUE(manifest) << manifest.error().message;
  ExpectHolders(manifest.value(), {0, 2});
}

TEST_F(ClusterTest, TwoReplicasNeverLieInOneDomain) {
  cluster_.Alter([](auto& reply, auto& map) {
    for (const std::size_t i : {2U, 3U}) reply.nodes[i].domain = map.nodes[i].domain = "rack";
  });
  Upload upload(Find());
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
  Upload upload(Find(options));
  const auto begin = net::Clock::now();
  const auto manifest = Put(upload);
  ASSERT_FALSE(manifest);
  EXPECT_EQ(manifest.error().code, ErrorCode::kUnavailable);
  EXPECT_NE(manifest.error().message.find("1 of 2 failure domains"), std::string::npos)
      << manifest.error().message;
  EXPECT_LT(net::Clock::now() - begin, 10s);
}

// The last tries have too little time for an answer.
TEST_F(ClusterTest, WhyNodesTookAnExtentNotIsToldThoughTheyDoNotAnswerAtTheEnd) {
  std::array<std::atomic<int>, FakeCluster::kNodeCount> asked{};
  std::vector<std::unique_ptr<test::FakeDaemon>> nodes;
  for (std::uint16_t i = 0; i < FakeCluster::kNodeCount; ++i)
    nodes.push_back(std::make_unique<test::FakeDaemon>(
        [&count = asked[i]](test::FakeDaemon::Request& request) {
          if (request.header.type == net::FrameType::kPutBegin && count++ == 0)
            test::FakeDaemon::SendError(request, ErrorCode::kIo, ENOSPC);
          return true;
        },
        true, net::kCapabilityNone, cluster_.IdentityOf(i)));
  cluster_.Alter([&](auto& reply, auto&) {
    for (std::size_t i = 0; i < nodes.size(); ++i)
      reply.nodes[FakeCluster::kScriptCount + i].address = nodes[i]->address().ToString();
  });
  Upload upload(Find({1s, Transport::kTcp}));
  const auto manifest = Put(upload);
  ASSERT_FALSE(manifest);
  EXPECT_EQ(manifest.error().system_errno, ENOSPC) << manifest.error().message;
  EXPECT_NE(manifest.error().message.find("as the test wants it"), std::string::npos)
      << manifest.error().message;
  for (const auto& count : asked) EXPECT_GT(count, 1);
}

TEST_F(ClusterTest, AFailureOfTheSourceEndsTheUploadAtOnce) {
  Upload upload(Find());
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
  for (const ErrorCode refusal : {ErrorCode::kInvalidArgument, ErrorCode::kConflict}) {
    const Catalog catalog(Find());  // "a0" is the first one.
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

// What "x" is at, by all questions for names: 1 is of before, and 0 that nobody can tell.
std::set<std::uint64_t> RevisionsOfX(const Catalog& catalog, bool are_told) {
  const std::chrono::milliseconds time = are_told ? kOptions.timeout : 300ms;
  const auto resolved = catalog.Resolve("x", net::Clock::now() + time);
  const auto listed = catalog.List("x", net::Clock::now() + time);
  if (!resolved) {
    EXPECT_EQ(resolved.error().code, ErrorCode::kUnavailable) << resolved.error().message;
  }
  if (!listed) {
    EXPECT_EQ(listed.error().code, ErrorCode::kUnavailable) << listed.error().message;
  }
  return {resolved ? resolved.value().revision : 0, listed ? listed.value().at(0).revision : 0};
}

TEST_F(ClusterTest, NamesOfBeforeAreToldByChoiceAndWhereNobodyKnowsTheNewest) {
  for (const bool understands : {true, false}) {
    for (const bool accepts_old : {true, false}) {
      FakeCluster cluster(understands ? net::kCapabilityKnownNames : net::kCapabilityNone);
      net::Location seed = Location(cluster.seed());
      seed.accepts_old_names = accepts_old;
      cluster.Alter([](auto& reply, auto&) { reply.nodes.resize(FakeCluster::kScriptCount); });
      const Catalog catalog(Cluster::Find({&seed, 1}, kOptions).value());
      for (const std::uint16_t cut_off : {std::uint16_t{1}, FakeCluster::kScriptCount}) {
        cluster.cut_off_count = cut_off;
        const bool are_told = cut_off == 1;  // By the other one.
        const bool may_be_old = understands && accepts_old && !are_told;
        EXPECT_EQ(RevisionsOfX(catalog, are_told || may_be_old),
                  std::set<std::uint64_t>{are_told     ? 2U
                                          : may_be_old ? 1U
                                                       : 0U});
        EXPECT_EQ(cluster.accepted_count > 0, may_be_old);
      }
    }
  }
}

// Another one would count against a quota beside it, until it is given up.
TEST_F(ClusterTest, WhatTheNodesDoNotHoldIsSentAgainAsTheSameUpload) {
  const test::TestFile file({"one", "two", "three"});
  cluster_.change_refusal = ErrorCode::kConflict;
  EXPECT_EQ(PublishDataset({{file.path()}}, cluster_.Uri("x"), true, kOptions, {}).error().code,
            ErrorCode::kConflict);
  EXPECT_GE(cluster_.publications().size(), 3U);
  EXPECT_EQ(cluster_.uploads().size(), 1U);
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
  const Catalog stray(test::OneDaemon(daemon.address(), {.transport = Transport::kTcp}));
  ASSERT_TRUE(
      stray.Publish("stray", {{{"empty", 0, {}}}}, net::Publish::Mode::kCreate, 0, deadline));
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

// Of nothing that clients ask about names.
TEST_F(ClusterTest, TheTroubleOfOneNodeIsNotTheAnswerOfTheCluster) {
  for (const ErrorCode refusal : {ErrorCode::kIo, ErrorCode::kCorruption}) {
    const auto deadline = net::Clock::now() + kOptions.timeout;
    const auto at = [&] {  // With the node that is ill as the first one.
      cluster_.refusal = ErrorCode::kOk;
      auto found = Find();
      cluster_.refusal = refusal;
      return Catalog(std::move(found));
    };
    const auto published =
        at().Publish("x", {{{"empty", 0, {}}}}, net::Publish::Mode::kCreate, 0, deadline);
    EXPECT_TRUE(published) << published.error().message;
    const auto found = at().Resolve("x", deadline);
    EXPECT_TRUE(found) << found.error().message;
    const auto listed = at().List("", deadline);
    ASSERT_TRUE(listed) << listed.error().message;
    EXPECT_EQ(listed.value().size(), 1U);
    const auto room = at().CheckRoom("x", 1, deadline);
    EXPECT_TRUE(room) << room.error().message;
    const auto removed = at().Remove("x", deadline);
    EXPECT_TRUE(removed) << removed.error().message;
  }
}

// Nobody else knows the name: what the one node says is more than that.
TEST_F(ClusterTest, ANameThatOnlyOneNodeKnowsAndCannotReadIsNotReportedMissing) {
  const test::VirtualClock clock;
  cluster_.refusal = ErrorCode::kCorruption;
  const auto begin = net::Clock::now();
  const auto found = Catalog(Find()).Resolve("nowhere", begin + kOptions.timeout);
  ASSERT_FALSE(found);
  EXPECT_EQ(found.error().code, ErrorCode::kCorruption) << found.error().message;
  EXPECT_LT(net::Clock::now() - begin, kOptions.timeout);
}

TEST_F(ClusterTest, ANodeThatIsSilentIsGivenUpForTheNextOne) {
  const test::VirtualClock clock;
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
  Upload upload(Find());
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
  EXPECT_FALSE(found.value()->is_one_daemon());
  const auto nowhere = Cluster::Find(std::vector{Location(nobody)}, kOptions);
  ASSERT_FALSE(nowhere);
  EXPECT_EQ(nowhere.error().code, ErrorCode::kUnavailable);
}

TEST_F(ClusterTest, ADaemonOfItsOwnIsAClusterOfOneNode) {
  const net::Location location = Location(cluster_.node(0).address());
  const auto found = Cluster::Find(std::vector{location}, kOptions);
  ASSERT_TRUE(found) << found.error().message;
  EXPECT_TRUE(found.value()->is_one_daemon());
  EXPECT_EQ(found.value()->peer(), "ffrecord://" + location.address.ToString());
}

TEST_F(ClusterTest, SeveralDaemonsOfTheirOwnAreRefusedAndNamed) {
  const test::Daemon first, second;
  const auto found =
      Cluster::Find(std::array{Location(first.address()), Location(second.address())}, kOptions);
  ASSERT_FALSE(found);
  EXPECT_EQ(found.error().code, ErrorCode::kInvalidArgument);
  for (const std::string& part : {first.address().ToString(), second.address().ToString(),
                                  std::string("ffrecordd --cluster")})
    EXPECT_NE(found.error().message.find(part), std::string::npos) << found.error().message;
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

}  // namespace
}  // namespace ffrecord::client
