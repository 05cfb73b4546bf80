#include <vector>

#include "capi/handles.h"

namespace ffrecord::capi {
namespace {

// The values are part of the interface.
static_assert(FFR_BOOL == static_cast<int>(ColumnType::kBool));
static_assert(FFR_U8 == static_cast<int>(ColumnType::kU8));
static_assert(FFR_I8 == static_cast<int>(ColumnType::kI8));
static_assert(FFR_U16 == static_cast<int>(ColumnType::kU16));
static_assert(FFR_I16 == static_cast<int>(ColumnType::kI16));
static_assert(FFR_U32 == static_cast<int>(ColumnType::kU32));
static_assert(FFR_I32 == static_cast<int>(ColumnType::kI32));
static_assert(FFR_U64 == static_cast<int>(ColumnType::kU64));
static_assert(FFR_I64 == static_cast<int>(ColumnType::kI64));
static_assert(FFR_F16 == static_cast<int>(ColumnType::kF16));
static_assert(FFR_BF16 == static_cast<int>(ColumnType::kBf16));
static_assert(FFR_F32 == static_cast<int>(ColumnType::kF32));
static_assert(FFR_F64 == static_cast<int>(ColumnType::kF64));
static_assert(FFR_BYTES == static_cast<int>(ColumnType::kBytes));
static_assert(FFR_UTF8 == static_cast<int>(ColumnType::kUtf8));

bool IsType(std::uint32_t type) {
  return (type >= FFR_BOOL && type <= FFR_F64) || type == FFR_BYTES || type == FFR_UTF8;
}

Result<Column> TakeColumn(const ffr_column& given) {
  if (given.name == nullptr || (given.shape == nullptr && given.shape_size > 0))
    return InvalidArgument("make schema: name or shape of a column is NULL");
  if (!IsType(given.type))
    return InvalidArgument("make schema: column " + std::string(given.name) + " has type " +
                           std::to_string(given.type) + ", which is none");
  constexpr std::uint32_t kShapeSizeMax = 32;
  if (given.shape_size > kShapeSizeMax)
    return InvalidArgument("make schema: column " + std::string(given.name) + " has " +
                           std::to_string(given.shape_size) + " dimensions, more than 32");
  Column column;
  column.name = given.name;
  column.type = static_cast<ColumnType>(given.type);
  column.shape.assign(given.shape, given.shape + given.shape_size);
  return column;
}

Result<void> MakeSchema(const ffr_column* columns, std::size_t count, ffr_schema** schema) {
  if (columns == nullptr || schema == nullptr || count == 0)
    return InvalidArgument("make schema: no columns, or no place for the schema");
  constexpr std::size_t kColumnsMax = 1024;
  if (count > kColumnsMax)
    return InvalidArgument("make schema: there are " + std::to_string(count) +
                           " columns, at most 1,024 are possible");
  std::vector<Column> taken;
  for (std::size_t i = 0; i < count; ++i) taken.push_back(FFR_TRY(TakeColumn(columns[i])));
  Schema made = FFR_TRY(Schema::Make(std::move(taken)));
  *schema = new ffr_schema{std::move(made)};
  return {};
}

}  // namespace
}  // namespace ffrecord::capi

ffr_code ffr_schema_make(const ffr_column* columns, size_t column_count, ffr_schema** schema,
                         ffr_error** error) {
  return ffrecord::capi::Guarded(
      error, [&] { return ffrecord::capi::MakeSchema(columns, column_count, schema); });
}

void ffr_schema_free(ffr_schema* schema) { delete schema; }

size_t ffr_schema_column_count(const ffr_schema* schema) { return schema->schema.columns().size(); }

ffr_code ffr_schema_column(const ffr_schema* schema, size_t column, ffr_column* found,
                           ffr_error** error) {
  return ffrecord::capi::Guarded(error, [&]() -> ffrecord::Result<void> {
    if (schema == nullptr || found == nullptr)
      return ffrecord::capi::InvalidArgument("find column: the schema or its place is NULL");
    const auto& columns = schema->schema.columns();
    if (column >= columns.size()) return ffrecord::capi::NoSuchColumn(column, columns.size());
    const ffrecord::Column& there = columns[column];
    *found = {there.name.c_str(), static_cast<std::uint32_t>(there.type),
              static_cast<std::uint32_t>(there.shape.size()), there.shape.data()};
    return {};
  });
}
