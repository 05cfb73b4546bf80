// Goal: a daemon with names of its own becomes a node of a cluster: all names are there, in as many
// replicas as others, and none is missing meanwhile; it can be interrupted, and taken back.
// Method: daemons in this process that start as they are told, with one store as the coordinator; a
// client by hand.

#include "server/service/cluster/adoption.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <future>

#include "cluster_clients.h"
#include "cut_store.h"
#include "daemon.h"
#include "daemon_metrics.h"
#include "temp_folder.h"
#include "tokens.h"

namespace ffrecord::server {
namespace {

using test::ClusterClient;
using test::Eventually;
using test::SomeExtents;
using namespace std::chrono_literals;

class AdoptionTest : public testing::Test {
 protected:
  AdoptionTest() {
    auto opened = OpenSqliteStore(folder_ / "store.sqlite");
    EXPECT_TRUE(opened) << opened.error().message;
    store_ = std::make_shared<test::CutStore>(std::move(opened).value());
    Start(old_, Alone());
  }

  Server::Options Alone() const {
    Server::Options options;
    options.core_count = 1;
    options.data = {folder_ / "n1"};
    return options;
  }
  Server::Options Node(const std::string& id, bool adopt) const {
    Server::Options options;
    options.core_count = 1;
    options.admin = net::Address{"127.0.0.1", 0};
    options.data = {folder_ / id};
    options.cluster.emplace();
    options.cluster->connect = [store = store_]() -> Result<std::shared_ptr<MetaStore>> {
      return std::shared_ptr<MetaStore>(store);
    };
    options.cluster->service.node = id;
    options.cluster->service.adopt = adopt;
    options.cluster->service.approves_members = true;
    options.cluster->service.lease = 4s;
    options.cluster->service.delete_grace = delete_grace_;
    return options;
  }
  // At the address that it had, if it had one.
  static void Start(std::unique_ptr<test::Daemon>& daemon, Server::Options options) {
    if (daemon) options.listen = daemon->address();
    daemon.reset();
    daemon = std::make_unique<test::Daemon>(std::move(options));
  }
  void StartOther(std::uint8_t replicas = 2) {
    Server::Options options = Node("n2", false);
    options.cluster->service.replicas = replicas;
    Start(other_, std::move(options));
    ASSERT_TRUE(Eventually([&] {
      const auto map = Client().GetMap(Other());
      return map && map.value().slots.nodes.size() == 1;
    }));
  }

  std::string Old() const { return old_->address().ToString(); }
  std::string Other() const { return other_->address().ToString(); }
  ClusterClient Client() const {
    return ClusterClient(other_ ? std::vector{Old(), Other()} : std::vector{Old()});
  }

  // To the daemon while it is by itself.
  DatasetManifest PublishAlone(const std::string& name, std::size_t count = 3) {
    const std::uint64_t upload = RandomNumber();
    const auto channel = Client().Connect(Old()).value();
    DatasetManifest manifest;
    const auto extents = SomeExtents(count, 20'000);
    for (std::uint32_t i = 0; i < extents.size(); ++i) {
      const auto bytes = test::AsBytes(extents[i]);
      const ManifestExtent extent{MakeExtentId(upload, 0, i), bytes.size(), Xxh3(bytes)};
      EXPECT_TRUE(StoreExtent(*channel, extent, bytes, test::Within(20s)));
      manifest.files.push_back({"data-" + std::to_string(i), bytes.size(), {extent}});
    }
    const auto published = Client().Publish(Old(), name, manifest);
    EXPECT_TRUE(published) << published.error().message;
    return manifest;
  }
  // As a client that has just come sees it.
  static bool IsNode(const std::string& address) {
    const auto channel = ClusterClient({address}).Connect(address);
    return channel && (channel.value()->hello().capabilities & net::kCapabilityCluster) != 0;
  }
  // All pages.
  static std::vector<std::string> NamesAt(const std::string& address,
                                          const std::string& prefix = "",
                                          std::uint32_t page_size = 100) {
    const auto channel = ClusterClient({address}).Connect(address).value();
    std::vector<std::string> names;
    net::List list;
    list.prefix = prefix;
    list.limit = page_size;
    for (bool more = true; more;) {
      const auto reply =
          channel->Call(net::FrameType::kList, list.Encode(), {}, test::Within(20s), "names");
      EXPECT_TRUE(reply) << reply.error().message;
      if (!reply) return names;
      const auto page = net::ListReply::Decode(reply.value().body).value();
      EXPECT_LE(page.entries.size(), page_size);
      for (const auto& entry : page.entries) names.push_back(entry.name);
      more = page.more;
      if (more) list.after = names.back();
    }
    return names;
  }
  bool Has(const std::string& address, const std::string& name,
           const DatasetManifest& manifest) const {
    const auto found = Client().Resolve(address, name);
    return found && found.value() == manifest;
  }
  bool IsReadable(const DatasetManifest& manifest) const {
    return std::ranges::all_of(test::ExtentsOf(manifest), [&](const ManifestExtent& extent) {
      return bool(Client().Read(extent));
    });
  }
  // The metadata of the daemon, which has stopped.
  std::unique_ptr<BlockingStore> Home() const {
    return OpenBlockingStore(folder_ / "n1" / "metadata.sqlite").value();
  }
  // Each node has removed what it is to remove.
  bool IsAllBuried() const {
    const auto is_buried = std::make_shared<std::promise<bool>>();
    MetaStore::ListRequest tombstones;
    tombstones.prefix = cluster::kTombstoneKeys;
    store_->List(tombstones, test::Within(20s), [is_buried](const Result<MetaStore::Page>& page) {
      is_buried->set_value(page && page.value().entries.empty());
    });
    return is_buried->get_future().get();
  }
  bool HasUpload(std::uint64_t upload) const {
    using Found = Result<std::optional<MetaStore::KeyValue>>;
    const auto found = std::make_shared<std::promise<Found>>();
    store_->Get(cluster::UploadKey(upload), test::Within(20s),
                [found](Found entry) { found->set_value(std::move(entry)); });
    const auto entry = found->get_future().get();
    return entry && entry.value().has_value();
  }
  // As the cluster has it.
  cluster::DatasetRecord RecordOf(const std::string& name) const {
    using Found = Result<std::optional<MetaStore::KeyValue>>;
    const auto found = std::make_shared<std::promise<Found>>();
    store_->Get(cluster::Key(cluster::kDatasetKeys, name), test::Within(20s),
                [found](Found entry) { found->set_value(std::move(entry)); });
    const auto entry = found->get_future().get();
    return cluster::DatasetRecord::Decode(entry.value().value().value).value();
  }
  bool IsAdopted() const {
    const auto left =
        test::MetricOf(*old_->server().admin_address(), "ffrecord_cluster_names_adopting");
    return left == 0;
  }

  std::chrono::milliseconds delete_grace_{0};
  test::TempFolder folder_;
  std::shared_ptr<test::CutStore> store_;
  std::unique_ptr<test::Daemon> old_, other_;
};

TEST_F(AdoptionTest, ItsNamesAreThoseOfTheClusterInAllReplicas) {
  const auto first = PublishAlone("train/a");
  const auto second = PublishAlone("train/b");
  StartOther();

  Start(old_, Node("n1", true));

  ASSERT_TRUE(Eventually([&] { return IsAdopted(); }));
  EXPECT_TRUE(Has(Other(), "train/a", first));
  EXPECT_TRUE(Has(Old(), "train/b", second));
  EXPECT_EQ(RecordOf("train/a").replicas, 2U);
  for (const auto& manifest : {first, second})
    for (const ManifestExtent& extent : test::ExtentsOf(manifest))
      EXPECT_TRUE(Eventually([&] { return Client().CountReplicas(extent) == 2; }));
}

TEST_F(AdoptionTest, ItsNamesAreServedBeforeTheClusterHasThem) {
  const auto manifest = PublishAlone("train/a");
  store_->Cut();

  Start(old_, Node("n1", true));

  EXPECT_TRUE(Has(Old(), "train/a", manifest));
  EXPECT_TRUE(IsReadable(manifest));
  EXPECT_FALSE(IsAdopted());
  store_->Mend();
  EXPECT_TRUE(Eventually([&] { return IsAdopted(); }));
  EXPECT_TRUE(Has(Old(), "train/a", manifest));
}

TEST_F(AdoptionTest, UntilItIsOnTheMapClientsSeeTheDaemonThatItWas) {
  PublishAlone("train/a");
  store_->Cut();
  Start(old_, Node("n1", true));
  const auto channel = Client().Connect(Old()).value();

  EXPECT_EQ(channel->hello().capabilities & net::kCapabilityCluster, 0U);
  EXPECT_EQ(NamesAt(Old()), std::vector<std::string>{"train/a"});

  store_->Mend();
  EXPECT_TRUE(Eventually([&] { return IsNode(Old()); }));
  // A client that was greeted before has to connect again.
  EXPECT_TRUE(Eventually(
      [&] { return !channel->Call(net::FrameType::kPing, {}, {}, test::Within(20s), "a ping"); }));
}

// By a map without it clients would look for its extents at other nodes alone.
TEST_F(AdoptionTest, ItIsNoNodeToClientsBeforeTheMapHasIt) {
  PublishAlone("train/a");
  StartOther(/*replicas=*/1);

  Start(old_, Node("n1", true));

  ASSERT_TRUE(Eventually([&] { return IsNode(Old()); }));
  const auto map = Client().GetMap(Old());
  ASSERT_TRUE(map) << map.error().message;
  EXPECT_NE(map.value().slots.Find("n1"), SlotMap::kNoNode);
}

// Otherwise the newest checkpoint of a run would seem to be an older one meanwhile.
TEST_F(AdoptionTest, NamesOnTheirWayAreListedAmongThoseOfTheCluster) {
  PublishAlone("run/2");
  PublishAlone("run/5");
  PublishAlone("other");
  StartOther(/*replicas=*/1);
  const ClusterClient other({Other()});
  for (const std::string name : {"run/1", "run/2", "run/3", "run/4", "z"}) {
    const auto uploaded = other.Upload(SomeExtents(1, 1'000), 1);
    ASSERT_TRUE(uploaded && other.Publish(Other(), name, uploaded.value()));
  }
  Start(old_, Node("n1", true));

  const std::vector<std::string> run{"run/1", "run/2", "run/3", "run/4", "run/5"};
  EXPECT_TRUE(Eventually([&] { return IsNode(Old()) && NamesAt(Old(), "run/") == run; }));
  for (const std::uint32_t page_size : {1U, 2U, 3U, 100U})
    EXPECT_EQ(NamesAt(Old(), "run/", page_size), run) << page_size;
  const std::vector<std::string> all{"other", "run/1", "run/2", "run/3", "run/4", "run/5", "z"};
  EXPECT_EQ(NamesAt(Old(), "", 2), all);
}

TEST_F(AdoptionTest, WhoRemovesANameOnItsWayIsToldSo) {
  PublishAlone("train/a");
  const auto extents = old_->Extents();
  old_->Kill();
  for (const auto& path : extents) std::filesystem::remove(path);
  StartOther(/*replicas=*/1);
  Start(old_, Node("n1", true));
  ASSERT_TRUE(Eventually([&] { return IsNode(Old()); }));

  EXPECT_TRUE(Eventually([&] {
    const auto removed = ClusterClient({Old()}).Remove(Old(), "train/a");
    return !removed && removed.error().code == ErrorCode::kNotFound &&
           removed.error().message.find("is adopting it") != std::string::npos;
  }));
}

TEST_F(AdoptionTest, OwnNamesAreListedByPagesInOrder) {
  PublishAlone("a/1");
  PublishAlone("a/2");
  PublishAlone("b/1");
  old_->Kill();
  const auto home = Home();
  const auto adoption = Adoption::Open(*home).value();
  const auto listed = [&](const std::string& prefix, const std::string& after, std::size_t limit) {
    std::vector<std::string> names;
    for (const Adoption::Name& name : adoption->List(prefix, after, limit))
      names.push_back(name.name);
    return names;
  };

  using Names = std::vector<std::string>;
  EXPECT_EQ(listed("", "", 9), (Names{"a/1", "a/2", "b/1"}));
  EXPECT_EQ(listed("", "", 2), (Names{"a/1", "a/2"}));
  EXPECT_EQ(listed("a/", "a/1", 9), (Names{"a/2"}));
  EXPECT_EQ(listed("b/", "a/2", 9), (Names{"b/1"}));
  EXPECT_EQ(listed("c/", "", 9), Names{});
}

TEST_F(AdoptionTest, ThoseWhoMayReadANameReadItMeanwhile) {
  const auto manifest = PublishAlone("train/a");
  store_->Cut();
  Server::Options options = Node("n1", true);
  options.token_keys = test::WriteTokenKeys(folder_);

  Start(old_, options);

  const ManifestExtent extent = test::ExtentsOf(manifest).front();
  const auto read_with = [&](const std::string& prefix) {
    return ClusterClient({Old()}, test::MakeToken(test::kRead, prefix)).ReadFrom(Old(), extent);
  };
  EXPECT_TRUE(read_with("train/"));
  EXPECT_FALSE(read_with("other/"));
}

// By itself, it does not know that these names refer to what it removes.
TEST_F(AdoptionTest, ADaemonThatIsTakenBackKeepsWhatTheClusterHasPublished) {
  const auto own = PublishAlone("train/own");
  Server::Options node = Node("n1", true);
  node.cluster->service.replicas = 1;
  Start(old_, node);
  ASSERT_TRUE(Eventually([&] { return IsNode(Old()) && IsAdopted(); }));
  const auto late = Client().Upload(SomeExtents(2, 10'000), 1);
  ASSERT_TRUE(late && Client().Publish(Old(), "train/late", late.value()));
  const auto file_count = old_->Extents().size();

  Start(old_, Alone());
  EXPECT_TRUE(old_->server().catalog_report().unexplained.empty());
  PublishAlone("other");
  ASSERT_TRUE(Client().Remove(Old(), "train/own"));
  ASSERT_TRUE(Client().Remove(Old(), "other"));
  // Extents that were removed before, and may go, go with them.
  ASSERT_TRUE(Eventually([&] { return old_->Extents().size() <= file_count; }));
  EXPECT_EQ(old_->Extents().size(), file_count);

  Start(old_, node);
  EXPECT_TRUE(Eventually([&] { return Has(Old(), "train/late", late.value()); }));
  EXPECT_TRUE(IsReadable(late.value()));
  EXPECT_TRUE(IsReadable(own));
}

TEST_F(AdoptionTest, WhatWasTakenAndNotNotedIsTakenOnce) {
  const auto manifest = PublishAlone("train/a");
  StartOther();
  Start(old_, Node("n1", true));
  ASSERT_TRUE(Eventually([&] { return IsAdopted(); }));
  old_->Kill();
  ASSERT_TRUE(Home()->TryCommit({{}, {}, {"cluster/adopted/train/a"}}));

  Start(old_, Node("n1", true));

  EXPECT_TRUE(Eventually([&] { return IsAdopted(); }));
  EXPECT_TRUE(Has(Other(), "train/a", manifest));
}

// The daemon was killed before it wrote down that its name is taken.
TEST_F(AdoptionTest, WhatWasTakenAndNotNotedAndRemovedSinceDoesNotComeBack) {
  delete_grace_ = 1h;
  PublishAlone("train/a");
  PublishAlone("train/b");
  StartOther();
  Start(old_, Node("n1", true));
  ASSERT_TRUE(Eventually([&] { return IsAdopted(); }));
  old_->Kill();
  ASSERT_TRUE(Home()->TryCommit({{}, {}, {"cluster/adopted/train/a", "cluster/adopted/train/b"}}));
  const ClusterClient other({Other()});
  ASSERT_TRUE(Eventually([&] { return bool(other.Remove(Other(), "train/a")); }));

  Start(old_, Node("n1", true));

  ASSERT_TRUE(Eventually([&] { return IsAdopted(); }));
  EXPECT_EQ(other.Resolve(Other(), "train/a").error().code, ErrorCode::kNotFound);
  EXPECT_TRUE(other.Resolve(Other(), "train/b"));
  // There is nothing left that would keep it from starting for good.
  old_.reset();
  EXPECT_TRUE(Server::Start(Node("n1", false)));
}

TEST_F(AdoptionTest, ANameThatFailedIsTriedAgainLater) {
  PublishAlone("train/a");
  old_->Kill();
  const auto home = Home();
  const auto adoption = Adoption::Open(*home).value();
  const cluster::TimePoint begin{1'000s};
  const auto name = adoption->Next(begin);
  ASSERT_TRUE(name);
  EXPECT_FALSE(adoption->Next(begin + 1h));  // It is under way.

  adoption->NoteFailed(*name, {ErrorCode::kConflict, "it is there"}, begin);

  EXPECT_EQ(adoption->trouble(), "it is there");
  EXPECT_FALSE(adoption->Next(begin));
  EXPECT_TRUE(adoption->Next(adoption->wake()));
}

TEST_F(AdoptionTest, AListOfVersionsFollowsTheirData) {
  const std::string list = "set/.catalogue/step-000000000";
  PublishAlone(list, 1);
  PublishAlone("set/.versions/1", 1);
  old_->Kill();
  const auto home = Home();
  const auto adoption = Adoption::Open(*home).value();
  const cluster::TimePoint begin{1'000s};

  const auto data = adoption->Next(begin);
  ASSERT_TRUE(data);
  EXPECT_EQ(data->name, "set/.versions/1");
  EXPECT_FALSE(adoption->Next(begin));
  EXPECT_EQ(adoption->wake(), cluster::TimePoint::max());

  ASSERT_TRUE(adoption->NoteTaken(*data));
  const auto last = adoption->Next(begin);
  EXPECT_TRUE(last && last->name == list);
}

TEST_F(AdoptionTest, WithoutBeingToldSoItAdoptsNothing) {
  PublishAlone("train/a");
  old_.reset();

  const auto refused = Server::Start(Node("n1", false));

  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, ErrorCode::kConflict);
  EXPECT_NE(refused.error().message.find("--adopt"), std::string::npos) << refused.error().message;
  Start(old_, Alone());
}

TEST_F(AdoptionTest, ItCanGoBackToBeingByItself) {
  const auto manifest = PublishAlone("train/a");
  StartOther();
  Start(old_, Node("n1", true));
  ASSERT_TRUE(Eventually([&] { return IsAdopted(); }));
  // What the cluster does with the name does not reach the daemon's own.
  ASSERT_TRUE(Client().Remove(Other(), "train/a"));
  ASSERT_TRUE(Eventually([&] { return other_->Extents().empty() && IsAllBuried(); }));

  Start(old_, Alone());

  EXPECT_TRUE(Has(Old(), "train/a", manifest));
  EXPECT_TRUE(IsReadable(manifest));
}

TEST_F(AdoptionTest, WhatTheClusterRemovedIsNotAdoptedAgain) {
  const auto manifest = PublishAlone("train/a");
  StartOther();
  Start(old_, Node("n1", true));
  ASSERT_TRUE(Eventually([&] { return IsAdopted(); }));
  ASSERT_TRUE(Client().Remove(Other(), "train/a"));
  ASSERT_TRUE(Eventually([&] { return other_->Extents().empty(); }));

  Start(old_, Node("n1", true));

  ASSERT_TRUE(Eventually([&] { return IsAdopted(); }));
  // Until it hears from the coordinator, it may serve what it knew before.
  EXPECT_TRUE(Eventually([&] {
    const auto found = Client().Resolve(Old(), "train/a");
    return !found && found.error().code == ErrorCode::kNotFound;
  }));
}

TEST_F(AdoptionTest, WhatWasPublishedOnTheWayBackIsNotTakenForTheOldOne) {
  const auto first = PublishAlone("train/a");
  StartOther();
  Start(old_, Node("n1", true));
  ASSERT_TRUE(Eventually([&] { return IsAdopted(); }));
  Start(old_, Alone());
  const auto second = PublishAlone("train/a");

  Start(old_, Node("n1", true));

  EXPECT_FALSE(IsAdopted());
  EXPECT_TRUE(Has(Other(), "train/a", first));
  old_.reset();
  EXPECT_FALSE(Server::Start(Node("n1", false)));
  Start(old_, Alone());
  EXPECT_TRUE(Has(Old(), "train/a", second));
}

TEST_F(AdoptionTest, ANameThatTheClusterHasIsLeftToPeople) {
  const auto own = PublishAlone("train/a");
  const auto free = PublishAlone("train/b");
  StartOther(/*replicas=*/1);  // A cluster of one node publishes nothing in two domains.
  const auto theirs = ClusterClient({Other()}).Upload(SomeExtents(1, 1'000), 1);
  ASSERT_TRUE(theirs) << theirs.error().message;
  ASSERT_TRUE(ClusterClient({Other()}).Publish(Other(), "train/a", theirs.value()));

  Start(old_, Node("n1", true));

  EXPECT_TRUE(Eventually([&] { return Has(Other(), "train/b", free); }));
  EXPECT_TRUE(Has(Other(), "train/a", theirs.value()));
  EXPECT_FALSE(IsAdopted());
  EXPECT_FALSE(HasUpload(UploadOf(test::ExtentsOf(own).front().id)));  // None that silence ends.
  old_.reset();
  const auto refused = Server::Start(Node("n1", false));  // Nothing is lost unawares.
  ASSERT_FALSE(refused);
  EXPECT_NE(refused.error().message.find("train/a"), std::string::npos) << refused.error().message;
  Start(old_, Alone());
  EXPECT_TRUE(Has(Old(), "train/a", own));
}

// The daemon's list is the longer one, and would be the newest in the cluster.
TEST_F(AdoptionTest, AListOfVersionsIsNotJoinedWithAnotherOne) {
  const std::vector<std::string> own{"set/.catalogue/step-000000000",
                                     "set/.catalogue/step-000000001", "set/.versions/1"};
  for (const std::string& name : own) PublishAlone(name, 1);
  const auto free = PublishAlone("set2/.catalogue/step-000000000", 1);
  StartOther(/*replicas=*/1);
  const auto theirs = ClusterClient({Other()}).Upload(SomeExtents(1, 1'000), 1);
  ASSERT_TRUE(theirs) << theirs.error().message;
  ASSERT_TRUE(ClusterClient({Other()}).Publish(Other(), own.front(), theirs.value()));

  Start(old_, Node("n1", true));

  const std::vector<std::string> all{own.front(), "set2/.catalogue/step-000000000"};
  EXPECT_TRUE(Eventually([&] { return NamesAt(Other()) == all; }));
  EXPECT_TRUE(Eventually([&] { return NamesAt(Old()) == all; }));
  EXPECT_FALSE(Client().Resolve(Old(), own.back()));
  EXPECT_TRUE(Has(Other(), own.front(), theirs.value()));

  ASSERT_TRUE(
      ClusterClient({Other()}).Remove(Other(), own.front()));  // The daemon's take its place.
  EXPECT_TRUE(Eventually([&] { return IsAdopted(); }));
  EXPECT_EQ(NamesAt(Other()).size(), own.size() + 1);
  EXPECT_TRUE(Has(Other(), all.back(), free));
}

// The run of the cluster would go on from a step of the daemon's, or the other way round.
TEST_F(AdoptionTest, ARunIsNotJoinedWithAnotherOne) {
  const auto step = [](const std::string& run, int number) {
    return run + "/step-00000000" + std::to_string(number);
  };
  for (const int number : {1, 3}) PublishAlone(step("run", number), 1);
  PublishAlone(step("on", 1), 1);
  PublishAlone("back/line-1", 1);
  PublishAlone(step("back", 5), 1);
  PublishAlone("a.readers/step-000000007", 1);
  StartOther(/*replicas=*/1);
  const ClusterClient other({Other()});
  std::vector<std::string> theirs{step("run", 2), step("on", 2), "back/line-1",
                                  "a.readers/step-000000001"};
  for (const std::string& name : theirs) {
    const auto uploaded = other.Upload(SomeExtents(1, 1'000), 1);
    ASSERT_TRUE(uploaded && other.Publish(Other(), name, uploaded.value()));
  }

  Start(old_, Node("n1", true));

  std::vector<std::string> all = theirs;
  all.push_back(step("on", 1));  // It went on in the cluster.
  all.push_back("a.readers/step-000000007");
  std::ranges::sort(all);
  EXPECT_TRUE(Eventually([&] { return NamesAt(Other()) == all; }));
  EXPECT_TRUE(Eventually([&] { return NamesAt(Old()) == all; }));
  EXPECT_FALSE(Client().Resolve(Old(), step("run", 3)));

  ASSERT_TRUE(other.Remove(Other(), step("run", 2)));  // The daemon's takes its place.
  EXPECT_TRUE(Eventually([&] { return bool(Client().Resolve(Other(), step("run", 3))); }));
  EXPECT_FALSE(IsAdopted());
}

// A step that the cluster has taken says that it is the same run.
TEST_F(AdoptionTest, ARunThatHasBeenTakenGoesOnOnTheWayBackAndIsTakenAgain) {
  PublishAlone("run/step-000000001");
  StartOther();
  Start(old_, Node("n1", true));
  ASSERT_TRUE(Eventually([&] { return IsAdopted(); }));
  const ClusterClient other({Other()});
  Start(old_, Alone());
  const auto next = PublishAlone("run/step-000000003");

  Start(old_, Node("n1", true));

  EXPECT_TRUE(Eventually([&] { return IsAdopted(); }));
  EXPECT_TRUE(Has(Other(), "run/step-000000003", next));
}

// A client that has begun a read, and takes nothing of it, keeps no connection to what it was.
TEST_F(AdoptionTest, AConnectionIsDrainedNoLongerThanTheStallTimeout) {
  const auto manifest = PublishAlone("train/a");
  store_->Cut();
  Server::Options options = Node("n1", true);
  options.stall_timeout = 400ms;
  Start(old_, options);
  const auto channel = Client().Connect(Old()).value();
  ASSERT_TRUE(channel->Call(net::FrameType::kExtentBind,
                            net::ExtentBind{0, {test::ExtentsOf(manifest).front().id}}.Encode(), {},
                            test::Within(20s), "a binding"));
  net::BatchRead batch;
  batch.initial_grant_bytes = 0;
  batch.entries = {{0, 0, 8'000, 0}};
  const auto request = channel->Send(net::FrameType::kBatchRead, batch.Encode());
  ASSERT_TRUE(request && channel->Call(net::FrameType::kPing, {}, {}, test::Within(20s), "a pong"));

  store_->Mend();

  const auto reply = channel->Receive(request.value(), test::Within(60s), "records");
  ASSERT_FALSE(reply);
  EXPECT_EQ(reply.error().code, ErrorCode::kUnavailable) << reply.error().message;
  EXPECT_NE(reply.error().message.find("closed"), std::string::npos) << reply.error().message;
}

// Clients then ask nobody else what there is.
TEST_F(AdoptionTest, ClientsAreToldThatTheClusterDoesNotHaveAllNamesYet) {
  PublishAlone("train/a");
  StartOther(/*replicas=*/1);
  const auto theirs = ClusterClient({Other()}).Upload(SomeExtents(1, 1'000), 1);
  ASSERT_TRUE(theirs) << theirs.error().message;
  ASSERT_TRUE(ClusterClient({Other()}).Publish(Other(), "train/a", theirs.value()));
  const auto has_own_names = [](const std::string& address) {
    const auto channel = ClusterClient({address}).Connect(address);
    return channel && (channel.value()->hello().capabilities & net::kCapabilityOwnNames) != 0;
  };
  Start(old_, Node("n1", true));
  ASSERT_TRUE(Eventually([&] { return IsNode(Old()); }));
  EXPECT_TRUE(has_own_names(Old()));
  EXPECT_FALSE(has_own_names(Other()));
  ASSERT_TRUE(ClusterClient({Other()}).Remove(Other(), "train/a"));
  store_->Cut();
  Start(old_, Node("n1", true));  // It is so from its first moment.
  EXPECT_TRUE(has_own_names(Old()));
  const auto before = Client().Connect(Old()).value();

  store_->Mend();  // And the name is adopted.

  EXPECT_TRUE(Eventually([&] { return IsAdopted() && !has_own_names(Old()); }));
  EXPECT_TRUE(Eventually(
      [&] { return !before->Call(net::FrameType::kPing, {}, {}, test::Within(20s), "a ping"); }));
}

TEST_F(AdoptionTest, WithoutTheFlagItIsFinal) {
  const auto manifest = PublishAlone("train/a");
  StartOther();
  Start(old_, Node("n1", true));
  ASSERT_TRUE(Eventually([&] { return IsAdopted(); }));

  Start(old_, Node("n1", false));

  EXPECT_TRUE(Eventually([&] { return Has(Old(), "train/a", manifest); }));
  ASSERT_TRUE(Eventually([&] { return bool(Client().Remove(Other(), "train/a")); }));
  EXPECT_TRUE(Eventually([&] { return old_->Extents().empty() && other_->Extents().empty(); }));
  old_->Kill();
  EXPECT_FALSE(Adoption::IsNeeded(*Home()).value());  // It has no names of its own any more.
}

}  // namespace
}  // namespace ffrecord::server
