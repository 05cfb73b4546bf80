#pragma once

#include <chrono>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <ffrecord/result.h>

#include "libffrecord/format/dataset_manifest.h"
#include "libffrecord/format/slot_map.h"
#include "server/metadata/meta_store.h"

namespace ffrecord::server::cluster {

// The keys of a cluster's MetaStore and what they hold. Encode() and Decode() are inverse; Decode
// fails with kCorruption, and allocates no more than a few times what it was given.

inline constexpr std::string_view kNodeKeys = "nodes/";           // <id>: NodeRecord, leased.
inline constexpr std::string_view kMemberKeys = "members/";       // <id>: MemberRecord.
inline constexpr std::string_view kDatasetKeys = "datasets/";     // <name>: DatasetRecord.
inline constexpr std::string_view kUploadKeys = "uploads/";       // <16 hex digits>: open; empty.
inline constexpr std::string_view kTombstoneKeys = "deletes/";    // <any>: TombstoneRecord.
inline constexpr std::string_view kSlotsKey = "slots";            // SlotsRecord.
inline constexpr std::string_view kLeaderKey = "leader";          // Id of the leader, leased.
inline constexpr std::string_view kGenerationKey = "generation";  // Empty; put with every
                                                                  // publication and removal.

std::string Key(std::string_view kind, std::string_view name);
std::string UploadKey(std::uint64_t upload);
// Of the tombstone of an upload that was given up. While it is there, the upload cannot begin anew:
// what it names is dropped.
std::string UploadTombstoneKey(std::uint64_t upload);
// The upload of such a key; none if it is no such key.
std::optional<std::uint64_t> UploadOfKey(std::string_view key);
// `key` without `kind`; none if it does not begin with it.
std::optional<std::string> NameIn(std::string_view kind, std::string_view key);

// A node that runs.
struct NodeRecord {
  std::uint64_t epoch = 0;  // Random for each start.
  MetaStore::LeaseId lease = 0;
  std::string address;

  bool operator==(const NodeRecord&) const = default;
  std::vector<std::byte> Encode() const;
  static Result<NodeRecord> Decode(std::span<const std::byte> bytes);
};

// A node that an operator has let join.
struct MemberRecord {
  enum class State : std::uint8_t {
    kIn = 0,
    kDraining = 1,  // It takes nothing new, and others take over what it has.
    kOut = 2,       // It counts no more: nobody waits for it.
  };
  State state = State::kIn;
  std::uint32_t weight = 1;
  std::string domain;

  bool operator==(const MemberRecord&) const = default;
  std::vector<std::byte> Encode() const;
  static Result<MemberRecord> Decode(std::span<const std::byte> bytes);
};

// A published name.
struct DatasetRecord {
  std::uint64_t attempt = 0;  // That published it.
  std::uint8_t replicas = 1;  // Durability rN: 1 to SlotMap::kRowSizeMax.
  std::uint64_t size_bytes = 0;
  std::uint64_t file_count = 0;
  std::vector<ManifestExtent> body;  // Extents that together hold the encoded manifest.

  bool operator==(const DatasetRecord&) const = default;
  std::vector<std::byte> Encode() const;
  static Result<DatasetRecord> Decode(std::span<const std::byte> bytes);
};

// Extents of one file of one upload whose numbers follow each other.
struct ExtentRun {
  std::uint64_t upload = 0;
  std::uint32_t file = 0;
  std::uint32_t first = 0;
  std::uint32_t count = 0;  // At least 1.

  auto operator<=>(const ExtentRun&) const = default;
};
// In order, each extent once.
std::vector<ExtentRun> RunsOf(std::vector<ExtentId> ids);
bool Contains(std::span<const ExtentRun> runs, const ExtentId& id);

// Extents that may go: nothing published at the revision of the tombstone's key names them, and
// nothing that is published later will.
struct TombstoneRecord {
  std::chrono::milliseconds grace{};  // Each node waits so long from when it first saw the key.
  // All extents of this upload that nothing published names; 0: the runs alone.
  std::uint64_t upload = 0;
  std::vector<ExtentRun> runs;

  bool Names(const ExtentId& id) const;
  bool operator==(const TombstoneRecord&) const = default;
  std::vector<std::byte> Encode() const;
  static Result<TombstoneRecord> Decode(std::span<const std::byte> bytes);
};

// Where slots are, and where they were until all nodes have what is theirs.
struct SlotsRecord {
  SlotMap map;
  std::optional<SlotMap> previous;

  // Of an extent's slot: the nodes that are to hold its replicas, in their order.
  std::vector<std::string> OwnersOf(const ExtentId& id, std::size_t replicas) const;
  // Whether the node is one of them.
  bool IsOwner(std::string_view node, const ExtentId& id, std::size_t replicas) const;
  // All nodes, the likeliest to hold it first: the slot's row, its former row, all others.
  std::vector<std::string> CandidatesOf(const ExtentId& id) const;

  bool operator==(const SlotsRecord&) const = default;
  std::vector<std::byte> Encode() const;
  static Result<SlotsRecord> Decode(std::span<const std::byte> bytes);
};

}  // namespace ffrecord::server::cluster
