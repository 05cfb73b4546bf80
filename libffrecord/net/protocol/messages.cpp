#include "libffrecord/net/protocol/messages.h"

#include <algorithm>
#include <utility>

#include "libffrecord/base/hex.h"
#include "libffrecord/net/protocol/fields.h"

namespace ffrecord::net {
namespace {

constexpr std::size_t kCredentialSizeMax = 3072;  // HELLO fits the limit before authentication.
constexpr std::size_t kTextSizeMax = 1024;

std::string_view Cut(std::string_view text) { return text.substr(0, kTextSizeMax); }

// A peer's text without the characters that a terminal or a log would take for more than text:
// control characters, those of C1 too, which are C2 80 to C2 9F in UTF-8.
std::string OneLine(std::string text) {
  for (std::size_t i = 0; i < text.size(); ++i) {
    const auto byte = static_cast<unsigned char>(text[i]);
    const auto before = i > 0 ? static_cast<unsigned char>(text[i - 1]) : 0U;
    const bool is_c1 = before == 0xC2 && byte >= 0x80 && byte < 0xA0;
    if (is_c1) text[i - 1] = '?';
    if (is_c1 || byte < ' ' || byte == 0x7F) text[i] = '?';
  }
  return text;
}

}  // namespace

std::vector<std::byte> Hello::Encode() const {
  FFR_ASSERT(credential.size() <= kCredentialSizeMax);
  return EncodeFields(version_min, version_max, Zeros<2>(), body_size_bytes_max,
                      payload_size_bytes_max, static_cast<std::uint32_t>(credential.size()),
                      capabilities, credential);
}

Result<Hello> Hello::Decode(std::span<const std::byte> body) {
  ByteReader reader(body);
  Hello hello;
  std::uint32_t credential_size = 0;
  if (!TakeFields(reader, hello.version_min, hello.version_max, Zeros<2>(),
                  hello.body_size_bytes_max, hello.payload_size_bytes_max, credential_size,
                  hello.capabilities) ||
      reader.remaining() != credential_size || credential_size > kCredentialSizeMax ||
      hello.version_min > hello.version_max)
    return MalformedBody("HELLO");
  const auto credential = reader.TakeBytes(credential_size);
  hello.credential.assign(credential.begin(), credential.end());
  return hello;
}

std::vector<std::byte> HelloReply::Encode() const {
  FFR_ASSERT(local.has_value() == ((capabilities & kCapabilityLocal) != 0));
  FFR_ASSERT(identity.has_value() == ((capabilities & kCapabilityIdentity) != 0));
  ByteWriter writer;
  PutFields(writer, version, Zeros<3>(), body_size_bytes_max, payload_size_bytes_max,
            batch_entry_count_max, bound_extent_count_max, Zeros<4>(), capabilities, epoch);
  if (local)
    PutFields(writer, local->machine, local->ticket, local->daemon_secret, local->client_secret);
  if (identity) PutFields(writer, identity->cluster, identity->node);
  return std::move(writer).Take();
}

Result<HelloReply> HelloReply::Decode(std::span<const std::byte> body) {
  ByteReader reader(body);
  HelloReply reply;
  bool fits = TakeFields(reader, reply.version, Zeros<3>(), reply.body_size_bytes_max,
                         reply.payload_size_bytes_max, reply.batch_entry_count_max,
                         reply.bound_extent_count_max, Zeros<4>(), reply.capabilities, reply.epoch);
  if (fits && (reply.capabilities & kCapabilityLocal) != 0) {
    LocalOffer& local = reply.local.emplace();
    fits =
        TakeFields(reader, local.machine, local.ticket, local.daemon_secret, local.client_secret);
  }
  if (fits && (reply.capabilities & kCapabilityIdentity) != 0) {
    NodeIdentity& identity = reply.identity.emplace();
    fits = TakeFields(reader, identity.cluster, identity.node) && !identity.node.empty() &&
           identity.node.size() <= NodeIdentity::kNodeSizeMax &&
           std::ranges::all_of(identity.node, [](char c) { return c > ' ' && c <= '~'; });
  }
  if (!fits || !reader.AtEnd()) return MalformedBody("reply to HELLO");
  return reply;
}

std::vector<std::byte> LocalOpen::Encode() const { return EncodeFields(ticket); }

Result<LocalOpen> LocalOpen::Decode(std::span<const std::byte> body) {
  LocalOpen message;
  if (!DecodeFields(body, message.ticket)) return MalformedBody("LOCAL_OPEN");
  return message;
}

std::vector<std::byte> LocalOpenReply::Encode() const { return EncodeFields(daemon_secret); }

Result<LocalOpenReply> LocalOpenReply::Decode(std::span<const std::byte> body) {
  LocalOpenReply reply;
  if (!DecodeFields(body, reply.daemon_secret)) return MalformedBody("reply to LOCAL_OPEN");
  return reply;
}

std::string LocalSocketName(std::uint64_t epoch) { return "ffrecord-" + Hex(epoch); }

Result<std::uint8_t> CommonVersion(const Hello& theirs) {
  if (theirs.version_min <= Hello::kVersion && Hello::kVersion <= theirs.version_max)
    return Hello::kVersion;
  return Error{ErrorCode::kInvalidArgument, "no common protocol version: the client speaks " +
                                                std::to_string(theirs.version_min) + " to " +
                                                std::to_string(theirs.version_max) +
                                                ", the daemon " + std::to_string(Hello::kVersion) +
                                                " to " + std::to_string(Hello::kVersion) +
                                                "; upgrade the older one"};
}

std::vector<std::byte> GoAway::Encode() const { return EncodeFields(Cut(reason)); }

Result<GoAway> GoAway::Decode(std::span<const std::byte> body) {
  GoAway message;
  if (!DecodeFields(body, message.reason) || message.reason.size() > kTextSizeMax)
    return MalformedBody("GOAWAY");
  return message;
}

std::vector<std::byte> Busy::Encode() const { return EncodeFields(retry_after_ms); }

Result<Busy> Busy::Decode(std::span<const std::byte> body) {
  Busy message;
  if (!DecodeFields(body, message.retry_after_ms)) return MalformedBody("BUSY");
  return message;
}

std::vector<std::byte> ErrorReply::Encode() const {
  FFR_ASSERT(code != ErrorCode::kOk);
  return EncodeFields(code, Zeros<3>(), system_errno, Cut(message));
}

Result<ErrorReply> ErrorReply::Decode(std::span<const std::byte> body) {
  ErrorReply reply;
  if (!DecodeFields(body, reply.code, Zeros<3>(), reply.system_errno, reply.message) ||
      reply.code == ErrorCode::kOk || reply.code > ErrorCode::kOutOfRange ||
      reply.message.size() > kTextSizeMax)
    return MalformedBody("ERROR");
  return reply;
}

ErrorReply FromError(const Error& error) {
  return {error.code, static_cast<std::uint32_t>(error.system_errno), error.message};
}

Error ToError(const ErrorReply& reply, std::string_view peer) {
  return Error{reply.code, std::string(peer) + ": " + OneLine(reply.message),
               static_cast<int>(reply.system_errno & 0x7FFFFFFF)};
}

Result<void> CheckName(std::string_view name) {
  const auto allowed = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '.' ||
           c == '_' || c == '-' || c == '/';
  };
  bool good = !name.empty() && name.size() <= kNameSizeMax && std::ranges::all_of(name, allowed);
  for (std::string_view rest = name; good;) {
    const std::size_t slash = rest.find('/');
    const std::string_view segment = rest.substr(0, slash);
    good = !segment.empty() && segment != "." && segment != "..";
    if (slash == std::string_view::npos) break;
    rest.remove_prefix(slash + 1);
  }
  if (good) return {};
  return Error{
      ErrorCode::kInvalidArgument,
      "bad name \"" + std::string(name.substr(0, kNameSizeMax)) +
          "\": a name is 1 to 255 characters of A-Z a-z 0-9 . _ - in segments separated by "
          "'/', and no segment is empty, '.' or '..'"};
}

}  // namespace ffrecord::net
