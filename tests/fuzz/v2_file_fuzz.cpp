// Goal: no version 2 file, not even one whose checksums were forged, can hurt its reader.
// Method: a good file is made once. The input is a list of edits to it, four bytes each: a place
// (three bytes) and what is put there; then the checksums of all structures are made anew, so that
// the edits get past them. An odd first byte leaves the checksums alone.

#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <utility>
#include <vector>

#include <ffrecord/record_writer.h>

#include "libffrecord/base/checksum.h"
#include "libffrecord/format/place.h"
#include "tests/fuzz/read_everything.h"

namespace {

using ffrecord::FileId;
using ffrecord::PlaceTag;

constexpr std::size_t kPageSize = 4096;
constexpr std::size_t kTailSize = 64;
constexpr std::size_t kSectionSize = 32;

template <class T>
T Value(ffrecord::Result<T> result) {
  if (!result) __builtin_trap();
  return std::move(result).value();
}

// 180 records, two index pages, a schema, some records compressed.
std::string MakeGoodFile() {
  namespace fs = std::filesystem;
  const fs::path path =
      fs::temp_directory_path() / ("v2_file_fuzz-" + std::to_string(::getpid()) + ".ffr");
  auto schema = Value(ffrecord::Schema::Make(
      {{"label", ffrecord::ColumnType::kI64, {}}, {"payload", ffrecord::ColumnType::kBytes, {}}}));
  ffrecord::RecordWriter::Options options;
  options.compress = true;
  auto writer = Value(ffrecord::RecordWriter::Create(path, std::move(schema), options));
  for (std::size_t i = 0; i < 180; ++i) {
    const std::vector<std::byte> record(8 + i % 90, static_cast<std::byte>(i));
    if (!writer.Write(record)) __builtin_trap();
  }
  (void)Value(writer.Close());
  std::ifstream file(path, std::ios::binary);
  std::string content{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  fs::remove(path);
  return content;
}

std::uint64_t Load(const std::string& content, std::size_t at) {
  std::uint64_t value = 0;
  std::memcpy(&value, content.data() + at, sizeof value);
  return value;
}

void Store(std::string& content, std::size_t at, std::uint64_t value) {
  std::memcpy(content.data() + at, &value, sizeof value);
}

std::span<const std::byte> Bytes(const std::string& content, std::size_t at, std::size_t size) {
  return std::as_bytes(std::span(content)).subspan(at, size);
}

// True if [at, at + size) lies in a file of `file_size`.
bool Fits(std::uint64_t at, std::uint64_t size, std::uint64_t file_size) {
  return at <= file_size && size <= file_size - at;
}

// Sections first, for the footer holds their checks; and the tail holds that of the footer.
void ForgeChecksums(std::string& content) {
  FileId id{};
  std::memcpy(id.data(), content.data() + 40, id.size());
  Store(content, 120, ffrecord::Xxh3(Bytes(content, 0, 120)));

  const std::size_t tail = content.size() - kTailSize;
  const std::uint64_t footer = Load(content, tail + 8);
  const std::uint64_t footer_size = Load(content, tail + 16);
  if (footer_size >= 64 && Fits(footer, footer_size, tail)) {
    for (std::size_t at = footer + 64; Fits(at, kSectionSize, footer + footer_size);
         at += kSectionSize) {
      const std::uint64_t offset = Load(content, at + 8);
      const std::uint64_t size = Load(content, at + 16);
      if (!Fits(offset, size, content.size()) || offset >> 56 != 0) continue;
      if (content[at] == 1) {  // The segment directory: the file has one segment, of two pages.
        for (std::uint64_t page = 0; size >= 8 && page < 2; ++page) {
          const std::uint64_t begin = Load(content, offset) + page * kPageSize;
          if (!Fits(begin, kPageSize, content.size())) break;
          Store(content, begin,
                ffrecord::Xxh3(Bytes(content, begin + 8, kPageSize - 8),
                               ffrecord::SeedOf(id, PlaceTag::kIndexPage, page)));
        }
      }
      Store(content, at + 24,
            ffrecord::Xxh3(Bytes(content, offset, size),
                           ffrecord::SeedOf(id, PlaceTag::kSection, offset)));
    }
    Store(content, tail + 24,
          ffrecord::Xxh3(Bytes(content, footer, footer_size),
                         ffrecord::SeedOf(id, PlaceTag::kFooter, footer)));
  }
  Store(content, tail + 56,
        ffrecord::Xxh3(Bytes(content, tail, 56), ffrecord::SeedOf(id, PlaceTag::kTail, tail)));
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const std::string good = MakeGoodFile();
  if (size == 0) return 0;
  std::string content = good;
  for (std::size_t at = 1; at + 4 <= size; at += 4) {
    const std::size_t place =
        data[at] | std::size_t{data[at + 1]} << 8 | std::size_t{data[at + 2]} << 16;
    content[place % content.size()] = static_cast<char>(data[at + 3]);
  }
  if ((data[0] & 1) == 0) ForgeChecksums(content);
  ffrecord::RecordReader::Options options;
  options.verify_checksums = (data[0] & 2) == 0;
  ffrecord::fuzz::ReadEverything(std::move(content), options);
  return 0;
}
