#pragma once

#include <gtest/gtest.h>

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "eventually.h"
#include "server/service/core/server.h"
#include "temp_folder.h"

namespace ffrecord::test {

// A daemon in this process, over TCP on a port of its own that stays the same when it starts again.
class Daemon {
 public:
  explicit Daemon(server::Server::Options options = {}) : options_(std::move(options)) {
    if (options_.data.empty()) options_.data = {folder_ / "data"};
    if (options_.core_count == 0) options_.core_count = 2;
    Start();
  }

  void Start() {
    auto server = server::Server::Start(options_);
    ASSERT_TRUE(server) << server.error().message;
    server_ = std::move(server).value();
    options_.listen = server_->address();
  }
  // Like a kill: nothing is finished.
  void Kill() { server_.reset(); }
  bool Stop(std::chrono::milliseconds time = std::chrono::seconds(2)) {
    return server_->Stop(Clock::now() + time);
  }

  server::Server& server() const { return *server_; }
  const net::Address& address() const { return options_.listen; }
  std::string Uri(const std::string& name) const {
    return "ffrecord://" + options_.listen.ToString() + "/" + name;
  }
  std::filesystem::path data() const { return options_.data.front(); }

  // The files of all extents.
  std::vector<std::filesystem::path> Extents() const {
    std::vector<std::filesystem::path> paths;
    for (const auto& entry : std::filesystem::recursive_directory_iterator(data() / "extents"))
      if (entry.is_regular_file()) paths.push_back(entry.path());
    return paths;
  }

 private:
  TempFolder folder_;
  server::Server::Options options_;
  std::unique_ptr<server::Server> server_;
};

}  // namespace ffrecord::test
