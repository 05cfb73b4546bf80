#include <ffrecord/schema.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <string_view>
#include <unordered_set>

#include "libffrecord/base/assert.h"
#include "libffrecord/base/endian.h"
#include "libffrecord/base/utf8.h"

namespace ffrecord {
namespace {

constexpr std::size_t kColumnCountMax = 1024;
constexpr std::size_t kNameSizeBytesMax = 255;
constexpr std::size_t kDimensionCountMax = 32;
constexpr std::uint64_t kWidthBytesMax = std::uint64_t{1} << 20;
constexpr std::size_t kColumnHeaderSizeBytes = 4;
constexpr std::size_t kSizePrefixBytes = 4;  // Precedes each variable column but the last.

constexpr std::array<ColumnTypeTraits, 15> kColumnTypes{{
    {ColumnType::kBool, "bool", 1},
    {ColumnType::kU8, "u8", 1},
    {ColumnType::kI8, "i8", 1},
    {ColumnType::kU16, "u16", 2},
    {ColumnType::kI16, "i16", 2},
    {ColumnType::kU32, "u32", 4},
    {ColumnType::kI32, "i32", 4},
    {ColumnType::kU64, "u64", 8},
    {ColumnType::kI64, "i64", 8},
    {ColumnType::kF16, "f16", 2},
    {ColumnType::kBf16, "bf16", 2},
    {ColumnType::kF32, "f32", 4},
    {ColumnType::kF64, "f64", 8},
    {ColumnType::kBytes, "bytes", 0},
    {ColumnType::kUtf8, "utf8", 0},
}};

bool IsUtf8WithoutNul(std::string_view text) {
  return IsWellFormedUtf8(text) && text.find('\0') == std::string_view::npos;
}

Error Invalid(const std::string& found) {
  return {ErrorCode::kInvalidArgument, "schema: " + found};
}
Error Corrupt(const std::string& found) { return {ErrorCode::kCorruption, found}; }

// Size of one value of `column`; 0 for a variable one.
Result<std::uint64_t> WidthBytes(const Column& column) {
  const ColumnTypeTraits* const traits = FindTraits(column.type);
  if (traits == nullptr)
    return Invalid("column '" + column.name + "' has the unknown type " +
                   std::to_string(static_cast<int>(column.type)));
  if (traits->size_bytes == 0) {
    if (!column.shape.empty())
      return Invalid("column '" + column.name + "' is of variable size and has a shape");
    return std::uint64_t{0};
  }
  if (column.shape.size() > kDimensionCountMax)
    return Invalid("column '" + column.name + "' has more than 32 dimensions");
  std::uint64_t width = traits->size_bytes;
  for (const std::uint64_t extent : column.shape) {
    if (extent == 0) return Invalid("column '" + column.name + "' has a dimension of 0");
    if (extent > kWidthBytesMax / width)
      return Invalid("a value of column '" + column.name +
                     "' is larger than 1 MiB; make it a bytes column");
    width *= extent;
  }
  return width;
}

}  // namespace

std::span<const ColumnTypeTraits> ColumnTypes() noexcept { return kColumnTypes; }

const ColumnTypeTraits* FindTraits(ColumnType type) noexcept {
  const auto* const found = std::ranges::find(kColumnTypes, type, &ColumnTypeTraits::type);
  return found == kColumnTypes.end() ? nullptr : found;
}

Result<Schema> Schema::Make(std::vector<Column> columns) {
  if (columns.size() > kColumnCountMax)
    return Invalid(std::to_string(columns.size()) + " columns; at most 1024 are allowed");
  Schema schema;
  std::unordered_set<std::string_view> names;
  for (const Column& column : columns) {
    if (column.name.empty() || column.name.size() > kNameSizeBytesMax)
      return Invalid("a column name has " + std::to_string(column.name.size()) +
                     " bytes; it must have 1 to 255");
    if (!IsUtf8WithoutNul(column.name)) return Invalid("a column name is not UTF-8 without NUL");
    if (!names.insert(column.name).second)
      return Invalid("two columns are called '" + column.name + "'");
    const std::uint64_t width = FFR_TRY(WidthBytes(column));
    schema.widths_.push_back(width);
    schema.fixed_size_bytes_ += width;
    if (width == 0) ++schema.variable_count_;
  }
  if (schema.variable_count_ > 1)
    schema.fixed_size_bytes_ += kSizePrefixBytes * (schema.variable_count_ - 1);
  schema.columns_ = std::move(columns);
  return schema;
}

Result<Schema> Schema::Decode(std::span<const std::byte> bytes) {
  const auto cut = [] { return Corrupt("schema: section ends inside a column"); };
  if (bytes.size() < 2) return cut();
  const auto column_count = LoadLittleEndian<std::uint16_t>(bytes, 0);
  if (column_count == 0 || column_count > kColumnCountMax)
    return Corrupt("schema: " + std::to_string(column_count) + " columns");
  bytes = bytes.subspan(2);
  std::vector<Column> columns;
  for (std::size_t i = 0; i < column_count; ++i) {
    if (bytes.size() < kColumnHeaderSizeBytes) return cut();
    Column column;
    column.type = static_cast<ColumnType>(LoadLittleEndian<std::uint8_t>(bytes, 0));
    const std::size_t dimension_count = LoadLittleEndian<std::uint8_t>(bytes, 1);
    const std::size_t name_size = LoadLittleEndian<std::uint16_t>(bytes, 2);
    bytes = bytes.subspan(kColumnHeaderSizeBytes);
    if (dimension_count > kDimensionCountMax || bytes.size() < name_size ||
        bytes.size() - name_size < 8 * dimension_count)
      return cut();
    column.name.assign(reinterpret_cast<const char*>(bytes.data()), name_size);
    for (std::size_t d = 0; d < dimension_count; ++d)
      column.shape.push_back(LoadLittleEndian<std::uint64_t>(bytes, name_size + 8 * d));
    bytes = bytes.subspan(name_size + 8 * dimension_count);
    columns.push_back(std::move(column));
  }
  if (!bytes.empty()) return Corrupt("schema: bytes after the last column");
  auto schema = Make(std::move(columns));
  if (!schema) return Corrupt(schema.error().message);
  return schema;
}

std::vector<std::byte> Schema::Encode() const {
  if (empty()) return {};
  std::size_t size = 2;
  for (const Column& column : columns_)
    size += kColumnHeaderSizeBytes + column.name.size() + 8 * column.shape.size();
  std::vector<std::byte> encoded(size);
  const std::span<std::byte> bytes = encoded;
  StoreLittleEndian(bytes, 0, static_cast<std::uint16_t>(columns_.size()));
  std::size_t begin = 2;
  for (const Column& column : columns_) {
    StoreLittleEndian(bytes, begin, static_cast<std::uint8_t>(column.type));
    StoreLittleEndian(bytes, begin + 1, static_cast<std::uint8_t>(column.shape.size()));
    StoreLittleEndian(bytes, begin + 2, static_cast<std::uint16_t>(column.name.size()));
    begin += kColumnHeaderSizeBytes;
    std::memcpy(bytes.data() + begin, column.name.data(), column.name.size());
    begin += column.name.size();
    for (const std::uint64_t extent : column.shape) {
      StoreLittleEndian(bytes, begin, extent);
      begin += 8;
    }
  }
  return encoded;
}

int Schema::Find(std::string_view name) const noexcept {
  const auto found = std::find_if(columns_.begin(), columns_.end(),
                                  [&](const Column& column) { return column.name == name; });
  return found == columns_.end() ? -1 : static_cast<int>(found - columns_.begin());
}

Result<void> Schema::Split(std::span<const std::byte> record,
                           std::span<std::span<const std::byte>> fields) const {
  FFR_ASSERT(fields.size() == columns_.size());
  const auto corrupt = [&] {
    return Corrupt("a record of " + std::to_string(record.size()) +
                   " bytes does not fit the schema: the sizes of its columns do not add up");
  };
  if (record.size() < fixed_size_bytes_ ||
      (variable_count_ == 0 && record.size() != fixed_size_bytes_ && !empty()))
    return corrupt();
  const std::size_t prefixes_size =
      variable_count_ > 1 ? kSizePrefixBytes * (variable_count_ - 1) : 0;
  std::size_t fixed_begin = 0;
  std::size_t prefix_begin = fixed_size_bytes_ - prefixes_size;
  std::size_t variable_begin = fixed_size_bytes_;
  std::size_t variable_left = variable_count_;
  for (std::size_t i = 0; i < columns_.size(); ++i) {
    if (widths_[i] != 0) {
      fields[i] = record.subspan(fixed_begin, widths_[i]);
      fixed_begin += widths_[i];
      continue;
    }
    std::size_t size = record.size() - variable_begin;
    if (--variable_left > 0) {
      const std::size_t stated = LoadLittleEndian<std::uint32_t>(record, prefix_begin);
      if (stated > size) return corrupt();
      size = stated;
      prefix_begin += kSizePrefixBytes;
    }
    fields[i] = record.subspan(variable_begin, size);
    variable_begin += size;
  }
  return {};
}

Result<void> Schema::Join(std::span<const std::span<const std::byte>> fields,
                          std::vector<std::byte>& record) const {
  if (fields.size() != columns_.size())
    return Invalid(std::to_string(fields.size()) + " values for " +
                   std::to_string(columns_.size()) + " columns");
  std::size_t size = fixed_size_bytes_;
  std::size_t variable_left = variable_count_;
  for (std::size_t i = 0; i < fields.size(); ++i) {
    if (widths_[i] != 0) {
      if (fields[i].size() != widths_[i])
        return Invalid("column '" + columns_[i].name + "' takes " + std::to_string(widths_[i]) +
                       " bytes, not " + std::to_string(fields[i].size()));
      continue;
    }
    if (--variable_left > 0 && fields[i].size() > std::numeric_limits<std::uint32_t>::max())
      return Invalid("a value of column '" + columns_[i].name +
                     "' has 4 GiB or more; only the last variable column may");
    size += fields[i].size();
  }

  record.reserve(record.size() + size);
  const auto append = [&](std::span<const std::byte> bytes) {
    record.insert(record.end(), bytes.begin(), bytes.end());
  };
  for (std::size_t i = 0; i < fields.size(); ++i)
    if (widths_[i] != 0) append(fields[i]);
  variable_left = variable_count_;
  for (std::size_t i = 0; i < fields.size(); ++i) {
    if (widths_[i] != 0 || --variable_left == 0) continue;
    std::byte prefix[kSizePrefixBytes];
    StoreLittleEndian(std::span<std::byte>(prefix), 0,
                      static_cast<std::uint32_t>(fields[i].size()));
    append(prefix);
  }
  for (std::size_t i = 0; i < fields.size(); ++i)
    if (widths_[i] == 0) append(fields[i]);
  return {};
}

}  // namespace ffrecord
