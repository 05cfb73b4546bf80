// Goal: over TLS a daemon serves what it serves without, to those whom its authorities vouch for;
// who stalls in the handshake, comes with nothing to show, or finds no room costs nobody else
// anything, and knows why. Method: a daemon in this process, the client's own way to it, and raw
// sockets that say half of a handshake.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>

#include <memory>
#include <string>
#include <thread>

#include <ffrecord/client/dataset.h>

#include "daemon.h"
#include "libffrecord/net/rpc/session.h"
#include "test_file.h"
#include "tls_pairs.h"
#include "tokens.h"

namespace ffrecord::client {
namespace {

using net::test::TlsFolder;
using test::Daemon;
using testing::HasSubstr;
using namespace std::chrono_literals;

constexpr SessionOptions kOptions{20s};

class TlsDaemonTest : public testing::Test {
 protected:
  void SetUp() override {
    if (!net::test::HasTls()) GTEST_SKIP() << "this build has no TLS";
  }
  server::Server::Options Secure() const {
    server::Server::Options options;
    options.tls = own_.files();
    options.transport = server::Server::Options::Transport::kTcp;  // So that TLS serves.
    return options;
  }
  static std::string Uri(const Daemon& daemon, const std::filesystem::path& folder,
                         const std::string& name = "x") {
    return daemon.Uri(name) + "?tls=" + folder.string();
  }
  std::string Uri(const Daemon& daemon) const { return Uri(daemon, own_.folder.path()); }
  static Error PingError(const std::string& uri) {
    const auto link = ProbeDaemon(uri, kOptions);
    return link ? Error{ErrorCode::kOk, ""} : link.error();
  }

  TlsFolder own_;
};

TEST_F(TlsDaemonTest, ADatasetIsPublishedAndReadAsWithoutIt) {
  const Daemon daemon(Secure());
  EXPECT_EQ(daemon.server().transports(), "tls");
  EXPECT_EQ(daemon.server().authentication(), "certificates");
  std::vector<std::string> records;
  for (int i = 0; i < 300; ++i)
    records.push_back(std::string(static_cast<std::size_t>(i) * 97, 'a'));
  records.push_back(std::string(9 << 20, 'z'));
  const test::TestFile file(records);
  const std::string uri = Uri(daemon);

  const auto published = PublishDataset({{file.path()}}, uri, false, kOptions, {});

  ASSERT_TRUE(published) << published.error().message;
  const auto reader = OpenDataset({{uri}}, {}, kOptions);
  ASSERT_TRUE(reader) << reader.error().message;
  EXPECT_EQ(test::ReadAll(reader.value()), file.records());
  const auto link = ProbeDaemon(uri, kOptions).value();
  EXPECT_EQ(link.transport, "tls");
  EXPECT_THAT(link.reason, HasSubstr("TLSv1.3"));
}

TEST_F(TlsDaemonTest, WhoHasNothingToShowIsRefusedAtOnceAndToldWhy) {
  const Daemon daemon(Secure());
  const test::TempFolder bare;
  own_.authority.Write(bare / "ca.pem");
  const TlsFolder strangers;

  const Error plain = PingError(daemon.Uri("x"));
  EXPECT_EQ(plain.code, ErrorCode::kDenied);
  EXPECT_THAT(plain.message, HasSubstr("?tls=FOLDER"));
  const Error uncertified = PingError(Uri(daemon, bare.path()));
  EXPECT_EQ(uncertified.code, ErrorCode::kDenied);
  EXPECT_THAT(uncertified.message, HasSubstr("requires a certificate"));
  const Error stranger = PingError(Uri(daemon, strangers.folder.path()));
  EXPECT_EQ(stranger.code, ErrorCode::kDenied);
  EXPECT_THAT(stranger.message, HasSubstr("not signed by an authority"));
  EXPECT_EQ(PingError(Uri(daemon, "/no/such/folder")).code, ErrorCode::kNotFound);
  EXPECT_EQ(PingError(Uri(daemon)).code, ErrorCode::kOk);
}

TEST_F(TlsDaemonTest, SharedMemoryIsForThoseWhoHaveShownWhatTlsAsksFor) {
  auto options = Secure();
  options.transport = server::Server::Options::Transport::kShm;
  for (const bool wants_certificates : {true, false}) {
    if (!wants_certificates) options.tls.authorities.clear();
    const Daemon daemon(options);
    EXPECT_EQ(daemon.server().transports(), "tls,shm");
    const auto link = ProbeDaemon(Uri(daemon), kOptions);
    ASSERT_TRUE(link) << link.error().message;
    EXPECT_EQ(link.value().transport, "shm");
  }
}

TEST_F(TlsDaemonTest, ANewCertificateIsForNewConnections) {
  Daemon daemon(Secure());
  ASSERT_EQ(PingError(Uri(daemon)).code, ErrorCode::kOk);
  const TlsFolder next;
  EXPECT_EQ(PingError(Uri(daemon, next.folder.path())).code, ErrorCode::kDenied);

  for (const char* name : {"ca.pem", "cert.pem", "key.pem"})
    std::filesystem::rename(next.folder / name, own_.folder / (std::string(name) + ".new"));
  for (const char* name : {"ca.pem", "cert.pem", "key.pem"}) {
    std::filesystem::copy_file(own_.folder / (std::string(name) + ".new"), next.folder / name);
    std::filesystem::rename(own_.folder / (std::string(name) + ".new"), own_.folder / name);
  }

  EXPECT_TRUE(test::Eventually(
      [&] { return PingError(Uri(daemon, next.folder.path())).code == ErrorCode::kOk; }));
  // Connections that were made before go on.
  EXPECT_EQ(PingError(Uri(daemon)).code, ErrorCode::kOk);
}

TEST_F(TlsDaemonTest, WhoStallsInTheHandshakeIsHungUpOnAndNobodyWaits) {
  auto options = Secure();
  options.greeting_timeout = 500ms;
  const Daemon daemon(options);
  // The beginning of a handshake record, and then a byte now and then.
  constexpr std::array<unsigned char, 6> kBegin{0x16, 3, 1, 0x01, 0x00, 0x01};
  std::vector<std::unique_ptr<net::Endpoint>> slow;
  for (int i = 0; i < 20; ++i) {
    slow.push_back(net::ConnectTcp(daemon.address(), net::Clock::now() + 20s).value());
    (void)::send(slow.back()->fd(), kBegin.data(), static_cast<std::size_t>(i % 7), MSG_NOSIGNAL);
  }

  // The time is short for us as well, on a busy machine.
  const auto is_served = [&] { return PingError(Uri(daemon)).code == ErrorCode::kOk; };
  EXPECT_TRUE(test::Eventually(is_served));
  for (const auto& peer : slow) {
    (void)::send(peer->fd(), kBegin.data(), 1, MSG_NOSIGNAL);
    const auto end = net::NextEvent(*peer, net::Clock::now() + 60s, "the end");
    EXPECT_TRUE(!end || end.value() == net::Endpoint::Event::kClosed);
    if (!end) {
      EXPECT_NE(end.error().code, ErrorCode::kDeadlineExceeded);
    }
  }
  EXPECT_TRUE(test::Eventually(is_served));
}

TEST_F(TlsDaemonTest, BeyondTheBoundOfConnectionsItIsBusy) {
  auto options = Secure();
  options.connection_count_max = 1;
  const Daemon daemon(options);
  const std::string uri = Uri(daemon);
  ASSERT_EQ(PingError(uri).code, ErrorCode::kOk);  // Keeps its connection.

  const auto context = net::test::LoadTls(net::TlsContext::Side::kClient, own_.files());
  bool is_turned_away = false;
  const auto second =
      net::ConnectTls(daemon.address(), *context, net::test::Soon(), &is_turned_away);

  ASSERT_FALSE(second);
  EXPECT_EQ(second.error().code, ErrorCode::kUnavailable);
  EXPECT_THAT(second.error().message, HasSubstr("busy"));
  EXPECT_TRUE(is_turned_away);
}

// What a thief has heard, or a false daemon been told, opens no other connection.
TEST_F(TlsDaemonTest, ATokenIsShownInAFormThatIsGoodForItsConnectionOnly) {
  const test::TempFolder folder;
  auto options = Secure();
  options.token_keys = test::WriteTokenKeys(folder);
  const Daemon daemon(options);
  const auto token = test::MakeToken(test::kRead | test::kWrite, "");
  test::WriteToken(folder / "token", token);
  const test::TestFile file({"zero", "first"});
  const std::string uri = Uri(daemon) + "&token_file=" + (folder / "token").string();

  const auto published = PublishDataset({{file.path()}}, uri, false, kOptions, {});
  ASSERT_TRUE(published) << published.error().message;
  EXPECT_EQ(test::ReadAll(OpenDataset({{uri}}, {}, kOptions).value()), file.records());
  EXPECT_EQ(PingError(Uri(daemon)).code, ErrorCode::kDenied);

  // A greeting, with whatever is given for its credential.
  const auto context = net::test::LoadTls(net::TlsContext::Side::kClient, own_.files());
  const auto connect = [&] {
    return net::ConnectTls(daemon.address(), *context, net::test::Soon()).value();
  };
  const auto greet = [](net::Endpoint& endpoint, std::vector<std::byte> credential) {
    net::Hello hello;
    hello.body_size_bytes_max = net::FrameLimits{}.body_size_bytes_max;
    hello.payload_size_bytes_max = net::FrameLimits{}.payload_size_bytes_max;
    hello.credential = std::move(credential);
    net::FrameHeader header;
    header.type = net::FrameType::kHello;
    header.request_id = 1;
    EXPECT_TRUE(endpoint.Send(header, hello.Encode(), {}));
    const auto event = net::NextEvent(endpoint, net::test::Soon(), "the greeting");
    EXPECT_TRUE(event && event.value() == net::Endpoint::Event::kFrame);
    return endpoint.header().type;
  };
  const auto first = connect();
  const auto heard = net::BindToken(token, first->channel_binding().value());
  EXPECT_EQ(greet(*first, heard), net::ReplyTo(net::FrameType::kHello));
  EXPECT_EQ(greet(*connect(), heard), net::FrameType::kError);
  EXPECT_EQ(greet(*connect(), token), net::FrameType::kError);
}

}  // namespace
}  // namespace ffrecord::client
