#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <ffrecord/result.h>

namespace ffrecord::net {

// Bodies of the frames that open, keep and end a conversation; protocol.md gives their bytes.
// batch_messages.h and storage_messages.h hold the others.
//
// Each message is a value with Encode() and Decode(). Decode takes a whole body, whose frame check
// has been tested; it fails with kCorruption, naming the message, if a field does not fit, is out
// of its range, or bytes are left over, and it allocates no more than the body holds.

// The capabilities of a peer. Unknown bits are ignored; both sides use what both have.
enum Capability : std::uint64_t {
  kCapabilityNone = 0,
  // 1 is taken: older clients showed their tokens on the local socket, to any process that listened
  // there.
  kCapabilityCancel = 2,  // Takes CANCEL.
  kCapabilityRdma = 4,    // Takes RDMA_CONNECT.
  kCapabilityPlans = 16,  // Takes PLAN_SET, and reads ahead.
  kCapabilityPulls = 32,  // Takes slabs to read from, and PUT_PULL.
  // The daemon takes this client on its local socket too, and slabs there: LocalOffer.
  kCapabilityLocal = 64,
  kCapabilityCluster = 128,   // The daemon is a node of a cluster: CLUSTER_MAP.
  kCapabilityIdentity = 256,  // It says which one: NodeIdentity.
  kCapabilityWaiting = 512,   // And which nodes wait to be let in: ClusterMapReply.
  kCapabilityClasses = 1024,  // And how the files of each name are kept: ListReply.
  // It answers PUBLISH and DELETE while the client waits, if the request says how long that is.
  kCapabilityPatience = 2048,
  // It tells the names that it knew last, if it cannot tell the newest and the client accepts that.
  kCapabilityKnownNames = 4096,
  // It is a node with names of its own that its cluster does not have yet: a list of another node
  // lacks them.
  kCapabilityOwnNames = 8192,
  kCapabilityUploadClass = 16384,  // It takes the class of an upload: PutBegin.
  kCapabilityDiskNames = 32768,    // It takes BatchRead::kNamesDisk.
};

using ClusterId = std::array<std::byte, 16>;

// Which node of which cluster a daemon is. An address may be another's by now.
struct NodeIdentity {
  static constexpr std::size_t kNodeSizeMax = 64;  // At least 1.

  ClusterId cluster = {};  // Zeros: the daemon has not found its cluster yet.
  std::string node;

  auto operator<=>(const NodeIdentity&) const = default;
};

// The way to the local socket LocalSocketName(epoch) of a daemon, told to a client that it has
// admitted over TCP or TLS. Any process may listen under that name on a machine where the daemon
// does not run, or no longer, so both ends prove that they know this offer: the client sends the
// ticket, the daemon answers with its secret, and the client greets with the other one, as the
// client that it was here. No token is shown on that socket.
using LocalTicket = std::array<std::byte, 16>;  // Says which offer is meant.
using LocalSecret = std::array<std::byte, 32>;
struct LocalOffer {
  std::uint64_t machine = 0;  // The daemon's MachineIdentity().
  LocalTicket ticket = {};
  LocalSecret daemon_secret = {};
  LocalSecret client_secret = {};

  bool operator==(const LocalOffer&) const = default;
};

// First on every connection, from the client. The only request that is answered before another.
struct Hello {
  static constexpr std::uint8_t kVersion = 1;  // The version that this library speaks.

  std::uint8_t version_min = kVersion;
  std::uint8_t version_max = kVersion;
  std::uint32_t body_size_bytes_max = 0;     // The largest frame that the client takes.
  std::uint32_t payload_size_bytes_max = 0;  //
  std::uint64_t capabilities = kCapabilityNone;
  std::vector<std::byte> credential = {};  // Up to 3 KiB; empty without authentication.

  bool operator==(const Hello&) const = default;
  std::vector<std::byte> Encode() const;
  static Result<Hello> Decode(std::span<const std::byte> body);
};

struct HelloReply {
  std::uint8_t version = Hello::kVersion;  // The highest that both speak.
  std::uint32_t body_size_bytes_max = 0;   // The largest frame that the daemon takes.
  std::uint32_t payload_size_bytes_max = 0;
  std::uint64_t capabilities = kCapabilityNone;  // Those that both have.
  std::uint64_t epoch = 0;  // Random at each start: a new one means that tables are gone.
  std::uint32_t batch_entry_count_max = 0;
  std::uint32_t bound_extent_count_max = 0;
  std::optional<LocalOffer> local = {};       // With kCapabilityLocal, and only then.
  std::optional<NodeIdentity> identity = {};  // With kCapabilityIdentity.

  bool operator==(const HelloReply&) const = default;
  std::vector<std::byte> Encode() const;
  static Result<HelloReply> Decode(std::span<const std::byte> body);
};

// First on a connection to the local socket, before HELLO: what LocalOffer said.
struct LocalOpen {
  LocalTicket ticket = {};

  bool operator==(const LocalOpen&) const = default;
  std::vector<std::byte> Encode() const;
  static Result<LocalOpen> Decode(std::span<const std::byte> body);
};

struct LocalOpenReply {
  LocalSecret daemon_secret = {};

  bool operator==(const LocalOpenReply&) const = default;
  std::vector<std::byte> Encode() const;
  static Result<LocalOpenReply> Decode(std::span<const std::byte> body);
};

// Where a daemon with kCapabilityLocal listens for clients of its own machine: "ffrecord-" and 16
// hexadecimal digits, different at each start. The name is no secret and proves nothing: on another
// machine, and once the daemon has ended, anybody may listen there.
std::string LocalSocketName(std::uint64_t epoch);

// The highest version within both ranges; kInvalidArgument, naming both ranges, if there is none.
Result<std::uint8_t> CommonVersion(const Hello& theirs);

// The daemon stops: it finishes what it has taken and takes nothing more. No reply.
struct GoAway {
  std::string reason;  // For people, at most 1,024 bytes.

  bool operator==(const GoAway&) const = default;
  std::vector<std::byte> Encode() const;
  static Result<GoAway> Decode(std::span<const std::byte> body);
};

// Answers a request that was not taken for want of room; ask again later.
struct Busy {
  std::uint32_t retry_after_ms = 0;

  bool operator==(const Busy&) const = default;
  std::vector<std::byte> Encode() const;
  static Result<Busy> Decode(std::span<const std::byte> body);
};

// Answers a request that failed as a whole. The message is cut at 1,024 bytes.
struct ErrorReply {
  ErrorCode code = ErrorCode::kIo;  // Never kOk.
  std::uint32_t system_errno = 0;   // With kIo the daemon's; else see begun_request.h.
  std::string message;

  bool operator==(const ErrorReply&) const = default;
  std::vector<std::byte> Encode() const;
  static Result<ErrorReply> Decode(std::span<const std::byte> body);
};

ErrorReply FromError(const Error& error);
// The peer's error as our own, its message introduced by `peer`.
Error ToError(const ErrorReply& reply, std::string_view peer);

// Names under which things are published: 1 to 255 characters of [A-Za-z0-9._-] in segments parted
// by '/'; no segment is empty, "." or "..". Names are keys, never paths. Fails with
// kInvalidArgument, which quotes the name.
inline constexpr std::size_t kNameSizeMax = 255;
Result<void> CheckName(std::string_view name);

}  // namespace ffrecord::net
