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

ColumnType TypeOf(const std::string& column, std::string_view name) {
  std::string known;
  for (const ColumnTypeTraits& traits : ColumnTypes()) {
    if (traits.name == name) return traits.type;
    known.append(known.empty() ? "" : ", ").append(traits.name);
  }
  Raise({ErrorCode::kInvalidArgument, "column '" + column + "' has the unknown type '" +
                                          std::string(name) + "'; known are " + known});
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
    columns.append(py::make_tuple(column.name, FindTraits(column.type)->name,
                                  py::tuple(py::cast(column.shape))));
  return columns;
}

}  // namespace

void BindSchema(py::module_& module) {
  py::class_<Schema>(module, "Schema", py::is_final())
      .def(py::init(&MakeSchema), py::arg("columns"))
      .def_property_readonly("columns", &ColumnsOf);
}

}  // namespace ffrecord::python
