#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include <ffrecord/result.h>
#include <ffrecord/runtime.h>

#include "libffrecord/net/protocol/rdma_messages.h"

namespace ffrecord::net {

// Bodies of the frames of batch reads; protocol.md, "Batches". Encode and Decode as in
// messages.h.

using ExtentId = std::array<std::byte, 16>;

inline constexpr std::uint32_t kBatchEntryCountMax = 65'536;
// As many as a manifest can name; one EXTENT_BIND fills at most kBindCountMax of them.
inline constexpr std::uint32_t kBoundExtentCountMax = 262'144;
inline constexpr std::uint32_t kBindCountMax = 65'536;

// How one entry of a batch, or one bound extent, fared.
enum class EntryStatus : std::uint8_t {
  kOk = 0,
  kNotHere = 1,     // No such extent on this node, or nothing is bound to that index.
  kCorrupt = 2,     // The extent is shorter than it says.
  kBusy = 3,        // No room; ask again.
  kDenied = 4,      //
  kCancelled = 5,   // By CANCEL, or because the daemon stops.
  kIoError = 6,     // The disk refused.
  kOutOfRange = 7,  // offset + size passes the extent.
  kDeadline = 8,    // The batch's deadline passed before it was read.
};
inline constexpr std::uint8_t kEntryStatusMax = 8;

// The error of an entry that ended with this status.
ErrorCode ToErrorCode(EntryStatus status) noexcept;

// Fills places [first_index, first_index + ids.size()) of the connection's table of extents. An id
// of zeros empties its place.
struct ExtentBind {
  std::uint32_t first_index = 0;
  std::vector<ExtentId> ids;  // 1 to kBindCountMax.

  bool operator==(const ExtentBind&) const = default;
  std::vector<std::byte> Encode() const;
  static Result<ExtentBind> Decode(std::span<const std::byte> body);
};

struct ExtentBindReply {
  std::uint32_t bound_count = 0;      // Ids that are here, and places that were emptied.
  std::uint32_t missing_count = 0;    // Ids that are not here.
  std::vector<EntryStatus> statuses;  // One for each id; empty if none is missing.

  bool operator==(const ExtentBindReply&) const = default;
  std::vector<std::byte> Encode() const;
  static Result<ExtentBindReply> Decode(std::span<const std::byte> body);
};

// Gives the daemon a slab of the client: memory that BATCH_READs with its number are read into, or
// that PUT_PULLs are taken from, never both. Within one machine its memfd travels beside the frame.
// A number that is given again stands for the new slab from then on.
// Limit for all entries of a batch together: what it takes to plan it follows from its bytes too.
inline constexpr std::uint64_t kBatchSizeBytesMax = std::uint64_t{4} << 30;
inline constexpr std::uint32_t kSlabCountMax = 16;                      // For each connection.
inline constexpr std::uint64_t kSlabBytesMax = std::uint64_t{4} << 30;  // All of them together.
inline constexpr std::uint64_t kSlabUnitBytes = 4096;                   // Sizes are multiples.

struct SlabRegister {
  // Whether the daemon writes the slab or reads it.
  enum class Use : std::uint8_t { kIsWritten, kIsRead };

  std::uint32_t slab_id = 1;     // 1 to kSlabCountMax.
  std::uint64_t size_bytes = 0;  // At least one unit, at most kSlabBytesMax.
  // Over RDMA; in shared memory a descriptor stands for it.
  std::optional<RemoteRegion> remote = {};
  Use use = Use::kIsWritten;

  bool operator==(const SlabRegister&) const = default;
  std::vector<std::byte> Encode() const;
  static Result<SlabRegister> Decode(std::span<const std::byte> body);
};

// Asks to end the batch with this request_id soon. No reply: its BATCH_DONE comes anyhow.
struct Cancel {
  std::uint64_t request_id = 0;

  bool operator==(const Cancel&) const = default;
  std::vector<std::byte> Encode() const;
  static Result<Cancel> Decode(std::span<const std::byte> body);
};

// How much of the batch with this request_id the daemon may send. No reply.
struct Grant {
  std::uint64_t request_id = 0;
  std::uint64_t total_bytes = 0;  // From the batch's beginning; less than before changes nothing.

  bool operator==(const Grant&) const = default;
  std::vector<std::byte> Encode() const;
  static Result<Grant> Decode(std::span<const std::byte> body);
};

// Bytes [offset, offset + size) of one bound extent, wanted at slab_offset of the client's slab.
struct BatchEntry {
  std::uint32_t extent_index = 0;
  std::uint32_t offset_bytes = 0;
  std::uint32_t size_bytes = 0;
  std::uint32_t slab_offset_bytes = 0;

  bool operator==(const BatchEntry&) const = default;
};

struct BatchRead {
  static constexpr std::uint32_t kNoGrantLimit = 0xFFFFFFFF;
  // Classes of traffic, the most urgent first.
  enum class Class : std::uint8_t { kCollective, kDemand, kPrefetch, kCheckpoint, kRepair };
  // An option: the client has found other bytes in these extents than the right ones.
  static constexpr std::uint8_t kDoubted = 1;
  // Another one: what the daemon lacks of these extents, which are members of stripes, it brings.
  static constexpr std::uint8_t kBring = 2;
  // A third one, with kCapabilityDiskNames only: BatchDone names a disk.
  static constexpr std::uint8_t kNamesDisk = 4;

  std::uint32_t slab_id = 0;  // 0: none, bytes come as BATCH_DATA.
  std::uint32_t initial_grant_bytes = kNoGrantLimit;
  std::uint32_t deadline_ms = 0;  // From the arrival of the request.
  std::uint32_t plan_id = 0;
  Class traffic_class = Class::kDemand;
  std::uint8_t options = 0;         // The sum of those that are wanted.
  std::vector<BatchEntry> entries;  // 1 to kBatchEntryCountMax.

  bool operator==(const BatchRead&) const = default;
  std::vector<std::byte> Encode() const;
  static Result<BatchRead> Decode(std::span<const std::byte> body);
};

// A class as requests state it, and back; kCollective is urgent.
BatchRead::Class StatedClass(TrafficClass traffic) noexcept;
TrafficClass TrafficOf(BatchRead::Class stated) noexcept;

// A piece of an entry; its bytes are in the payload, in the order of the pieces, or, if the batch
// names a slab, in their place there and the payload is empty. The pieces of one entry come in the
// order of their offsets, without gaps.
struct BatchPiece {
  std::uint32_t entry = 0;
  std::uint32_t offset_bytes = 0;  // In the entry.
  std::uint32_t size_bytes = 0;    // At least 1.

  bool operator==(const BatchPiece&) const = default;
};

struct BatchData {
  std::vector<BatchPiece> pieces;  // At least one.

  bool operator==(const BatchData&) const = default;
  std::vector<std::byte> Encode() const;
  static Result<BatchData> Decode(std::span<const std::byte> body);
};

// Ends a batch: nothing of it follows.
struct BatchDone {
  std::uint32_t ok_count = 0;
  std::uint32_t failed_count = 0;
  std::uint64_t size_bytes = 0;  // Size of the entries that are kOk.
  std::uint32_t queue_us = 0;    // Where the time went.
  std::uint32_t disk_us = 0;
  std::uint32_t grant_us = 0;
  std::uint32_t send_us = 0;
  std::vector<EntryStatus> statuses;  // One for each entry; empty if none failed.
  // With BatchRead::kNamesDisk, and only then: the disk whose reads took the longest together;
  // empty if none was read.
  std::optional<std::string> disk = std::nullopt;

  bool operator==(const BatchDone&) const = default;
  std::vector<std::byte> Encode() const;
  static Result<BatchDone> Decode(std::span<const std::byte> body, bool names_disk = false);
};

}  // namespace ffrecord::net
