#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include <ffrecord/schema.h>

#include "python/src/bind.h"
#include "python/src/errors.h"

namespace ffrecord::python {
namespace {

// Name, type and shape: what Python knows a column by.
using PyColumn = std::tuple<std::string, std::string, std::vector<std::uint64_t>>;

constexpr std::array<std::pair<ColumnType, std::string_view>, 15> kTypeNames{{
    {ColumnType::kBool, "bool"},
    {ColumnType::kU8, "u8"},
    {ColumnType::kI8, "i8"},
    {ColumnType::kU16, "u16"},
    {ColumnType::kI16, "i16"},
    {ColumnType::kU32, "u32"},
    {ColumnType::kI32, "i32"},
    {ColumnType::kU64, "u64"},
    {ColumnType::kI64, "i64"},
    {ColumnType::kF16, "f16"},
    {ColumnType::kBf16, "bf16"},
    {ColumnType::kF32, "f32"},
    {ColumnType::kF64, "f64"},
    {ColumnType::kBytes, "bytes"},
    {ColumnType::kUtf8, "utf8"},
}};

ColumnType TypeOf(const std::string& column, std::string_view name) {
  std::string known;
  for (const auto& [type, type_name] : kTypeNames) {
    if (type_name == name) return type;
    known.append(known.empty() ? "" : ", ").append(type_name);
  }
  Raise({ErrorCode::kInvalidArgument, "column '" + column + "' has the unknown type '" +
                                          std::string(name) + "'; known are " + known});
}

std::string NameOf(ColumnType type) {
  for (const auto& [known, name] : kTypeNames)
    if (known == type) return std::string(name);
  return "unknown";
}

Schema MakeSchema(const std::vector<PyColumn>& py_columns) {
  std::vector<Column> columns;
  columns.reserve(py_columns.size());
  for (const auto& [name, type, shape] : py_columns)
    columns.push_back({name, TypeOf(name, type), shape});
  return ValueOrRaise(Schema::Make(std::move(columns)));
}

py::list ColumnsOf(const Schema& schema) {
  py::list columns;
  for (const Column& column : schema.columns())
    columns.append(
        py::make_tuple(column.name, NameOf(column.type), py::tuple(py::cast(column.shape))));
  return columns;
}

}  // namespace

void BindSchema(py::module_& module) {
  py::class_<Schema>(module, "Schema", py::is_final())
      .def(py::init(&MakeSchema), py::arg("columns"))
      .def_property_readonly("columns", &ColumnsOf);
}

}  // namespace ffrecord::python
