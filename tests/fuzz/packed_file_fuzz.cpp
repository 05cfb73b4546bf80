// Goal: no bytes of a packed file can hurt its reader.
// Method: the input is the file, with a table whose checksum is made right, for no fuzzer finds
// one. What is accepted, packed and unpacked again, is the same.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <vector>

#include "libffrecord/base/checksum.h"
#include "libffrecord/format/packed_file.h"

namespace {

using namespace ffrecord;  // Only here: a target is a whole program.
using Bytes = std::vector<std::byte>;

bool Unpack(std::span<const std::byte> file, Bytes& raw) {
  const auto footer = DecodePackedFooter(file.last(kPackedFooterSize), file.size());
  if (!footer || footer.value().raw_size_bytes > 4 * kPackedFrameSize) return false;
  const auto table = DecodePackedTable(
      footer.value(),
      file.subspan(footer.value().table_offset_bytes, footer.value().table_size_bytes()));
  if (!table) return false;
  raw.resize(table.value().raw_size_bytes);
  Bytes planes;
  for (std::size_t i = 0; i < table.value().frames.size(); ++i) {
    const auto& offsets = table.value().offsets;
    const std::size_t begin = i * kPackedFrameSize;
    const std::size_t size = std::min<std::size_t>(kPackedFrameSize, raw.size() - begin);
    if (!UnpackFrame(table.value().frames[i], file.subspan(offsets[i], offsets[i + 1] - offsets[i]),
                     std::span(raw).subspan(begin, size), planes))
      return false;
  }
  return true;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size < kPackedFooterSize) return 0;
  const auto input = std::as_bytes(std::span(data, size));
  Bytes file(input.begin(), input.end());
  const std::size_t footer_at = file.size() - kPackedFooterSize;
  std::uint64_t table_at = 0;
  std::memcpy(&table_at, file.data() + footer_at + 24, sizeof(table_at));
  if (table_at <= footer_at) {
    const auto digest = Xxh3Digest(std::span(file).subspan(table_at, footer_at - table_at));
    std::ranges::copy(digest, file.begin() + static_cast<std::ptrdiff_t>(footer_at + 32));
  }
  Bytes raw;
  if (!Unpack(file, raw)) return 0;

  FramePacker packer;
  Bytes again;
  std::vector<PackedFrame> frames;
  for (std::size_t at = 0; at < raw.size(); at += kPackedFrameSize) {
    const auto [frame, stored] = packer.Pack(
        std::span(raw).subspan(at, std::min<std::size_t>(kPackedFrameSize, raw.size() - at)));
    again.insert(again.end(), stored.begin(), stored.end());
    frames.push_back(frame);
  }
  const Bytes end = EncodePackedEnd(raw.size(), frames);
  again.insert(again.end(), end.begin(), end.end());
  Bytes same;
  if (!Unpack(again, same) || same != raw) __builtin_trap();
  return 0;
}
