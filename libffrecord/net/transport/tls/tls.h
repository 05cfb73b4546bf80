#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include <ffrecord/result.h>

#include "libffrecord/base/clock.h"
#include "libffrecord/net/transport/endpoint.h"
#include "libffrecord/net/transport/stream_endpoint.h"

namespace ffrecord::net {

// Why this build has no TLS, with the remedy; empty if it has.
std::string WhyTlsIsAbsent();

// PEM files that one side of TLS connections uses.
struct TlsFiles {
  std::filesystem::path certificate;  // And what leads from it to an authority. A client may have
  std::filesystem::path key;          // neither. Only its owner may get at the key.
  // Whom the peer's certificate must come from. Empty, on a server: clients need none.
  std::filesystem::path authorities;

  // The files of a client in a folder: ca.pem, and cert.pem and key.pem if there is either.
  static TlsFiles In(const std::filesystem::path& folder);
};

// The settings that one side's TLS connections share: TLS 1.3 and nothing older, no resumption, so
// no early data either.
//
// Thread-bound; its streams do not need it any more. Errors name the file and the remedy.
class TlsContext {
 public:
  enum class Side : std::uint8_t { kClient, kServer };

  // Fails with kNotFound, kDenied if others than the owner may get at the key, kInvalidArgument if
  // a file does not hold what it should, a key is not that of its certificate, or a certificate has
  // expired; kUnavailable if this build has no TLS.
  static Result<std::unique_ptr<TlsContext>> Load(Side side, TlsFiles files);
  ~TlsContext();
  TlsContext(const TlsContext&) = delete;
  TlsContext& operator=(const TlsContext&) = delete;

  // Loads what has changed since, for the streams that are made from now on; true if something had.
  // Fails as Load; what was there then stays in use, until the files change again.
  Result<bool> Refresh();

  // When the own certificate in use expires; the beginning of time if there is none.
  WallClock::time_point expires() const noexcept;

  // A stream over a connected socket that does not block. A client wants the peer's certificate to
  // be for `host`, as one of its alternative names. The handshake is part of the first Read and
  // Write. Fails with kIo.
  Result<std::unique_ptr<ByteStream>> MakeStream(UniqueFd socket, const std::string& host) const;

 private:
  struct Impl;
  explicit TlsContext(std::unique_ptr<Impl> impl) noexcept;
  std::unique_ptr<Impl> impl_;
};

// As ConnectTcp, and shakes hands. Fails with kDenied if the peer's certificate will not do;
// whether this side's does may come out only with the first frame. `is_turned_away`, if given, is
// set if the peer is there and has no room.
Result<std::unique_ptr<Endpoint>> ConnectTls(const Address& address, const TlsContext& context,
                                             Deadline deadline, bool* is_turned_away = nullptr);

// A token as it is shown over that connection and no other: instead of its last 32 bytes, which
// only who has it knows, their HMAC-SHA-256 of the binding. protocol.md, "Tokens".
std::vector<std::byte> BindToken(std::span<const std::byte> token, const ChannelBinding& binding);

}  // namespace ffrecord::net
