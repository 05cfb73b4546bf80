#pragma once

#include <gtest/gtest.h>
#include <poll.h>

#include <atomic>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <thread>
#include <utility>
#include <vector>

#include "libffrecord/base/timed_waits.h"
#include "libffrecord/format/dataset_manifest.h"
#include "libffrecord/net/protocol/messages.h"
#include "libffrecord/net/transport/endpoint.h"

namespace ffrecord::test {

// One file of one extent.
inline DatasetManifest OneFile(std::uint64_t size_bytes) {
  return {{{"file", size_bytes, {{MakeExtentId(1, 0, 0), size_bytes, 0}}}}};
}

// Takes connections on a port of its own, greets, and leaves the rest to a script: a daemon that
// answers as a test wants it.
class FakeDaemon {
 public:
  // One request of one connection, its body and payload; what to answer is the script's affair.
  // False: the connection is closed without another word.
  struct Request {
    net::Endpoint& endpoint;
    net::FrameHeader header;
    std::vector<std::byte> body;
    int connection;  // Counted from 0.
    std::deque<std::vector<std::byte>>& payloads;
    std::span<const std::byte> received;  // The payload.

    std::vector<std::byte> payload() const { return {received.begin(), received.end()}; }
  };
  using Script = std::function<bool(Request&)>;

  explicit FakeDaemon(Script script, bool greets = true, std::uint64_t capabilities = 0,
                      std::optional<net::NodeIdentity> identity = std::nullopt)
      : script_(std::move(script)),
        greets_(greets),
        capabilities_(capabilities),
        identity_(std::move(identity)),
        listener_(net::TcpListener::Listen({"127.0.0.1", 0}).value()),
        thread_([this] { Run(); }) {}
  ~FakeDaemon() {
    is_over_ = true;
    thread_.join();
  }
  FakeDaemon(const FakeDaemon&) = delete;
  FakeDaemon& operator=(const FakeDaemon&) = delete;

  const net::Address& address() const { return listener_.address(); }
  std::string Uri(const std::string& name) const {
    return "ffrecord://" + address().ToString() + "/" + name;
  }
  int connection_count() const { return connection_count_; }

  static void Send(Request& request, net::FrameType type, std::span<const std::byte> body,
                   std::span<const std::byte> payload = {}) {
    net::FrameHeader header;
    header.type = type;
    header.request_id = request.header.request_id;
    // It goes out with the next round, and stays in place until the end. The client may have gone
    // by now: that is for the test to notice.
    request.payloads.emplace_back(payload.begin(), payload.end());
    const std::span<const std::byte> kept = request.payloads.back();
    (void)request.endpoint.Send(header, body, {&kept, 1});
  }
  static void SendError(Request& request, ErrorCode code, std::uint32_t system_errno = 0) {
    Send(request, net::FrameType::kError,
         net::ErrorReply{code, system_errno, "as the test wants it"}.Encode());
  }

 private:
  void Run() {
    std::vector<std::pair<std::unique_ptr<net::Endpoint>, int>> connections;
    std::vector<std::byte> payload(8 << 20);
    while (!is_over_) {
      if (auto accepted = listener_.Accept(); accepted && accepted.value())
        connections.emplace_back(std::move(accepted).value(), connection_count_++);
      bool has_more = false;
      std::vector<pollfd> waited{{listener_.fd(), POLLIN, 0}};
      for (auto& [endpoint, number] : connections) {
        endpoint->SetLimits({});
        const auto event = endpoint->Poll();
        if (event && event.value() == net::Endpoint::Event::kNone)
          waited.push_back({endpoint->fd(), POLLIN, 0});
        if (!event || event.value() != net::Endpoint::Event::kFrame) continue;
        has_more = true;
        const net::FrameHeader header = endpoint->header();
        Request request{*endpoint, header,    {endpoint->body().begin(), endpoint->body().end()},
                        number,    payloads_, std::span(payload).first(header.payload_size_bytes)};
        if (header.payload_size_bytes > 0) {
          const auto place = std::span(payload).first(header.payload_size_bytes);
          (void)endpoint->ReceivePayload({&place, 1});
          while (!is_over_) {
            const auto received = endpoint->Poll();
            if (!received || received.value() != net::Endpoint::Event::kNone) break;
          }
        }
        if (!Answer(request)) endpoint->Close();
      }
      std::erase_if(connections, [](const auto& one) { return one.first->fd() < 0; });
      // Not for long: a script may answer any of them at any time. A test's own time costs nothing.
      const std::chrono::milliseconds wait{ClockSource::installed() == nullptr ? 2 : 50};
      if (!has_more) (void)PollFor(waited, wait);
    }
  }

  bool Answer(Request& request) {
    if (request.header.type != net::FrameType::kHello) return script_(request);
    if (!greets_) return true;
    net::HelloReply reply;
    reply.body_size_bytes_max = 2U << 20;
    reply.payload_size_bytes_max = 8U << 20;
    reply.capabilities = capabilities_;
    if (identity_) reply.capabilities |= net::kCapabilityIdentity;
    reply.identity = identity_;
    Send(request, net::ReplyTo(net::FrameType::kHello), reply.Encode());
    return true;
  }

  const Script script_;
  const bool greets_;
  const std::uint64_t capabilities_;
  const std::optional<net::NodeIdentity> identity_;
  net::TcpListener listener_;
  std::deque<std::vector<std::byte>> payloads_;
  std::atomic<int> connection_count_{0};
  std::atomic<bool> is_over_{false};
  std::thread thread_;
};

}  // namespace ffrecord::test
