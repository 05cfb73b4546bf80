#pragma once

#include <atomic>
#include <cstdint>
#include <optional>
#include <span>

#include <ffrecord/record_reader.h>
#include <ffrecord/result.h>

#include "libffrecord/format/v2_keys.h"
#include "libffrecord/source/range_reader.h"

namespace ffrecord {

struct V2Layout;

// Finds the records of one open file by their keys.
//
// Nothing is read before the first search; a search reads a few pages of each run, which are mapped
// (or fetched), checked when they are first touched, and kept. Borrows the RangeReader and the
// layout. Thread-safe; holds no lock that a fork could leave locked.
class KeyIndex {
 public:
  using Hash = std::uint64_t (*)(const FileId& id, std::span<const std::byte> key) noexcept;

  // `hash` differs from KeyHash only in tests that need collisions.
  KeyIndex(const RangeReader& source, std::uint32_t file, const V2Layout& layout,
           Hash hash = &KeyHash) noexcept
      : source_(source), file_(file), layout_(layout), hash_(hash) {}
  KeyIndex(const KeyIndex&) = delete;
  KeyIndex& operator=(const KeyIndex&) = delete;
  ~KeyIndex();

  // The record with this key and the lowest index, if there is one. Pages that are not in memory
  // are read through `bytes`, a reader of the same files. Fails with kCorruption if a page or a key
  // on the way is damaged, with kIo (ENOMEM), or as `bytes`.
  Result<std::optional<std::uint64_t>> Find(std::span<const std::byte> key,
                                            const RangeReader& bytes) const;
  Result<std::optional<std::uint64_t>> Find(std::span<const std::byte> key) const {
    return Find(key, source_);
  }

  // All keys, ascending by record. Every page and every key is checked. Fails like Find, and with
  // kCorruption if a record has two keys.
  Result<RecordReader::Keys> ReadAll() const;

 private:
  class Run;
  struct Runs;

  Result<const Runs*> Load(const RangeReader& bytes) const;
  Result<std::optional<std::uint64_t>> FindIn(const Run& run, std::uint64_t hash,
                                              std::span<const std::byte> key,
                                              const RangeReader& bytes) const;
  Result<void> CheckPlace(const KeyEntry& entry) const;
  // The bytes of the key, checked. Fails as V2Source::Fetch. Requires CheckPlace(entry).
  Result<RangeReader::IndexBytes> FetchKey(const KeyEntry& entry, const RangeReader& bytes) const;
  Result<bool> Matches(const KeyEntry& entry, std::span<const std::byte> key,
                       const RangeReader& bytes) const;

  const RangeReader& source_;
  const std::uint32_t file_;
  const V2Layout& layout_;
  const Hash hash_;
  mutable std::atomic<const Runs*> runs_{nullptr};  // Owned; null before the first search.
};

}  // namespace ffrecord
