#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <ffrecord/export.h>
#include <ffrecord/result.h>

namespace ffrecord {

// Element type of a column. The values are stored in the schema section (format.md, "Schema").
enum class ColumnType : std::uint8_t {
  kBool = 1,
  kU8 = 2,
  kI8 = 3,
  kU16 = 4,
  kI16 = 5,
  kU32 = 6,
  kI32 = 7,
  kU64 = 8,
  kI64 = 9,
  kF16 = 10,
  kBf16 = 11,
  kF32 = 12,
  kF64 = 13,
  kBytes = 32,  // Any bytes, of any size.
  kUtf8 = 33,   // UTF-8 text, of any size.
};

struct ColumnTypeTraits {
  ColumnType type;
  std::string_view name;
  std::uint8_t size_bytes;  // Size of one number; 0 if values have any size.
};
// All types.
FFR_EXPORT std::span<const ColumnTypeTraits> ColumnTypes() noexcept;
// Null if there is no such type.
FFR_EXPORT const ColumnTypeTraits* FindTraits(ColumnType type) noexcept;

// One column: a fixed-width tensor of numbers, or bytes of any size.
struct Column {
  std::string name;  // 1 to 255 bytes of UTF-8, unique in its schema.
  ColumnType type = ColumnType::kBytes;
  std::vector<std::uint64_t> shape = {};  // Fixed-width types only; empty is a scalar.

  bool operator==(const Column&) const = default;
};

// The layout of a record as columns. An empty schema means that a record is just bytes.
//
// A record holds, without padding: the values of the fixed-width columns in schema order; the size
// of each variable column except the last, as u32; the bytes of the variable columns. So a schema
// of one bytes column adds nothing to the record. A value type: copies are independent.
class FFR_EXPORT Schema {
 public:
  Schema() = default;

  // Fails with kInvalidArgument if a name is empty, too long or used twice, a shape has a zero or
  // belongs to a variable column, there are more than 1,024 columns, or a fixed-width value is
  // larger than 1 MiB.
  static Result<Schema> Make(std::vector<Column> columns);

  // Decodes the bytes of a schema section. Fails with kCorruption.
  static Result<Schema> Decode(std::span<const std::byte> bytes);
  std::vector<std::byte> Encode() const;

  bool empty() const noexcept { return columns_.empty(); }
  const std::vector<Column>& columns() const noexcept { return columns_; }
  // The position of the column named `name`, or -1.
  int Find(std::string_view name) const noexcept;
  // Size of one value in bytes; 0 for a variable column.
  std::uint64_t width_bytes(std::size_t column) const noexcept { return widths_[column]; }
  // The smallest size that a record can have.
  std::uint64_t fixed_size_bytes() const noexcept { return fixed_size_bytes_; }

  // Splits `record` into one span per column, in schema order, borrowed from `record`. Fails with
  // kCorruption if the sizes do not add up. Requires fields.size() == columns().size().
  Result<void> Split(std::span<const std::byte> record,
                     std::span<std::span<const std::byte>> fields) const;

  // Encodes `fields`, one span per column in schema order, and appends the result to `record`.
  // Fails with kInvalidArgument if the count or the size of a fixed-width value is wrong, or if a
  // variable column other than the last has 4 GiB or more.
  Result<void> Join(std::span<const std::span<const std::byte>> fields,
                    std::vector<std::byte>& record) const;

  bool operator==(const Schema&) const = default;

 private:
  std::vector<Column> columns_;
  std::vector<std::uint64_t> widths_;
  std::uint64_t fixed_size_bytes_ = 0;
  std::size_t variable_count_ = 0;
};

}  // namespace ffrecord
