#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <tuple>
#include <utility>
#include <variant>
#include <vector>

#include <ffrecord/file_rows.h>
#include <ffrecord/index_writer.h>
#include <ffrecord/record_writer.h>

#include "python/src/bind.h"
#include "python/src/buffer_view.h"
#include "python/src/errors.h"

namespace ffrecord::python {
namespace {

// A writer that Python threads may share: calls take turns, for the library's is thread-bound.
// Gone after Close() or Discard().
template <class Writer>
class SharedWriter {
 public:
  explicit SharedWriter(Writer writer) : writer_(std::move(writer)) {
    if constexpr (requires { writer_->schema(); }) {
      schema_ = writer_->schema();
      has_keys_ = writer_->has_keys();
      key_column_ = writer_->key_column();
    }
  }

  const Schema& schema() const noexcept { return schema_; }
  bool has_keys() const noexcept { return has_keys_; }
  const std::optional<std::string>& key_column() const noexcept { return key_column_; }

  // Calls `write` on the writer. Requires the GIL, releases it meanwhile.
  template <class Write>
  void Do(const Write& write) {
    OkOrRaise(WithoutGil([&]() -> Result<void> {
      const std::lock_guard lock(mutex_);
      if (!writer_) return Closed();
      return write(*writer_);
    }));
  }

  // None after Close() or Discard().
  std::uint64_t record_count() {
    return WithoutGil([&] {
      const std::lock_guard lock(mutex_);
      return writer_ ? writer_->record_count() : 0;
    });
  }

  WriteSummary Close() {
    return ValueOrRaise(WithoutGil([&]() -> Result<WriteSummary> {
      const std::lock_guard lock(mutex_);
      if (!writer_) return Closed();
      auto summary = writer_->Close();
      writer_.reset();
      return summary;
    }));
  }

  void Discard() {
    WithoutGil([&] {
      const std::lock_guard lock(mutex_);
      writer_.reset();
    });
  }

 private:
  static Error Closed() { return {ErrorCode::kInvalidArgument, "the writer is closed"}; }

  std::mutex mutex_;
  std::optional<Writer> writer_;
  Schema schema_;
  bool has_keys_ = false;
  std::optional<std::string> key_column_;
};

using Writer = SharedWriter<RecordWriter>;
using Writer1 = SharedWriter<V1Writer>;
using Indexer = SharedWriter<IndexWriter>;

Metadata MetadataFrom(const py::dict& values) {
  Metadata metadata;
  for (const auto& [name, value] : values) {
    const BufferView buffer(value);
    metadata.emplace(name.cast<std::string>(),
                     std::vector(buffer.bytes().begin(), buffer.bytes().end()));
  }
  return metadata;
}

std::unique_ptr<Writer> Create(const std::string& path, const Schema& schema, bool compress,
                               int level, std::uint32_t align, bool replace,
                               const py::dict& metadata, const py::object& dictionary,
                               std::uint32_t train_dictionary_bytes, bool keys,
                               const std::string& key_column,
                               const std::vector<std::string>& copied_columns,
                               const py::bytes& file_id) {
  RecordWriter::Options options{.compress = compress,
                                .compression_level = level,
                                .alignment_bytes = align,
                                .replace = replace,
                                .train_dictionary_bytes = train_dictionary_bytes,
                                .keys = keys,
                                .key_column = key_column,
                                .copied_columns = copied_columns,
                                .metadata = MetadataFrom(metadata)};
  if (!dictionary.is_none()) {
    const BufferView buffer(dictionary);
    options.dictionary.assign(buffer.bytes().begin(), buffer.bytes().end());
  }
  if (const BufferView id(file_id); !id.bytes().empty()) {
    if (id.bytes().size() != options.file_id.emplace().size())
      throw py::value_error("file_id has 16 bytes");
    std::ranges::copy(id.bytes(), options.file_id->begin());
  }
  return std::make_unique<Writer>(
      ValueOrRaise(WithoutGil([&] { return RecordWriter::Create(path, schema, options); })));
}

std::unique_ptr<Writer> Append(const std::string& path, std::optional<bool> compress, int level,
                               const std::optional<py::dict>& metadata) {
  RecordWriter::AppendOptions options{.compress = compress, .compression_level = level};
  if (metadata) options.metadata = MetadataFrom(*metadata);
  return std::make_unique<Writer>(
      ValueOrRaise(WithoutGil([&] { return RecordWriter::Append(path, options); })));
}

std::unique_ptr<Writer1> CreateV1(const std::string& path, std::uint64_t record_count,
                                  bool replace) {
  return std::make_unique<Writer1>(
      ValueOrRaise(WithoutGil([&] { return V1Writer::Create(path, record_count, replace); })));
}

void Write(Writer& writer, const py::object& record, const py::bytes& key) {
  const BufferView buffer(record);
  const BufferView key_buffer(key);
  writer.Do([&](auto& inner) { return inner.Write(buffer.bytes(), key_buffer.bytes()); });
}

void WriteV1(Writer1& writer, const py::object& record) {
  const BufferView buffer(record);
  writer.Do([&](auto& inner) { return inner.Write(buffer.bytes()); });
}

void WriteFields(Writer& writer, const py::sequence& fields, const py::bytes& key) {
  const BufferView key_buffer(key);
  std::vector<std::unique_ptr<BufferView>> buffers;
  std::vector<std::span<const std::byte>> spans;
  buffers.reserve(fields.size());
  spans.reserve(fields.size());
  for (const py::handle field : fields)
    spans.push_back(buffers.emplace_back(std::make_unique<BufferView>(field))->bytes());
  writer.Do([&](RecordWriter& inner) { return inner.WriteFields(spans, key_buffer.bytes()); });
}

// The values of one column of several rows: that of row i is data[bounds[i], bounds[i + 1]).
class Values {
 public:
  Values(const py::handle& data, const py::handle& bounds) : data_(data), bounds_(bounds) {
    if (bounds_.bytes().empty() || bounds_.bytes().size() % sizeof(std::int64_t) != 0)
      throw py::value_error("bounds are a number of 64 bits for each row, and one more");
    for (std::size_t row = 0, last = 0; row <= count(); ++row) {
      const auto at = static_cast<std::size_t>(Bound(row));
      if (at < last || at > data_.bytes().size())
        throw py::value_error("bounds are not in order, or lead out of the data");
      last = at;
    }
  }

  std::size_t count() const noexcept { return bounds_.bytes().size() / sizeof(std::int64_t) - 1; }

  std::span<const std::byte> At(std::size_t row) const noexcept {
    const auto begin = static_cast<std::size_t>(Bound(row));
    return data_.bytes().subspan(begin, static_cast<std::size_t>(Bound(row + 1)) - begin);
  }

 private:
  std::int64_t Bound(std::size_t row) const noexcept {
    std::int64_t value = 0;
    std::memcpy(&value, bounds_.bytes().data() + row * sizeof value, sizeof value);
    return value;
  }

  BufferView data_;
  BufferView bounds_;
};

// Writes the rows [begin, end); the keys are the values of the column `key`, if there is one.
void WriteRows(Writer& writer, const std::vector<std::pair<py::object, py::object>>& columns,
               std::size_t begin, std::size_t end, std::optional<std::size_t> key) {
  std::vector<std::unique_ptr<Values>> values;
  for (const auto& [data, bounds] : columns) {
    values.push_back(std::make_unique<Values>(data, bounds));
    if (end < begin || values.back()->count() < end)
      throw py::value_error("a column has fewer rows than are to be written");
  }
  if (key && *key >= values.size()) throw py::value_error("there is no such key column");
  writer.Do([&](RecordWriter& inner) -> Result<void> {
    std::vector<std::span<const std::byte>> fields(values.size());
    for (std::size_t row = begin; row < end; ++row) {
      for (std::size_t i = 0; i < values.size(); ++i) fields[i] = values[i]->At(row);
      const auto own_key = key ? fields[*key] : std::span<const std::byte>{};
      if (auto written = inner.WriteFields(fields, own_key); !written) return written;
    }
    return {};
  });
}

// Kind, size, time and digest.
using Described = std::tuple<std::uint32_t, std::uint64_t, std::int64_t, std::uint64_t>;

SourceDescription DescriptionFrom(const Described& given) {
  const auto [kind, size_bytes, time_ns, digest] = given;
  if (kind > static_cast<std::uint32_t>(SourceDescription::Kind::kMdsFolder))
    throw py::value_error("no such description");
  return {static_cast<SourceDescription::Kind>(kind), size_bytes, time_ns, digest};
}

using Integers = py::array_t<std::int64_t, py::array::c_style>;

// The values of one column of several rows, each of which is a range of a file.
class Ranges {
 public:
  Ranges(Integers files, Integers offsets, Integers sizes, std::size_t file_count)
      : files_(std::move(files)), offsets_(std::move(offsets)), sizes_(std::move(sizes)) {
    if (files_.ndim() != 1 || offsets_.ndim() != 1 || sizes_.ndim() != 1 ||
        offsets_.size() != files_.size() || sizes_.size() != files_.size())
      throw py::value_error("there are one offset and one size for each file");
    for (py::ssize_t row = 0; row < files_.size(); ++row) {
      const auto file = static_cast<std::uint64_t>(files_.data()[row]);
      if (file >= file_count || offsets_.data()[row] < 0 || sizes_.data()[row] < 0)
        throw py::value_error("a range is below 0, or in no file");
    }
  }

  std::size_t count() const noexcept { return static_cast<std::size_t>(files_.size()); }

  FieldSource At(std::size_t row, std::span<const RowFile> files) const noexcept {
    return {.file = &files[static_cast<std::size_t>(files_.data()[row])],
            .offset_bytes = static_cast<std::uint64_t>(offsets_.data()[row]),
            .size_bytes = static_cast<std::uint64_t>(sizes_.data()[row])};
  }

 private:
  Integers files_;
  Integers offsets_;
  Integers sizes_;
};

using ColumnOfRows = std::variant<std::unique_ptr<Values>, std::unique_ptr<Ranges>>;

// Data and bounds of values in memory; or numbers of files, offsets and sizes.
ColumnOfRows ColumnFrom(const py::tuple& column, std::size_t file_count) {
  if (column.size() == 2) return std::make_unique<Values>(column[0], column[1]);
  if (column.size() != 3) throw py::value_error("a column is of two or of three arrays");
  return std::make_unique<Ranges>(column[0].cast<Integers>(), column[1].cast<Integers>(),
                                  column[2].cast<Integers>(), file_count);
}

std::vector<RowFile> FilesFrom(
    const std::vector<std::tuple<std::string, std::int64_t, std::int64_t>>& files) {
  std::vector<RowFile> found;
  found.reserve(files.size());
  for (const auto& [path, size_bytes, modified_ns] : files) {
    RowFile& file = found.emplace_back(RowFile{.path = path});
    if (size_bytes >= 0) file.listed = {static_cast<std::uint64_t>(size_bytes), modified_ns};
  }
  return found;
}

// Writes the rows [begin, end), whose values are in memory or in files; a file is a path, its size
// and its time, or a size below 0 for any version. The first row with a file in another version,
// if there is one.
std::optional<std::size_t> WriteFileRows(
    Writer& writer, const std::vector<py::tuple>& columns,
    const std::vector<std::tuple<std::string, std::int64_t, std::int64_t>>& listed,
    std::size_t begin, std::size_t end, std::optional<std::size_t> key) {
  const std::vector<RowFile> files = FilesFrom(listed);
  std::vector<ColumnOfRows> values;
  for (const py::tuple& column : columns) {
    values.push_back(ColumnFrom(column, files.size()));
    const auto count = std::visit([](const auto& each) { return each->count(); }, values.back());
    if (end < begin || count < end)
      throw py::value_error("a column has fewer rows than are to be written");
  }
  if (values.size() != writer.schema().columns().size() || (key && *key >= values.size()))
    throw py::value_error("there is no such column");
  const FieldsOfRow fields_of = [&](std::size_t row, std::span<FieldSource> fields) {
    for (std::size_t i = 0; i < values.size(); ++i) {
      if (const auto* ranges = std::get_if<std::unique_ptr<Ranges>>(&values[i]))
        fields[i] = (*ranges)->At(begin + row, files);
      else
        fields[i] = {.bytes = std::get<std::unique_ptr<Values>>(values[i])->At(begin + row)};
    }
  };
  std::optional<std::size_t> changed;
  writer.Do([&](RecordWriter& inner) -> Result<void> {
    changed = FFR_TRY(ffrecord::WriteFileRows(inner, end - begin, fields_of, key));
    return {};
  });
  if (changed) *changed += begin;
  return changed;
}

std::unique_ptr<Indexer> CreateIndex(const std::string& source, const std::string& index,
                                     const Schema& schema, std::uint32_t form,
                                     const std::string& key_column, bool replace,
                                     const Described& description) {
  if (form > static_cast<std::uint32_t>(RecordForm::kTar)) throw py::value_error("no such form");
  const IndexWriter::Options options{.form = static_cast<RecordForm>(form),
                                     .key_column = key_column,
                                     .replace = replace,
                                     .description = DescriptionFrom(description)};
  return std::make_unique<Indexer>(ValueOrRaise(
      WithoutGil([&] { return IndexWriter::Create(source, index, schema, options); })));
}

void AddSamples(Indexer& writer, const py::array_t<std::int64_t, py::array::c_style>& offsets,
                const py::array_t<std::int64_t, py::array::c_style>& sizes) {
  if (offsets.ndim() != 1 || sizes.ndim() != 1 || offsets.size() != sizes.size())
    throw py::value_error("there is one size for each offset");
  const std::span begins(offsets.data(), static_cast<std::size_t>(offsets.size()));
  writer.Do([&](IndexWriter& inner) -> Result<void> {
    for (std::size_t i = 0; i < begins.size(); ++i) {
      const auto begin = static_cast<std::uint64_t>(begins[i]);
      const auto size = static_cast<std::uint64_t>(sizes.data()[i]);
      if (auto added = inner.Add(begin, size); !added) return added;
    }
    return {};
  });
}

py::dict SummaryOf(const WriteSummary& summary) {
  py::dict result;
  result["record_count"] = summary.record_count;
  result["raw_size_bytes"] = summary.raw_size_bytes;
  result["file_size_bytes"] = summary.file_size_bytes;
  result["fingerprint"] = Bytes(summary.fingerprint);
  result["dictionary_size_bytes"] = summary.dictionary_size_bytes;
  return result;
}

}  // namespace

void BindRecordWriter(py::module_& module) {
  py::class_<Writer>(module, "RecordWriter", py::is_final())
      .def_static("create", &Create, py::arg("path"), py::arg("schema"), py::kw_only(),
                  py::arg("compress") = false, py::arg("level") = 3, py::arg("align") = 1,
                  py::arg("replace") = false, py::arg("metadata") = py::dict(),
                  py::arg("dictionary") = py::none(), py::arg("train_dictionary_bytes") = 0,
                  py::arg("keys") = false, py::arg("key_column") = "",
                  py::arg("copied_columns") = std::vector<std::string>(),
                  py::arg("file_id") = py::bytes())
      .def_static("append", &Append, py::arg("path"), py::kw_only(),
                  py::arg("compress") = py::none(), py::arg("level") = 3,
                  py::arg("metadata") = py::none())
      .def_property_readonly("schema", [](const Writer& writer) { return writer.schema(); })
      .def_property_readonly("record_count", &Writer::record_count)
      .def_property_readonly("has_keys", &Writer::has_keys)
      .def_property_readonly("key_column", &Writer::key_column)
      .def("commit",
           [](Writer& writer) { writer.Do([](RecordWriter& inner) { return inner.Commit(); }); })
      .def("begin_group",
           [](Writer& writer) { writer.Do([](RecordWriter& i) { return i.BeginGroup(); }); })
      .def("end_group",
           [](Writer& writer) { writer.Do([](RecordWriter& i) { return i.EndGroup(); }); })
      .def("undo_group",
           [](Writer& writer) { writer.Do([](RecordWriter& i) { return i.UndoGroup(); }); })
      .def(
          "set_metadata",
          [](Writer& writer, const py::dict& values) {
            const Metadata metadata = MetadataFrom(values);
            writer.Do([&](RecordWriter& inner) { return inner.SetMetadata(metadata); });
          },
          py::arg("metadata"))
      .def("write", &Write, py::arg("record"), py::arg("key") = py::bytes())
      .def("write_fields", &WriteFields, py::arg("fields"), py::arg("key") = py::bytes())
      .def("write_rows", &WriteRows, py::arg("columns"), py::arg("begin"), py::arg("end"),
           py::arg("key") = py::none())
      .def("write_file_rows", &WriteFileRows, py::arg("columns"), py::arg("files"),
           py::arg("begin"), py::arg("end"), py::arg("key") = py::none())
      .def("close", [](Writer& writer) { return SummaryOf(writer.Close()); })
      .def("discard", &Writer::Discard);

  py::class_<Indexer>(module, "IndexWriter", py::is_final())
      .def_static("create", &CreateIndex, py::arg("source"), py::arg("index"), py::arg("schema"),
                  py::kw_only(), py::arg("form") = 0, py::arg("key_column") = "",
                  py::arg("replace") = false, py::arg("description") = Described())
      .def_static("read_source",
                  [](const std::string& index) {
                    const auto found =
                        ValueOrRaise(WithoutGil([&] { return IndexWriter::ReadSource(index); }));
                    const SourceDescription& description = found.description;
                    return std::pair(
                        py::bytes(found.path.string()),
                        Described(static_cast<std::uint32_t>(description.kind),
                                  description.size_bytes, description.time_ns, description.digest));
                  })
      .def_static(
          "write_description",
          [](const std::string& index, const Described& description) {
            const SourceDescription wanted = DescriptionFrom(description);
            OkOrRaise(WithoutGil([&] { return IndexWriter::WriteDescription(index, wanted); }));
          })
      .def("add", &AddSamples, py::arg("offsets"), py::arg("sizes"))
      .def("columns_with_nulls",
           [](Indexer& writer) {
             std::vector<std::string> names;
             writer.Do([&](IndexWriter& inner) -> Result<void> {
               names = inner.ColumnsWithNulls();
               return {};
             });
             return names;
           })
      .def(
          "set_metadata",
          [](Indexer& writer, const py::dict& values) {
            const Metadata metadata = MetadataFrom(values);
            writer.Do([&](IndexWriter& inner) { return inner.SetMetadata(metadata); });
          },
          py::arg("metadata"))
      .def("close", [](Indexer& writer) { return SummaryOf(writer.Close()); })
      .def("discard", &Indexer::Discard);

  py::class_<Writer1>(module, "V1Writer", py::is_final())
      .def_static("create", &CreateV1, py::arg("path"), py::arg("record_count"), py::kw_only(),
                  py::arg("replace") = false)
      .def("write", &WriteV1, py::arg("record"))
      .def("close", [](Writer1& writer) { return SummaryOf(writer.Close()); })
      .def("discard", &Writer1::Discard);
}

}  // namespace ffrecord::python
