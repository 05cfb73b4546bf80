#pragma once

#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "bytes.h"
#include "daemon.h"
#include "libffrecord/base/checksum.h"
#include "libffrecord/base/timed_waits.h"
#include "libffrecord/format/dataset_manifest.h"
#include "libffrecord/net/protocol/batch_messages.h"
#include "libffrecord/net/protocol/messages.h"
#include "libffrecord/net/protocol/storage_messages.h"
#include "libffrecord/net/rpc/channel.h"

// Helpers that the tests of a whole daemon share: clients that keep the rules, and one that keeps
// none.
namespace ffrecord::server {

using net::Channel;
using net::FrameType;
using test::AsBytes;
using test::Daemon;
using namespace std::chrono_literals;

inline net::Deadline Soon() { return net::Clock::now() + 60s; }

// A client that keeps no rules: bytes in, bytes out.
class RawPeer {
 public:
  explicit RawPeer(const net::Address& address)
      : endpoint_(net::ConnectTcp(address, Soon()).value()) {}

  void Write(std::span<const std::byte> bytes) {
    for (std::size_t done = 0; done < bytes.size();) {
      const ssize_t sent =
          ::send(endpoint_->fd(), bytes.data() + done, bytes.size() - done, MSG_NOSIGNAL);
      if (sent > 0) {
        done += static_cast<std::size_t>(sent);
        continue;
      }
      if (errno != EAGAIN) return;  // The daemon has closed: as it should.
      pollfd waited{endpoint_->fd(), POLLOUT, 0};
      if (PollFor({&waited, 1}, 5s) <= 0) return;
    }
  }

  // Waits until the daemon has sent more than `size_bytes`. False if it does not.
  bool Gets(std::size_t size_bytes) {
    std::array<char, 4096> ignored;
    for (std::size_t got_bytes = 0; got_bytes <= size_bytes;) {
      pollfd waited{endpoint_->fd(), POLLIN, 0};
      if (PollFor({&waited, 1}, 60s) <= 0) return false;
      const ssize_t got = ::recv(endpoint_->fd(), ignored.data(), ignored.size(), 0);
      if (got == 0 || (got < 0 && errno != EAGAIN)) return false;
      if (got > 0) got_bytes += static_cast<std::size_t>(got);
    }
    return true;
  }

  // Whether the daemon closes the connection within `time`, whatever it says before.
  bool IsClosedWithin(std::chrono::milliseconds time) {
    const auto deadline = Clock::now() + time;
    std::array<char, 4096> ignored;
    while (Clock::now() < deadline) {
      pollfd waited{endpoint_->fd(), POLLIN, 0};
      if (PollFor({&waited, 1}, 50ms) <= 0) continue;
      const ssize_t got = ::recv(endpoint_->fd(), ignored.data(), ignored.size(), 0);
      if (got == 0 || (got < 0 && errno != EAGAIN)) return true;
    }
    return false;
  }

 private:
  std::unique_ptr<net::Endpoint> endpoint_;
};

inline std::vector<std::byte> FrameOf(FrameType type, std::span<const std::byte> body,
                                      std::uint32_t payload_size = 0) {
  net::FrameHeader header;
  header.type = type;
  header.request_id = 1;
  header.payload_size_bytes = payload_size;
  std::vector<std::byte> frame(net::FrameHeader::kEncodedSizeBytes);
  net::EncodeFrameHeader(header, body,
                         std::span(frame).first<net::FrameHeader::kEncodedSizeBytes>());
  frame.insert(frame.end(), body.begin(), body.end());
  return frame;
}

inline std::vector<std::byte> HelloFrame() {
  net::Hello hello;
  hello.body_size_bytes_max = net::FrameLimits{}.body_size_bytes_max;
  hello.payload_size_bytes_max = net::FrameLimits{}.payload_size_bytes_max;
  return FrameOf(FrameType::kHello, hello.Encode());
}

inline std::vector<std::byte> Joined(std::vector<std::byte> first,
                                     const std::vector<std::byte>& second) {
  first.insert(first.end(), second.begin(), second.end());
  return first;
}

// A daemon, and clients that speak to it by hand.
class ServerTest : public testing::Test {
 protected:
  std::unique_ptr<Channel> Connect() { return ConnectTo(daemon_); }
  std::unique_ptr<Channel> ConnectTo(const Daemon& daemon) {
    auto channel = Channel::Connect(daemon.address(), Soon());
    EXPECT_TRUE(channel) << channel.error().message;
    return std::move(channel).value();
  }

  // Sends and seals one extent.
  Result<void> Put(Channel& channel, const ExtentId& id, std::string_view data) {
    FFR_TRY(channel.Call(FrameType::kPutBegin, net::PutBegin{id, data.size()}.Encode(), {}, Soon(),
                         "a place"));
    const auto bytes = AsBytes(data);
    FFR_TRY(channel.Send(FrameType::kPutData, net::PutData{id, 0}.Encode(), {&bytes, 1}));
    FFR_TRY(channel.Call(FrameType::kPutSeal, net::PutSeal{id, Xxh3(bytes)}.Encode(), {}, Soon(),
                         "a seal"));
    return {};
  }

  struct BatchResult {
    std::vector<std::string> entries;
    net::BatchDone done;
  };
  // Binds `ids` at 0 and reads `entries`; `begun` is set when the first data has come.
  Result<BatchResult> Read(Channel& channel, const std::vector<ExtentId>& ids,
                           const std::vector<net::BatchEntry>& entries,
                           std::atomic<bool>* begun = nullptr) {
    FFR_TRY(channel.Call(FrameType::kExtentBind, net::ExtentBind{0, ids}.Encode(), {}, Soon(),
                         "a binding"));
    net::BatchRead batch;
    batch.entries = entries;
    const auto request = FFR_TRY(channel.Send(FrameType::kBatchRead, batch.Encode()));
    return Receive(channel, request, entries.size(), begun);
  }
  // The result of a BATCH_READ.
  Result<BatchResult> Receive(Channel& channel, std::uint64_t request, std::size_t entry_count,
                              std::atomic<bool>* begun = nullptr) {
    BatchResult result;
    result.entries.resize(entry_count);
    for (;;) {
      const auto header = FFR_TRY(channel.Receive(request, Soon(), "records"));
      if (header.type != FrameType::kBatchData) {
        result.done = FFR_TRY(net::BatchDone::Decode(channel.body()));
        return result;
      }
      if (begun != nullptr) *begun = true;
      const auto data = FFR_TRY(net::BatchData::Decode(channel.body()));
      std::string payload(header.payload_size_bytes, '\0');
      const auto place = std::as_writable_bytes(std::span(payload));
      FFR_TRY(channel.ReceivePayload({&place, 1}, Soon()));
      std::size_t at = 0;
      for (const auto& piece : data.pieces) {
        EXPECT_EQ(piece.offset_bytes, result.entries[piece.entry].size());
        result.entries[piece.entry] += payload.substr(at, piece.size_bytes);
        at += piece.size_bytes;
      }
      EXPECT_EQ(at, payload.size());
    }
  }

  void ExpectServing() {
    auto channel = Channel::Connect(daemon_.address(), Soon());
    ASSERT_TRUE(channel) << channel.error().message;
    const auto pong = channel.value()->Call(FrameType::kPing, {}, {}, Soon(), "a ping");
    EXPECT_TRUE(pong) << pong.error().message;
  }

  const ExtentId id_ = MakeExtentId(77, 0, 0);
  Daemon daemon_;
};

}  // namespace ffrecord::server
