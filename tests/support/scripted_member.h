#pragma once

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace ffrecord::test {

// An HTTP server on loopback that answers as a test says, with one request to a connection.
class ScriptedMember {
 public:
  struct Request {
    std::string head;  // Its lines, in lower case.
    std::string path;
    std::string body;
  };
  struct Answer {
    int status = 200;
    std::string body = {};
    bool is_lost = false;    // The connection ends without an answer,
    bool is_silent = false;  // or stays open.
  };
  using Script = std::function<Answer(const Request&)>;

  explicit ScriptedMember(Script script) : script_(std::move(script)) {
    listener_ = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof(address);
    auto* const any = reinterpret_cast<sockaddr*>(&address);
    EXPECT_EQ(bind(listener_, any, size), 0);
    EXPECT_EQ(listen(listener_, 64), 0);
    EXPECT_EQ(getsockname(listener_, any, &size), 0);
    address_ = "http://127.0.0.1:" + std::to_string(ntohs(address.sin_port));
    thread_ = std::thread([this] { Accept(); });
  }
  ~ScriptedMember() {
    shutdown(listener_, SHUT_RDWR);
    thread_.join();
    close(listener_);
    for (const int open : silent_) close(open);
  }
  ScriptedMember(const ScriptedMember&) = delete;
  ScriptedMember& operator=(const ScriptedMember&) = delete;

  const std::string& address() const { return address_; }
  // In the order in which they came.
  std::vector<Request> requests() const {
    const std::lock_guard lock(mutex_);
    return requests_;
  }
  std::size_t CountOf(const std::string& path) const {
    std::size_t count = 0;
    for (const Request& request : requests()) count += request.path == path ? 1 : 0;
    return count;
  }

 private:
  void Accept() {
    for (int fd; (fd = accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC)) >= 0;) Serve(fd);
  }
  void Serve(int fd) {
    const auto request = Receive(fd);
    if (!request) {
      close(fd);
      return;
    }
    {
      const std::lock_guard lock(mutex_);
      requests_.push_back(*request);
    }
    const Answer answer = script_(*request);
    if (answer.is_silent) {
      silent_.push_back(fd);
      return;
    }
    if (!answer.is_lost) {
      const std::string text =
          "HTTP/1.1 " + std::to_string(answer.status) +
          " Said\r\nconnection: close\r\ncontent-length: " + std::to_string(answer.body.size()) +
          "\r\n\r\n" + answer.body;
      (void)send(fd, text.data(), text.size(), MSG_NOSIGNAL);
    }
    close(fd);
  }
  static std::optional<Request> Receive(int fd) {
    std::string text;
    std::size_t end = std::string::npos, size = 0;
    while (end == std::string::npos || text.size() < end + 4 + size) {
      char bytes[4096];
      const ssize_t count = recv(fd, bytes, sizeof(bytes), 0);
      if (count <= 0) return std::nullopt;
      text.append(bytes, static_cast<std::size_t>(count));
      if (end != std::string::npos || (end = text.find("\r\n\r\n")) == std::string::npos) continue;
      for (std::size_t i = 0; i < end; ++i)
        text[i] = static_cast<char>(std::tolower(static_cast<unsigned char>(text[i])));
      const std::size_t field = text.find("content-length: ");
      if (field < end) size = std::stoul(text.substr(field + 16));
    }
    Request request{text.substr(0, end), "", text.substr(end + 4)};
    const std::size_t path = request.head.find(' ') + 1;
    request.path = request.head.substr(path, request.head.find(' ', path) - path);
    return request;
  }

  const Script script_;
  std::string address_;
  int listener_ = -1;
  mutable std::mutex mutex_;
  std::vector<Request> requests_;
  std::vector<int> silent_;  // The thread's.
  std::thread thread_;
};

}  // namespace ffrecord::test
