#include <algorithm>
#include <memory>
#include <span>
#include <vector>

#include <ffrecord/client/dataset.h>

#include "capi/handles.h"

namespace ffrecord::capi {
namespace {

Result<RecordReader::Options> TakeReaderOptions(const ffr_reader_options* given) {
  const ffr_reader_options taken = FFR_TRY(TakeOptions(given, "ffr_reader_options"));
  RecordReader::Options options;
  switch (taken.io) {
    case FFR_IO_DEFAULT:
      break;
    case FFR_IO_BUFFERED:
      options.io = IoPolicy::kBuffered;
      break;
    case FFR_IO_DIRECT:
      options.io = IoPolicy::kDirect;
      break;
    case FFR_IO_AUTO:
      options.io = IoPolicy::kAuto;
      break;
    default:
      return InvalidArgument("ffr_reader_options: io is " + std::to_string(taken.io) +
                             ", which is no FFR_IO_*");
  }
  if (taken.queue_depth != 0) options.queue_depth = taken.queue_depth;
  options.verify_checksums = taken.skip_checksums == 0;
  options.salvage = taken.salvage != 0;
  return options;
}

Result<void> OpenReader(const char* const* locations, std::size_t count,
                        const ffr_reader_options* given, ffr_reader** reader) {
  if (reader == nullptr || (locations == nullptr && count > 0))
    return InvalidArgument("open records: the list or the place for the reader is NULL");
  const RecordReader::Options options = FFR_TRY(TakeReaderOptions(given));
  std::vector<std::string> names;
  for (std::size_t i = 0; i < count; ++i) {
    if (locations[i] == nullptr)
      return InvalidArgument("open records: location " + std::to_string(i) + " is NULL");
    names.emplace_back(locations[i]);
  }
  RecordReader opened = FFR_TRY(client::OpenDataset(names, options, {}));
  const Schema schema = opened.schema();
  *reader = new ffr_reader{std::move(opened), {schema}};
  return {};
}

// A column of the batch's schema.
Result<void> CheckColumn(const ffr_batch* batch, std::size_t column) {
  if (batch == nullptr) return InvalidArgument("read column: the batch is NULL");
  const std::size_t count = batch->batch.schema().columns().size();
  if (column >= count) return NoSuchColumn(column, count);
  return {};
}

Result<void> FindColumn(const ffr_batch* batch, std::size_t column, std::int64_t* starts,
                        std::int64_t* sizes) {
  FFR_TRY(CheckColumn(batch, column));
  if (batch->batch.size() == 0) return {};
  if (starts == nullptr || sizes == nullptr)
    return InvalidArgument("read column: no place for starts or sizes");
  const Batch::Field field = FFR_TRY(batch->batch.field(column));
  std::ranges::copy(field.starts_bytes, starts);
  std::ranges::copy(field.sizes_bytes, sizes);
  return {};
}

Result<void> GatherColumn(const ffr_batch* batch, std::size_t column, void* destination,
                          std::size_t size) {
  FFR_TRY(CheckColumn(batch, column));
  if (destination == nullptr && size > 0)
    return InvalidArgument("read column: no place for the values");
  return batch->batch.GatherFixed(column, {static_cast<std::byte*>(destination), size});
}

Result<void> FindKeys(const ffr_reader* reader, const ffr_bytes* keys, std::size_t count,
                      std::uint64_t* indices) {
  if (reader == nullptr || ((keys == nullptr || indices == nullptr) && count > 0))
    return InvalidArgument("find records: an argument is NULL");
  std::vector<std::span<const std::byte>> wanted;
  for (std::size_t i = 0; i < count; ++i) {
    const auto key = Bytes(keys[i].data, keys[i].size);
    if (!key) return InvalidArgument("find records: key " + std::to_string(i) + " is NULL");
    wanted.push_back(*key);
  }
  const auto found = FFR_TRY(reader->reader.FindAll(wanted));
  std::ranges::transform(found, indices,
                         [](const auto& one) { return one.value_or(FFR_NO_RECORD); });
  return {};
}

Result<void> ReadColumn(const ffr_reader* reader, std::size_t column, std::uint64_t first,
                        std::uint64_t count, void* destination, std::size_t size) {
  if (reader == nullptr || (destination == nullptr && size > 0))
    return InvalidArgument("read column: the reader or the place for the values is NULL");
  const std::size_t column_count = reader->reader.schema().columns().size();
  if (column >= column_count) return NoSuchColumn(column, column_count);
  return reader->reader.ReadColumn(column, first, count,
                                   {static_cast<std::byte*>(destination), size});
}

Result<void> ReadMetadata(const ffr_reader* reader, std::size_t file, ffr_metadata** metadata) {
  if (reader == nullptr || metadata == nullptr)
    return InvalidArgument("read metadata: the reader or the place for it is NULL");
  Metadata read = FFR_TRY(reader->reader.metadata(file));
  auto made = std::make_unique<ffr_metadata>();
  for (auto& [name, value] : read) made->values.emplace_back(name, std::move(value));
  *metadata = made.release();
  return {};
}

Result<void> MetadataAt(const ffr_metadata* metadata, std::size_t position,
                        ffr_named_bytes* found) {
  if (metadata == nullptr || found == nullptr)
    return InvalidArgument("find metadata: it or the place for the value is NULL");
  if (position >= metadata->values.size())
    return Error{ErrorCode::kOutOfRange, "metadata value " + std::to_string(position) +
                                             " is out of range: there are " +
                                             std::to_string(metadata->values.size())};
  const auto& [name, value] = metadata->values[position];
  *found = {name.c_str(), {value.data(), value.size()}};
  return {};
}

}  // namespace
}  // namespace ffrecord::capi

using ffrecord::capi::Guarded;

ffr_code ffr_reader_open(const char* const* locations, size_t location_count,
                         const ffr_reader_options* options, ffr_reader** reader,
                         ffr_error** error) {
  return Guarded(error, [&] {
    return ffrecord::capi::OpenReader(locations, location_count, options, reader);
  });
}

void ffr_reader_free(ffr_reader* reader) { delete reader; }

uint64_t ffr_reader_record_count(const ffr_reader* reader) { return reader->reader.record_count(); }

size_t ffr_reader_file_count(const ffr_reader* reader) { return reader->reader.file_count(); }

const ffr_schema* ffr_reader_schema(const ffr_reader* reader) { return &reader->schema; }

void ffr_reader_fingerprint(const ffr_reader* reader, uint8_t* fingerprint) {
  const auto digest = reader->reader.fingerprint();
  std::memcpy(fingerprint, digest.data(), digest.size());
}

ffr_code ffr_reader_read(const ffr_reader* reader, const uint64_t* indices, size_t index_count,
                         ffr_batch** batch, ffr_error** error) {
  return Guarded(error, [&]() -> ffrecord::Result<void> {
    if (reader == nullptr || batch == nullptr || (indices == nullptr && index_count > 0))
      return ffrecord::capi::InvalidArgument("read records: an argument is NULL");
    ffrecord::Batch read = FFR_TRY(reader->reader.ReadBatch({indices, index_count}));
    *batch = new ffr_batch{std::move(read)};
    return {};
  });
}

ffr_error* ffr_reader_describe(const ffr_reader* reader, uint64_t index, ffr_code status) {
  ffr_error* described = nullptr;
  Guarded(&described, [&]() -> ffrecord::Result<void> {
    const auto code = static_cast<ffrecord::ErrorCode>(status);
    return ffrecord::Error{code, reader->reader.Describe(index, code)};
  });
  return described;
}

void ffr_batch_free(ffr_batch* batch) { delete batch; }

size_t ffr_batch_size(const ffr_batch* batch) { return batch->batch.size(); }

ffr_bytes ffr_batch_record(const ffr_batch* batch, size_t position) {
  const std::span<const std::byte> record = batch->batch.record(position);
  return {record.data(), record.size()};
}

const uint8_t* ffr_batch_statuses(const ffr_batch* batch) {
  static_assert(sizeof(ffrecord::ErrorCode) == 1);
  return reinterpret_cast<const uint8_t*>(batch->batch.statuses().data());
}

ffr_bytes ffr_batch_data(const ffr_batch* batch) {
  return {batch->batch.data().data(), batch->batch.data().size()};
}

const int64_t* ffr_batch_starts(const ffr_batch* batch) {
  return batch->batch.starts_bytes().data();
}

const int64_t* ffr_batch_sizes(const ffr_batch* batch) { return batch->batch.sizes_bytes().data(); }

ffr_code ffr_batch_column(const ffr_batch* batch, size_t column, int64_t* starts, int64_t* sizes,
                          ffr_error** error) {
  return Guarded(error, [&] { return ffrecord::capi::FindColumn(batch, column, starts, sizes); });
}

ffr_code ffr_batch_gather(const ffr_batch* batch, size_t column, void* destination,
                          size_t destination_size, ffr_error** error) {
  return Guarded(error, [&] {
    return ffrecord::capi::GatherColumn(batch, column, destination, destination_size);
  });
}

ffr_code ffr_reader_find(const ffr_reader* reader, const ffr_bytes* keys, size_t key_count,
                         uint64_t* indices, ffr_error** error) {
  return Guarded(error, [&] { return ffrecord::capi::FindKeys(reader, keys, key_count, indices); });
}

ffr_code ffr_reader_column(const ffr_reader* reader, size_t column, uint64_t first, uint64_t count,
                           void* destination, size_t destination_size, ffr_error** error) {
  return Guarded(error, [&] {
    return ffrecord::capi::ReadColumn(reader, column, first, count, destination, destination_size);
  });
}

ffr_code ffr_reader_metadata(const ffr_reader* reader, size_t file, ffr_metadata** metadata,
                             ffr_error** error) {
  return Guarded(error, [&] { return ffrecord::capi::ReadMetadata(reader, file, metadata); });
}

void ffr_metadata_free(ffr_metadata* metadata) { delete metadata; }

size_t ffr_metadata_count(const ffr_metadata* metadata) { return metadata->values.size(); }

ffr_code ffr_metadata_at(const ffr_metadata* metadata, size_t position, ffr_named_bytes* found,
                         ffr_error** error) {
  return Guarded(error, [&] { return ffrecord::capi::MetadataAt(metadata, position, found); });
}
