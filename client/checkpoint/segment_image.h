#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <vector>

#include <ffrecord/client/checkpoint.h>

#include "client/checkpoint/plan.h"
#include "client/checkpoint/tensor_digests.h"
#include "libffrecord/format/checkpoint_segment.h"

namespace ffrecord::client {

// The bytes of one segment file as they will be, made when asked for: payload from the tensors,
// which are borrowed for its life, then the table of block checksums, padding and trailer.
//
// The payload is cut into pieces of whole blocks, which many threads make at the same time; each is
// hashed as it is made, so that hashing runs beside the writing of the others. Pieces that lie in
// one large tensor are that tensor's own memory, all others are gathered. Or, for a stream, the
// file is asked for from front to back with At().
class SegmentImage {
 public:
  struct Piece {
    std::uint64_t offset_bytes;   // A multiple of kSegmentBlockSize.
    std::uint64_t size_bytes;     // At most kPieceSizeMax; of kSegmentAlignment.
    const std::byte* own_memory;  // Aligned to kSegmentAlignment; null if it is to be gathered.
    bool is_stable;               // All its tensors are.
  };
  static constexpr std::uint64_t kPieceSizeMax = std::uint64_t{4} << 20;

  // `done_bytes`, if given, is added what was hashed of the payload. `with_digests`: what each
  // placement adds to the digest of its tensor is summed up while its blocks are hashed.
  SegmentImage(const StoredSegment& segment, std::span<const Placement> placements,
               std::span<const TensorView> tensors,
               std::atomic<std::uint64_t>* done_bytes = nullptr, bool with_digests = false);

  // From now on hashed bytes are not added to `done_bytes`: a second copy of a segment was counted
  // with the first one.
  void StopCounting() noexcept { done_bytes_ = nullptr; }

  const SegmentLayout& layout() const noexcept { return layout_; }

  // In the order of the file; together they are the payload.
  const std::vector<Piece>& pieces() const noexcept { return pieces_; }

  // The bytes of a piece, hashed: its own memory, or else the front of `buffer`, which has room for
  // them. Thread-safe for different pieces.
  std::span<const std::byte> Make(const Piece& piece, std::span<std::byte> buffer);

  // All behind the payload. Requires that every piece has been made.
  std::span<const std::byte> MakeEnd();

  // Bytes from `offset_bytes` on, at least one and at most `size_bytes_max`; valid until the next
  // call. Requires offset_bytes < layout().file_size_bytes, and that every block of the payload has
  // been asked for before anything behind it is. Thread-bound.
  std::span<const std::byte> At(std::uint64_t offset_bytes, std::uint64_t size_bytes_max);

  // The error of a tensor's `fetch`; its bytes have been made as zeros.
  Result<void> fetched() const;

  // One for each placement; none without `with_digests`. Requires that the whole payload has been
  // made.
  std::vector<std::uint64_t> digests() const;

  // Digest of the table handed out. Requires MakeEnd(), or that the whole file has been asked for.
  const Digest128& table_digest() const noexcept { return table_digest_; }

 private:
  void Cut();
  void AddPieces(std::uint64_t begin, std::uint64_t end, const std::byte* own_memory);
  bool IsStable(std::uint64_t begin, std::uint64_t end) const;
  std::span<const std::byte> Payload(std::uint64_t offset_bytes);
  std::span<const std::byte> Contiguous(std::uint64_t offset_bytes) const;
  void Gather(std::uint64_t begin, std::span<std::byte> into) const;
  void Hash(std::uint64_t offset_bytes, std::span<const std::byte> bytes);
  std::span<const std::byte> DataOf(const Placement& placement) const;
  std::size_t FirstEndingAfter(std::uint64_t offset_bytes) const;
  void Copy(const TensorView& tensor, std::uint64_t offset_bytes, std::span<std::byte> into) const;

  // Shared, for pieces are made on several threads.
  struct Failure {
    std::mutex mutex;
    std::optional<Error> first;
  };

  SegmentId id_;
  SegmentLayout layout_;
  std::span<const Placement> placements_;
  std::span<const TensorView> tensors_;
  std::atomic<std::uint64_t>* done_bytes_;
  std::vector<Piece> pieces_;
  std::vector<std::uint64_t> checks_;
  std::vector<std::byte> gathered_;  // The last block of At() that no single tensor filled.
  std::vector<std::byte> end_;       // All behind the payload.
  Digest128 table_digest_{};
  std::optional<BoxDigests> digests_;
  std::shared_ptr<Failure> failure_ = std::make_shared<Failure>();
};

}  // namespace ffrecord::client
