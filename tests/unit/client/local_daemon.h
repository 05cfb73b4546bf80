// A daemon by hand, which a script plays on its local socket.

#pragma once

#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "libffrecord/base/machine_identity.h"
#include "libffrecord/net/protocol/frame.h"
#include "libffrecord/net/protocol/messages.h"
#include "libffrecord/net/transport/endpoint.h"

namespace ffrecord::client {

using net::FrameType;

inline net::FrameHeader ReplyHeader(FrameType type, const net::FrameHeader& request) {
  net::FrameHeader header;
  header.type = type;
  header.request_id = request.request_id;
  return header;
}

inline std::uint64_t FreshEpoch() {
  static std::atomic<std::uint64_t> next{0};
  return (static_cast<std::uint64_t>(::getpid()) << 32) + 0xABC00000 + next++;
}

// Greets on TCP and on a local socket, and leaves the requests on the latter to a script: false
// closes that connection.
class LocalDaemon {
 public:
  // From when on it hears nothing more, as if it were stopped: connections to it stay whole.
  enum class Stops { kNever, kOnceGreetedByTcp, kOnceGreetedByBoth };
  struct Request {
    net::Endpoint& endpoint;
    const net::FrameHeader& header;
    int connection;  // On the local socket, from 0.
  };
  using Script = std::function<bool(Request&)>;

  explicit LocalDaemon(Script script, Stops stops = Stops::kNever, net::LocalOffer offer = {},
                       bool is_impostor = false)
      : script_(std::move(script)),
        stops_(stops),
        offer_(WithMachine(offer)),
        is_impostor_(is_impostor),
        tcp_(net::TcpListener::Listen({"127.0.0.1", 0}).value()),
        local_(net::LocalListener::Listen(net::LocalSocketName(epoch_)).value()),
        thread_([this] { Run(); }) {}
  ~LocalDaemon() {
    is_over_ = true;
    thread_.join();
  }
  const net::Address& address() const { return tcp_.address(); }
  int local_count() const { return local_count_; }
  // The bodies of all that came on the local socket before it was left to the script.
  std::vector<std::vector<std::byte>> heard() {
    const std::lock_guard lock(mutex_);
    return heard_;
  }

 private:
  struct Member {
    std::unique_ptr<net::Endpoint> endpoint;
    int connection;  // -1: TCP.
  };

  void Run() {
    while (!is_over_) {
      if (auto one = tcp_.Accept(); one && one.value())
        members_.push_back({std::move(one).value(), -1});
      if (auto one = local_.Accept(); one && one.value())
        members_.push_back({std::move(one).value(), local_count_++});
      for (Member& member : members_) Poll(member);
      std::erase_if(members_, [](const Member& member) { return member.endpoint->fd() < 0; });
      std::this_thread::sleep_for(std::chrono::microseconds(200));
    }
  }

  void Poll(Member& member) {
    if (is_stopped_) return;
    net::Endpoint& endpoint = *member.endpoint;
    endpoint.SetLimits({.descriptor_count_max = 1});
    const auto event = endpoint.Poll();
    if (!event || event.value() != net::Endpoint::Event::kFrame) return;
    const net::FrameHeader header = endpoint.header();
    const bool is_local = member.connection >= 0;
    if (is_local && (header.type == FrameType::kLocalOpen || header.type == FrameType::kHello)) {
      const std::lock_guard lock(mutex_);
      heard_.emplace_back(endpoint.body().begin(), endpoint.body().end());
    }
    if (header.type == FrameType::kLocalOpen) {
      auto secret = offer_.daemon_secret;
      if (is_impostor_) secret[0] ^= std::byte{1};
      (void)endpoint.Send(ReplyHeader(net::ReplyTo(FrameType::kLocalOpen), header),
                          net::LocalOpenReply{secret}.Encode(), {});
      return;
    }
    if (header.type == FrameType::kHello) {
      net::HelloReply reply;
      reply.body_size_bytes_max = 2U << 20;
      reply.payload_size_bytes_max = 8U << 20;
      reply.capabilities = net::kCapabilityPulls;
      reply.epoch = epoch_;
      if (!is_local) {
        reply.capabilities |= net::kCapabilityLocal;
        reply.local = offer_;
      }
      (void)endpoint.Send(ReplyHeader(net::ReplyTo(FrameType::kHello), header), reply.Encode(), {});
      (void)endpoint.Poll();  // It is on its way.
      is_stopped_ = stops_ == (is_local ? Stops::kOnceGreetedByBoth : Stops::kOnceGreetedByTcp);
      return;
    }
    if (header.type == FrameType::kPing) {
      (void)endpoint.Send(ReplyHeader(net::ReplyTo(FrameType::kPing), header), {}, {});
      return;
    }
    Request request{endpoint, header, member.connection};
    if (!script_(request)) endpoint.Close();
  }

  static net::LocalOffer WithMachine(net::LocalOffer offer) {
    if (offer.machine == 0) offer.machine = MachineIdentity().value();
    return offer;
  }

  const std::uint64_t epoch_ = FreshEpoch();
  const Script script_;
  const Stops stops_;
  const net::LocalOffer offer_;
  const bool is_impostor_;  // Who listens on the local socket knows no secret.
  std::atomic<int> local_count_{0};
  std::mutex mutex_;
  std::vector<std::vector<std::byte>> heard_;
  bool is_stopped_ = false;
  net::TcpListener tcp_;
  net::LocalListener local_;
  std::vector<Member> members_;
  std::atomic<bool> is_over_{false};
  std::thread thread_;
};

}  // namespace ffrecord::client
