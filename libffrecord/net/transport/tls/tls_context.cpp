#include <arpa/inet.h>
#include <fcntl.h>
#include <openssl/pem.h>
#include <openssl/x509v3.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <ctime>
#include <tuple>
#include <utility>

#include "libffrecord/base/clock.h"
#include "libffrecord/net/transport/tls/openssl.h"

namespace ffrecord::net {
namespace {

namespace fs = std::filesystem;
using Side = TlsContext::Side;

// Some records of TLS at a time.
constexpr std::size_t kReadBufferSizeBytes = 64 << 10;

Error BadFile(const fs::path& path, const std::string& what) {
  return {ErrorCode::kInvalidArgument, "TLS: " + path.string() + ": " + what};
}

Error Unreadable(const fs::path& path, int number) {
  const ErrorCode code = number == ENOENT   ? ErrorCode::kNotFound
                         : number == EACCES ? ErrorCode::kDenied
                                            : ErrorCode::kIo;
  return {code, "TLS: cannot open " + path.string() + ": " + std::strerror(number),
          code == ErrorCode::kIo ? number : 0};
}

// Distinguishes one state of a file from another.
using FileState = std::tuple<dev_t, ino_t, off_t, time_t, long>;

Result<FileState> StateOf(const fs::path& path) {
  struct stat status {};
  if (::stat(path.c_str(), &status) != 0) return Unreadable(path, errno);
  if (!S_ISREG(status.st_mode)) return BadFile(path, "not a regular file");
  return FileState{status.st_dev, status.st_ino, status.st_size, status.st_mtim.tv_sec,
                   status.st_mtim.tv_nsec};
}

Result<void> CheckSecret(const fs::path& path) {
  struct stat status {};
  if (::stat(path.c_str(), &status) != 0) return Unreadable(path, errno);
  if ((status.st_mode & (S_IRWXG | S_IRWXO)) == 0) return {};
  return Error{ErrorCode::kDenied, "TLS: " + path.string() +
                                       " holds a secret and is accessible to other users; "
                                       "chmod 600 it"};
}

// A key that wants a passphrase is refused: nobody is there to be asked.
int NoPassphrase(char*, int, int, void*) { return -1; }

Result<void> UseCertificate(SSL_CTX& context, const TlsFiles& files) {
  if (files.certificate.empty()) return {};
  if (::SSL_CTX_use_certificate_chain_file(&context, files.certificate.c_str()) != 1)
    return BadFile(files.certificate, "holds no certificate in PEM (" + TakeOpensslErrors() + ")");
  const X509* const own = ::SSL_CTX_get0_certificate(&context);
  if (::X509_cmp_current_time(::X509_get0_notAfter(own)) < 0)
    return BadFile(files.certificate, "the certificate has expired; issue a new one");
  FFR_TRY(CheckSecret(files.key));
  if (::SSL_CTX_use_PrivateKey_file(&context, files.key.c_str(), SSL_FILETYPE_PEM) != 1) {
    // It compares the two as well.
    const bool is_foreign = ERR_GET_REASON(::ERR_peek_error()) == X509_R_KEY_VALUES_MISMATCH;
    const std::string why = TakeOpensslErrors();
    return BadFile(files.key,
                   is_foreign ? "is not the key of the certificate in " + files.certificate.string()
                              : "holds no private key in PEM without a passphrase (" + why + ")");
  }
  return {};
}

Result<void> UseAuthorities(SSL_CTX& context, const TlsFiles& files, Side side) {
  if (files.authorities.empty()) return {};
  if (::SSL_CTX_load_verify_file(&context, files.authorities.c_str()) != 1)
    return BadFile(files.authorities,
                   "holds no certificate of an authority in PEM (" + TakeOpensslErrors() + ")");
  const int wanted =
      side == Side::kServer ? SSL_VERIFY_PEER | SSL_VERIFY_FAIL_IF_NO_PEER_CERT : SSL_VERIFY_PEER;
  ::SSL_CTX_set_verify(&context, wanted, nullptr);
  return {};
}

Result<SslContextPtr> MakeContext(Side side, const TlsFiles& files) {
  // At exit other threads may still be talking.
  ::OPENSSL_init_ssl(OPENSSL_INIT_NO_ATEXIT, nullptr);
  ::ERR_clear_error();
  SslContextPtr context(
      ::SSL_CTX_new(side == Side::kServer ? ::TLS_server_method() : ::TLS_client_method()));
  if (!context || ::SSL_CTX_set_min_proto_version(context.get(), TLS1_3_VERSION) != 1)
    return Error{ErrorCode::kIo, "TLS: " + TakeOpensslErrors(), ENOMEM};
  std::uint64_t options = SSL_OP_NO_TICKET | SSL_OP_NO_RENEGOTIATION | SSL_OP_NO_COMPRESSION;
  // A server has much to send: the kernel may encipher it. A client must not be killed by SIGPIPE,
  // which that way cannot be kept from it; a daemon ignores it.
  if (side == Side::kServer) options |= SSL_OP_ENABLE_KTLS;
  ::SSL_CTX_set_options(context.get(), options);
  (void)::SSL_CTX_set_num_tickets(context.get(), 0);
  ::SSL_CTX_set_session_cache_mode(context.get(), SSL_SESS_CACHE_OFF);
  ::SSL_CTX_set_mode(context.get(), SSL_MODE_ENABLE_PARTIAL_WRITE |
                                        SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER |
                                        SSL_MODE_RELEASE_BUFFERS);
  ::SSL_CTX_set_read_ahead(context.get(), 1);
  ::SSL_CTX_set_default_read_buffer_len(context.get(), kReadBufferSizeBytes);
  ::SSL_CTX_set_default_passwd_cb(context.get(), NoPassphrase);
  FFR_TRY(UseCertificate(*context, files));
  FFR_TRY(UseAuthorities(*context, files, side));
  return context;
}

// Numbers are other names than words.
bool ExpectHost(SSL& ssl, const std::string& host) {
  std::array<unsigned char, sizeof(in6_addr)> ignored{};
  const bool is_number = ::inet_pton(AF_INET, host.c_str(), ignored.data()) == 1 ||
                         ::inet_pton(AF_INET6, host.c_str(), ignored.data()) == 1;
  X509_VERIFY_PARAM* const wanted = ::SSL_get0_param(&ssl);
  ::X509_VERIFY_PARAM_set_hostflags(
      wanted, X509_CHECK_FLAG_NEVER_CHECK_SUBJECT | X509_CHECK_FLAG_NO_PARTIAL_WILDCARDS);
  if (is_number) return ::X509_VERIFY_PARAM_set1_ip_asc(wanted, host.c_str()) == 1;
  return ::X509_VERIFY_PARAM_set1_host(wanted, host.c_str(), host.size()) == 1 &&
         SSL_set_tlsext_host_name(&ssl, host.c_str()) == 1;
}

}  // namespace

std::string WhyTlsIsAbsent() { return {}; }

TlsFiles TlsFiles::In(const fs::path& folder) {
  TlsFiles files{{}, {}, folder / "ca.pem"};
  std::error_code ignored;
  if (fs::exists(folder / "cert.pem", ignored) || fs::exists(folder / "key.pem", ignored)) {
    files.certificate = folder / "cert.pem";
    files.key = folder / "key.pem";
  }
  return files;
}

struct TlsContext::Impl {
  Side side;
  TlsFiles files;
  SslContextPtr context;
  std::vector<FileState> states;  // States of the files, when they were looked at last.

  Result<std::vector<FileState>> Look() const {
    std::vector<FileState> found;
    for (const fs::path& path : {files.certificate, files.key, files.authorities})
      if (!path.empty()) found.push_back(FFR_TRY(StateOf(path)));
    return found;
  }
};

TlsContext::TlsContext(std::unique_ptr<Impl> impl) noexcept : impl_(std::move(impl)) {}
TlsContext::~TlsContext() = default;

Result<std::unique_ptr<TlsContext>> TlsContext::Load(Side side, TlsFiles files) {
  auto impl = std::make_unique<Impl>(Impl{side, std::move(files), nullptr, {}});
  impl->states = FFR_TRY(impl->Look());
  impl->context = FFR_TRY(MakeContext(side, impl->files));
  return std::unique_ptr<TlsContext>(new TlsContext(std::move(impl)));
}

Result<bool> TlsContext::Refresh() {
  auto states = impl_->Look();
  if (states && states.value() == impl_->states) return false;
  // Whatever comes of it: the same state is not tried, nor told, twice.
  const bool is_news = states || !impl_->states.empty();
  impl_->states = states ? std::move(states).value() : std::vector<FileState>();
  if (!is_news) return false;
  if (!states) return std::move(states).error();
  impl_->context = FFR_TRY(MakeContext(impl_->side, impl_->files));
  return true;
}

WallClock::time_point TlsContext::expires() const noexcept {
  std::tm end{};
  const X509* const own = ::SSL_CTX_get0_certificate(impl_->context.get());
  if (own == nullptr || ::ASN1_TIME_to_tm(::X509_get0_notAfter(own), &end) != 1) return {};
  return WallClock::from_time_t(::timegm(&end));
}

Result<std::unique_ptr<ByteStream>> TlsContext::MakeStream(UniqueFd socket,
                                                           const std::string& host) const {
  ::ERR_clear_error();
  SslPtr ssl(::SSL_new(impl_->context.get()));
  BIO* const bio = ssl ? ::BIO_new(QuietSocketMethod()) : nullptr;
  const bool is_client = impl_->side == Side::kClient;
  if (bio != nullptr) {
    (void)BIO_set_fd(bio, socket.get(), BIO_NOCLOSE);
    ::SSL_set_bio(ssl.get(), bio, bio);  // Owned by it now.
  }
  if (bio == nullptr || (is_client && !ExpectHost(*ssl, host)))
    return Error{ErrorCode::kIo, "TLS: " + TakeOpensslErrors(), ENOMEM};
  if (is_client)
    ::SSL_set_connect_state(ssl.get());
  else
    ::SSL_set_accept_state(ssl.get());
  return std::unique_ptr<ByteStream>(std::make_unique<TlsStream>(
      std::move(socket), std::move(ssl), TlsNames{impl_->side, impl_->files, host}));
}

}  // namespace ffrecord::net
