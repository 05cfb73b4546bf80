#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <utility>
#include <vector>

#include "fake_daemon.h"
#include "libffrecord/net/protocol/batch_messages.h"
#include "libffrecord/net/protocol/messages.h"

namespace ffrecord::test {

// The script of a fake daemon that binds extents, answers PING, and leaves batches to the test.
class BatchScript {
 public:
  using Request = FakeDaemon::Request;
  using OnBatch = std::function<bool(Request&, int number)>;

  // Calls `on_batch` for each BATCH_READ, counted from 0.
  explicit BatchScript(OnBatch on_batch) : on_batch_(std::move(on_batch)) {}

  bool operator()(Request& request) {
    switch (request.header.type) {
      case net::FrameType::kExtentBind:
        FakeDaemon::Send(request, net::ReplyTo(net::FrameType::kExtentBind),
                         net::ExtentBindReply{1, 0, {}}.Encode());
        return true;
      case net::FrameType::kBatchRead:
        return on_batch_(request, batch_count++);
      case net::FrameType::kPing:
        FakeDaemon::Send(request, net::ReplyTo(net::FrameType::kPing), {});
        return true;
      case net::FrameType::kCancel:
        ++cancel_count;
        if (on_cancel) on_cancel();
        return true;
      default:
        return true;
    }
  }

  static void Data(Request& request, std::byte value = std::byte{0x11}) {
    const auto entries = net::BatchRead::Decode(request.body).value().entries;
    for (std::uint32_t i = 0; i < entries.size(); ++i) {
      const std::vector<std::byte> payload(entries[i].size_bytes, value);
      FakeDaemon::Send(request, net::FrameType::kBatchData,
                       net::BatchData{{{i, 0, entries[i].size_bytes}}}.Encode(), payload);
    }
  }
  static void Done(Request& request) {
    const auto entries = net::BatchRead::Decode(request.body).value().entries;
    net::BatchDone done;
    done.ok_count = static_cast<std::uint32_t>(entries.size());
    for (const auto& entry : entries) done.size_bytes += entry.size_bytes;
    FakeDaemon::Send(request, net::ReplyTo(net::FrameType::kBatchRead), done.Encode());
  }
  static void Answer(Request& request) {
    Data(request);
    Done(request);
  }

  std::atomic<int> batch_count = 0;
  std::atomic<int> cancel_count = 0;
  std::function<void()> on_cancel;

 private:
  const OnBatch on_batch_;
};

// A request that is answered later: it is good as long as its connection.
struct HeldBatch {
  explicit HeldBatch(const FakeDaemon::Request& request)
      : endpoint(request.endpoint),
        header(request.header),
        body(request.body),
        connection(request.connection),
        payloads(request.payloads) {}
  void Answer() {
    FakeDaemon::Request request{endpoint, header, body, connection, payloads, {}};
    BatchScript::Answer(request);
  }
  net::Endpoint& endpoint;
  net::FrameHeader header;
  std::vector<std::byte> body;
  int connection;
  std::deque<std::vector<std::byte>>& payloads;
};

}  // namespace ffrecord::test
