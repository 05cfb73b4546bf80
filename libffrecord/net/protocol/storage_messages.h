#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include <ffrecord/result.h>

#include "libffrecord/net/protocol/batch_messages.h"

namespace ffrecord::net {

// Bodies of the frames that store extents and publish names; protocol.md, "Storing" and
// "Names". Encode and Decode as in messages.h. Names are checked by Decode (CheckName).

// The size of extents is bounded by what an entry's u32 can address and by format.md.
inline constexpr std::uint64_t kPutSizeMax = std::uint64_t{64} << 20;

// Opens one extent for writing on this connection. It replaces the one that was open: a client
// that starts anew sends it again.
struct PutBegin {
  ExtentId id{};
  std::uint64_t size_bytes = 0;  // 1 to kPutSizeMax.
  // Why it is uploaded. Only with kCapabilityUploadClass; none: the client does not say.
  std::optional<BatchRead::Class> traffic_class = std::nullopt;

  bool operator==(const PutBegin&) const = default;
  std::vector<std::byte> Encode() const;
  static Result<PutBegin> Decode(std::span<const std::byte> body);
};

struct PutBeginReply {
  bool already_sealed = false;  // The daemon holds this extent, whole: send nothing.

  bool operator==(const PutBeginReply&) const = default;
  std::vector<std::byte> Encode() const;
  static Result<PutBeginReply> Decode(std::span<const std::byte> body);
};

// The next bytes of the open extent, as payload. Answered only if it fails.
struct PutData {
  ExtentId id{};
  std::uint64_t offset_bytes = 0;  // That of the first byte; bytes come in order.

  bool operator==(const PutData&) const = default;
  std::vector<std::byte> Encode() const;
  static Result<PutData> Decode(std::span<const std::byte> body);
};

// The next bytes of the open extent lie in a slab that is read. The reply, an empty body, says that
// the daemon has taken them, and looks there no more.
struct PutPull {
  // So that the daemon has a place for each.
  static constexpr std::uint32_t kSizeBytesMax = 1U << 20;

  ExtentId id{};
  std::uint64_t offset_bytes = 0;       // That of the first byte; bytes come in order.
  std::uint32_t slab_id = 1;            // 1 to kSlabCountMax.
  std::uint32_t slab_offset_bytes = 0;  // Where they lie there.
  std::uint32_t size_bytes = 1;         // 1 to kSizeBytesMax.

  bool operator==(const PutPull&) const = default;
  std::vector<std::byte> Encode() const;
  static Result<PutPull> Decode(std::span<const std::byte> body);
};

// Ends the open extent. The reply, an empty body, says that it is on stable storage.
struct PutSeal {
  ExtentId id{};
  std::uint64_t xxh3 = 0;  // XXH3-64 of its bytes.

  bool operator==(const PutSeal&) const = default;
  std::vector<std::byte> Encode() const;
  static Result<PutSeal> Decode(std::span<const std::byte> body);
};

// Makes the manifest in the payload what `name` stands for, in one commit.
struct Publish {
  enum class Mode : std::uint8_t {
    kCreate = 0,   // The name is absent.
    kReplace = 1,  // Whether the name is absent or not.
    kSwap = 2,     // The name is at revision expected_revision.
  };
  Mode mode = Mode::kCreate;
  std::uint64_t attempt = 0;  // Random, not 0. The same again: the same outcome, no second effect.
  std::uint64_t expected_revision = 0;  // kSwap only, else 0.
  std::string name;
  // How long the client waits for an answer; 0: it does not say. Only with kCapabilityPatience.
  std::uint32_t patience_ms = 0;

  bool operator==(const Publish&) const = default;
  std::vector<std::byte> Encode() const;
  static Result<Publish> Decode(std::span<const std::byte> body);
};

// Whether files of `size_bytes` could be published as `name` now; the reply has an empty body.
// Nothing is set aside.
struct CheckRoom {
  std::uint64_t size_bytes = 0;
  std::string name;

  bool operator==(const CheckRoom&) const = default;
  std::vector<std::byte> Encode() const;
  static Result<CheckRoom> Decode(std::span<const std::byte> body);
};

// Also the reply to RESOLVE, whose payload is the manifest.
struct RevisionReply {
  std::uint64_t revision = 0;

  bool operator==(const RevisionReply&) const = default;
  std::vector<std::byte> Encode() const;
  static Result<RevisionReply> Decode(std::span<const std::byte> body);
};

// `accepts_old`, here and in List: if the daemon cannot tell whether it knows the newest names, it
// tells those that it knew last, instead of an error. Only with kCapabilityKnownNames.
struct Resolve {
  std::string name;
  bool accepts_old = false;

  bool operator==(const Resolve&) const = default;
  std::vector<std::byte> Encode() const;
  static Result<Resolve> Decode(std::span<const std::byte> body);
};

// Removes a name; its extents go when nothing uses them. The reply has an empty body.
struct Delete {
  std::uint64_t expected_revision = 0;  // 0: any.
  std::string name;
  std::uint32_t patience_ms = 0;  // As in Publish.

  bool operator==(const Delete&) const = default;
  std::vector<std::byte> Encode() const;
  static Result<Delete> Decode(std::span<const std::byte> body);
};

// A page of the names that begin with `prefix`, in byte order, behind `after`.
struct List {
  static constexpr std::uint32_t kLimitMax = 4096;  // So that a page fits a body.

  std::uint32_t limit = kLimitMax;  // 1 to kLimitMax.
  std::string prefix;               // May be empty, or end in the middle of a segment.
  std::string after;                // Empty: from the start.
  bool accepts_old = false;         // As in Resolve.

  bool operator==(const List&) const = default;
  std::vector<std::byte> Encode() const;
  static Result<List> Decode(std::span<const std::byte> body);
};

struct ListReply {
  struct Entry {
    std::string name;
    std::uint64_t revision = 0;
    std::uint64_t size_bytes = 0;
    std::uint64_t file_count = 0;
    // The durability class: "origin", "r2", "ec:4+2" and the like; empty: it is not told. Only with
    // kCapabilityClasses; nothing of it is sent if no entry has one. Characters: [a-z0-9:+].
    std::string durability = {};

    bool operator==(const Entry&) const = default;
  };
  static constexpr std::size_t kDurabilitySizeMax = 16;

  bool more = false;  // Ask again, behind the last one.
  std::vector<Entry> entries;

  bool operator==(const ListReply&) const = default;
  std::vector<std::byte> Encode() const;
  static Result<ListReply> Decode(std::span<const std::byte> body);
};

}  // namespace ffrecord::net
