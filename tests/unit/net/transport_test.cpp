// Goal: addresses parse strictly, and a connection that cannot be made says to where and what to
// do; the loopback fails exactly where it is told to. Method: tables of addresses; ports that are
// closed, used, or silent; a forked child; faults counted in bytes.

#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <malloc.h>
#include <netinet/in.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>

#include "child.h"
#include "endpoint_pairs.h"
#include "libffrecord/net/transport/endpoint.h"
#include "libffrecord/net/transport/socket_stream.h"

namespace ffrecord::net {
namespace {

using namespace std::chrono_literals;
using test::EndpointPair;
using test::LoopbackOptions;
using test::MakeLoopbackPair;
using testing::HasSubstr;

Deadline Soon() { return Clock::now() + 60s; }

TEST(AddressTest, WellFormedAddressesAreTakenApartAndPutTogether) {
  struct Case {
    std::string_view text, host;
    std::uint16_t port;
    std::string_view again;
  };
  const Case all[] = {{"localhost:80", "localhost", 80, "localhost:80"},
                      {"10.0.0.1", "10.0.0.1", 9400, "10.0.0.1:9400"},
                      {"[::1]:65535", "::1", 65535, "[::1]:65535"},
                      {"[fe80::1%eth0]", "fe80::1%eth0", 9400, "[fe80::1%eth0]:9400"},
                      {"h:0", "h", 0, "h:0"}};
  for (const Case& one : all) {
    const auto address = Address::Parse(one.text, 9400);
    ASSERT_TRUE(address) << address.error().message;
    EXPECT_EQ(address.value().host, one.host);
    EXPECT_EQ(address.value().port, one.port);
    EXPECT_EQ(address.value().ToString(), one.again);
  }
}

TEST(AddressTest, OthersAreRefusedByName) {
  for (const std::string_view text : {"", ":80", "h:", "h:65536", "h:-1", "h:80x", "h: 80", "::1",
                                      "a:b:80", "[::1", "[::1]80", "[]:80", "h:0x10"}) {
    const auto address = Address::Parse(text, 9400);
    ASSERT_FALSE(address) << text;
    EXPECT_EQ(address.error().code, ErrorCode::kInvalidArgument);
    EXPECT_THAT(address.error().message, HasSubstr("'" + std::string(text) + "'"));
  }
}

// A name is looked up in a thread. The limit counts for no superuser.
TEST(TcpTest, WithoutAThreadANameIsAnErrorAndAnAddressConnects) {
  auto listener = TcpListener::Listen({"127.0.0.1", 0}).value();
  EXPECT_EQ(ffrecord::test::RunInChild([&] {
              const rlimit none{0, 0};
              if (::setrlimit(RLIMIT_NPROC, &none) != 0) return 1;
              if (::geteuid() == 0 && ::setuid(65'534) != 0) return ffrecord::test::kSkipped;
              const auto by_name = ConnectTcp({"localhost", listener.address().port}, Soon());
              if (by_name || by_name.error().code != ErrorCode::kIo ||
                  by_name.error().system_errno != EAGAIN)
                return 2;
              return ConnectTcp(listener.address(), Soon()) ? 0 : 3;
            }),
            0);
}

TEST(TcpTest, NamesAndBothFamiliesConnect) {
  for (const std::string_view host : {"127.0.0.1", "localhost", "::1"}) {
    auto listener = TcpListener::Listen({std::string(host), 0});
    if (!listener && host == "::1") GTEST_SKIP() << "no IPv6 here: " << listener.error().message;
    ASSERT_TRUE(listener) << listener.error().message;
    EXPECT_GT(listener.value().address().port, 0);

    const auto near = ConnectTcp(listener.value().address(), Soon());

    ASSERT_TRUE(near) << near.error().message;
    EXPECT_EQ(near.value()->peer(), listener.value().address().ToString());
    std::unique_ptr<Endpoint> far;
    while (!far) far = listener.value().Accept().value();
    EXPECT_FALSE(listener.value().Accept().value());  // Nobody else waits.
    EXPECT_FALSE(far->peer().empty());
  }
}

sockaddr_storage NameOf(const char* address) {
  sockaddr_storage name{};
  auto& v4 = reinterpret_cast<sockaddr_in&>(name);
  auto& v6 = reinterpret_cast<sockaddr_in6&>(name);
  name.ss_family = AF_INET;
  if (::inet_pton(AF_INET, address, &v4.sin_addr) == 1) return name;
  name.ss_family = AF_INET6;
  EXPECT_EQ(::inet_pton(AF_INET6, address, &v6.sin6_addr), 1) << address;
  return name;
}

TEST(TcpTest, APeerIsLocalAtLoopbackAndAtOnesOwnAddress) {
  const auto are_of_one_host = [](const char* own, const char* peer) {
    return AreOfOneHost(NameOf(own), NameOf(peer));
  };
  EXPECT_TRUE(are_of_one_host("127.0.0.1", "127.0.0.1"));
  EXPECT_TRUE(are_of_one_host("127.0.0.1", "127.9.0.1"));
  EXPECT_TRUE(are_of_one_host("10.1.2.3", "10.1.2.3"));
  EXPECT_TRUE(are_of_one_host("::1", "::1"));
  EXPECT_TRUE(are_of_one_host("::ffff:127.0.0.1", "::ffff:127.0.0.2"));
  EXPECT_TRUE(are_of_one_host("fd00::7", "fd00::7"));
  EXPECT_FALSE(are_of_one_host("10.1.2.3", "10.1.2.4"));
  EXPECT_FALSE(are_of_one_host("127.0.0.1", "10.1.2.3"));
  EXPECT_FALSE(are_of_one_host("fd00::7", "fd00::8"));
  EXPECT_FALSE(are_of_one_host("::ffff:10.1.2.3", "::ffff:10.1.2.4"));
  EXPECT_FALSE(are_of_one_host("::1", "::2"));
  const auto pair = test::MakeTcpPair();
  EXPECT_TRUE(pair.near->has_local_peer());
  EXPECT_TRUE(pair.far->has_local_peer());
}

// Of the largest body there may be nothing comes but the first bytes.
TEST(TcpTest, AHeaderAloneIsWorthNoMemory) {
  const std::vector<std::byte> body(2 << 20);
  std::vector<std::byte> begin(100);
  EncodeFrameHeader({}, body, std::span(begin).first<FrameHeader::kEncodedSizeBytes>());
  constexpr std::size_t kCount = 16;
  std::vector<EndpointPair> pairs;
  for (std::size_t i = 0; i < kCount; ++i) pairs.push_back(test::MakeTcpPair());
  const auto used = [] { return ::mallinfo2().uordblks + ::mallinfo2().hblkhd; };
  const std::size_t before_bytes = used();

  for (EndpointPair& pair : pairs) {
    pair.far->SetLimits({});
    ASSERT_EQ(::send(pair.near->fd(), begin.data(), begin.size(), MSG_NOSIGNAL), 100);
    while (!pair.far->is_receiving()) ASSERT_EQ(pair.far->Poll().value(), Endpoint::Event::kNone);
  }

  EXPECT_LT(used(), before_bytes + kCount * (128 << 10));
}

TEST(TcpTest, AClosedPortIsUnavailableAndNamed) {
  Address address;
  { address = TcpListener::Listen({"127.0.0.1", 0}).value().address(); }  // Closed again.

  const auto endpoint = ConnectTcp(address, Soon());

  ASSERT_FALSE(endpoint);
  EXPECT_EQ(endpoint.error().code, ErrorCode::kUnavailable);
  EXPECT_THAT(endpoint.error().message, HasSubstr(address.ToString()));
  EXPECT_THAT(endpoint.error().message, HasSubstr("check that the peer runs"));
}

TEST(TcpTest, AnUnknownHostIsUnavailableAndNamed) {
  // A label of 64 characters fits no query, so nobody is asked.
  const std::string host = std::string(64, 'x') + ".invalid";
  const auto endpoint = ConnectTcp({host, 9400}, Soon());
  ASSERT_FALSE(endpoint);
  EXPECT_EQ(endpoint.error().code, ErrorCode::kUnavailable);
  EXPECT_THAT(endpoint.error().message, HasSubstr(host));

  const auto listener = TcpListener::Listen({host, 9400});
  ASSERT_FALSE(listener);
  EXPECT_EQ(listener.error().code, ErrorCode::kInvalidArgument);
}

TEST(TcpTest, AListenerWithoutRoomIsTimeUp) {
  // A backlog of one that nobody accepts from: further connections are not answered.
  auto listener = TcpListener::Listen({"127.0.0.1", 0}, 1).value();
  std::vector<std::unique_ptr<Endpoint>> taken;
  for (int i = 0; i < 8; ++i) {
    const auto before = Clock::now();
    auto endpoint = ConnectTcp(listener.address(), before + 50ms);
    if (endpoint) {
      taken.push_back(std::move(endpoint).value());
      continue;
    }
    EXPECT_EQ(endpoint.error().code, ErrorCode::kDeadlineExceeded);
    EXPECT_THAT(endpoint.error().message, HasSubstr(listener.address().ToString()));
    EXPECT_GE(Clock::now(), before + 50ms);
    return;
  }
  FAIL() << "all connections were taken";
}

TEST(TcpTest, AUsedPortIsAConflictAndNamed) {
  const auto first = TcpListener::Listen({"127.0.0.1", 0}).value();
  const auto second = TcpListener::Listen(first.address());
  ASSERT_FALSE(second);
  EXPECT_EQ(second.error().code, ErrorCode::kConflict);
  EXPECT_THAT(second.error().message, HasSubstr(first.address().ToString()));
  EXPECT_THAT(second.error().message, HasSubstr("another port"));
}

TEST(TcpTest, AForkedChildLeavesTheConnectionAloneAndDoesNotKeepItOpen) {
  auto listener = TcpListener::Listen({"127.0.0.1", 0}).value();
  auto near = ConnectTcp(listener.address(), Soon()).value();
  std::unique_ptr<Endpoint> far;
  while (!far) far = listener.Accept().value();
  int release[2];
  ASSERT_EQ(::pipe(release), 0);

  const pid_t drops = ::fork();
  if (drops == 0) {
    near.reset();
    ::_exit(0);
  }
  ASSERT_EQ(::waitpid(drops, nullptr, 0), drops);
  ASSERT_TRUE(near->Send({.request_id = 8}, {}, {}));
  ASSERT_TRUE(Flush(*near, Soon()));
  ASSERT_EQ(NextEvent(*far, Soon(), "a frame").value(), Endpoint::Event::kFrame);

  const pid_t keeps = ::fork();
  if (keeps == 0) {  // Holds a copy of the socket until the parent is done.
    char byte;
    ::close(release[1]);
    (void)!::read(release[0], &byte, 1);
    ::_exit(0);
  }
  near->Close();
  const auto end = NextEvent(*far, Soon(), "the end");
  ::close(release[1]);
  ASSERT_EQ(::waitpid(keeps, nullptr, 0), keeps);
  ::close(release[0]);
  ASSERT_TRUE(end) << end.error().message;
  EXPECT_EQ(end.value(), Endpoint::Event::kClosed);
}

TEST(LocalTest, AListenerOfAnotherUserIsDeniedToAClientThatWantsItsOwn) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root can listen as another user";
  const std::string own = test::FreshName();
  const std::string foreign = test::FreshName();
  const auto own_listener = LocalListener::Listen(own).value();
  ASSERT_EQ(::seteuid(65534), 0);  // nobody
  const auto foreign_listener = LocalListener::Listen(foreign);
  ASSERT_EQ(::seteuid(0), 0);
  ASSERT_TRUE(foreign_listener) << foreign_listener.error().message;

  const auto denied = ConnectLocal(foreign, "peer", Soon(), LocalOwner::kThisUser);

  ASSERT_FALSE(denied);
  EXPECT_EQ(denied.error().code, ErrorCode::kDenied) << denied.error().message;
  EXPECT_TRUE(ConnectLocal(foreign, "peer", Soon(), LocalOwner::kAnybody));
  EXPECT_TRUE(ConnectLocal(own, "peer", Soon(), LocalOwner::kThisUser));
}

// Sends frames of 40 bytes and a 60-byte body from near until `far` has an error.
Error FirstError(const LoopbackOptions& options, int* frames) {
  auto pair = MakeLoopbackPair(options).value();
  for (;;) {
    if (pair.near->fd() >= 0) {
      (void)pair.near->Send({}, std::vector<std::byte>(60), {});
      (void)pair.near->Poll();
    }
    const auto event = NextEvent(*pair.far, Soon(), "a frame");
    if (!event) return event.error();
    ++*frames;
  }
}

TEST(LoopbackTest, TheConnectionBreaksAfterThatManyBytes) {
  for (const std::uint64_t bytes : {1U, 100U, 250U, 300U}) {
    int frames = 0;
    const Error error = FirstError({.close_after_bytes = bytes}, &frames);
    EXPECT_EQ(error.code, ErrorCode::kUnavailable) << error.message;
    EXPECT_EQ(frames, static_cast<int>(bytes / 100));
  }
}

TEST(LoopbackTest, OneBitOfThatByteIsFlipped) {
  for (const std::uint64_t byte : {1U, 99U, 100U, 250U}) {
    int frames = 0;
    const Error error = FirstError({.flip_after_bytes = byte}, &frames);
    EXPECT_EQ(error.code, ErrorCode::kCorruption) << error.message;
    EXPECT_EQ(frames, static_cast<int>(byte / 100));
  }
}

TEST(LoopbackTest, NoMoreThanTheBufferIsInFlight) {
  auto pair = MakeLoopbackPair({.buffer_size_bytes = 100}).value();
  ASSERT_TRUE(pair.near->Send({}, std::vector<std::byte>(1000), {}));
  ASSERT_EQ(pair.near->Poll().value(), Endpoint::Event::kNone);
  EXPECT_EQ(pair.near->bytes_queued(), 940U);

  EXPECT_EQ(MakeLoopbackPair({.buffer_size_bytes = 0}).error().code, ErrorCode::kInvalidArgument);
}

}  // namespace
}  // namespace ffrecord::net
