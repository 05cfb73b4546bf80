#pragma once

// An etcd cluster on loopback, whose members can be killed, stopped and started again.

#include <arpa/inet.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "libffrecord/net/http/http.h"
#include "server/metadata/etcd_store.h"
#include "temp_folder.h"
#include "tested_store.h"

namespace ffrecord::test {

inline constexpr const char* kEtcdProgram = "/usr/bin/etcd";
inline bool HasEtcd() { return std::filesystem::exists(kEtcdProgram); }

class EtcdCluster {
 public:
  // `more`: further arguments of each member. `scheme`: of the clients' addresses.
  explicit EtcdCluster(std::size_t count, std::vector<std::string> more = {},
                       const std::string& scheme = "http")
      : more_(std::move(more)), scheme_(scheme) {
    for (std::size_t i = 0; i < count; ++i) members_.push_back({FreePort(), FreePort(), -1});
    for (std::size_t i = 0; i < count; ++i) Start(i);
  }
  ~EtcdCluster() {
    for (std::size_t i = 0; i < members_.size(); ++i) Kill(i);
  }
  EtcdCluster(const EtcdCluster&) = delete;
  EtcdCluster& operator=(const EtcdCluster&) = delete;

  std::string AddressOf(std::size_t i) const {
    return scheme_ + "://127.0.0.1:" + std::to_string(members_[i].client_port);
  }
  std::vector<std::string> addresses() const {
    std::vector<std::string> all;
    for (std::size_t i = 0; i < members_.size(); ++i) all.push_back(AddressOf(i));
    return all;
  }
  std::size_t size() const { return members_.size(); }

  void Start(std::size_t i) {
    const std::string name = "e" + std::to_string(i);
    const std::string peer = PeerOf(i);
    std::string all;
    for (std::size_t other = 0; other < members_.size(); ++other)
      all += (other == 0 ? "e" : ",e") + std::to_string(other) + "=" + PeerOf(other);
    std::vector<std::string> words = {kEtcdProgram,
                                      "--name",
                                      name,
                                      "--data-dir",
                                      folder_ / name,
                                      "--listen-client-urls",
                                      AddressOf(i),
                                      "--advertise-client-urls",
                                      AddressOf(i),
                                      "--listen-peer-urls",
                                      peer,
                                      "--initial-advertise-peer-urls",
                                      peer,
                                      "--initial-cluster",
                                      all,
                                      "--logger",
                                      "zap"};
    words.insert(words.end(), more_.begin(), more_.end());
    std::vector<char*> arguments;
    for (std::string& word : words) arguments.push_back(word.data());
    arguments.push_back(nullptr);
    const std::string log = folder_ / (name + ".log");
    members_[i].process = ::fork();
    if (members_[i].process != 0) return;
    const int fd = ::open(log.c_str(), O_CREAT | O_APPEND | O_WRONLY | O_CLOEXEC, 0600);
    ::dup2(fd, 1);
    ::dup2(fd, 2);
    ::execv(kEtcdProgram, arguments.data());
    ::_exit(127);
  }
  void Kill(std::size_t i) {
    if (members_[i].process <= 0) return;
    ::kill(members_[i].process, SIGKILL);
    ::waitpid(members_[i].process, nullptr, 0);
    members_[i].process = -1;
  }
  void Stop(std::size_t i) { ::kill(members_[i].process, SIGSTOP); }
  void Continue(std::size_t i) { ::kill(members_[i].process, SIGCONT); }

  // The body of a reply of the gateway; empty: none came.
  std::string Ask(std::size_t i, const std::string& path, const std::string& body) const {
    auto client = net::HttpClient::Create().value();
    net::HttpRequest request;
    request.method = "POST";
    request.scheme = scheme_;
    request.host = AddressOf(i).substr(scheme_.size() + 3);
    request.target = path;
    request.body = AsBytes(body);
    request.without_proxy = true;
    request.headers = {{"content-type", "application/json"}, {"grpc-metadata-hasleader", "true"}};
    request.ca_file = ca_file;
    const auto response = client->Run(request, {std::chrono::seconds(5), 1 << 20});
    return response ? AsString(response.value().body) : std::string();
  }
  // Waits until a member knows a leader; which one it is.
  std::size_t WaitForLeader() const {
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(40);
    while (std::chrono::steady_clock::now() < end) {
      for (std::size_t i = 0; i < members_.size(); ++i) {
        const std::string status = Ask(i, "/v3/maintenance/status", "{}");
        const std::string id = FieldOf(status, "member_id");
        if (!id.empty() && FieldOf(status, "leader") == id) return i;
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(50));  // Between two questions.
    }
    ADD_FAILURE() << "etcd has no leader";
    return 0;
  }

  std::string ca_file;  // That Ask() trusts.

 private:
  struct Member {
    std::uint16_t client_port = 0;
    std::uint16_t peer_port = 0;
    pid_t process = -1;
  };

  static std::string FieldOf(const std::string& json, const std::string& name) {
    const std::size_t at = json.find("\"" + name + "\":\"");
    if (at == std::string::npos) return {};
    const std::size_t begin = at + name.size() + 4;
    return json.substr(begin, json.find('"', begin) - begin);
  }
  std::string PeerOf(std::size_t i) const {
    return "http://127.0.0.1:" + std::to_string(members_[i].peer_port);
  }
  static std::uint16_t FreePort() {
    const int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof(address);
    EXPECT_EQ(::bind(fd, reinterpret_cast<sockaddr*>(&address), size), 0);
    EXPECT_EQ(::getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size), 0);
    ::close(fd);
    return ntohs(address.sin_port);
  }

  TempFolder folder_;
  const std::vector<std::string> more_;
  const std::string scheme_;
  std::vector<Member> members_;
};

// The form over etcd, under a name of its own.
class TestedEtcdStore final : public TestedStore {
 public:
  TestedEtcdStore(const EtcdCluster& cluster, server::EtcdOptions options) : cluster_(cluster) {
    static int number = 0;
    options.endpoints = cluster.addresses();
    options.cluster = "test-" + std::to_string(number++);
    auto opened = server::OpenEtcdStore(std::move(options));
    EXPECT_TRUE(opened) << opened.error().message;
    store_ = std::move(opened).value();
  }
  MetaStore& store() override { return *store_; }
  std::uint64_t Compact(std::uint64_t newest) override {
    const std::string body = "{\"revision\":\"" + std::to_string(newest) + "\"}";
    EXPECT_NE(cluster_.Ask(0, "/v3/kv/compaction", body), "");
    return newest;
  }
  void Close() { store_.reset(); }

 private:
  const EtcdCluster& cluster_;
  std::unique_ptr<MetaStore> store_;
};

}  // namespace ffrecord::test
