#include <span>
#include <vector>

#include "libffrecord/capi/handles.h"

namespace ffrecord::capi {
namespace {

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

Result<void> WriteFields(ffr_writer* writer, const ffr_bytes* fields, std::size_t count) {
  if (writer == nullptr || (fields == nullptr && count > 0))
    return InvalidArgument("write record: an argument is NULL");
  std::vector<std::span<const std::byte>> spans;
  for (std::size_t i = 0; i < count; ++i) {
    if (fields[i].data == nullptr && fields[i].size > 0)
      return InvalidArgument("write record: field " + std::to_string(i) + " is NULL");
    spans.emplace_back(static_cast<const std::byte*>(fields[i].data), fields[i].size);
  }
  return writer->writer.WriteFields(spans);
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
  return Guarded(error, [&]() -> ffrecord::Result<void> {
    if (writer == nullptr || (data == nullptr && size > 0))
      return ffrecord::capi::InvalidArgument("write record: an argument is NULL");
    return writer->writer.Write({static_cast<const std::byte*>(data), size});
  });
}

ffr_code ffr_writer_write_fields(ffr_writer* writer, const ffr_bytes* fields, size_t field_count,
                                 ffr_error** error) {
  return Guarded(error, [&] { return ffrecord::capi::WriteFields(writer, fields, field_count); });
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
