#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include <ffrecord/export.h>
#include <ffrecord/result.h>
#include <ffrecord/schema.h>

namespace ffrecord {

// The records of one ReadBatch, in request order, in one block of memory that the Batch owns.
//
// `starts` and `sizes` locate each record in the block, in bytes. Equal indices may share their
// bytes, and do unless records are small. Records that are read from disk or a daemon lie in file
// order, not in request order: one read fetches neighbours into their final place. Records that
// were in the page cache are copied back to back, in request order.
//
// The memory returns to a pool when the Batch is destroyed. Movable; distinct Batches may be used
// by distinct threads.
class FFR_EXPORT Batch {
 public:
  // Keeps the block alive while `data` is used.
  using Owner = std::shared_ptr<const void>;

  // Borrows tables of equal length, which `owner` keeps alive too.
  Batch(Owner owner, std::span<const std::byte> data, std::span<const std::int64_t> starts_bytes,
        std::span<const std::int64_t> sizes_bytes, std::span<const ErrorCode> statuses,
        std::shared_ptr<const Schema> schema) noexcept;
  // Owns its tables.
  Batch(Owner owner, std::span<const std::byte> data, std::vector<std::int64_t> starts_bytes,
        std::vector<std::int64_t> sizes_bytes, std::vector<ErrorCode> statuses,
        std::shared_ptr<const Schema> schema) noexcept;

  std::size_t size() const noexcept { return starts_bytes_.size(); }

  // The record at `position` of the request; empty unless its status is kOk. Valid while the Batch
  // lives.
  std::span<const std::byte> record(std::size_t position) const noexcept;

  std::span<const std::byte> data() const noexcept { return data_; }
  std::span<const std::int64_t> starts_bytes() const noexcept { return starts_bytes_; }
  std::span<const std::int64_t> sizes_bytes() const noexcept { return sizes_bytes_; }
  // kOk, kCorruption, kIo, kUnavailable or kDeadlineExceeded for each record.
  std::span<const ErrorCode> statuses() const noexcept { return statuses_; }
  const Schema& schema() const noexcept { return *schema_; }

  // Locates the values of one column in data(): one start and size per record, both 0 for a record
  // whose status is not kOk. Fails with kCorruption if a record does not fit the schema; the
  // message names its position. Requires column < schema().columns().size().
  struct Field {
    std::vector<std::int64_t> starts_bytes;
    std::vector<std::int64_t> sizes_bytes;
  };
  Result<Field> field(std::size_t column) const;

  // Copies the values of one fixed-width column back to back: size() * width bytes, zeros for a
  // record whose status is not kOk. Fails with kInvalidArgument unless `destination` has exactly
  // that size.
  Result<void> GatherFixed(std::size_t column, std::span<std::byte> destination) const;
  // The same for several columns at once. `destinations` has one span for each column of the
  // schema; empty: leave the column out.
  Result<void> GatherFixed(std::span<const std::span<std::byte>> destinations) const;

 private:
  Result<void> CheckFits() const;
  void GatherAt(std::uint64_t offset, std::uint64_t width, std::byte* out) const;

  Owner owner_;
  std::span<const std::byte> data_;
  std::span<const std::int64_t> starts_bytes_;
  std::span<const std::int64_t> sizes_bytes_;
  std::span<const ErrorCode> statuses_;
  std::shared_ptr<const Schema> schema_;
};

}  // namespace ffrecord
