#include <span>
#include <vector>

#include "capi/handles.h"

namespace ffrecord::capi {
namespace {

Result<Metadata> TakeMetadata(const ffr_named_bytes* values, std::size_t count) {
  if (values == nullptr && count > 0) return InvalidArgument("metadata: the list is NULL");
  Metadata metadata;
  for (std::size_t i = 0; i < count; ++i) {
    const auto bytes = Bytes(values[i].value.data, values[i].value.size);
    if (values[i].name == nullptr || !bytes)
      return InvalidArgument("metadata: name or value " + std::to_string(i) + " is NULL");
    const bool is_new =
        metadata.emplace(values[i].name, std::vector(bytes->begin(), bytes->end())).second;
    if (!is_new)
      return InvalidArgument("metadata: there are two values named " + std::string(values[i].name));
  }
  return metadata;
}

Result<std::vector<std::string>> TakeNames(const char* const* names, std::size_t count) {
  std::vector<std::string> taken;
  for (std::size_t i = 0; i < count; ++i) {
    if (names == nullptr || names[i] == nullptr)
      return InvalidArgument("ffr_writer_options: copied column " + std::to_string(i) + " is NULL");
    taken.emplace_back(names[i]);
  }
  return taken;
}

Result<RecordWriter::Options> TakeWriterOptions(const ffr_writer_options* given) {
  const ffr_writer_options taken = FFR_TRY(TakeOptions(given, "ffr_writer_options"));
  constexpr std::uint32_t kLevelMax = 19;
  if (taken.compression_level > kLevelMax)
    return InvalidArgument("ffr_writer_options: compression_level is " +
                           std::to_string(taken.compression_level) + ", must be 0 to 19");
  RecordWriter::Options options;
  options.compress = taken.compression_level > 0;
  if (options.compress) options.compression_level = static_cast<int>(taken.compression_level);
  if (taken.alignment != 0) options.alignment_bytes = taken.alignment;
  options.replace = taken.replace != 0;
  options.keys = taken.keys != 0;
  options.train_dictionary_bytes = taken.train_dictionary_size;
  const auto dictionary = Bytes(taken.dictionary.data, taken.dictionary.size);
  if (!dictionary) return InvalidArgument("ffr_writer_options: the dictionary is NULL");
  options.dictionary.assign(dictionary->begin(), dictionary->end());
  options.copied_columns = FFR_TRY(TakeNames(taken.copied_columns, taken.copied_column_count));
  options.metadata = FFR_TRY(TakeMetadata(taken.metadata, taken.metadata_count));
  return options;
}

Result<void> CreateWriter(const char* path, const ffr_schema* schema,
                          const ffr_writer_options* given, ffr_writer** writer) {
  if (path == nullptr || writer == nullptr)
    return InvalidArgument("create record file: the path or the place for the writer is NULL");
  const RecordWriter::Options options = FFR_TRY(TakeWriterOptions(given));
  RecordWriter created =
      FFR_TRY(RecordWriter::Create(path, schema != nullptr ? schema->schema : Schema(), options));
  *writer = new ffr_writer{std::move(created)};
  return {};
}

Result<void> AppendTo(const char* path, const ffr_append_options* given, ffr_writer** writer) {
  if (path == nullptr || writer == nullptr)
    return InvalidArgument("append records: the path or the place for the writer is NULL");
  const ffr_append_options taken = FFR_TRY(TakeOptions(given, "ffr_append_options"));
  RecordWriter::AppendOptions options;
  constexpr std::uint32_t kLevelMax = 19;
  if (taken.compression_level > kLevelMax)
    return InvalidArgument("ffr_append_options: compression_level is " +
                           std::to_string(taken.compression_level) + ", must be 0 to 19");
  if (taken.compression_level != 0)
    options.compression_level = static_cast<int>(taken.compression_level);
  if (taken.store_raw != 0) options.compress = false;
  if (taken.commit_interval != 0) options.commit_interval_bytes = taken.commit_interval;
  if (taken.metadata != nullptr || taken.metadata_count > 0)
    options.metadata = FFR_TRY(TakeMetadata(taken.metadata, taken.metadata_count));
  RecordWriter opened = FFR_TRY(RecordWriter::Append(path, options));
  *writer = new ffr_writer{std::move(opened)};
  return {};
}

Result<void> WriteRecord(ffr_writer* writer, ffr_bytes record, ffr_bytes key) {
  const auto record_bytes = Bytes(record.data, record.size);
  const auto key_bytes = Bytes(key.data, key.size);
  if (writer == nullptr || !record_bytes || !key_bytes)
    return InvalidArgument("write record: an argument is NULL");
  return writer->writer.Write(*record_bytes, *key_bytes);
}

Result<void> WriteFields(ffr_writer* writer, const ffr_bytes* fields, std::size_t count,
                         ffr_bytes key) {
  const auto key_bytes = Bytes(key.data, key.size);
  if (writer == nullptr || (fields == nullptr && count > 0) || !key_bytes)
    return InvalidArgument("write record: an argument is NULL");
  std::vector<std::span<const std::byte>> spans;
  for (std::size_t i = 0; i < count; ++i) {
    const auto field = Bytes(fields[i].data, fields[i].size);
    if (!field) return InvalidArgument("write record: field " + std::to_string(i) + " is NULL");
    spans.push_back(*field);
  }
  return writer->writer.WriteFields(spans, *key_bytes);
}

}  // namespace
}  // namespace ffrecord::capi

using ffrecord::capi::Guarded;

ffr_code ffr_writer_create(const char* path, const ffr_schema* schema,
                           const ffr_writer_options* options, ffr_writer** writer,
                           ffr_error** error) {
  return Guarded(error,
                 [&] { return ffrecord::capi::CreateWriter(path, schema, options, writer); });
}

ffr_code ffr_writer_write(ffr_writer* writer, const void* data, size_t size, ffr_error** error) {
  return ffr_writer_write_keyed(writer, data, size, nullptr, 0, error);
}

ffr_code ffr_writer_write_keyed(ffr_writer* writer, const void* data, size_t size, const void* key,
                                size_t key_size, ffr_error** error) {
  return Guarded(error, [&] {
    return ffrecord::capi::WriteRecord(writer, {data, size}, {key, key_size});
  });
}

ffr_code ffr_writer_write_fields(ffr_writer* writer, const ffr_bytes* fields, size_t field_count,
                                 ffr_error** error) {
  return ffr_writer_write_fields_keyed(writer, fields, field_count, nullptr, 0, error);
}

ffr_code ffr_writer_write_fields_keyed(ffr_writer* writer, const ffr_bytes* fields,
                                       size_t field_count, const void* key, size_t key_size,
                                       ffr_error** error) {
  return Guarded(error, [&] {
    return ffrecord::capi::WriteFields(writer, fields, field_count, {key, key_size});
  });
}

ffr_code ffr_writer_append(const char* path, const ffr_append_options* options, ffr_writer** writer,
                           ffr_error** error) {
  return Guarded(error, [&] { return ffrecord::capi::AppendTo(path, options, writer); });
}

ffr_code ffr_writer_commit(ffr_writer* writer, ffr_error** error) {
  return Guarded(error, [&]() -> ffrecord::Result<void> {
    if (writer == nullptr)
      return ffrecord::capi::InvalidArgument("commit records: the writer is NULL");
    return writer->writer.Commit();
  });
}

uint64_t ffr_writer_record_count(const ffr_writer* writer) { return writer->writer.record_count(); }

ffr_code ffr_writer_close(ffr_writer* writer, ffr_error** error) {
  return Guarded(error, [&]() -> ffrecord::Result<void> {
    if (writer == nullptr)
      return ffrecord::capi::InvalidArgument("close record file: the writer is NULL");
    auto closed = writer->writer.Close();
    if (!closed) return std::move(closed).error();
    return {};
  });
}

void ffr_writer_free(ffr_writer* writer) { delete writer; }
