#pragma once

// Of 64 connections at once none waits for its SYN to be sent again.
#define CPPHTTPLIB_LISTEN_BACKLOG 512
#include <httplib.h>

#include <chrono>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <utility>

#include "bytes.h"
#include "libffrecord/base/checksum.h"
#include "libffrecord/object_store/aws_settings.h"

namespace ffrecord::test {

// An S3 server in this process with one bucket, "bucket", whose objects can be read: whole or in
// ranges. It checks no signatures. Each object has an ETag, and If-Match is heeded.
class FakeBucket {
 public:
  explicit FakeBucket(std::map<std::string, std::string> objects) : objects_(std::move(objects)) {
    server_.Get("/bucket/(.*)", [this](const httplib::Request& request, httplib::Response& reply) {
      const std::lock_guard lock(mutex_);
      const auto found = objects_.find(request.matches[1]);
      if (refusal_ != 0) {
        reply.status = refusal_;
      } else if (found == objects_.end()) {
        reply.status = 404;
      } else {
        const std::string etag = '"' + std::to_string(Xxh3(AsBytes(found->second))) + '"';
        const std::string wanted = request.get_header_value("If-Match");
        reply.set_header("ETag", etag);
        if (wanted.empty() || wanted == etag)
          reply.set_content(found->second, "application/octet-stream");
        else
          reply.status = 412;
      }
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

  int port() const { return port_; }
  void Put(const std::string& key, std::string bytes) {
    const std::lock_guard lock(mutex_);
    objects_[key] = std::move(bytes);
  }
  // From now on every request is answered so; 0: as it should be.
  void Refuse(int status) {
    const std::lock_guard lock(mutex_);
    refusal_ = status;
  }

  object_store::AwsSettings settings() const {
    return {
        {"key", "secret", ""}, "us-east-1", "http://127.0.0.1:" + std::to_string(port_), nullptr};
  }

 private:
  std::mutex mutex_;
  std::map<std::string, std::string> objects_;
  int refusal_ = 0;
  httplib::Server server_;
  int port_ = 0;
  std::thread thread_;
};

}  // namespace ffrecord::test
