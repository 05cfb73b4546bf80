// Goal: the local socket is for clients that the daemon has sent there, each as who it is, and what
// anybody else does on it, with whatever descriptors, stops no thread of the daemon.
// Method: a daemon with one event loop in this process; peers by hand that were not sent, that use
// a ticket wrongly, and that pass a socket whose last close(2) lingers.

#include <gtest/gtest.h>
#include <sys/socket.h>

#include <array>
#include <chrono>
#include <cstring>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "libffrecord/net/transport/socket_stream.h"
#include "server_peers.h"
#include "tokens.h"

namespace ffrecord::server {
namespace {

Server::Options OneLoop() {
  Server::Options options;
  options.core_count = 1;
  return options;
}

class LocalPeersTest : public testing::Test {
 protected:
  // The daemon's offer to a client that greets over TCP, which stays connected.
  net::LocalOffer Offer(std::span<const std::byte> token = {}) {
    greeted_ = Channel::Connect(daemon_->address(), Soon(), token).value();
    EXPECT_TRUE(greeted_->hello().local);
    epoch_ = greeted_->hello().epoch;
    return greeted_->hello().local.value();
  }
  std::unique_ptr<net::Endpoint> ConnectRaw() const {
    return net::ConnectLocal(net::LocalSocketName(epoch_), "daemon", Soon()).value();
  }
  ErrorCode CodeOf(const net::LocalOffer& offer) const {
    const auto opened = Channel::OpenLocal(ConnectRaw(), offer, Soon());
    return opened ? ErrorCode::kOk : opened.error().code;
  }
  void UseKeys() {
    auto options = OneLoop();
    options.token_keys = test::WriteTokenKeys(folder_);
    daemon_.emplace(options);
  }

  test::TempFolder folder_;
  std::optional<Daemon> daemon_{OneLoop()};
  std::unique_ptr<Channel> greeted_;
  std::uint64_t epoch_ = 0;
};

// --- Who is let in -------------------------------------------------------------------------------

TEST_F(LocalPeersTest, ATicketLetsOneClientInOnceWhileItsConnectionIsOpen) {
  const auto offer = Offer();
  auto unknown = offer;
  unknown.ticket[0] ^= std::byte{1};
  EXPECT_EQ(CodeOf(unknown), ErrorCode::kDenied);
  EXPECT_EQ(CodeOf(offer), ErrorCode::kOk);
  EXPECT_EQ(CodeOf(offer), ErrorCode::kDenied);

  auto guessed = Offer();
  guessed.client_secret[31] ^= std::byte{1};
  EXPECT_EQ(CodeOf(guessed), ErrorCode::kDenied);
  guessed.client_secret[31] ^= std::byte{1};
  EXPECT_EQ(CodeOf(guessed), ErrorCode::kDenied);  // One guess is all.

  // A ticket of its own for each try: one that was good once proves nothing.
  EXPECT_TRUE(test::Eventually([&] {
    const auto late = Offer();
    greeted_.reset();
    std::this_thread::sleep_for(50ms);  // For the daemon to see it.
    return CodeOf(late) == ErrorCode::kDenied;
  }));
}

// Each byte of it counts, and so does their number.
TEST_F(LocalPeersTest, ASecretThatIsNearlyRightProvesNothingToEitherEnd) {
  for (const std::size_t at : {std::size_t{0}, std::size_t{16}, std::size_t{31}}) {
    auto stranger = Offer();
    stranger.daemon_secret[at] ^= std::byte{1};
    EXPECT_EQ(CodeOf(stranger), ErrorCode::kUnavailable) << at;
    auto guess = Offer();
    guess.client_secret[at] ^= std::byte{1};
    EXPECT_EQ(CodeOf(guess), ErrorCode::kDenied) << at;
  }
  for (const std::size_t size :
       {std::size_t{0}, std::size_t{1}, std::size_t{31}, std::size_t{32}, std::size_t{33}}) {
    const auto offer = Offer();
    net::Hello hello;
    hello.body_size_bytes_max = net::FrameLimits{}.body_size_bytes_max;
    hello.payload_size_bytes_max = net::FrameLimits{}.payload_size_bytes_max;
    hello.credential.assign(offer.client_secret.begin(), offer.client_secret.end());
    hello.credential.resize(size);
    const auto endpoint = ConnectRaw();
    const auto answer = [&](FrameType type, std::span<const std::byte> body) {
      EXPECT_TRUE(endpoint->Send({.type = type, .request_id = 1}, body, {}));
      EXPECT_TRUE(net::NextEvent(*endpoint, Soon(), "an answer"));
      return endpoint->header().type;
    };
    EXPECT_EQ(answer(FrameType::kLocalOpen, net::LocalOpen{offer.ticket}.Encode()),
              net::ReplyTo(FrameType::kLocalOpen));
    EXPECT_EQ(answer(FrameType::kHello, hello.Encode()),
              size == 32 ? net::ReplyTo(FrameType::kHello) : FrameType::kError)
        << size;
  }
}

TEST_F(LocalPeersTest, WhoWasNotSentIsShownNothingEvenWithAToken) {
  UseKeys();
  const auto token = test::MakeToken(test::kRead, "");
  (void)Offer(token);
  auto endpoint = ConnectRaw();
  net::Hello hello;
  hello.body_size_bytes_max = net::FrameLimits{}.body_size_bytes_max;
  hello.payload_size_bytes_max = net::FrameLimits{}.payload_size_bytes_max;
  hello.credential = token;
  ASSERT_TRUE(endpoint->Send({.type = FrameType::kHello, .request_id = 1}, hello.Encode(), {}));
  const auto event = net::NextEvent(*endpoint, Soon(), "an end");
  EXPECT_TRUE(!event || event.value() == net::Endpoint::Event::kClosed);
}

TEST_F(LocalPeersTest, AClientHasTheRightsThatItWasAdmittedWith) {
  UseKeys();
  const auto offer = Offer(test::MakeToken(test::kRead, "a/"));
  const auto local = Channel::OpenLocal(ConnectRaw(), offer, Soon());
  ASSERT_TRUE(local) << local.error().message;
  const auto code = [&](FrameType type, const std::vector<std::byte>& body) {
    const auto reply = local.value()->Call(type, body, {}, Soon(), "an answer");
    return reply ? ErrorCode::kOk : reply.error().code;
  };
  EXPECT_EQ(code(FrameType::kList, net::List{10, "a/", ""}.Encode()), ErrorCode::kOk);
  EXPECT_EQ(code(FrameType::kList, net::List{10, "b/", ""}.Encode()), ErrorCode::kDenied);
  EXPECT_EQ(code(FrameType::kDelete, net::Delete{0, "a/x"}.Encode()), ErrorCode::kDenied);
}

TEST_F(LocalPeersTest, ATokenThatExpiresEndsTheConnectionsThatItOpened) {
  UseKeys();
  const auto offer = Offer(test::MakeToken(test::kRead, "", /*lifetime_s=*/3));
  const auto local = Channel::OpenLocal(ConnectRaw(), offer, Soon());
  if (!local) GTEST_SKIP() << "too slow a machine: the token expired before its first use";
  for (Channel* const channel : {greeted_.get(), local.value().get()}) {
    SCOPED_TRACE(channel->transport());
    EXPECT_TRUE(test::Eventually([&] {
      const auto pong = channel->Call(FrameType::kPing, {}, {}, Soon(), "a ping");
      return !pong && pong.error().message.find("expired") != std::string::npos;
    }));
    const auto after = channel->Call(FrameType::kPing, {}, {}, Soon(), "a ping");
    ASSERT_FALSE(after);
    EXPECT_EQ(after.error().code, ErrorCode::kUnavailable) << after.error().message;
  }
}

// --- Descriptors ---------------------------------------------------------------------------------

// A socket that lingers: what is queued in it cannot be sent, so that its last close(2) waits for
// half a minute, or until this object ends.
class BlockingDescriptor {
 public:
  BlockingDescriptor() {
    auto listener = net::TcpListener::Listen({"127.0.0.1", 0}).value();
    fd_ = net::ConnectTcpSocket(listener.address(), Soon()).value();
    while (!far_) far_ = listener.Accept().value();
    const linger lingers{1, 30};
    EXPECT_EQ(::setsockopt(fd_.get(), SOL_SOCKET, SO_LINGER, &lingers, sizeof(lingers)), 0);
    const std::vector<char> bytes(1 << 20);
    while (::send(fd_.get(), bytes.data(), bytes.size(), MSG_DONTWAIT | MSG_NOSIGNAL) > 0) continue;
  }

  // Sends `bytes` with so many duplicates, which are the last ones then; before it, with the same
  // call, `ahead`. False if the peer has closed in between.
  bool GiveAway(const net::Endpoint& to, std::span<const std::byte> bytes, std::size_t count,
                std::span<const std::byte> ahead = {}) {
    std::vector<char> control(CMSG_SPACE(sizeof(int) * count));
    iovec first{const_cast<std::byte*>(ahead.data()), ahead.size()};
    iovec piece{const_cast<std::byte*>(bytes.data()), bytes.size()};
    std::array<mmsghdr, 2> messages{};
    messages[0].msg_hdr.msg_iov = &first;
    messages[0].msg_hdr.msg_iovlen = 1;
    msghdr& message = messages[1].msg_hdr;
    message.msg_iov = &piece;
    message.msg_iovlen = 1;
    message.msg_control = control.data();
    message.msg_controllen = control.size();
    cmsghdr* const header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof(int) * count);
    const std::vector<int> descriptors(count, fd_.get());
    std::memcpy(CMSG_DATA(header), descriptors.data(), sizeof(int) * count);
    if (::sendmmsg(to.fd(), messages.data(), 2, MSG_NOSIGNAL) != 2) return false;
    fd_.Reset();
    return true;
  }

 private:
  UniqueFd fd_;
  std::unique_ptr<net::Endpoint> far_;  // Takes nothing.
};

class DescriptorsTest : public LocalPeersTest {
 protected:
  // That the one event loop goes on, although the descriptor blocks who closes it.
  void ExpectServing() {
    const auto deadline = net::Clock::now() + 5s;
    const auto channel = Channel::Connect(daemon_->address(), deadline);
    ASSERT_TRUE(channel) << channel.error().message;
    const auto pong = channel.value()->Call(FrameType::kPing, {}, {}, deadline, "a ping");
    EXPECT_TRUE(pong) << pong.error().message;
  }
  static bool IsClosed(net::Endpoint& endpoint) {
    for (;;) {
      const auto event = net::NextEvent(endpoint, net::Clock::now() + 5s, "the end");
      if (!event) return event.error().code != ErrorCode::kDeadlineExceeded;
      if (event.value() == net::Endpoint::Event::kClosed) return true;
    }
  }
};

TEST_F(DescriptorsTest, NoneIsTakenBeforeTheClientIsKnownAndNoneStopsTheLoop) {
  const auto open = FrameOf(FrameType::kLocalOpen, net::LocalOpen{Offer().ticket}.Encode());
  for (const std::size_t count : {std::size_t{1}, std::size_t{253}}) {
    SCOPED_TRACE(count);
    BlockingDescriptor descriptor;
    auto endpoint = ConnectRaw();
    ASSERT_TRUE(descriptor.GiveAway(*endpoint, open, count));
    EXPECT_TRUE(IsClosed(*endpoint));
    ExpectServing();
  }
}

TEST_F(DescriptorsTest, OneThatIsNeverReadStopsNobody) {
  (void)Offer();
  BlockingDescriptor descriptor;
  // The first bytes end the connection, and there are more of them than one read takes.
  const std::vector<std::byte> garbage(64 << 10, std::byte{1});
  auto endpoint = ConnectRaw();
  while (!descriptor.GiveAway(*endpoint, std::span(garbage).first(1), 1, garbage))
    endpoint = ConnectRaw();
  EXPECT_TRUE(IsClosed(*endpoint));
  ExpectServing();
}

TEST_F(DescriptorsTest, OneThatIsNoMemoryIsRefusedAndStopsNobody) {
  BlockingDescriptor descriptor;
  const auto offer = Offer();
  auto endpoint = ConnectRaw();
  const auto reply_to = [&](const std::vector<std::byte>& sent) {
    EXPECT_EQ(::send(endpoint->fd(), sent.data(), sent.size(), MSG_NOSIGNAL),
              static_cast<ssize_t>(sent.size()));
    EXPECT_EQ(net::NextEvent(*endpoint, Soon(), "a reply").value(), net::Endpoint::Event::kFrame);
    return endpoint->header().type;
  };
  net::Hello hello;
  hello.body_size_bytes_max = net::FrameLimits{}.body_size_bytes_max;
  hello.payload_size_bytes_max = net::FrameLimits{}.payload_size_bytes_max;
  hello.credential.assign(offer.client_secret.begin(), offer.client_secret.end());
  ASSERT_EQ(reply_to(FrameOf(FrameType::kLocalOpen, net::LocalOpen{offer.ticket}.Encode())),
            net::ReplyTo(FrameType::kLocalOpen));
  ASSERT_EQ(reply_to(FrameOf(FrameType::kHello, hello.Encode())), net::ReplyTo(FrameType::kHello));

  const auto slab = FrameOf(FrameType::kSlabRegister, net::SlabRegister{1, 1 << 20}.Encode());
  ASSERT_TRUE(descriptor.GiveAway(*endpoint, slab, 1));

  const auto event = net::NextEvent(*endpoint, net::Clock::now() + 5s, "a reply");
  ASSERT_TRUE(event) << event.error().message;
  ASSERT_EQ(event.value(), net::Endpoint::Event::kFrame);
  EXPECT_EQ(net::ErrorReply::Decode(endpoint->body()).value().code, ErrorCode::kInvalidArgument);
  ExpectServing();
}

}  // namespace
}  // namespace ffrecord::server
