// Goal: whatever bytes a peer sends, an endpoint gives whole frames or a named error. Method: what
// a hostile peer sends is fed as raw bytes, in pieces of any size.

#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <cstring>
#include <functional>
#include <random>

#include "endpoint_pairs.h"
#include "libffrecord/net/transport/endpoint.h"
#include "libffrecord/net/transport/stream_endpoint.h"
#include "seed.h"

namespace ffrecord::net {
namespace {

using namespace test;

Bytes EncodeFrame(FrameHeader header, const Bytes& body, const Bytes& payload) {
  header.payload_size_bytes = static_cast<std::uint32_t>(payload.size());
  Bytes bytes(FrameHeader::kEncodedSizeBytes);
  EncodeFrameHeader(header, body, std::span(bytes).first<FrameHeader::kEncodedSizeBytes>());
  bytes.insert(bytes.end(), body.begin(), body.end());
  bytes.insert(bytes.end(), payload.begin(), payload.end());
  return bytes;
}

// Gives bytes in pieces of random size, with waits between, and then ends.
class ScriptedStream final : public ByteStream {
 public:
  explicit ScriptedStream(Bytes bytes)
      : bytes_(std::move(bytes)), random_(ffrecord::test::Seed()) {}
  std::string_view transport() const noexcept override { return "scripted"; }
  int fd() const noexcept override { return -1; }
  Result<std::size_t> Write(std::span<const iovec>, int) override { return std::size_t{0}; }
  Result<std::optional<std::size_t>> Read(std::span<const iovec> pieces) override {
    if (random_() % 4 == 0) return std::optional<std::size_t>();
    std::size_t left = std::min<std::size_t>(bytes_.size() - at_, 1 + random_() % 50);
    const std::size_t begin = at_;
    for (const iovec& piece : pieces) {
      const std::size_t size = std::min(left, piece.iov_len);
      if (size == 0) break;  // Bytes that do not exist have no address.
      std::memcpy(piece.iov_base, bytes_.data() + at_, size);
      at_ += size;
      left -= size;
    }
    return std::optional(at_ - begin);
  }

 private:
  const Bytes bytes_;
  std::mt19937 random_;
  std::size_t at_ = 0;
};

std::unique_ptr<Endpoint> MakeScripted(const Bytes& bytes) {
  return std::make_unique<StreamEndpoint>(std::make_unique<ScriptedStream>(bytes), "script");
}

// Requires that the bytes fit the kernel's buffers.
std::unique_ptr<Endpoint> MakeTcpFed(const Bytes& bytes) {
  auto listener = TcpListener::Listen({"127.0.0.1", 0}).value();
  UniqueFd raw(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in name{};
  name.sin_family = AF_INET;
  name.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  name.sin_port = htons(listener.address().port);
  EXPECT_EQ(::connect(raw.get(), reinterpret_cast<sockaddr*>(&name), sizeof(name)), 0);
  EXPECT_EQ(::send(raw.get(), bytes.data(), bytes.size(), 0), static_cast<ssize_t>(bytes.size()));
  std::unique_ptr<Endpoint> endpoint;
  while (!endpoint) endpoint = listener.Accept().value();
  return endpoint;
}

std::unique_ptr<Endpoint> MakeLocalFed(const Bytes& bytes) {
  auto listener = LocalListener::Listen(FreshName()).value();
  UniqueFd raw(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_un name{};
  name.sun_family = AF_UNIX;
  std::memcpy(name.sun_path + 1, listener.name().data(), listener.name().size());
  const auto size = offsetof(sockaddr_un, sun_path) + 1 + listener.name().size();
  EXPECT_EQ(::connect(raw.get(), reinterpret_cast<sockaddr*>(&name), static_cast<socklen_t>(size)),
            0);
  EXPECT_EQ(::send(raw.get(), bytes.data(), bytes.size(), 0), static_cast<ssize_t>(bytes.size()));
  std::unique_ptr<Endpoint> endpoint;
  while (!endpoint) endpoint = listener.Accept().value();
  return endpoint;
}

struct FedEndpoint {
  std::string name;
  std::function<std::unique_ptr<Endpoint>(const Bytes&)> make;
};

class RawBytesConformance : public testing::TestWithParam<FedEndpoint> {
 protected:
  // Receives all that can be received, payloads included; returns how it ended: kOk for a close in
  // good order. Counts whole frames.
  ErrorCode Drain(const Bytes& bytes) {
    const auto endpoint = GetParam().make(bytes);
    endpoint->SetLimits({.body_size_bytes_max = 64 << 10, .payload_size_bytes_max = 64 << 10});
    frames_ = 0;
    Bytes received;
    for (;;) {
      const auto event = NextEvent(*endpoint, Soon(), "an end");
      if (!event) {
        EXPECT_EQ(endpoint->fd(), -1);
        return event.error().code;
      }
      if (event.value() == Endpoint::Event::kClosed) return ErrorCode::kOk;
      if (event.value() == Endpoint::Event::kFrame && endpoint->header().payload_size_bytes > 0) {
        received.resize(endpoint->header().payload_size_bytes);
        const std::span<std::byte> places[] = {received};
        EXPECT_TRUE(endpoint->ReceivePayload(places));
      } else {
        ++frames_;
      }
    }
  }
  int frames_ = 0;
};

TEST_P(RawBytesConformance, WholeFramesAreTaken) {
  Bytes bytes;
  for (std::size_t i = 0; i < 5; ++i) {
    const Bytes frame = EncodeFrame({}, Bytes(i * 10'000), Bytes(i * 7'000));
    bytes.insert(bytes.end(), frame.begin(), frame.end());
  }
  EXPECT_EQ(Drain(bytes), ErrorCode::kOk);
  EXPECT_EQ(frames_, 5);
}

TEST_P(RawBytesConformance, AFlippedBitInHeaderOrBodyIsCorruption) {
  const Bytes good = EncodeFrame({.request_id = 3}, Bytes(24, std::byte{9}), {});
  for (std::size_t bit = 0; bit < good.size() * 8; bit += 3) {
    Bytes bytes = good;
    bytes[bit / 8] ^= static_cast<std::byte>(1 << (bit % 8));
    EXPECT_EQ(Drain(bytes), ErrorCode::kCorruption) << "bit " << bit;
    EXPECT_EQ(frames_, 0);
  }
}

TEST_P(RawBytesConformance, ACutAtAnyByteInsideAFrameIsUnavailable) {
  const Bytes whole = EncodeFrame({}, Bytes(30), Bytes(20));
  for (std::size_t size = 0; size <= whole.size(); ++size) {
    const bool is_between = size == 0 || size == whole.size();
    EXPECT_EQ(Drain(Bytes(whole.begin(), whole.begin() + static_cast<std::ptrdiff_t>(size))),
              is_between ? ErrorCode::kOk : ErrorCode::kUnavailable)
        << size;
  }
}

TEST_P(RawBytesConformance, RandomBytesEndInAnErrorAndNeverInACrash) {
  std::mt19937 random(ffrecord::test::Seed());
  for (int i = 0; i < 200; ++i)
    EXPECT_NE(Drain(RandomBytes(random, 1 + random() % 200)), ErrorCode::kOk);
}

TEST_P(RawBytesConformance, SpoiltTrafficNeverGivesMoreFramesThanWereSent) {
  std::mt19937 random(ffrecord::test::Seed());
  for (int i = 0; i < 200; ++i) {
    Bytes bytes;
    const int sent = 1 + static_cast<int>(random() % 5);
    for (int frame = 0; frame < sent; ++frame) {
      const Bytes one = EncodeFrame({.request_id = random()}, RandomBytes(random, random() % 100),
                                    RandomBytes(random, random() % 100));
      bytes.insert(bytes.end(), one.begin(), one.end());
    }
    for (std::size_t spoilt = random() % 4; spoilt > 0; --spoilt)
      bytes[random() % bytes.size()] = static_cast<std::byte>(random());
    if (random() % 2 == 0) bytes.resize(random() % bytes.size());
    (void)Drain(bytes);
    EXPECT_LE(frames_, sent);
  }
}

INSTANTIATE_TEST_SUITE_P(AllStreams, RawBytesConformance,
                         testing::Values(FedEndpoint{"tcp", MakeTcpFed},
                                         FedEndpoint{"shm", MakeLocalFed},
                                         FedEndpoint{"scripted", MakeScripted}),
                         [](const auto& instance) { return instance.param.name; });

}  // namespace
}  // namespace ffrecord::net
