#pragma once

// Declarations as of OpenSSL 3.0, whatever later ones think of them.
#define OPENSSL_API_COMPAT 30000
#include <openssl/bio.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <openssl/x509.h>

#include <memory>
#include <string>

#include <ffrecord/result.h>

#include "libffrecord/base/home_process.h"
#include "libffrecord/net/transport/socket_stream.h"
#include "libffrecord/net/transport/tls/tls.h"

namespace ffrecord::net {

template <auto kFree>
struct FreeWith {
  template <class T>
  void operator()(T* one) const noexcept {
    kFree(one);
  }
};
using SslPtr = std::unique_ptr<SSL, FreeWith<SSL_free>>;
using SslContextPtr = std::unique_ptr<SSL_CTX, FreeWith<SSL_CTX_free>>;

// Names of a connection, for messages.
struct TlsNames {
  TlsContext::Side side;
  TlsFiles files;
  std::string host;  // The peer.
};

// One TLS connection over its socket. In the middle of anything it may be destroyed.
class TlsStream final : public ByteStream {
 public:
  // `ssl` is on the socket and knows its side.
  TlsStream(UniqueFd fd, SslPtr ssl, TlsNames names) noexcept;
  ~TlsStream() override;

  std::string_view transport() const noexcept override { return "tls"; }
  std::string cipher() const override;
  std::optional<ChannelBinding> channel_binding() const override;
  int fd() const noexcept override { return fd_.get(); }
  bool has_local_peer() const noexcept override { return HasLocalPeer(fd_.get()); }
  bool wants_room(bool has_queued) const noexcept override;
  Result<std::size_t> Write(std::span<const iovec> pieces, int descriptor) override;
  Result<std::optional<std::size_t>> Read(std::span<const iovec> pieces) override;

  // Goes on with the handshake; true once it is over. Fails as Read.
  Result<bool> ShakeHands();
  bool is_turned_away() const noexcept { return is_turned_away_; }

 private:
  // The outcome of the last call that did not succeed: nullopt, it would have to wait; no error,
  // the stream has ended.
  Result<std::optional<std::size_t>> Outcome(int status, const char* while_doing);
  Error Explain(const char* while_doing);
  Error ExplainPeerCertificate(long verdict) const;
  Error ExplainAlert(int alert) const;

  UniqueFd fd_;
  SslPtr ssl_;
  const TlsNames names_;
  const HomeProcess home_;
  bool is_open_ = false;         // The handshake is over.
  bool is_turned_away_ = false;  // The peer has broken the handshake off for want of room.
  bool has_failed_ = false;
  bool read_wants_room_ = false;  // An answer of TLS itself waits for room in the socket.
  // Whether bytes came right behind the bytes that were read last: the next Read() returns it.
  std::optional<Result<std::optional<std::size_t>>> next_outcome_;
};

// The method of a socket that raises no SIGPIPE.
const BIO_METHOD* QuietSocketMethod();

// The oldest error that OpenSSL has noted in this thread, for people; the list is empty then.
std::string TakeOpensslErrors();

}  // namespace ffrecord::net
