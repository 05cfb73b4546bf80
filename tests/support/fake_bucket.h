#pragma once

// Of 64 connections at once none waits for its SYN to be sent again.
#define CPPHTTPLIB_LISTEN_BACKLOG 512
#include <httplib.h>

#include <chrono>
#include <map>
#include <string>
#include <thread>
#include <utility>

#include "libffrecord/object_store/aws_settings.h"

namespace ffrecord::test {

// An S3 server in this process with one bucket, "bucket", whose objects can be read: whole or in
// ranges. It checks no signatures.
class FakeBucket {
 public:
  explicit FakeBucket(std::map<std::string, std::string> objects) : objects_(std::move(objects)) {
    server_.Get("/bucket/(.*)", [this](const httplib::Request& request, httplib::Response& reply) {
      const auto found = objects_.find(request.matches[1]);
      if (found == objects_.end())
        reply.status = 404;
      else
        reply.set_content(found->second, "application/octet-stream");
    });
    // A connection that stays open holds a thread.
    server_.new_task_queue = [] { return new httplib::ThreadPool(600); };
    server_.set_keep_alive_timeout(1);
    port_ = server_.bind_to_any_port("127.0.0.1");
    thread_ = std::thread([this] { server_.listen_after_bind(); });
    while (!server_.is_running()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  FakeBucket(const FakeBucket&) = delete;
  FakeBucket& operator=(const FakeBucket&) = delete;
  ~FakeBucket() {
    server_.stop();
    thread_.join();
  }

  object_store::AwsSettings settings() const {
    return {
        {"key", "secret", ""}, "us-east-1", "http://127.0.0.1:" + std::to_string(port_), nullptr};
  }

 private:
  const std::map<std::string, std::string> objects_;
  httplib::Server server_;
  int port_ = 0;
  std::thread thread_;
};

}  // namespace ffrecord::test
