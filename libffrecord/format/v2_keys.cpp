#include "libffrecord/format/v2_keys.h"

#include <algorithm>
#include <cstring>
#include <string>

#include "libffrecord/base/assert.h"
#include "libffrecord/base/cursor.h"
#include "libffrecord/base/endian.h"
#include "libffrecord/format/v2_header.h"
#include "libffrecord/format/v2_record.h"

namespace ffrecord {
namespace {

constexpr std::array<std::uint8_t, 4> kBlockMagic{0xe5, 'K', 'E', 'Y'};
constexpr std::size_t kCheckedBegin = 8;
constexpr std::size_t kEntriesBegin = 16;
constexpr std::size_t kEntrySizeBytes = 24;
constexpr std::size_t kRunSizeBytes = 16;

bool AllZero(std::span<const std::byte> bytes) {
  return std::all_of(bytes.begin(), bytes.end(), [](std::byte b) { return b == std::byte{}; });
}

std::uint64_t PageCheck(std::span<const std::byte> page, const FileId& id,
                        std::uint64_t offset_bytes) {
  return Xxh3(page.subspan(kCheckedBegin), SeedOf(id, PlaceTag::kKeyPage, offset_bytes));
}

std::uint32_t BlockHeaderCheck(std::span<const std::byte> encoded, const FileId& id,
                               std::uint64_t header_offset_bytes) {
  const auto checked =
      encoded.subspan(kCheckedBegin, V2KeyBlockHeader::kEncodedSizeBytes - kCheckedBegin);
  return static_cast<std::uint32_t>(
      Xxh3(checked, SeedOf(id, PlaceTag::kKeyBlockHeader, header_offset_bytes)));
}

}  // namespace

std::uint64_t KeyHash(const FileId& id, std::span<const std::byte> key) noexcept {
  return Xxh3(key, SeedOf(id, PlaceTag::kKey, 0));
}

Result<void> CheckKeyPage(std::span<const std::byte> page, const FileId& id,
                          std::uint64_t offset_bytes, std::uint64_t entry_count) {
  FFR_ASSERT(page.size() == kKeyPageSizeBytes);
  const auto corrupt = [&](const char* found) {
    return Error{ErrorCode::kCorruption,
                 "key page at " + std::to_string(offset_bytes) + ": " + found};
  };
  if (LoadLittleEndian<std::uint64_t>(page, 0) != PageCheck(page, id, offset_bytes))
    return corrupt("checksum does not match");
  if (LoadLittleEndian<std::uint32_t>(page, 8) != entry_count)
    return corrupt("its count is not that of its run");
  if (LoadLittleEndian<std::uint32_t>(page, 12) != 0 ||
      !AllZero(page.subspan(kEntriesBegin + kEntrySizeBytes * entry_count)))
    return corrupt("reserved bytes are not zero");
  return {};
}

KeyEntry LoadKeyEntry(std::span<const std::byte> page, std::uint64_t slot) noexcept {
  FFR_ASSERT(slot < kKeyEntriesPerPage);
  const std::size_t begin = kEntriesBegin + kEntrySizeBytes * slot;
  KeyEntry entry;
  entry.hash = LoadLittleEndian<std::uint64_t>(page, begin);
  // Masked, for the compiler does not see that six bytes are 48 bits.
  entry.record_index =
      LoadLittleEndian<std::uint64_t>(page, begin + 8, 6) & ((std::uint64_t{1} << 48) - 1);
  entry.offset_bytes = LoadLittleEndian<std::uint64_t>(page, begin + 14, 6);
  entry.size_bytes = LoadLittleEndian<std::uint16_t>(page, begin + 20);
  return entry;
}

void StoreKeyEntry(const KeyEntry& entry, std::uint64_t slot, std::span<std::byte> page) noexcept {
  FFR_ASSERT(slot < kKeyEntriesPerPage);
  const std::size_t begin = kEntriesBegin + kEntrySizeBytes * slot;
  StoreLittleEndian(page, begin, entry.hash);
  StoreLittleEndian(page, begin + 8, std::uint64_t{entry.record_index}, 6);
  StoreLittleEndian(page, begin + 14, entry.offset_bytes, 6);
  StoreLittleEndian(page, begin + 20, static_cast<std::uint16_t>(entry.size_bytes));
}

void SealKeyPage(const FileId& id, std::uint64_t offset_bytes, std::uint64_t entry_count,
                 std::span<std::byte> page) noexcept {
  StoreLittleEndian(page, 8, static_cast<std::uint32_t>(entry_count));
  StoreLittleEndian(page, 0, PageCheck(page, id, offset_bytes));
}

Result<std::vector<KeyRun>> DecodeKeyDirectory(std::span<const std::byte> bytes,
                                               std::uint64_t end_bytes) {
  const auto corrupt = [](const char* found) {
    return Error{ErrorCode::kCorruption, std::string("key directory: ") + found};
  };
  if (bytes.empty() || bytes.size() % kRunSizeBytes != 0 ||
      bytes.size() / kRunSizeBytes > kKeyRunCountMax)
    return corrupt("its size is not that of 1 to 64 runs");
  std::vector<KeyRun> runs;
  for (std::size_t begin = 0; begin < bytes.size(); begin += kRunSizeBytes) {
    const KeyRun run{LoadLittleEndian<std::uint64_t>(bytes, begin),
                     LoadLittleEndian<std::uint64_t>(bytes, begin + 8)};
    if (run.entry_count == 0 || run.entry_count > kRecordCountMax)
      return corrupt("a run has no entries, or more than a file has records");
    if (run.offset_bytes % kKeyPageSizeBytes != 0 ||
        run.offset_bytes < V2Header::kEncodedSizeBytes || run.offset_bytes > end_bytes ||
        run.size_bytes() > end_bytes - run.offset_bytes)
      return corrupt("a run does not lie between header and footer");
    runs.push_back(run);
  }
  return runs;
}

std::vector<std::byte> EncodeKeyDirectory(std::span<const KeyRun> runs) {
  FFR_ASSERT(runs.size() <= kKeyRunCountMax);
  ByteWriter writer;
  for (const KeyRun& run : runs) {
    writer.Put(run.offset_bytes);
    writer.Put(run.entry_count);
  }
  return std::move(writer).Take();
}

Result<V2KeyBlockHeader> DecodeV2KeyBlockHeader(std::span<const std::byte> bytes, const FileId& id,
                                                std::uint64_t header_offset_bytes) {
  const auto corrupt = [&](const char* found) {
    return Error{ErrorCode::kCorruption,
                 "key block at " + std::to_string(header_offset_bytes) + ": " + found};
  };
  if (bytes.size() < V2KeyBlockHeader::kEncodedSizeBytes)
    return corrupt("the file is truncated inside its header");
  if (std::memcmp(bytes.data(), kBlockMagic.data(), kBlockMagic.size()) != 0)
    return corrupt("magic does not match");
  if (LoadLittleEndian<std::uint32_t>(bytes, 4) != BlockHeaderCheck(bytes, id, header_offset_bytes))
    return corrupt("checksum of its header does not match");
  const V2KeyBlockHeader header{LoadLittleEndian<std::uint64_t>(bytes, 8),
                                LoadLittleEndian<std::uint32_t>(bytes, 16),
                                LoadLittleEndian<std::uint32_t>(bytes, 20)};
  if (LoadLittleEndian<std::uint64_t>(bytes, 24) != 0)
    return corrupt("reserved bytes are not zero");
  // Each key has at least one byte.
  if (header.key_count == 0 ||
      header.contents_size_bytes > V2KeyBlockHeader::kContentsSizeBytesMax ||
      header.key_count > header.contents_size_bytes / (V2KeyBlockHeader::kKeyHeadBytes + 1))
    return corrupt("its count of keys and its size cannot both be right");
  return header;
}

std::array<std::byte, V2KeyBlockHeader::kEncodedSizeBytes> EncodeV2KeyBlockHeader(
    std::span<const std::byte> contents, std::uint32_t key_count, const FileId& id,
    std::uint64_t header_offset_bytes) {
  FFR_ASSERT(contents.size() <= V2KeyBlockHeader::kContentsSizeBytesMax);
  std::array<std::byte, V2KeyBlockHeader::kEncodedSizeBytes> encoded{};
  const std::span<std::byte> bytes = encoded;
  std::memcpy(bytes.data(), kBlockMagic.data(), kBlockMagic.size());
  StoreLittleEndian(bytes, 8, Xxh3(contents, SeedOf(id, PlaceTag::kKeyBlock, header_offset_bytes)));
  StoreLittleEndian(bytes, 16, key_count);
  StoreLittleEndian(bytes, 20, static_cast<std::uint32_t>(contents.size()));
  StoreLittleEndian(bytes, 4, BlockHeaderCheck(bytes, id, header_offset_bytes));
  return encoded;
}

Result<std::vector<BlockKey>> DecodeKeyBlock(const V2KeyBlockHeader& header,
                                             std::span<const std::byte> contents, const FileId& id,
                                             std::uint64_t header_offset_bytes) {
  const auto corrupt = [&](const char* found) {
    return Error{ErrorCode::kCorruption,
                 "key block at " + std::to_string(header_offset_bytes) + ": " + found};
  };
  if (contents.size() != header.contents_size_bytes ||
      Xxh3(contents, SeedOf(id, PlaceTag::kKeyBlock, header_offset_bytes)) != header.check)
    return corrupt("checksum of its contents does not match");
  std::vector<BlockKey> keys;
  keys.reserve(header.key_count);
  ByteReader reader(contents);
  for (std::uint32_t i = 0; i < header.key_count; ++i) {
    BlockKey key;
    key.record_index = reader.Take<std::uint64_t>(6);
    key.key = reader.TakeBytes(reader.Take<std::uint16_t>());
    if (!reader.ok() || key.key.empty()) return corrupt("it ends before its keys do");
    if (!keys.empty() && key.record_index <= keys.back().record_index)
      return corrupt("its record indices do not ascend");
    keys.push_back(key);
  }
  if (!reader.AtEnd()) return corrupt("there are bytes behind its last key");
  return keys;
}

void AppendBlockKey(std::uint64_t record_index, std::span<const std::byte> key,
                    std::vector<std::byte>& contents) {
  FFR_ASSERT(!key.empty());
  FFR_ASSERT(key.size() <= kKeySizeBytesMax);
  const std::size_t begin = contents.size();
  contents.resize(begin + V2KeyBlockHeader::kKeyHeadBytes);
  StoreLittleEndian(std::span(contents), begin, record_index, 6);
  StoreLittleEndian(std::span(contents), begin + 6, static_cast<std::uint16_t>(key.size()));
  contents.insert(contents.end(), key.begin(), key.end());
}

}  // namespace ffrecord
