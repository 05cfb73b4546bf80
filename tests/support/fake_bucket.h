#pragma once

// With 64 connections at once none waits for its SYN to be sent again.
#define CPPHTTPLIB_LISTEN_BACKLOG 512
#include <gtest/gtest.h>
#include <httplib.h>

#include <chrono>
#include <cstddef>
#include <functional>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <utility>

#include "bytes.h"
#include "eventually.h"
#include "libffrecord/base/checksum.h"
#include "libffrecord/object_store/aws_settings.h"

namespace ffrecord::test {

// An S3 server in this process with one bucket, "bucket", whose objects can be read, whole or in
// ranges, listed, made, at once or in parts, and deleted. It checks no signatures. Each object has
// an ETag; If-Match and If-None-Match are heeded.
class FakeBucket {
 public:
  explicit FakeBucket(std::map<std::string, std::string> objects) : objects_(std::move(objects)) {
    server_.Get("/bucket/(.*)", [this](const httplib::Request& request, httplib::Response& reply) {
      const std::lock_guard lock(mutex_);
      const auto found = objects_.find(request.matches[1]);
      if (refusal_ != 0) {
        reply.status = refusal_;
      } else if (request.has_param("list-type")) {
        reply.set_content(
            List(request.get_param_value("prefix"), request.get_param_value("delimiter")),
            "application/xml");
      } else if (request.has_param("uploads")) {  // Nobody takes up what another has begun.
        reply.set_content("<ListMultipartUploadsResult></ListMultipartUploadsResult>",
                          "application/xml");
      } else if (found == objects_.end()) {
        reply.status = 404;
      } else {
        const std::string etag = EtagOf(found->second);
        const std::string wanted = request.get_header_value("If-Match");
        reply.set_header("ETag", etag);
        read_bytes_ += found->second.size();
        if (wanted.empty() || wanted == etag)
          reply.set_content(found->second, "application/octet-stream");
        else
          reply.status = 412;
      }
    });
    server_.Put("/bucket/(.*)", [this](const httplib::Request& request, httplib::Response& reply) {
      const std::lock_guard lock(mutex_);
      ++write_count_;
      if (request.has_header("x-amz-copy-source")) return Copy(request, reply);
      sent_bytes_ += request.body.size();
      reply.set_header("ETag", EtagOf(request.body));
      if (!request.has_param("uploadId")) return Take(request, request.body, reply);
      parts_[request.get_param_value("uploadId")]
            [std::stoi(request.get_param_value("partNumber"))] = request.body;
      if (on_part_) on_part_(objects_);
    });
    server_.Post("/bucket/(.*)", [this](const httplib::Request& request, httplib::Response& reply) {
      const std::lock_guard lock(mutex_);
      ++write_count_;
      if (request.has_param("uploads")) {
        const std::string id = "upload" + std::to_string(++last_upload_);
        parts_[id];
        reply.set_content("<R><UploadId>" + id + "</UploadId></R>", "application/xml");
        return;
      }
      std::string whole;
      for (const auto& [number, bytes] : parts_[request.get_param_value("uploadId")])
        whole += bytes;
      Take(request, std::move(whole), reply);
      if (reply.status != 412) parts_.erase(request.get_param_value("uploadId"));
    });
    server_.Delete("/bucket/(.*)",
                   [this](const httplib::Request& request, httplib::Response& reply) {
                     const std::lock_guard lock(mutex_);
                     if (request.has_param("uploadId"))
                       parts_.erase(request.get_param_value("uploadId"));
                     else
                       objects_.erase(request.matches[1]);
                     reply.status = 204;
                   });
    server_.set_payload_max_length(std::size_t{1} << 30);
    // A connection that stays open holds a thread.
    server_.new_task_queue = [] { return new httplib::ThreadPool(600); };
    server_.set_keep_alive_timeout(1);
    port_ = server_.bind_to_any_port("127.0.0.1");
    thread_ = std::thread([this] { server_.listen_after_bind(); });
    EXPECT_TRUE(Eventually([&] { return server_.is_running(); }));
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
  std::string Get(const std::string& key) {
    const std::lock_guard lock(mutex_);
    return objects_[key];
  }
  // Uploads in parts that have neither ended nor been given up.
  std::size_t pending_count() {
    const std::lock_guard lock(mutex_);
    return parts_.size();
  }
  std::size_t write_count() {
    const std::lock_guard lock(mutex_);
    return write_count_;
  }
  // Bytes that clients have sent to make objects; copies have none.
  std::uint64_t sent_bytes() {
    const std::lock_guard lock(mutex_);
    return sent_bytes_;
  }
  // From now on copies are answered as by a store that knows none.
  void RefuseCopies() {
    const std::lock_guard lock(mutex_);
    copies_ = false;
  }
  // From now on a copy is taken for an empty object, as by a store that knows none.
  void EmptyCopies() {
    const std::lock_guard lock(mutex_);
    makes_empty_ = true;
  }
  // The next copy has no answer, and those after it are refused.
  void LoseFirstCopyAnswer() {
    const std::lock_guard lock(mutex_);
    loses_first_ = true;
  }
  // The next copy is answered with the bucket's region, and those after it are refused.
  void RefuseFirstCopy() {
    const std::lock_guard lock(mutex_);
    refuses_first_ = true;
  }
  // Bytes that clients have got of objects, in whole ones that were asked for.
  std::uint64_t read_bytes() {
    const std::lock_guard lock(mutex_);
    return read_bytes_;
  }
  // From now on copies are made, and their answers say that the store is busy.
  void LoseCopyAnswers() {
    const std::lock_guard lock(mutex_);
    loses_copies_ = true;
  }
  // Is called with the objects when a part has come.
  void OnPart(std::function<void(std::map<std::string, std::string>&)> call) {
    const std::lock_guard lock(mutex_);
    on_part_ = std::move(call);
  }
  // From now on every request to read is answered so; 0: as it should be.
  void Refuse(int status) {
    const std::lock_guard lock(mutex_);
    refusal_ = status;
  }

  object_store::AwsSettings settings() const {
    return {
        {"key", "secret", ""}, "us-east-1", "http://127.0.0.1:" + std::to_string(port_), nullptr};
  }

 private:
  static std::string EtagOf(const std::string& bytes) {
    return '"' + std::to_string(Xxh3(AsBytes(bytes))) + '"';
  }
  // Makes the object, unless there is one and the request says that there shall be none, or not the
  // one that it says that there is.
  void Take(const httplib::Request& request, std::string bytes, httplib::Response& reply) {
    const std::string key = request.matches[1];
    const auto found = objects_.find(key);
    const std::string replaced = request.get_header_value("If-Match");
    if (found == objects_.end() ? !replaced.empty()
                                : request.get_header_value("If-None-Match") == "*" ||
                                      (!replaced.empty() && replaced != EtagOf(found->second)))
      reply.status = 412;
    else
      objects_[key] = std::move(bytes);
  }
  void Copy(const httplib::Request& request, httplib::Response& reply) {
    const std::string source = request.get_header_value("x-amz-copy-source");
    const auto found = objects_.find(source.substr(std::string("/bucket/").size()));
    if (makes_empty_) {
      reply.set_header("ETag", EtagOf(""));
      objects_[request.matches[1]] = "";
    } else if (loses_first_) {
      reply.status = 503;
      loses_first_ = copies_ = false;
    } else if (refuses_first_) {
      reply.status = 400;
      reply.set_header("x-amz-bucket-region", "eu-west-1");
      refuses_first_ = copies_ = false;
    } else if (!copies_) {
      reply.status = 501;
    } else if (found == objects_.end()) {
      reply.status = 404;
    } else if (EtagOf(found->second) != request.get_header_value("x-amz-copy-source-if-match")) {
      reply.status = 412;
    } else {
      reply.set_content(
          "<CopyObjectResult><ETag>" + EtagOf(found->second) + "</ETag></CopyObjectResult>",
          "application/xml");
      objects_[request.matches[1]] = found->second;
      if (loses_copies_) reply.status = 503;
    }
  }
  std::string List(const std::string& prefix, const std::string& delimiter) const {
    std::string list = "<ListBucketResult>";
    std::set<std::string> folders;
    for (const auto& [key, bytes] : objects_) {
      if (!key.starts_with(prefix)) continue;
      const auto end = delimiter.empty() ? key.npos : key.find(delimiter, prefix.size());
      if (end != key.npos)
        folders.insert(key.substr(0, end + 1));
      else
        list += "<Contents><Key>" + key + "</Key><Size>" + std::to_string(bytes.size()) +
                "</Size><ETag>" + EtagOf(bytes) + "</ETag></Contents>";
    }
    for (const std::string& folder : folders)
      list += "<CommonPrefixes><Prefix>" + folder + "</Prefix></CommonPrefixes>";
    return list + "</ListBucketResult>";
  }

  std::mutex mutex_;
  std::map<std::string, std::map<int, std::string>> parts_;  // By upload.
  int last_upload_ = 0;
  std::size_t write_count_ = 0;
  std::uint64_t sent_bytes_ = 0;
  bool copies_ = true;
  bool loses_copies_ = false;
  bool makes_empty_ = false;
  bool loses_first_ = false;
  bool refuses_first_ = false;
  std::uint64_t read_bytes_ = 0;
  std::function<void(std::map<std::string, std::string>&)> on_part_;
  std::map<std::string, std::string> objects_;
  int refusal_ = 0;
  httplib::Server server_;
  int port_ = 0;
  std::thread thread_;
};

}  // namespace ffrecord::test
