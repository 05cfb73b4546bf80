#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "python/src/bind.h"

// Features of many `tf.train.Example`s as columns: the fast way for messages as TensorFlow writes
// them. pack/_example.py reads all that Protocol Buffers allow, and names what is wrong.
namespace ffrecord::python {
namespace {

using Bytes = std::string_view;

// As the field of `Feature` that has the values.
enum class ValueKind : std::uint8_t { kNone = 0, kBytes = 1, kFloats = 2, kIntegers = 3 };

constexpr std::int64_t kAnyCount = -1;
constexpr std::size_t kIntegerBytesMax = 10;

// A column that grows by a row for each message.
struct FeatureColumn {
  ValueKind kind;
  std::int64_t count;                 // Number of values in each row, or kAnyCount.
  std::string data = {};              // Values one after the other, as Arrow has them.
  std::vector<std::int32_t> ends{0};  // End of each row: in bytes for kBytes, else in values.
  std::size_t rows = 0;
};

// Reads forward in a message. Every function is false if the message ends early, or is not in the
// form that is read here.
class Cursor {
 public:
  explicit Cursor(Bytes data) : left_(data) {}

  bool at_end() const { return left_.empty(); }

  bool Tag(std::uint8_t wanted) {
    if (left_.empty() || static_cast<std::uint8_t>(left_[0]) != wanted) return false;
    left_.remove_prefix(1);
    return true;
  }

  bool Integer(std::uint64_t* value) {
    *value = 0;
    for (std::size_t place = 0; place < kIntegerBytesMax && place < left_.size(); ++place) {
      const auto byte = static_cast<std::uint8_t>(left_[place]);
      *value |= static_cast<std::uint64_t>(byte & 0x7FU) << (7 * place);
      if (byte < 0x80) {
        left_.remove_prefix(place + 1);
        return true;
      }
    }
    return false;
  }

  bool Sized(Bytes* body) {
    std::uint64_t size_bytes = 0;
    return Integer(&size_bytes) && Fixed(size_bytes, body);
  }

  bool Fixed(std::uint64_t size_bytes, Bytes* body) {
    if (size_bytes > left_.size()) return false;
    *body = left_.substr(0, size_bytes);
    left_.remove_prefix(size_bytes);
    return true;
  }

 private:
  Bytes left_;
};

constexpr std::uint8_t kSized1 = 1 << 3 | 2, kSized2 = 2 << 3 | 2, kSized3 = 3 << 3 | 2;
constexpr std::uint8_t kVarint1 = 1 << 3, kFixed1 = 1 << 3 | 5;

bool AppendBytes(Bytes list, std::string* data, std::uint64_t* count) {
  for (Cursor at(list); !at.at_end(); ++*count) {
    Bytes value;
    if (!at.Tag(kSized1) || !at.Sized(&value)) return false;
    data->append(value);
  }
  return true;
}

bool AppendFloats(Bytes list, std::string* data, std::uint64_t* count) {
  for (Cursor at(list); !at.at_end();) {
    Bytes values;
    const bool is_packed = at.Tag(kSized1);
    if (!is_packed && !at.Tag(kFixed1)) return false;
    if (!(is_packed ? at.Sized(&values) : at.Fixed(sizeof(float), &values))) return false;
    if (values.size() % sizeof(float) != 0) return false;
    data->append(values);
    *count += values.size() / sizeof(float);
  }
  return true;
}

bool AppendIntegers(Bytes list, std::string* data, std::uint64_t* count) {
  const auto append = [&](Cursor* at) {
    std::uint64_t value = 0;
    if (!at->Integer(&value)) return false;
    data->append(reinterpret_cast<const char*>(&value), sizeof value);
    ++*count;
    return true;
  };
  for (Cursor at(list); !at.at_end();) {
    if (at.Tag(kVarint1)) {
      if (!append(&at)) return false;
      continue;
    }
    Bytes values;
    if (!at.Tag(kSized1) || !at.Sized(&values)) return false;
    for (Cursor packed(values); !packed.at_end();)
      if (!append(&packed)) return false;
  }
  return true;
}

bool Append(ValueKind kind, Bytes list, std::string* data, std::uint64_t* count) {
  switch (kind) {
    case ValueKind::kBytes:
      return AppendBytes(list, data, count);
    case ValueKind::kFloats:
      return AppendFloats(list, data, count);
    case ValueKind::kIntegers:
      return AppendIntegers(list, data, count);
    case ValueKind::kNone:
      return true;
  }
  return false;
}

class ExampleReader {
 public:
  ExampleReader(std::vector<std::pair<std::string, FeatureColumn>> columns, bool skips_others)
      : columns_(std::move(columns)), skips_others_(skips_others) {
    for (std::size_t i = 0; i < columns_.size(); ++i) by_name_.emplace(columns_[i].first, i);
  }

  // Adds a row to each column; false, with columns in any state, if the message must be read in
  // another way.
  bool Add(Bytes message) {
    Bytes features;
    if (Cursor at(message); !at.Tag(kSized1) || !at.Sized(&features) || !at.at_end()) return false;
    ++rows_;
    for (Cursor at(features); !at.at_end();) {
      Bytes entry;
      if (!at.Tag(kSized1) || !at.Sized(&entry) || !AddEntry(entry)) return false;
    }
    for (auto& [name, column] : columns_) {
      if (column.rows == rows_) continue;
      if (column.count > 0 && column.kind != ValueKind::kBytes) return false;
      EndRow(&column, 0);
    }
    return true;
  }

  const auto& columns() const { return columns_; }

 private:
  bool AddEntry(Bytes entry) {
    Bytes name, feature, list;
    if (Cursor at(entry); !at.Tag(kSized1) || !at.Sized(&name) || !at.Tag(kSized2) ||
                          !at.Sized(&feature) || !at.at_end())
      return false;
    auto kind = ValueKind::kNone;
    if (Cursor at(feature); !at.at_end()) {
      kind = at.Tag(kSized1)   ? ValueKind::kBytes
             : at.Tag(kSized2) ? ValueKind::kFloats
             : at.Tag(kSized3) ? ValueKind::kIntegers
                               : ValueKind::kNone;
      if (kind == ValueKind::kNone || !at.Sized(&list) || !at.at_end()) return false;
    }
    std::uint64_t count = 0;
    const auto found = by_name_.find(name);
    if (found == by_name_.end()) {
      for (const char each : name)
        if (static_cast<std::uint8_t>(each) >= 0x80) return false;  // Is it text?
      skipped_.clear();
      return skips_others_ && Append(kind, list, &skipped_, &count);
    }
    FeatureColumn& column = columns_[found->second].second;
    if (column.rows == rows_) return false;  // It is there twice.
    if (!Append(kind, list, kind == column.kind ? &column.data : &skipped_, &count)) return false;
    const std::uint64_t most = column.kind == ValueKind::kBytes ? 1 : count;
    if ((kind != column.kind && count > 0) || count > most) return false;
    if (column.count > 0 && column.kind != ValueKind::kBytes &&
        count != static_cast<std::uint64_t>(column.count))
      return false;
    return EndRow(&column, count);
  }

  bool EndRow(FeatureColumn* column, std::uint64_t count) {
    const std::uint64_t end = column->kind == ValueKind::kBytes
                                  ? column->data.size()
                                  : static_cast<std::uint64_t>(column->ends.back()) + count;
    if (end > INT32_MAX) return false;
    column->ends.push_back(static_cast<std::int32_t>(end));
    column->rows = rows_;
    return true;
  }

  std::vector<std::pair<std::string, FeatureColumn>> columns_;
  std::unordered_map<Bytes, std::size_t> by_name_;  // Views of `columns_`, which stays as it is.
  bool skips_others_;
  std::size_t rows_ = 0;
  std::string skipped_;
};

// Values and ends of each column; nothing if a message must be read in another way.
std::optional<py::list> ReadExamples(
    const std::vector<py::bytes>& messages,
    const std::vector<std::tuple<std::string, int, std::int64_t>>& wanted, bool skips_others) {
  std::vector<std::pair<std::string, FeatureColumn>> columns;
  for (const auto& [name, kind, count] : wanted)
    columns.emplace_back(name, FeatureColumn{.kind = static_cast<ValueKind>(kind), .count = count});
  ExampleReader reader(std::move(columns), skips_others);
  std::vector<Bytes> views;
  views.reserve(messages.size());
  for (const py::bytes& message : messages) views.emplace_back(message);
  const bool is_read = WithoutGil([&] {
    for (const Bytes view : views)
      if (!reader.Add(view)) return false;
    return true;
  });
  if (!is_read) return std::nullopt;
  py::list found;
  for (const auto& [name, column] : reader.columns())
    found.append(py::make_tuple(py::bytes(column.data),
                                py::bytes(reinterpret_cast<const char*>(column.ends.data()),
                                          column.ends.size() * sizeof(std::int32_t))));
  return found;
}

}  // namespace

void BindExamples(py::module_& module) {
  module.def("read_examples", &ReadExamples, py::arg("messages"), py::arg("columns"),
             py::arg("skips_others"));
}

}  // namespace ffrecord::python
