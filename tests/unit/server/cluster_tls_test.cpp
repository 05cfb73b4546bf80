// Goal: daemons of a cluster talk only to daemons whose certificates come from the cluster's
// authority, say which node they refuse, and credentials are shown to nobody else.
// Method: daemons in this process over TLS, one of them with a certificate that is foreign or with
// none; an impostor in the place of a node.

#include <gtest/gtest.h>

#include <atomic>
#include <string>
#include <thread>
#include <vector>

#include "daemon_cluster.h"
#include "tls_pairs.h"
#include "tokens.h"

namespace ffrecord::server {
namespace {

using net::test::TlsFolder;
using test::Eventually;
using test::SomeExtents;
using namespace std::chrono_literals;

class ClusterTlsTest : public test::DaemonCluster {
 protected:
  void SetUp() override {
    if (!net::test::HasTls()) GTEST_SKIP() << "this build has no TLS";
    tls_ = ours_.files();
  }
  void Adjust(const std::string& node, Server::Options& options) override {
    options.tls = ours_.files();
    if (node == "n3") options.tls = third_;
  }
  // What a node's status says of the one that it does not accept.
  static bool Refuses(const Node& node, const std::string& other, const std::string& why) {
    const std::string page = Page(node, "/cluster");
    const auto at = page.find("\"refusals\": [{\"node\": \"" + other + "\", \"why\": ");
    return at != std::string::npos && page.find(why, at) < page.find("\"nodes\"", at);
  }

  void RestartThird(const net::TlsFiles& files) {
    third_ = files;
    nodes_[2].daemon.reset();
    nodes_[2].daemon = std::make_unique<test::Daemon>(OptionsOf(nodes_[2]));
  }

  TlsFolder ours_, foreign_;
  net::TlsFiles third_ = ours_.files();  // Those of the third node, if there is one.
};

TEST_F(ClusterTlsTest, NodesOfOneAuthorityActAsOne) {
  Server::Options options;
  options.token_keys = test::WriteTokenKeys(folder_);
  token_ = test::MakeToken(test::kRead | test::kWrite, "");
  StartNodes(3, options);
  const auto manifest = Client().Upload(SomeExtents(4, 50'000));
  ASSERT_TRUE(manifest) << manifest.error().message;

  const auto published = Client().Publish(AddressOf(nodes_[1]), "train/a", manifest.value());

  ASSERT_TRUE(published) << published.error().message;
  for (const Node& node : nodes_)
    EXPECT_TRUE(Eventually([&] { return bool(Client().Resolve(AddressOf(node), "train/a")); }));
  // A node gets what it lacks from another one, over TLS too.
  nodes_[2].daemon->Kill();
  for (const auto& path : ExtentsOf(nodes_[2])) std::filesystem::remove(path);
  nodes_[2].daemon->Start();
  EXPECT_TRUE(WaitForReplicas(manifest.value()));
  EXPECT_NE(Page(nodes_[0], "/cluster").find("\"refusals\": []"), std::string::npos);
}

TEST_F(ClusterTlsTest, ANodeOfAnotherAuthorityIsRefusedByName) {
  third_ = foreign_.files();
  expected_count_ = 2;
  StartNodes(2);
  const auto manifest = Client().Upload(SomeExtents(8, 20'000));
  ASSERT_TRUE(manifest) << manifest.error().message;
  ASSERT_TRUE(Client().Publish(AddressOf(nodes_[0]), "train/a", manifest.value()));

  StartNode("n3");

  // Whichever of them asks it.
  EXPECT_TRUE(Eventually([&] {
    return Refuses(nodes_[0], "n3", "authority") || Refuses(nodes_[1], "n3", "authority");
  })) << Page(nodes_[0], "/cluster");
  // It gets none of its extents.
  EXPECT_TRUE(Eventually([&] {
    return Refuses(nodes_[2], "n1", "authority") || Refuses(nodes_[2], "n2", "authority");
  })) << Page(nodes_[2], "/cluster");
  // It gets no byte from them, nor do they take its word: the map waits for it.
  EXPECT_NE(Page(nodes_[0], "/cluster").find("\"moving\": true"), std::string::npos);
  EXPECT_EQ(Metric(nodes_[2], "ffrecord_cluster_pulled_total"), 0U);
}

// Also by a node that has no more questions to it.
TEST_F(ClusterTlsTest, ARefusalThatHasEndedIsNotToldAnyMore) {
  StartNodes(3);
  std::vector<DatasetManifest> manifests;
  for (int i = 0; i < 2; ++i) {
    auto manifest = Client().Upload(SomeExtents(8, 20'000));
    ASSERT_TRUE(manifest) << manifest.error().message;
    manifests.push_back(std::move(manifest).value());
  }
  RestartThird(foreign_.files());
  // They ask the owners of their extents; one of these is refused, until they give up.
  std::vector<std::thread> publishers;
  for (std::size_t i = 0; i < 2; ++i)
    publishers.emplace_back([&, i] {
      const std::string name = "train/" + std::to_string(i);
      EXPECT_FALSE(Client().Publish(AddressOf(nodes_[i]), name, manifests[i]));
    });
  for (std::thread& publisher : publishers) publisher.join();
  for (std::size_t i = 0; i < 2; ++i)
    ASSERT_TRUE(Eventually([&] { return Refuses(nodes_[i], "n3", "authority"); }))
        << Page(nodes_[i], "/cluster");

  RestartThird(ours_.files());

  for (const Node& node : nodes_)
    EXPECT_TRUE(Eventually([&] {
      return Page(node, "/cluster").find("\"refusals\": []") != std::string::npos;
    })) << Page(node, "/cluster");
}

TEST_F(ClusterTlsTest, ANodeWithoutTlsGetsNothingAndSaysWhy) {
  third_ = {};
  expected_count_ = 2;
  StartNodes(2);
  const auto manifest = Client().Upload(SomeExtents(8, 20'000));
  ASSERT_TRUE(manifest) << manifest.error().message;
  ASSERT_TRUE(Client().Publish(AddressOf(nodes_[0]), "train/a", manifest.value()));

  StartNode("n3");

  // To the others it is a daemon that hangs up. It says itself whom it cannot talk to, and why.
  EXPECT_TRUE(Eventually([&] {
    return Refuses(nodes_[2], "n1", "TLS") || Refuses(nodes_[2], "n2", "TLS");
  })) << Page(nodes_[2], "/cluster");
}

TEST_F(ClusterTlsTest, WithoutAnAuthorityADaemonDoesNotStart) {
  Server::Options options;
  options.data = {folder_ / "n1"};
  options.tls = ours_.files();
  options.tls.authorities.clear();
  options.cluster.emplace();
  options.cluster->connect = [this]() -> Result<std::shared_ptr<MetaStore>> { return store_; };
  options.cluster->service.node = "n1";

  const auto started = Server::Start(options);

  ASSERT_FALSE(started);
  EXPECT_EQ(started.error().code, ErrorCode::kInvalidArgument);
}

// Takes connections in the place of a node, with a certificate that is good but foreign.
class Impostor {
 public:
  Impostor(const net::Address& address, const net::TlsFiles& files)
      : context_(net::test::LoadTls(net::TlsContext::Side::kServer, WithoutAuthority(files))),
        listener_(net::TcpListener::Listen(address).value()),
        thread_([this] { Run(); }) {}
  ~Impostor() {
    is_over_ = true;
    thread_.join();
  }
  int connection_count() const { return connection_count_; }
  int frame_count() const { return frame_count_; }

 private:
  static net::TlsFiles WithoutAuthority(net::TlsFiles files) {
    files.authorities.clear();
    return files;
  }
  // All that is readable after a handshake would be a frame, and the first one shows the token.
  void Run() {
    std::vector<std::unique_ptr<net::Endpoint>> taken;
    while (!is_over_) {
      if (auto accepted = listener_.Accept(context_.get()); accepted && accepted.value()) {
        taken.push_back(std::move(accepted).value());
        ++connection_count_;
      }
      std::erase_if(taken, [&](const auto& endpoint) {
        const auto event = endpoint->Poll();
        if (event && event.value() == net::Endpoint::Event::kFrame) ++frame_count_;
        return !event || event.value() != net::Endpoint::Event::kNone;
      });
      std::this_thread::sleep_for(1ms);
    }
  }

  const std::unique_ptr<net::TlsContext> context_;
  net::TcpListener listener_;
  std::atomic<bool> is_over_{false};
  std::atomic<int> connection_count_{0}, frame_count_{0};
  std::thread thread_;
};

TEST_F(ClusterTlsTest, AnImpostorInANodesPlaceSeesNoCredential) {
  Server::Options options;
  options.token_keys = test::WriteTokenKeys(folder_);
  token_ = test::MakeToken(test::kRead | test::kWrite, "");
  StartNodes(2, options);
  const auto manifest = Client().Upload(SomeExtents(2, 20'000));
  ASSERT_TRUE(manifest) << manifest.error().message;
  ASSERT_TRUE(Client().Publish(AddressOf(nodes_[0]), "train/a", manifest.value()));
  nodes_[1].daemon->Kill();
  const Impostor impostor(nodes_[1].daemon->address(), foreign_.files());

  const auto client = Client().Connect(AddressOf(nodes_[1]));
  ASSERT_FALSE(client);
  EXPECT_EQ(client.error().code, ErrorCode::kDenied) << client.error().message;
  EXPECT_GE(impostor.connection_count(), 1);
  EXPECT_EQ(impostor.frame_count(), 0);
  // What is left serves.
  EXPECT_TRUE(Client().ReadFrom(AddressOf(nodes_[0]), test::ExtentsOf(manifest.value()).front()));
}

}  // namespace
}  // namespace ffrecord::server
