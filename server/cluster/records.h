#pragma once

#include <chrono>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
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

inline constexpr std::string_view kClusterKey = "cluster";     // Its id, 16 random bytes; once.
inline constexpr std::string_view kNodeKeys = "nodes/";        // <id>: NodeRecord, leased.
inline constexpr std::string_view kMemberKeys = "members/";    // <id>: MemberRecord.
inline constexpr std::string_view kWaitingKeys = "waiting/";   // <id>: WaitingRecord, as long as
                                                               // its member waits.
inline constexpr std::string_view kDatasetKeys = "datasets/";  // <name>: DatasetRecord.
// <name>: HistoryMark. A rebuild has put the name in the same commit, by what a node with that mark
// knew. Until the metadata is confirmed. Without a name: a rebuild that has heard every node left
// the metadata so.
inline constexpr std::string_view kRebuiltKeys = "rebuilt/";
inline constexpr std::string_view kUploadKeys = "uploads/";       // <16 hex digits>: open; empty.
inline constexpr std::string_view kTombstoneKeys = "deletes/";    // <any>: TombstoneRecord.
inline constexpr std::string_view kQuotaKeys = "quotas/";         // <share>/<prefix>: QuotaShare.
inline constexpr std::string_view kSlotsKey = "slots";            // SlotsRecord.
inline constexpr std::string_view kLeaderKey = "leader";          // Id of the leader, leased.
inline constexpr std::string_view kGenerationKey = "generation";  // Empty; put with every
                                                                  // publication and removal.
inline constexpr std::string_view kHistoryKey = "history";        // HistoryRecord.
inline constexpr std::string_view kLevelKey = "level";            // LevelRecord; absent: level 1.

// The level of metadata, messages and files of a cluster that this program understands. A program
// that writes anything that an earlier one would misread has a higher one, and writes that only
// once the cluster's level says that all nodes understand it. Level 2: manifests with origins.
// Level 3: with replicas, or an erasure code, of their own. Level 4: names that hold their manifest
// themselves.
inline constexpr std::uint32_t kFeatureLevel = 4;
inline constexpr std::uint32_t kOriginLevel = 2;
inline constexpr std::uint32_t kDurabilityLevel = 3;
inline constexpr std::uint32_t kOwnManifestLevel = 4;

std::string Key(std::string_view kind, std::string_view name);
std::string UploadKey(std::uint64_t upload);
// The key of the tombstone of an upload that was given up. While it is there, the upload cannot
// begin anew: what it names is dropped.
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
  std::uint32_t level = 1;  // The highest feature level that it knows.
  // Hash of `origins`; must be equal on all nodes. 0: no places; none: it does not say.
  std::optional<std::uint64_t> origins_hash = {};

  bool operator==(const NodeRecord&) const = default;
  std::vector<std::byte> Encode() const;
  static Result<NodeRecord> Decode(std::span<const std::byte> bytes);
};

// A node that has asked to join, and what operators have said of it.
struct MemberRecord {
  enum class State : std::uint8_t {
    kIn = 0,
    kDraining = 1,  // It takes nothing new, and others take over what it has.
    kOut = 2,       // It counts no more: nobody waits for it.
    kWaiting = 3,   // It does not count yet: nobody has let it join.
  };
  // Its part in the cluster is asked for, and waited for.
  bool counts() const { return state == State::kIn || state == State::kDraining; }

  State state = State::kIn;
  std::uint32_t weight = 1;
  std::string domain;

  bool operator==(const MemberRecord&) const = default;
  std::vector<std::byte> Encode() const;
  static Result<MemberRecord> Decode(std::span<const std::byte> bytes);
};

// A record that a node writes while it waits to be let in, for the operator who decides.
struct WaitingRecord {
  std::uint64_t since_unix_ms = 0;  // By its own clock.
  std::string address;
  std::string daemon;  // Id of the daemon, which is on its disks and in its log.

  bool operator==(const WaitingRecord&) const = default;
  std::vector<std::byte> Encode() const;
  static Result<WaitingRecord> Decode(std::span<const std::byte> bytes);
};

// The feature level of the cluster: no node is below it, and it is never lowered.
struct LevelRecord {
  std::uint32_t level = 1;

  bool operator==(const LevelRecord&) const = default;
  std::vector<std::byte> Encode() const;
  static Result<LevelRecord> Decode(std::span<const std::byte> bytes);
};
// By its key, which is null if there is none. A record that cannot be read is of a later version of
// this program, and above all levels.
std::uint32_t LevelIn(const MetaStore::KeyValue* key);
// Why a program that knows `known` takes no part in a cluster of a higher `level`. For people.
std::string ExplainLevel(std::uint32_t level, std::uint32_t known);

// A published name. Its manifest lies in it if that is small, and else in extents of its own.
struct DatasetRecord {
  // All nodes, and the store, have every record in memory.
  static constexpr std::size_t kOwnManifestSizeMax = 4096;

  std::uint64_t attempt = 0;  // That published it.
  std::uint8_t replicas = 1;  // Durability rN: 1 to SlotMap::kRowSizeMax.
  std::uint64_t size_bytes = 0;
  std::uint64_t file_count = 0;
  std::vector<ManifestExtent> body;  // Extents that together hold the encoded manifest. Empty:
  std::shared_ptr<const std::vector<std::byte>> manifest = {};  // This holds it.

  bool operator==(const DatasetRecord& other) const;
  std::vector<std::byte> Encode() const;
  static Result<DatasetRecord> Decode(std::span<const std::byte> bytes);
};

// The first extent of the manifest that an attempt publishes: of an upload called like the attempt.
// Where the name holds the manifest there is no such extent, and tombstones name it all the same.
ExtentId BodyExtentOf(std::uint64_t attempt);

// Bytes of what is left of a prefix's quota; quota_shares.h.
struct QuotaShare {
  std::uint64_t size_bytes = 0;

  bool operator==(const QuotaShare&) const = default;
  std::vector<std::byte> Encode() const;
  static Result<QuotaShare> Decode(std::span<const std::byte> bytes);
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

// Which history of the metadata this is: so that a node can tell whether the store goes on from
// where the node knew it, or was put back to an older state (continuity.h).
struct HistoryRecord {
  static constexpr std::size_t kAncestorCountMax = 64;
  static constexpr std::size_t kTermCountMax = 256;

  // A leader has begun. The revision is that of its commit; 0 in the newest one alone: of the
  // commit that put this record.
  struct Term {
    std::uint64_t token = 0;  // Random, not 0.
    std::uint64_t revision = 0;

    bool operator==(const Term&) const = default;
  };

  std::uint64_t incarnation = 0;  // Random.
  // An operator knows of what this incarnation lacks of those before it.
  bool is_confirmed = true;
  // Slot maps of this incarnation have at least this version: all before are of other maps.
  std::uint32_t map_version_min = 0;
  // Keys that were put by then are of the older state.
  std::uint64_t base_revision = 0;
  std::string why;                       // The incarnation was begun. For people.
  std::vector<std::uint64_t> ancestors;  // Incarnations before it; 0: from before there were any.
  std::vector<Term> terms;               // In order, the newest last; the oldest are forgotten.

  // The newest term, with its revision; none: no leader has begun yet. `mod_revision`: of the key.
  std::optional<Term> NewestTerm(std::uint64_t mod_revision) const;
  // Both are about to be put in place of the record that was put at `mod_revision`.
  void AddTerm(std::uint64_t token, std::uint64_t mod_revision);
  void Confirm(std::uint64_t mod_revision);
  // Those that are not among the ancestors come behind them; the oldest are forgotten.
  void AddAncestors(std::span<const std::uint64_t> incarnations);

  bool operator==(const HistoryRecord&) const = default;
  std::vector<std::byte> Encode() const;
  static Result<HistoryRecord> Decode(std::span<const std::byte> bytes);
};

// A key as it was put once: a history that does not have it is another one.
struct Anchor {
  std::string key;
  std::uint64_t revision = 0;  // At which it was put; 0: there is none.
  std::uint64_t hash = 0;      // XXH3-64 of its value.

  bool operator==(const Anchor&) const = default;
};

// How far a node has seen the metadata. It is kept on the node's disk.
struct HistoryMark {
  std::uint64_t incarnation = 0;  // 0: there was no record of it.
  std::uint64_t revision = 0;     // 0: nothing has been seen.
  HistoryRecord::Term term;       // The newest one by then. Token 0: none.
  // The newest key that is still there (newest_keys.h). Not part of the encoding, which others
  // read.
  Anchor anchor = {};

  bool operator==(const HistoryMark&) const = default;
  std::vector<std::byte> Encode() const;
  static Result<HistoryMark> Decode(std::span<const std::byte> bytes);
  // The anchor alone, for the same mark only: earlier versions of this program keep the mark
  // without it.
  std::vector<std::byte> EncodeAnchor() const;
  Result<void> DecodeAnchor(std::span<const std::byte> bytes);
};

// The first version of a slot map after the metadata was lost in part. Other nodes may have seen
// later ones than this node, of other maps: one version never names two.
constexpr std::uint32_t MapVersionAfter(std::uint32_t known) { return known + 1'024; }

// Names as a node has known them, by name: what is needed to publish them again.
struct KnownName {
  DatasetRecord record;
  std::uint64_t revision = 0;

  bool operator==(const KnownName&) const = default;
};
using KnownNames = std::map<std::string, KnownName, std::less<>>;

// Where slots are, and where they were until all nodes have what is theirs.
struct SlotsRecord {
  SlotMap map;
  std::optional<SlotMap> previous;

  // The nodes that are to hold the replicas of an extent, by its slot, in their order.
  std::vector<std::string> OwnersOf(const ExtentId& id, std::size_t replicas) const;
  // Whether the node is one of them.
  bool IsOwner(std::string_view node, const ExtentId& id, std::size_t replicas) const;
  // All nodes, the likeliest to hold it first: the slot's row, its former row, all others of the
  // map, then those of `live` that are not in it: a node that was taken out may have the last one.
  std::vector<std::string> CandidatesOf(const ExtentId& id,
                                        const std::set<std::string>& live) const;

  bool operator==(const SlotsRecord&) const = default;
  std::vector<std::byte> Encode() const;
  static Result<SlotsRecord> Decode(std::span<const std::byte> bytes);
};

}  // namespace ffrecord::server::cluster
