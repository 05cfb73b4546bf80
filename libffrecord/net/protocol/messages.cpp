#include "libffrecord/net/protocol/messages.h"

#include <algorithm>
#include <utility>

#include "libffrecord/base/cursor.h"
#include "libffrecord/base/hex.h"

namespace ffrecord::net {
namespace {

constexpr std::size_t kCredentialSizeMax = 3072;  // HELLO fits the limit before authentication.
constexpr std::size_t kTextSizeMax = 1024;

Error Malformed(std::string_view message) {
  return Error{ErrorCode::kCorruption, std::string(message) + ": the body is malformed"};
}

void PutText(ByteWriter& writer, std::string_view text) {
  text = text.substr(0, kTextSizeMax);
  writer.Put(static_cast<std::uint16_t>(text.size()));
  writer.PutText(text);
}

// False if there is no text of at most kTextSizeMax bytes.
bool TakeText(ByteReader& reader, std::string& text) {
  const auto size = reader.Take<std::uint16_t>();
  if (size > kTextSizeMax) return false;
  text = reader.TakeText(size);
  return reader.ok();
}

// What a peer says, without what a terminal or a log would take for more than text: control
// characters, those of C1 too, which are C2 80 to C2 9F in UTF-8.
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

// Leaves it as it is if there are fewer bytes, which AtEnd() tells.
template <std::size_t kSize>
void TakeArray(ByteReader& reader, std::array<std::byte, kSize>& to) {
  std::ranges::copy(reader.TakeBytes(kSize), to.begin());
}

}  // namespace

std::vector<std::byte> Hello::Encode() const {
  FFR_ASSERT(credential.size() <= kCredentialSizeMax);
  ByteWriter writer;
  writer.Put(version_min);
  writer.Put(version_max);
  writer.Put(std::uint16_t{0});
  writer.Put(body_size_bytes_max);
  writer.Put(payload_size_bytes_max);
  writer.Put(static_cast<std::uint32_t>(credential.size()));
  writer.Put(capabilities);
  writer.PutBytes(credential);
  return std::move(writer).Take();
}

Result<Hello> Hello::Decode(std::span<const std::byte> body) {
  ByteReader reader(body);
  Hello hello;
  hello.version_min = reader.Take<std::uint8_t>();
  hello.version_max = reader.Take<std::uint8_t>();
  const auto zero = reader.Take<std::uint16_t>();
  hello.body_size_bytes_max = reader.Take<std::uint32_t>();
  hello.payload_size_bytes_max = reader.Take<std::uint32_t>();
  const auto credential_size = reader.Take<std::uint32_t>();
  hello.capabilities = reader.Take<std::uint64_t>();
  const auto credential = reader.TakeBytes(credential_size);
  if (!reader.AtEnd() || zero != 0 || credential_size > kCredentialSizeMax ||
      hello.version_min > hello.version_max)
    return Malformed("HELLO");
  hello.credential.assign(credential.begin(), credential.end());
  return hello;
}

std::vector<std::byte> HelloReply::Encode() const {
  ByteWriter writer;
  writer.Put(version);
  writer.Put(std::uint8_t{0});
  writer.Put(std::uint16_t{0});
  writer.Put(body_size_bytes_max);
  writer.Put(payload_size_bytes_max);
  writer.Put(batch_entry_count_max);
  writer.Put(bound_extent_count_max);
  writer.Put(std::uint32_t{0});
  writer.Put(capabilities);
  writer.Put(epoch);
  FFR_ASSERT(local.has_value() == ((capabilities & kCapabilityLocal) != 0));
  if (local) {
    writer.Put(local->machine);
    writer.PutBytes(local->ticket);
    writer.PutBytes(local->daemon_secret);
    writer.PutBytes(local->client_secret);
  }
  return std::move(writer).Take();
}

Result<HelloReply> HelloReply::Decode(std::span<const std::byte> body) {
  ByteReader reader(body);
  HelloReply reply;
  reply.version = reader.Take<std::uint8_t>();
  const auto zeros = reader.Take<std::uint32_t>(3);
  reply.body_size_bytes_max = reader.Take<std::uint32_t>();
  reply.payload_size_bytes_max = reader.Take<std::uint32_t>();
  reply.batch_entry_count_max = reader.Take<std::uint32_t>();
  reply.bound_extent_count_max = reader.Take<std::uint32_t>();
  const auto zero = reader.Take<std::uint32_t>();
  reply.capabilities = reader.Take<std::uint64_t>();
  reply.epoch = reader.Take<std::uint64_t>();
  if ((reply.capabilities & kCapabilityLocal) != 0) {
    LocalOffer& local = reply.local.emplace();
    local.machine = reader.Take<std::uint64_t>();
    TakeArray(reader, local.ticket);
    TakeArray(reader, local.daemon_secret);
    TakeArray(reader, local.client_secret);
  }
  if (!reader.AtEnd() || zeros != 0 || zero != 0) return Malformed("reply to HELLO");
  return reply;
}

std::vector<std::byte> LocalOpen::Encode() const { return {ticket.begin(), ticket.end()}; }

Result<LocalOpen> LocalOpen::Decode(std::span<const std::byte> body) {
  ByteReader reader(body);
  LocalOpen message;
  TakeArray(reader, message.ticket);
  if (!reader.AtEnd()) return Malformed("LOCAL_OPEN");
  return message;
}

std::vector<std::byte> LocalOpenReply::Encode() const {
  return {daemon_secret.begin(), daemon_secret.end()};
}

Result<LocalOpenReply> LocalOpenReply::Decode(std::span<const std::byte> body) {
  ByteReader reader(body);
  LocalOpenReply reply;
  TakeArray(reader, reply.daemon_secret);
  if (!reader.AtEnd()) return Malformed("reply to LOCAL_OPEN");
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

std::vector<std::byte> GoAway::Encode() const {
  ByteWriter writer;
  PutText(writer, reason);
  return std::move(writer).Take();
}

Result<GoAway> GoAway::Decode(std::span<const std::byte> body) {
  ByteReader reader(body);
  GoAway message;
  if (!TakeText(reader, message.reason) || !reader.AtEnd()) return Malformed("GOAWAY");
  return message;
}

std::vector<std::byte> Busy::Encode() const {
  ByteWriter writer;
  writer.Put(retry_after_ms);
  return std::move(writer).Take();
}

Result<Busy> Busy::Decode(std::span<const std::byte> body) {
  ByteReader reader(body);
  const Busy message{reader.Take<std::uint32_t>()};
  if (!reader.AtEnd()) return Malformed("BUSY");
  return message;
}

std::vector<std::byte> ErrorReply::Encode() const {
  FFR_ASSERT(code != ErrorCode::kOk);
  ByteWriter writer;
  writer.Put(static_cast<std::uint8_t>(code));
  writer.Put(std::uint8_t{0});
  writer.Put(std::uint16_t{0});
  writer.Put(system_errno);
  PutText(writer, message);
  return std::move(writer).Take();
}

Result<ErrorReply> ErrorReply::Decode(std::span<const std::byte> body) {
  ByteReader reader(body);
  ErrorReply reply;
  const auto code = reader.Take<std::uint8_t>();
  const auto zeros = reader.Take<std::uint32_t>(3);
  reply.system_errno = reader.Take<std::uint32_t>();
  if (!TakeText(reader, reply.message) || !reader.AtEnd() || zeros != 0 || code == 0 ||
      code > static_cast<std::uint8_t>(ErrorCode::kOutOfRange))
    return Malformed("ERROR");
  reply.code = static_cast<ErrorCode>(code);
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
