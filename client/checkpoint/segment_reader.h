#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <ffrecord/result.h>

#include "client/checkpoint/target.h"
#include "libffrecord/format/checkpoint_manifest.h"

namespace ffrecord::client {

// Bytes of a segment's payload that go to one place.
struct SegmentCopy {
  std::uint32_t segment;  // Index into the reader's segments.
  std::uint64_t offset_bytes;
  std::uint64_t size_bytes;
  std::byte* destination;
  std::string_view key;  // Whose bytes they are, for messages. Borrowed for the call.
};

// Reads payload bytes of a step's segments, in large pieces by several threads: whole blocks
// straight to where they are wanted if memory and file are aligned alike, all else by way of a
// buffer. Verifies every block that it touches, as it arrives, and reads a damaged one from another
// copy of the file, if there is one; only bytes that were read to their destination are there
// before they are verified. Thread-safe.
class SegmentReader {
 public:
  struct Segment {
    std::string name;
    StoredSegment stored;
  };

  // Fails with kNotFound if a file is missing, with kCorruption if one has not the size that its
  // manifest gives it.
  static Result<std::unique_ptr<SegmentReader>> Open(const CommittedStep& files,
                                                     std::vector<Segment> segments);

  // Fails with kCorruption (names file, offset and key), kIo or kUnavailable; destinations may then
  // be partly written.
  Result<void> Read(std::vector<SegmentCopy> copies) const;

  // Reads every block, or as many as it takes to find that much damage; returns what is wrong,
  // `damage_max` messages at most. `use`, if given, gets the blocks that are whole, on any thread;
  // if `damage_max` is 1, none of those that were read in one piece with damage. Fails as Read but
  // kIo.
  using BlockUse = std::function<void(std::uint32_t segment, std::uint64_t offset_bytes,
                                      std::span<const std::byte> block)>;
  Result<std::vector<std::string>> Verify(std::size_t damage_max, const BlockUse& use = {}) const;

  // Whether all that was read of the segment so far is of the copy that is read first.
  bool IsOfFirstCopy(std::uint32_t segment) const;

  // The bytes behind the payload in the file of `segment`, made from the verified table.
  Result<std::vector<std::byte>> EndOf(std::uint32_t segment) const;

 private:
  struct OpenSegment {
    Segment segment;
    std::string description;
    std::mutex mutex;  // Guards `table` until it is there; afterwards it never changes.
    std::shared_ptr<const std::vector<std::uint64_t>> table;
  };
  struct Piece;
  struct Flaw;

  // Reads pieces of kPieceSize at most into `buffer` and mends them; gives `use` those that are
  // whole, and returns the others. Fails as Verify().
  Result<std::vector<Flaw>> Examine(std::span<const Piece> pieces, std::span<std::byte> buffer,
                                    const BlockUse& use) const;
  static std::vector<Piece> CutInto(const Piece& piece, std::uint64_t size_bytes_max);
  Result<std::shared_ptr<const std::vector<std::uint64_t>>> TableOf(std::uint32_t segment) const;
  Result<void> ReadPieces(std::span<const Piece> pieces, std::span<const SegmentCopy> copies,
                          std::span<std::byte> buffer) const;
  Result<void> Use(const Piece& piece, std::span<const SegmentCopy> copies,
                   std::span<const std::byte> bytes) const;
  Result<void> CheckBlocks(const Piece& piece, std::span<const std::byte> bytes) const;
  Result<void> CheckBlock(const Piece& piece, std::span<const std::uint64_t> table,
                          std::uint64_t offset_bytes, std::span<const std::byte> block) const;
  // Puts whole blocks of another copy of the file in the place of those that fail their check.
  // `copies` are those that want bytes of the piece. Fails with kCorruption, which names the tensor
  // of the block, if no copy of the file has it whole, and as FileCopies.
  Result<void> Mend(const Piece& piece, std::span<const SegmentCopy> copies,
                    std::span<std::byte> bytes) const;
  Result<void> CheckStatus(const RangeRead& range) const;
  std::vector<SegmentCopy> TakeInPlace(std::span<const SegmentCopy> copies,
                                       std::vector<Piece>& pieces) const;
  std::vector<Piece> Cut(std::span<const SegmentCopy> copies) const;
  std::uint64_t RoomFor(const Piece& piece) const;

  std::vector<std::unique_ptr<OpenSegment>> segments_;
  std::unique_ptr<RangeReader> files_;
};

}  // namespace ffrecord::client
