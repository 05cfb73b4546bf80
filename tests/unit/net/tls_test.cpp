// Goal: TLS lets in whom both sides' authorities vouch for and nobody else; whoever is refused is
// told what is wrong and what to do, and costs no more than his own connection. Method: two ends in
// this process with certificates made here, good ones and each kind of bad one; peers that speak
// something else.

#include "libffrecord/net/transport/tls/tls.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/tcp.h>
#include <openssl/ssl.h>
#include <sys/socket.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <future>

#include "bytes.h"
#include "tls_pairs.h"

namespace ffrecord::net {
namespace {

using namespace test;
using ffrecord::test::Authority;
using testing::AllOf;
using testing::HasSubstr;
using Side = TlsContext::Side;

// How one side fared.
struct Fate {
  ErrorCode code = ErrorCode::kOk;
  std::string message;
};
Fate FateOf(const Error& error) { return {error.code, error.message}; }

struct Meeting {
  Fate client, server;
  std::string cipher;  // As the server sees it.
};

class TlsTest : public testing::Test {
 protected:
  TlsTest() {
    std::filesystem::create_directory(other_);
    std::filesystem::copy_file(own_.folder / "ca.pem", other_ / "ca.pem");
  }
  void SetUp() override {
    if (!HasTls()) GTEST_SKIP() << "this build has no TLS";
  }

  // A client's folder with a certificate like that.
  TlsFiles Issue(const Authority& authority, const Authority::Wish& wish = {}) {
    authority.Issue(other_ / "cert.pem", other_ / "key.pem", wish);
    return TlsFiles::In(other_);
  }

  // A client connects, sends a frame and waits for one; the server answers.
  Meeting Meet(const TlsFiles& server_files, const TlsFiles& client_files,
               const std::string& host = "127.0.0.1") {
    const auto server = LoadTls(Side::kServer, server_files);
    auto listener = TcpListener::Listen({"127.0.0.1", 0}).value();
    auto client = std::async(std::launch::async, [&] {
      const auto context = LoadTls(Side::kClient, client_files);
      auto endpoint = ConnectTls({host, listener.address().port}, *context, Soon());
      if (!endpoint) return FateOf(endpoint.error());
      (void)endpoint.value()->Send({}, {}, {});
      const auto event = NextEvent(*endpoint.value(), Soon(), "an answer");
      if (!event) return FateOf(event.error());
      return event.value() == Endpoint::Event::kFrame ? Fate{} : Fate{ErrorCode::kNotFound, ""};
    });
    Meeting meeting;
    std::unique_ptr<Endpoint> far;
    while (!far) far = listener.Accept(server.get()).value();
    const auto event = NextEvent(*far, Soon(), "a frame");
    if (!event) {
      meeting.server = FateOf(event.error());
      far.reset();
    } else if (event.value() == Endpoint::Event::kFrame) {
      meeting.cipher = far->cipher();
      EXPECT_TRUE(far->Send({}, {}, {}));
      EXPECT_TRUE(Flush(*far, Soon()));
    }
    meeting.client = client.get();
    return meeting;
  }

  TlsFolder own_;
  const std::filesystem::path other_ = own_.folder / "client";
};

TEST_F(TlsTest, BothSidesWithCertificatesTalkInTls13) {
  for (const char* host : {"127.0.0.1", "localhost"}) {
    const auto met = Meet(own_.files(), own_.files(), host);
    EXPECT_EQ(met.client.code, ErrorCode::kOk) << met.client.message;
    EXPECT_EQ(met.server.code, ErrorCode::kOk) << met.server.message;
    EXPECT_THAT(met.cipher, testing::StartsWith("TLSv1.3 TLS_"));
  }
}

TEST_F(TlsTest, AServerWithoutAuthoritiesTakesClientsWithoutCertificates) {
  TlsFiles server = own_.files();
  server.authorities.clear();
  const auto met = Meet(server, TlsFiles::In(other_));
  EXPECT_EQ(met.client.code, ErrorCode::kOk) << met.client.message;
  EXPECT_EQ(met.server.code, ErrorCode::kOk) << met.server.message;
}

TEST_F(TlsTest, ClientsWithoutAGoodCertificateAreToldWhy) {
  const auto expect = [&](const TlsFiles& client, const auto& client_says,
                          const auto& server_says) {
    const auto met = Meet(own_.files(), client);
    EXPECT_EQ(met.client.code, ErrorCode::kDenied);
    EXPECT_THAT(met.client.message, client_says);
    EXPECT_NE(met.server.code, ErrorCode::kOk);
    EXPECT_THAT(met.server.message, server_says);
  };

  expect(TlsFiles::In(other_), AllOf(HasSubstr("requires a certificate"), HasSubstr("ca.pem")),
         HasSubstr("has no certificate"));
  expect(Issue(Authority()),
         AllOf(HasSubstr("client/cert.pem"), HasSubstr("not signed by an authority")),
         HasSubstr("not signed by an authority"));
}

TEST_F(TlsTest, AClientRefusesADaemonThatIsNotTheOneItMeant) {
  const auto expect = [&](const TlsFiles& server, const std::string& host, const auto& says) {
    const auto met = Meet(server, own_.files(), host);
    EXPECT_EQ(met.client.code, ErrorCode::kDenied);
    EXPECT_THAT(met.client.message, says);
    EXPECT_NE(met.server.code, ErrorCode::kOk);
  };

  expect(Issue(Authority()), "127.0.0.1",
         AllOf(HasSubstr("not signed by an authority"), HasSubstr("ca.pem")));
  expect(Issue(own_.authority, {.names = "DNS:storage-1,IP:10.0.0.1"}), "127.0.0.1",
         AllOf(HasSubstr("127.0.0.1"), HasSubstr("subjectAltName")));
  expect(Issue(own_.authority, {.names = "IP:127.0.0.1"}), "localhost", HasSubstr("localhost"));
  expect(Issue(own_.authority, {.names = "", .begins_s = -60}), "127.0.0.1",
         HasSubstr("subjectAltName"));
  expect(Issue(own_.authority, {.begins_s = 600}), "127.0.0.1", HasSubstr("not valid yet"));
}

TEST_F(TlsTest, ADaemonWhoseCertificateHasExpiredIsRefused) {
  // A server of our own does not start with one, so this is none of ours.
  const TlsFiles files = Issue(own_.authority, {.begins_s = -600, .ends_s = -60});
  auto listener = TcpListener::Listen({"127.0.0.1", 0}).value();
  auto client = std::async(std::launch::async, [&] {
    const auto context = LoadTls(Side::kClient, own_.files());
    return ConnectTls(listener.address(), *context, Soon()).error();
  });
  std::unique_ptr<Endpoint> far;
  while (!far) far = listener.Accept().value();
  SSL_CTX* const context = ::SSL_CTX_new(::TLS_server_method());
  ASSERT_EQ(::SSL_CTX_use_certificate_chain_file(context, files.certificate.c_str()), 1);
  ASSERT_EQ(::SSL_CTX_use_PrivateKey_file(context, files.key.c_str(), SSL_FILETYPE_PEM), 1);
  SSL* const ssl = ::SSL_new(context);
  ::SSL_set_fd(ssl, far->fd());
  while (client.wait_for(1ms) != std::future_status::ready) (void)::SSL_accept(ssl);
  ::SSL_free(ssl);
  ::SSL_CTX_free(context);

  const Error refused = client.get();
  EXPECT_EQ(refused.code, ErrorCode::kDenied);
  EXPECT_THAT(refused.message, HasSubstr("has expired"));
}

TEST_F(TlsTest, FilesThatWillNotDoAreNamedWithTheRemedy) {
  const auto refusal = [](TlsFiles files) {
    const auto loaded = TlsContext::Load(Side::kServer, std::move(files));
    return loaded ? Fate{} : FateOf(loaded.error());
  };
  const TlsFiles good = own_.files();
  ffrecord::test::WriteFile(own_.folder / "text", "no certificate");

  auto files = good;
  files.certificate = own_.folder / "text";
  EXPECT_THAT(refusal(files).message, AllOf(HasSubstr("text"), HasSubstr("holds no certificate")));
  files = good;
  files.authorities = own_.folder / "text";
  EXPECT_THAT(refusal(files).message, AllOf(HasSubstr("text"), HasSubstr("authority")));
  files = good;
  files.key = own_.folder / "none";
  EXPECT_EQ(refusal(files).code, ErrorCode::kNotFound);
  own_.authority.Issue(own_.folder / "c2", own_.folder / "k2");
  files.key = own_.folder / "k2";
  EXPECT_THAT(refusal(files).message, AllOf(HasSubstr("k2"), HasSubstr("is not the key of")));
  ::chmod(files.key.c_str(), 0644);
  EXPECT_EQ(refusal(files).code, ErrorCode::kDenied);
  EXPECT_THAT(refusal(files).message, HasSubstr("chmod 600"));
  EXPECT_THAT(refusal(Issue(own_.authority, {.begins_s = -600, .ends_s = -60})).message,
              AllOf(HasSubstr("cert.pem"), HasSubstr("has expired")));
}

TEST_F(TlsTest, NewCertificatesAreTakenUpAndBadOnesAreToldOnce) {
  const auto context = LoadTls(Side::kServer, own_.files());
  EXPECT_FALSE(context->Refresh().value());
  const auto now = std::chrono::system_clock::now();
  EXPECT_LT(context->expires() - now, 2h);
  own_.authority.Issue(own_.folder / "cert.pem", own_.folder / "key.pem", {.ends_s = 7 * 3600});
  EXPECT_TRUE(context->Refresh().value());
  EXPECT_GT(context->expires() - now, 6h);
  EXPECT_FALSE(context->Refresh().value());

  ffrecord::test::WriteFile(own_.folder / "cert.pem", "half of a ");
  EXPECT_FALSE(context->Refresh());
  EXPECT_FALSE(context->Refresh().value());
  std::filesystem::remove(own_.folder / "cert.pem");
  EXPECT_FALSE(context->Refresh());
  EXPECT_FALSE(context->Refresh().value());
  EXPECT_TRUE(context->MakeStream(UniqueFd(::socket(AF_INET, SOCK_STREAM, 0)), "x"));
  own_.authority.Issue(own_.folder / "cert.pem", own_.folder / "key.pem");
  EXPECT_TRUE(context->Refresh().value());
}

TEST_F(TlsTest, OlderTlsIsRefused) {
  const auto server = LoadTls(Side::kServer, own_.files());
  auto listener = TcpListener::Listen({"127.0.0.1", 0}).value();
  const auto near = ConnectTcp(listener.address(), Soon()).value();
  std::unique_ptr<Endpoint> far;
  while (!far) far = listener.Accept(server.get()).value();
  SSL_CTX* const old = ::SSL_CTX_new(::TLS_client_method());
  ::SSL_CTX_set_max_proto_version(old, TLS1_2_VERSION);
  SSL* const ssl = ::SSL_new(old);
  ::SSL_set_fd(ssl, near->fd());
  EXPECT_NE(::SSL_connect(ssl), 1);

  const auto event = NextEvent(*far, Soon(), "a frame");

  ::SSL_free(ssl);
  ::SSL_CTX_free(old);
  ASSERT_FALSE(event);
  EXPECT_EQ(event.error().code, ErrorCode::kDenied);
  EXPECT_THAT(event.error().message, HasSubstr("not support TLS 1.3"));
}

TEST_F(TlsTest, WhoSpeaksTlsToOneWhoDoesNotIsToldSoOnBothSides) {
  // A plain client: the server breaks off with a word in clear.
  const auto server = LoadTls(Side::kServer, own_.files());
  auto listener = TcpListener::Listen({"127.0.0.1", 0}).value();
  auto plain = ConnectTcp(listener.address(), Soon()).value();
  ASSERT_TRUE(plain->Send({}, {}, {}));
  ASSERT_TRUE(Flush(*plain, Soon()));
  std::unique_ptr<Endpoint> far;
  while (!far) far = listener.Accept(server.get()).value();
  const auto seen = NextEvent(*far, Soon(), "a frame");
  ASSERT_FALSE(seen);
  EXPECT_EQ(seen.error().code, ErrorCode::kCorruption);
  EXPECT_THAT(seen.error().message, HasSubstr("does not use TLS"));
  const auto told = NextEvent(*plain, Soon(), "an answer");
  ASSERT_FALSE(told);
  EXPECT_EQ(told.error().code, ErrorCode::kDenied);
  EXPECT_THAT(told.error().message, HasSubstr("?tls=FOLDER"));

  // A plain server.
  auto client = std::async(std::launch::async, [&] {
    const auto context = LoadTls(Side::kClient, own_.files());
    return ConnectTls(listener.address(), *context, Soon()).error();
  });
  far = nullptr;
  while (!far) far = listener.Accept().value();
  const auto hello = NextEvent(*far, Soon(), "a frame");
  far.reset();
  ASSERT_FALSE(hello);
  EXPECT_EQ(hello.error().code, ErrorCode::kDenied);
  EXPECT_THAT(hello.error().message, HasSubstr("uses TLS"));
  EXPECT_EQ(client.get().code, ErrorCode::kUnavailable);
}

TEST_F(TlsTest, AClientThatIsTurnedAwayKnowsIt) {
  const auto server = LoadTls(Side::kServer, own_.files());
  auto listener = TcpListener::Listen({"127.0.0.1", 0}).value();
  bool is_turned_away = false;
  auto client = std::async(std::launch::async, [&] {
    const auto context = LoadTls(Side::kClient, own_.files());
    return ConnectTls(listener.address(), *context, Soon(), &is_turned_away).error();
  });
  std::unique_ptr<Endpoint> far;
  while (!far) far = listener.Accept(server.get()).value();
  far.reset();

  const Error error = client.get();
  EXPECT_EQ(error.code, ErrorCode::kUnavailable) << error.message;
  EXPECT_TRUE(is_turned_away) << error.message;
}

TEST_F(TlsTest, AServerThatSaysNothingIsGivenUpAtTheDeadline) {
  auto listener = TcpListener::Listen({"127.0.0.1", 0}).value();
  const auto context = LoadTls(Side::kClient, own_.files());
  const auto connected = ConnectTls(listener.address(), *context, Clock::now() + 50ms);
  ASSERT_FALSE(connected);
  EXPECT_EQ(connected.error().code, ErrorCode::kDeadlineExceeded);
  EXPECT_THAT(connected.error().message, HasSubstr(listener.address().ToString()));
}

TEST_F(TlsTest, BothEndsKnowOneBindingAndNoOtherConnectionHasIt) {
  const auto exchange = [](const EndpointPair& pair) {
    EXPECT_TRUE(pair.near->Send({}, {}, {}));
    EXPECT_TRUE(Flush(*pair.near, Soon()));
    EXPECT_EQ(NextEvent(*pair.far, Soon(), "a frame").value(), Endpoint::Event::kFrame);
  };
  const EndpointPair first = MakeTlsPair();
  const EndpointPair second = MakeTlsPair();
  exchange(first);
  exchange(second);

  ASSERT_TRUE(first.near->channel_binding());
  EXPECT_EQ(first.near->channel_binding(), first.far->channel_binding());
  EXPECT_EQ(second.near->channel_binding(), second.far->channel_binding());
  EXPECT_NE(first.near->channel_binding(), second.near->channel_binding());
  EXPECT_FALSE(MakeTcpPair().near->channel_binding());
}

// The daemon's own tests have the golden vector: protocol.md, "Tokens".
TEST_F(TlsTest, ABoundTokenKeepsAllButItsCodeAndWhatIsNoTokenStaysAsItIs) {
  std::vector<std::byte> token(60, std::byte{7});
  const auto bound = BindToken(token, ChannelBinding{});
  ASSERT_EQ(bound.size(), token.size());
  EXPECT_TRUE(std::equal(token.begin(), token.end() - 32, bound.begin()));
  EXPECT_FALSE(std::equal(token.end() - 32, token.end(), bound.end() - 32));
  EXPECT_NE(bound, BindToken(token, {std::byte{1}}));
  token.resize(31);
  EXPECT_EQ(BindToken(token, ChannelBinding{}), token);
}

// The machine of tests/rdma has such a kernel.
TEST_F(TlsTest, TheDaemonsSideLeavesEncipheringToAKernelThatCan) {
  if (const EndpointPair plain = MakeTcpPair();
      ::setsockopt(plain.near->fd(), SOL_TCP, TCP_ULP, "tls", 4) != 0)
    GTEST_SKIP() << "this kernel enciphers nothing (modprobe tls): " << std::strerror(errno);
  const EndpointPair pair = MakeTlsPair();
  std::string data(3 << 20, '\0');
  for (std::size_t i = 0; i < data.size(); ++i) data[i] = static_cast<char>(i * i % 251);
  const std::array pieces{ffrecord::test::AsBytes(data).first(1000),
                          ffrecord::test::AsBytes(data).subspan(1000)};
  std::string received(data.size(), '\0');
  const auto place = std::as_writable_bytes(std::span(received));
  pair.near->SetLimits(FrameLimits{});

  // Each end in both directions: the client's frames are enciphered as ever.
  ASSERT_TRUE(pair.near->Send({}, {}, {}));
  ASSERT_TRUE(Flush(*pair.near, Soon()));
  ASSERT_EQ(NextEvent(*pair.far, Soon(), "a frame").value(), Endpoint::Event::kFrame);
  ASSERT_TRUE(pair.far->Send({}, {}, pieces));
  auto flushed = std::async(std::launch::async, [&] { return Flush(*pair.far, Soon()); });
  ASSERT_EQ(NextEvent(*pair.near, Soon(), "a frame").value(), Endpoint::Event::kFrame);
  ASSERT_TRUE(pair.near->ReceivePayload({&place, 1}));
  ASSERT_EQ(NextEvent(*pair.near, Soon(), "its payload").value(), Endpoint::Event::kPayload);

  EXPECT_TRUE(flushed.get());
  EXPECT_TRUE(received == data);
  EXPECT_THAT(pair.far->cipher(), testing::EndsWith(", by the kernel"));
  EXPECT_THAT(pair.near->cipher(), testing::Not(HasSubstr("kernel")));
}

}  // namespace
}  // namespace ffrecord::net
