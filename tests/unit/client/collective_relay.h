#pragma once

#include <linux/filter.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "libffrecord/base/unique_fd.h"
#include "libffrecord/net/transport/endpoint.h"

namespace ffrecord::client::ranks {

// Stands before a rank's listener and passes on what others send to it, and its answers; may be
// slow on some connections, break them, or be silent as if a cable were pulled. They are counted in
// the order in which they come.
class Relay {
 public:
  struct Fault {
    std::uint64_t bytes_per_s = 0;        // 0: as fast as can be.
    std::uint64_t reset_after_bytes = 0;  // 0: never.
    std::uint64_t silent_after_bytes = 0;
  };
  using FaultOf = std::function<Fault(std::size_t)>;

  Relay(const std::string& target, FaultOf fault_of)
      : target_(net::Address::Parse(target, 0).value()), fault_of_(std::move(fault_of)) {
    listener_ = UniqueFd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_in own = Loopback(0);
    ::bind(listener_.get(), reinterpret_cast<const sockaddr*>(&own), sizeof(own));
    ::listen(listener_.get(), 64);
    socklen_t size = sizeof(own);
    ::getsockname(listener_.get(), reinterpret_cast<sockaddr*>(&own), &size);
    address_ = "127.0.0.1:" + std::to_string(ntohs(own.sin_port));
    thread_ = std::thread([this] { Run(); });
  }
  Relay(const Relay&) = delete;
  Relay& operator=(const Relay&) = delete;
  ~Relay() {
    ends_ = true;
    thread_.join();
  }

  const std::string& address() const { return address_; }
  // From when this returns it is.
  void Silence(std::size_t connection) {
    to_silence_ = connection;
    while (to_silence_ != kNone) std::this_thread::yield();
  }
  // Bytes that went to the rank on that connection.
  std::uint64_t bytes(std::size_t connection) const { return bytes_.at(connection); }

 private:
  static constexpr std::size_t kNone = ~std::size_t{0};
  struct Pair {
    UniqueFd near;
    UniqueFd far;
    Fault fault;
    std::size_t index = 0;
    bool is_silent = false;
    std::chrono::steady_clock::time_point next_at{};
  };

  static sockaddr_in Loopback(std::uint16_t port) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    address.sin_port = htons(port);
    return address;
  }

  void Run() {
    while (!ends_) {
      if (const std::size_t connection = to_silence_; connection != kNone) {
        for (Pair& pair : pairs_)
          if (pair.index == connection) BeSilent(pair);
        to_silence_ = kNone;
      }
      std::vector<pollfd> waited{{listener_.get(), POLLIN, 0}};
      for (const Pair& pair : pairs_) {
        const bool may_pass = std::chrono::steady_clock::now() >= pair.next_at;
        waited.push_back({may_pass && !pair.is_silent ? pair.near.get() : -1, POLLIN, 0});
        waited.push_back({pair.is_silent ? -1 : pair.far.get(), POLLIN, 0});
      }
      ::poll(waited.data(), waited.size(), 2);
      for (std::size_t i = 0; 2 * i + 2 < waited.size(); ++i) {
        if (waited[2 * i + 1].revents != 0) PassOn(pairs_[i]);
        if (waited[2 * i + 2].revents != 0) Answer(pairs_[i]);
      }
      std::erase_if(pairs_, [](const Pair& pair) { return !pair.near || !pair.far; });
      if (waited[0].revents != 0) Accept();
    }
  }

  void Accept() {
    Pair pair;
    pair.near = UniqueFd(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC));
    pair.far = UniqueFd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    const sockaddr_in target = Loopback(target_.port);
    if (::connect(pair.far.get(), reinterpret_cast<const sockaddr*>(&target), sizeof(target)) != 0)
      return;
    const int one = 1;
    for (const auto* end : {&pair.near, &pair.far})
      ::setsockopt(end->get(), IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
    pair.index = accepted_++;
    pair.fault = fault_of_(pair.index);
    // A slow one is slow at once, not when its buffers are full.
    const int small = 32 << 10;
    if (pair.fault.bytes_per_s != 0)
      ::setsockopt(pair.near.get(), SOL_SOCKET, SO_RCVBUF, &small, sizeof(small));
    pairs_.push_back(std::move(pair));
  }

  void PassOn(Pair& pair) {
    const std::size_t passed = Pass(pair.near, pair.far, pair.fault.bytes_per_s ? 4096 : kBlock);
    bytes_.at(pair.index) += passed;
    if (pair.fault.bytes_per_s != 0)
      pair.next_at = std::chrono::steady_clock::now() +
                     std::chrono::nanoseconds(passed * 1'000'000'000 / pair.fault.bytes_per_s);
    const std::uint64_t bytes = bytes_.at(pair.index);
    if (pair.fault.silent_after_bytes != 0 && bytes >= pair.fault.silent_after_bytes)
      BeSilent(pair);
    if (pair.fault.reset_after_bytes == 0 || bytes < pair.fault.reset_after_bytes) return;
    for (auto* end : {&pair.near, &pair.far}) {
      const linger now{1, 0};
      ::setsockopt(end->get(), SOL_SOCKET, SO_LINGER, &now, sizeof(now));
      end->Reset();
    }
  }

  // Who has closed hears none, but what it sent before is still passed on.
  void Answer(Pair& pair) {
    const auto size = ::recv(pair.far.get(), block_.data(), kBlock, 0);
    if (size <= 0)
      pair.far.Reset();
    else
      Send(pair.near, static_cast<std::size_t>(size));
  }

  // The kernel drops all that comes, and so acknowledges nothing.
  static void BeSilent(Pair& pair) {
    pair.is_silent = true;
    sock_filter nothing{BPF_RET | BPF_K, 0, 0, 0};
    const sock_fprog filter{1, &nothing};
    ::setsockopt(pair.near.get(), SOL_SOCKET, SO_ATTACH_FILTER, &filter, sizeof(filter));
  }

  std::size_t Pass(UniqueFd& from, UniqueFd& to, std::size_t size_max) {
    const auto size = ::recv(from.get(), block_.data(), size_max, 0);
    if (size <= 0) from.Reset();
    const std::size_t sent = size > 0 ? Send(to, static_cast<std::size_t>(size)) : 0;
    if (size > 0 && sent < static_cast<std::size_t>(size)) to.Reset();
    return sent;
  }

  // So much of the block, until that end breaks; how much it was.
  std::size_t Send(const UniqueFd& to, std::size_t size) {
    std::size_t sent = 0;
    while (sent < size) {
      const auto now = ::send(to.get(), block_.data() + sent, size - sent, MSG_NOSIGNAL);
      if (now <= 0) break;
      sent += static_cast<std::size_t>(now);
    }
    return sent;
  }

  static constexpr std::size_t kBlock = 64 << 10;
  const net::Address target_;
  const FaultOf fault_of_;
  UniqueFd listener_;
  std::string address_;
  std::atomic<bool> ends_ = false;
  std::atomic<std::size_t> to_silence_ = kNone;  // A connection that is to fall silent.
  std::size_t accepted_ = 0;
  std::deque<Pair> pairs_;
  std::array<std::atomic<std::uint64_t>, 64> bytes_{};
  std::array<std::byte, kBlock> block_;
  std::thread thread_;
};

}  // namespace ffrecord::client::ranks
