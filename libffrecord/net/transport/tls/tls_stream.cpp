#include <openssl/x509v3.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <utility>

#include "libffrecord/base/assert.h"
#include "libffrecord/base/patience.h"
#include "libffrecord/base/timed_waits.h"
#include "libffrecord/net/transport/socket_stream.h"
#include "libffrecord/net/transport/tls/openssl.h"

namespace ffrecord::net {
namespace {

using Side = TlsContext::Side;

// The most that one record of TLS holds.
constexpr std::size_t kRecordSizeBytes = 16 << 10;

// A fatal alert, user_canceled: the handshake is broken off for a reason that is none of TLS. It is
// in clear, so that who expected no TLS can tell as well.
constexpr std::array<unsigned char, 7> kTurnedAway{0x15, 3, 3, 0, 2, 2, SSL_AD_USER_CANCELLED};

// With the kernel's TLS a write says what kind of record it is, which only OpenSSL's own can.
int SendQuietly(BIO* bio, const char* bytes, int size) {
  if (BIO_get_ktls_send(bio)) return ::BIO_meth_get_write(::BIO_s_socket())(bio, bytes, size);
  int fd = -1;
  (void)BIO_get_fd(bio, &fd);
  ::BIO_clear_flags(bio, BIO_FLAGS_RWS | BIO_FLAGS_SHOULD_RETRY);
  const auto sent = ::send(fd, bytes, static_cast<std::size_t>(size), MSG_NOSIGNAL);
  if (sent < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR))
    ::BIO_set_flags(bio, BIO_FLAGS_WRITE | BIO_FLAGS_SHOULD_RETRY);
  return static_cast<int>(sent);
}

std::string OwnCertificate(const TlsFiles& files) {
  return files.certificate.empty() ? "of this side" : files.certificate.string();
}

}  // namespace

const BIO_METHOD* QuietSocketMethod() {
  static const BIO_METHOD* const method = [] {
    const BIO_METHOD* const socket = ::BIO_s_socket();
    BIO_METHOD* const made = ::BIO_meth_new(BIO_TYPE_SOCKET, "socket without SIGPIPE");
    FFR_ASSERT(made != nullptr);
    ::BIO_meth_set_write(made, SendQuietly);
    ::BIO_meth_set_read(made, ::BIO_meth_get_read(socket));
    ::BIO_meth_set_puts(made, ::BIO_meth_get_puts(socket));
    ::BIO_meth_set_ctrl(made, ::BIO_meth_get_ctrl(socket));
    ::BIO_meth_set_create(made, ::BIO_meth_get_create(socket));
    ::BIO_meth_set_destroy(made, ::BIO_meth_get_destroy(socket));
    return made;
  }();
  return method;
}

std::string TakeOpensslErrors() {
  const char* const reason = ::ERR_reason_error_string(::ERR_peek_error());
  ::ERR_clear_error();
  return reason != nullptr ? reason : "out of memory";
}

TlsStream::TlsStream(UniqueFd fd, SslPtr ssl, TlsNames names) noexcept
    : fd_(std::move(fd)), ssl_(std::move(ssl)), names_(std::move(names)) {}

TlsStream::~TlsStream() {
  // As SocketStream: a forked child touches nothing of its parent's connection.
  if (!home_.is_here()) return;
  ::ERR_clear_error();
  const bool was_silent = ::BIO_number_written(::SSL_get_wbio(ssl_.get())) == 0;
  if (is_open_ && !has_failed_)
    (void)::SSL_shutdown(ssl_.get());
  else if (names_.side == Side::kServer && !is_open_ && was_silent)
    (void)!::send(fd_.get(), kTurnedAway.data(), kTurnedAway.size(), MSG_NOSIGNAL);
  ::ERR_clear_error();
  ::shutdown(fd_.get(), SHUT_RDWR);
}

std::string TlsStream::cipher() const {
  if (!is_open_) return {};
  std::string text =
      std::string(::SSL_get_version(ssl_.get())) + " " + ::SSL_get_cipher_name(ssl_.get());
  if (BIO_get_ktls_send(::SSL_get_wbio(ssl_.get()))) text += ", by the kernel";
  return text;
}

// RFC 9266. It fails for want of memory only.
std::optional<ChannelBinding> TlsStream::channel_binding() const {
  FFR_ASSERT(is_open_);
  constexpr std::string_view kLabel = "EXPORTER-Channel-Binding";
  ChannelBinding binding{};
  const int status = ::SSL_export_keying_material(
      ssl_.get(), reinterpret_cast<unsigned char*>(binding.data()), binding.size(), kLabel.data(),
      kLabel.size(), nullptr, 0, /*use_context=*/1);
  FFR_ASSERT(status == 1);
  return binding;
}

// While hands are shaken, what is queued must wait, with room or without.
bool TlsStream::wants_room(bool has_queued) const noexcept {
  if (!is_open_) return SSL_want_write(ssl_.get());
  return has_queued || read_wants_room_;
}

Result<bool> TlsStream::ShakeHands() {
  if (is_open_) return true;
  ::ERR_clear_error();
  const int status = ::SSL_do_handshake(ssl_.get());
  if (status == 1) {
    is_open_ = true;
    return true;
  }
  const auto outcome = FFR_TRY(Outcome(status, "shaking hands"));
  if (!outcome) return false;
  has_failed_ = true;
  return Error{ErrorCode::kUnavailable,
               names_.side == Side::kClient
                   ? "the peer closed the connection during the TLS handshake. If it does not "
                     "serve TLS, omit "
                     "tls=FOLDER"
                   : "the peer closed the connection during the TLS handshake"};
}

Result<std::size_t> TlsStream::Write(std::span<const iovec> pieces, int descriptor) {
  FFR_ASSERT(descriptor < 0);
  if (!FFR_TRY(ShakeHands())) return std::size_t{0};
  std::size_t written_bytes = 0;
  std::size_t skip_bytes = 0;  // Offset in the first piece.
  while (!pieces.empty()) {
    // Small pieces share a record. If it would have to wait, the next call brings the same bytes
    // and perhaps more behind them, which is all that OpenSSL asks for.
    std::array<std::byte, kRecordSizeBytes> together;
    const auto* bytes = static_cast<const std::byte*>(pieces.front().iov_base) + skip_bytes;
    std::size_t size_bytes = pieces.front().iov_len - skip_bytes;
    if (size_bytes < kRecordSizeBytes && pieces.size() > 1) {
      size_bytes = 0;
      std::size_t skip = skip_bytes;
      for (const iovec& piece : pieces) {
        const std::size_t room = together.size() - size_bytes;
        const std::size_t taken = std::min(piece.iov_len - skip, room);
        std::memcpy(together.data() + size_bytes,
                    static_cast<const std::byte*>(piece.iov_base) + skip, taken);
        size_bytes += taken;
        skip = 0;
        if (size_bytes == together.size()) break;
      }
      bytes = together.data();
    }
    ::ERR_clear_error();
    std::size_t sent_bytes = 0;
    const int status = ::SSL_write_ex(ssl_.get(), bytes, size_bytes, &sent_bytes);
    if (status != 1) {
      const auto outcome = FFR_TRY(Outcome(status, "sending"));
      if (!outcome) return written_bytes;
      return Error{ErrorCode::kUnavailable, "lost while sending: the peer has ended the session"};
    }
    written_bytes += sent_bytes;
    for (skip_bytes += sent_bytes; !pieces.empty() && skip_bytes >= pieces.front().iov_len;
         pieces = pieces.subspan(1))
      skip_bytes -= pieces.front().iov_len;
  }
  return written_bytes;
}

Result<std::optional<std::size_t>> TlsStream::Read(std::span<const iovec> pieces) {
  if (next_outcome_) return *next_outcome_;
  if (!FFR_TRY(ShakeHands())) return std::optional<std::size_t>();
  std::size_t read_bytes = 0;
  read_wants_room_ = false;
  for (const iovec& piece : pieces) {
    for (std::size_t done_bytes = 0; done_bytes < piece.iov_len;) {
      ::ERR_clear_error();
      std::size_t got_bytes = 0;
      const int status =
          ::SSL_read_ex(ssl_.get(), static_cast<std::byte*>(piece.iov_base) + done_bytes,
                        piece.iov_len - done_bytes, &got_bytes);
      if (status == 1) {
        done_bytes += got_bytes;
        read_bytes += got_bytes;
        continue;
      }
      read_wants_room_ = SSL_want_write(ssl_.get());
      auto outcome = Outcome(status, "receiving");
      if (read_bytes == 0) return outcome;
      if (!outcome || outcome.value()) {
        next_outcome_ = std::move(outcome);
        // The end, or the error, has been read off the socket: it shall be readable all the same.
        ::shutdown(fd_.get(), SHUT_RD);
      }
      return std::optional(read_bytes);
    }
  }
  return std::optional(read_bytes);
}

// --- Failures ------------------------------------------------------------------------------------

Result<std::optional<std::size_t>> TlsStream::Outcome(int status, const char* while_doing) {
  const int number = errno;
  switch (::SSL_get_error(ssl_.get(), status)) {
    case SSL_ERROR_WANT_READ:
    case SSL_ERROR_WANT_WRITE:
      return std::optional<std::size_t>();
    case SSL_ERROR_ZERO_RETURN:
      return std::optional(std::size_t{0});
    case SSL_ERROR_SYSCALL:
      has_failed_ = true;
      return SocketLost(while_doing, number != 0 ? number : ECONNRESET);
    default:
      break;
  }
  has_failed_ = true;
  // No word of parting. Frames and dialogues have ends of their own.
  if (ERR_GET_REASON(::ERR_peek_last_error()) == SSL_R_UNEXPECTED_EOF_WHILE_READING)
    return std::optional(std::size_t{0});
  return Explain(while_doing);
}

Error TlsStream::Explain(const char* while_doing) {
  // TLS's own error comes last in the queue, behind the errors that explain it.
  const int reason = ERR_GET_REASON(::ERR_peek_last_error());
  const long verdict = ::SSL_get_verify_result(ssl_.get());
  if (reason == SSL_R_CERTIFICATE_VERIFY_FAILED && verdict != X509_V_OK)
    return ExplainPeerCertificate(verdict);
  // Alerts of the peer have reasons of their own, by number.
  if (reason > SSL_AD_REASON_OFFSET) {
    is_turned_away_ = reason - SSL_AD_REASON_OFFSET == SSL_AD_USER_CANCELLED;
    return ExplainAlert(reason - SSL_AD_REASON_OFFSET);
  }
  switch (reason) {
    case SSL_R_PEER_DID_NOT_RETURN_A_CERTIFICATE:
      return {ErrorCode::kDenied, "the client has no certificate"};
    case SSL_R_UNSUPPORTED_PROTOCOL:
    case SSL_R_UNKNOWN_PROTOCOL:
      return {ErrorCode::kDenied, "the peer does not support TLS 1.3"};
    case SSL_R_WRONG_VERSION_NUMBER:
    case SSL_R_HTTP_REQUEST:
    case SSL_R_HTTPS_PROXY_REQUEST:
      if (names_.side == Side::kServer)
        return {ErrorCode::kCorruption, "the peer does not use TLS, which this port requires"};
      return {ErrorCode::kDenied,
              "the peer does not use TLS; omit tls=FOLDER, or start the daemon with --tls-cert"};
    default:
      return {ErrorCode::kCorruption,
              std::string("TLS failed while ") + while_doing + ": " + TakeOpensslErrors()};
  }
}

Error TlsStream::ExplainPeerCertificate(long verdict) const {
  const std::string whose = "the certificate of the " +
                            std::string(names_.side == Side::kClient ? "daemon " : "client ") +
                            names_.host;
  std::string what;
  switch (verdict) {
    case X509_V_ERR_CERT_HAS_EXPIRED:
      what = " has expired; issue a new one";
      break;
    case X509_V_ERR_CERT_NOT_YET_VALID:
      what = " is not valid yet; check the clocks of both machines";
      break;
    case X509_V_ERR_HOSTNAME_MISMATCH:
    case X509_V_ERR_IP_ADDRESS_MISMATCH:
      what =
          " is for other names; use one of those, or issue one with this name as "
          "subjectAltName";
      break;
    case X509_V_ERR_DEPTH_ZERO_SELF_SIGNED_CERT:
    case X509_V_ERR_SELF_SIGNED_CERT_IN_CHAIN:
    case X509_V_ERR_UNABLE_TO_GET_ISSUER_CERT:
    case X509_V_ERR_UNABLE_TO_GET_ISSUER_CERT_LOCALLY:
    case X509_V_ERR_UNABLE_TO_VERIFY_LEAF_SIGNATURE:
    case X509_V_ERR_CERT_SIGNATURE_FAILURE:
      what = " is not signed by an authority in " + names_.files.authorities.string();
      break;
    default:
      what = std::string(": ") + ::X509_verify_cert_error_string(verdict);
      break;
  }
  return {ErrorCode::kDenied, whose + what};
}

Error TlsStream::ExplainAlert(int alert) const {
  const std::string own = "the peer refuses the certificate " + OwnCertificate(names_.files);
  switch (alert) {
    case SSL_AD_USER_CANCELLED:
      return {ErrorCode::kUnavailable,
              "the peer accepts no connections now: it is busy or stopping"};
    case SSL_AD_CERTIFICATE_REQUIRED:
      return {ErrorCode::kDenied,
              "the peer requires a certificate, and this side has none; put cert.pem and key.pem "
              "beside " +
                  names_.files.authorities.string()};
    case SSL_AD_UNKNOWN_CA:
    case SSL_AD_DECRYPT_ERROR:  // One of that name is known, and has not signed it.
      return {ErrorCode::kDenied, own + ": it is not signed by an authority that the peer trusts"};
    case SSL_AD_CERTIFICATE_EXPIRED:
      return {ErrorCode::kDenied, own + ": it has expired; issue a new one"};
    case SSL_AD_BAD_CERTIFICATE:
    case SSL_AD_UNSUPPORTED_CERTIFICATE:
    case SSL_AD_CERTIFICATE_REVOKED:
    case SSL_AD_CERTIFICATE_UNKNOWN:
    case SSL_AD_ACCESS_DENIED:
      return {ErrorCode::kDenied, own + ": " + ::SSL_alert_desc_string_long(alert)};
    case SSL_AD_PROTOCOL_VERSION:
      return {ErrorCode::kDenied, "the peer does not support TLS 1.3"};
    default:
      return {ErrorCode::kUnavailable,
              std::string("the peer aborted TLS: ") + ::SSL_alert_desc_string_long(alert)};
  }
}

// --- Connecting ----------------------------------------------------------------------------------

Result<std::unique_ptr<Endpoint>> ConnectTls(const Address& address, const TlsContext& context,
                                             Deadline deadline, bool* is_turned_away) {
  UniqueFd fd = FFR_TRY(ConnectTcpSocket(address, deadline));
  auto made = FFR_TRY(context.MakeStream(std::move(fd), address.host));
  auto& stream = static_cast<TlsStream&>(*made);
  const std::string tried = "cannot connect to " + address.ToString() + " over TLS: ";
  Patience& patience = Patience::OfThread();
  const std::chrono::milliseconds step =
      patience.is_endless() ? std::chrono::seconds(1) : Patience::kInterval;
  for (;;) {
    auto done = stream.ShakeHands();
    if (!done) {
      if (is_turned_away != nullptr) *is_turned_away = stream.is_turned_away();
      Error error = std::move(done).error();
      error.message.insert(0, tried);
      return error;
    }
    if (done.value()) break;
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now());
    if (left.count() <= 0 || patience.IsOver())
      return Error{ErrorCode::kDeadlineExceeded,
                   tried + "no answer to the handshake in time; does the peer serve TLS?"};
    pollfd waited{stream.fd(), static_cast<short>(stream.wants_room(false) ? POLLOUT : POLLIN), 0};
    (void)PollFor({&waited, 1}, std::min(left, step));
  }
  return std::unique_ptr<Endpoint>(
      std::make_unique<StreamEndpoint>(std::move(made), address.ToString()));
}

}  // namespace ffrecord::net
