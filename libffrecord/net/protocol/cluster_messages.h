#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include <ffrecord/result.h>

#include "libffrecord/net/protocol/batch_messages.h"
#include "libffrecord/net/protocol/messages.h"

namespace ffrecord::net {

// Bodies of the frames that tell clients of a cluster's nodes, and of those in which its daemons
// ask each other; protocol.md, "Clusters". Encode and Decode as in messages.h.

// Where extents lie. The reply's payload is the slot map (format.md, "Slot map"), or nothing if
// known_version is its version.
struct ClusterMap {
  std::uint32_t known_version = 0;  // 0: none.

  bool operator==(const ClusterMap&) const = default;
  std::vector<std::byte> Encode() const;
  static Result<ClusterMap> Decode(std::span<const std::byte> body);
};

// Whether a node takes part, as operators have said. Waiting: nobody has let it join yet.
enum class MemberState : std::uint8_t { kIn = 0, kDraining = 1, kOut = 2, kWaiting = 3 };

struct ClusterMapReply {
  static constexpr std::uint32_t kNodeCountMax = 4096;

  struct Node {
    std::string id;
    std::string address;  // As clients connect to it; empty while nobody knows.
    std::string domain;
    std::uint32_t weight = 1;
    MemberState state = MemberState::kIn;
    bool is_up = false;  // It has a lease, as far as the daemon that answers knows.

    bool operator==(const Node&) const = default;
  };
  std::uint32_t version = 0;   // Version of the slot map; 0: there is none yet.
  std::uint32_t replicas = 1;  // Replicas of each published extent; at least 1.
  ClusterId cluster = {};
  std::string node = {};         // The one that answers.
  std::vector<Node> nodes = {};  // In byte order of their ids, which are unique.

  // A node that waits to be let in, by its own words.
  struct Waiting {
    std::string id;
    std::string address;
    std::uint64_t since_unix_ms = 0;  // By its own clock.
    std::string daemon;               // Id of the daemon.

    bool operator==(const Waiting&) const = default;
  };
  // In byte order of their ids too. Only with kCapabilityWaiting; nothing of it is sent if there
  // are none.
  std::vector<Waiting> waiting = {};

  bool operator==(const ClusterMapReply&) const = default;
  std::vector<std::byte> Encode() const;
  static Result<ClusterMapReply> Decode(std::span<const std::byte> body);
};

// Lets a node take part, drains it, or counts it out: any state but kWaiting. The reply, an empty
// body, says that it is on record.
struct SetMember {
  MemberState state = MemberState::kIn;
  std::string node;

  bool operator==(const SetMember&) const = default;
  std::vector<std::byte> Encode() const;
  static Result<SetMember> Decode(std::span<const std::byte> body);
};

// Raises the feature level of the cluster. The reply's body is the same with the level that it has.
struct SetLevel {
  std::uint32_t level = 0;  // In a request, 0: the highest that all nodes know.

  bool operator==(const SetLevel&) const = default;
  std::vector<std::byte> Encode() const;
  static Result<SetLevel> Decode(std::span<const std::byte> body);
};

// --- Between daemons ----------------------------------------------------------------------------

// Which of these extents the daemon holds, sealed, with that size and checksum.
struct AskHoldings {
  static constexpr std::uint32_t kCountMax = 4096;

  struct Extent {
    ExtentId id{};
    std::uint64_t size_bytes = 0;
    std::uint64_t xxh3 = 0;

    bool operator==(const Extent&) const = default;
  };
  // Not 0: the daemon promises to keep those of which it is an owner by that version of the map.
  std::uint32_t promise_version = 0;
  std::vector<Extent> extents;  // 1 to kCountMax.

  bool operator==(const AskHoldings&) const = default;
  std::vector<std::byte> Encode() const;
  static Result<AskHoldings> Decode(std::span<const std::byte> body);
};

struct HoldingsReply {
  enum class Holding : std::uint8_t { kAbsent = 0, kHeld = 1, kPromised = 2 };
  std::vector<Holding> holdings;  // In the order of the extents.

  bool operator==(const HoldingsReply&) const = default;
  std::vector<std::byte> Encode() const;
  static Result<HoldingsReply> Decode(std::span<const std::byte> body);
};

// For each upload, whether the daemon has heard of it lately.
struct AskHeard {
  static constexpr std::uint32_t kCountMax = 4096;

  std::vector<std::uint64_t> uploads;  // 1 to kCountMax.

  bool operator==(const AskHeard&) const = default;
  std::vector<std::byte> Encode() const;
  static Result<AskHeard> Decode(std::span<const std::byte> body);
};

// For each tombstone, by its key, whether the daemon knows it and has nothing left of it.
struct AskBuried {
  static constexpr std::uint32_t kCountMax = 128;
  static constexpr std::size_t kKeySizeMax = 1024;

  std::vector<std::string> keys;  // 1 to kCountMax.

  bool operator==(const AskBuried&) const = default;
  std::vector<std::byte> Encode() const;
  static Result<AskBuried> Decode(std::span<const std::byte> body);
};

// Whether the daemon holds all that it should by that version of the slot map: one flag.
struct AskFilled {
  std::uint32_t version = 0;

  bool operator==(const AskFilled&) const = default;
  std::vector<std::byte> Encode() const;
  static Result<AskFilled> Decode(std::span<const std::byte> body);
};

struct FlagsReply {
  std::vector<bool> flags;  // In the order of what was asked about.

  bool operator==(const FlagsReply&) const = default;
  std::vector<std::byte> Encode() const;
  static Result<FlagsReply> Decode(std::span<const std::byte> body);
};

}  // namespace ffrecord::net
