#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <exception>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <ffrecord/batch.h>
#include <ffrecord/ffrecord.h>
#include <ffrecord/record_reader.h>
#include <ffrecord/record_writer.h>
#include <ffrecord/repair.h>
#include <ffrecord/result.h>
#include <ffrecord/schema.h>

// The structs behind the opaque types of ffrecord.h.

struct ffr_error {
  ffrecord::Error error;
};

struct ffr_schema {
  ffrecord::Schema schema;
};

struct ffr_reader {
  ffrecord::RecordReader reader;
  ffr_schema schema;  // Lent out by ffr_reader_schema.
};

struct ffr_batch {
  ffrecord::Batch batch;
};

struct ffr_queue {
  ffrecord::BatchQueue queue;
};

struct ffr_writer {
  ffrecord::RecordWriter writer;
};

struct ffr_metadata {
  std::vector<std::pair<std::string, std::vector<std::byte>>> values;
};

struct ffr_report {
  bool is_whole = false;
  std::uint64_t record_count = 0;
  std::uint64_t lost_count = 0;
  std::vector<std::string> lines;
  std::vector<ffrecord::IndexRange> lost;
};

namespace ffrecord::capi {

// Never fails: where there is no memory, an error made in advance says that.
ffr_error* NewError(Error error) noexcept;

// The code; and the whole of it through `destination` if that is not null.
ffr_code Report(Error error, ffr_error** destination) noexcept;

inline Error InvalidArgument(std::string message) {
  return {ErrorCode::kInvalidArgument, std::move(message)};
}

// The same for the exception that is being handled.
ffr_code ReportException(const std::exception& exception, ffr_error** destination) noexcept;

inline Error NoSuchColumn(std::size_t column, std::size_t count) {
  return {ErrorCode::kOutOfRange, "column " + std::to_string(column) +
                                      " is out of range: there are " + std::to_string(count) +
                                      " columns"};
}

// Bytes that the caller lends; nothing where they are NULL and should not be.
inline std::optional<std::span<const std::byte>> Bytes(const void* data, std::size_t size) {
  if (data == nullptr && size > 0) return std::nullopt;
  return std::span(static_cast<const std::byte*>(data), size);
}

// Runs `work`, which returns Result<void>; no exception passes.
template <class Work>
ffr_code Guarded(ffr_error** error, const Work& work) noexcept {
  try {
    Result<void> done = work();
    return done ? FFR_OK : Report(std::move(done).error(), error);
  } catch (const std::exception& exception) {
    return ReportException(exception, error);
  }
}

// The caller's options, whose structure may be older or newer than ours: what it lacks is zero, and
// what we lack must be zero.
template <class Options>
Result<Options> TakeOptions(const Options* given, const char* name) {
  Options options{};
  options.struct_size = sizeof options;
  if (given == nullptr) return options;
  const std::size_t size = given->struct_size;
  constexpr std::size_t kSizeMax = 4096;  // No program has more; garbage has.
  if (size < sizeof size || size > kSizeMax)
    return InvalidArgument(std::string(name) + ": struct_size is " + std::to_string(size) +
                           ", must be sizeof(" + name + ")");
  const auto* bytes = reinterpret_cast<const unsigned char*>(given);
  if (size > sizeof options &&
      std::any_of(bytes + sizeof options, bytes + size, [](unsigned char b) { return b != 0; }))
    return InvalidArgument(std::string(name) +
                           ": a field is set that this library does not know; it is older than "
                           "the header that the program was built with");
  std::memcpy(&options, given, std::min(size, sizeof options));
  return options;
}

}  // namespace ffrecord::capi
