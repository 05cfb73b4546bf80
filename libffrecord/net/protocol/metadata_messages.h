#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include <ffrecord/result.h>

namespace ffrecord::net {

// Bodies of the frames with which operators save, put back and compare the metadata of a cluster,
// and of the question by which daemons do so; protocol.md, "Clusters". Encode and Decode as in
// messages.h.

// One key of the metadata, or one name.
struct MetadataEntry {
  std::string key;  // Not empty.
  std::uint64_t revision = 0;
  std::vector<std::byte> value;

  bool operator==(const MetadataEntry&) const = default;
};
// One message's part of them; more follows in others.
struct MetadataPage {
  static constexpr std::uint32_t kCountMax = 1024;
  // Limit for keys and values together. A page of one entry may be larger.
  static constexpr std::size_t kSizeMax = 512 << 10;

  std::vector<MetadataEntry> entries;  // In byte order of their keys, which are unique.

  // False, and nothing is added: it belongs into another page.
  bool Add(MetadataEntry entry);
  bool operator==(const MetadataPage& other) const { return entries == other.entries; }

 private:
  std::size_t size_bytes_ = 0;
};

// The keys of the metadata behind `after`, as they were at the revision.
struct MetadataList {
  std::uint64_t revision = 0;  // 0: as they are; the reply tells the revision.
  std::string after;

  bool operator==(const MetadataList&) const = default;
  std::vector<std::byte> Encode() const;
  static Result<MetadataList> Decode(std::span<const std::byte> body);
};
struct MetadataListReply {
  std::uint64_t revision = 0;
  bool more = false;
  MetadataPage page;

  bool operator==(const MetadataListReply&) const = default;
  std::vector<std::byte> Encode() const;
  static Result<MetadataListReply> Decode(std::span<const std::byte> body);
};

// Puts keys into the metadata of a cluster that has none. The last message of a backup founds the
// cluster: until then no node takes part. The reply is empty.
struct MetadataPut {
  std::uint64_t backup = 0;  // Tells several backups apart; not 0.
  bool is_last = false;
  MetadataPage page;

  bool operator==(const MetadataPut&) const = default;
  std::vector<std::byte> Encode() const;
  static Result<MetadataPut> Decode(std::span<const std::byte> body);
};

// Compares the metadata with what nodes have known, publishes names again, or confirms it. The
// reply's payload is a JSON object.
struct MetadataHistory {
  enum class Action : std::uint8_t { kCompare = 0, kRebuild = 1, kConfirm = 2 };
  Action action = Action::kCompare;
  bool removes_returned = false;  // kRebuild.
  std::uint64_t incarnation = 0;  // kConfirm: that the operator has looked at.

  bool operator==(const MetadataHistory&) const = default;
  std::vector<std::byte> Encode() const;
  static Result<MetadataHistory> Decode(std::span<const std::byte> body);
};

// --- Between daemons ----------------------------------------------------------------------------

// Asks for the metadata that the daemon has seen and trusted last, and for the names behind `after`
// by then.
struct AskKnown {
  bool with_names = false;
  std::string after;

  bool operator==(const AskKnown&) const = default;
  std::vector<std::byte> Encode() const;
  static Result<AskKnown> Decode(std::span<const std::byte> body);
};
struct KnownReply {
  std::uint64_t incarnation = 0;
  std::uint64_t revision = 0;
  std::uint64_t term = 0;
  std::uint64_t term_revision = 0;
  bool more = false;
  MetadataPage page;  // Names, with their records.

  bool operator==(const KnownReply&) const = default;
  std::vector<std::byte> Encode() const;
  static Result<KnownReply> Decode(std::span<const std::byte> body);
};

}  // namespace ffrecord::net
