#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>

#include <ffrecord/result.h>

#include "libffrecord/format/v2_facts.h"
#include "libffrecord/format/v2_footer.h"
#include "libffrecord/source/range_reader.h"

namespace ffrecord {

// How far before the end of a file readers look for its newest commit. Writers keep the distance
// between commits below this.
inline constexpr std::uint64_t kCommitSearchBytesMax = std::uint64_t{1} << 30;

// One file that is being opened, with the bytes that were read already. All borrowed.
struct V2Source {
  const RangeReader& reader;
  std::uint32_t file = 0;
  FileId id{};
  std::span<const std::byte> head = {};  // The first bytes of the file.
  std::span<const std::byte> tail = {};  // The last ones.

  // Bytes of the file that pass `check`; without an owner if they were read already. Those that
  // fail it are read from another copy of the file, if there is one. Fails as `check`, MapIndex and
  // FileCopies::ReadFromCopies.
  using Check = std::function<Result<void>(std::span<const std::byte>)>;
  Result<RangeReader::IndexBytes> Fetch(std::uint64_t offset_bytes, std::uint64_t size_bytes,
                                        const Check& check) const;
  // The bytes of a section, checked against the footer's entry. Fails as Fetch.
  Result<RangeReader::IndexBytes> FetchSection(const V2Section& section) const;
  std::uint64_t file_size_bytes() const noexcept { return reader.file_size_bytes(file); }

 private:
  Result<RangeReader::IndexBytes> FetchOnce(std::uint64_t offset_bytes,
                                            std::uint64_t size_bytes) const;
};

// The end of a commit: tail and footer, checked.
struct V2Commit {
  std::uint64_t size_bytes = 0;  // Size of the file when the commit was made: where its tail ends.
  std::uint64_t footer_offset_bytes = 0;
  std::uint64_t footer_size_bytes = 0;
  V2Footer footer;
};

// The commit that ends at `size_bytes`. Fails with kCorruption if none does, or as V2Source::Fetch.
Result<V2Commit> ReadCommit(const V2Source& source, std::uint64_t size_bytes);

// The facts that the file states of itself in that commit; none if it has no such section. Fails as
// FetchSection and DecodeV2Facts, and with kCorruption if they are those of another file.
Result<std::optional<V2Facts>> ReadFacts(const V2Source& source, const V2Footer& footer);

// The newest commit that ends before `end_bytes`, but at most kCommitSearchBytesMax before it; none
// if there is none. Fails as V2Source::Fetch.
Result<std::optional<V2Commit>> FindCommitBelow(const V2Source& source, std::uint64_t end_bytes);

}  // namespace ffrecord
