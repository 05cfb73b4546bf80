// Chosen when OpenSSL was not there at build time.
#include "libffrecord/net/transport/tls/tls.h"

#include "libffrecord/base/clock.h"

namespace ffrecord::net {
namespace {

constexpr const char* kAbsent =
    "this build has no TLS: install libssl-dev, then configure with -Dtls=enabled";

Error Absent() { return {ErrorCode::kUnavailable, kAbsent}; }

}  // namespace

std::string WhyTlsIsAbsent() { return kAbsent; }

TlsFiles TlsFiles::In(const std::filesystem::path& folder) {
  return {folder / "cert.pem", folder / "key.pem", folder / "ca.pem"};
}

struct TlsContext::Impl {};
TlsContext::TlsContext(std::unique_ptr<Impl> impl) noexcept : impl_(std::move(impl)) {}
TlsContext::~TlsContext() = default;

Result<std::unique_ptr<TlsContext>> TlsContext::Load(Side, TlsFiles) { return Absent(); }
Result<bool> TlsContext::Refresh() { return Absent(); }
WallClock::time_point TlsContext::expires() const noexcept { return {}; }
Result<std::unique_ptr<ByteStream>> TlsContext::MakeStream(UniqueFd, const std::string&) const {
  return Absent();
}

Result<std::unique_ptr<Endpoint>> ConnectTls(const Address&, const TlsContext&, Deadline, bool*) {
  return Absent();
}

// Without TLS there is no binding to call it with.
std::vector<std::byte> BindToken(std::span<const std::byte>, const ChannelBinding&) { return {}; }

}  // namespace ffrecord::net
