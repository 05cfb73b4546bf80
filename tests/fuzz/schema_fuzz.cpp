// Schema sections and records. Invariant: what is decoded encodes to the same bytes, and what is
// split joins to the same record.

#include <ffrecord/schema.h>

#include <algorithm>

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace ffrecord;
  if (size == 0) return 0;
  const auto bytes = std::as_bytes(std::span(data, size)).subspan(1);
  const std::size_t section_size = std::min<std::size_t>(data[0], bytes.size());
  const auto schema = Schema::Decode(bytes.first(section_size));
  if (!schema) return 0;
  const auto encoded = schema.value().Encode();
  if (!std::ranges::equal(encoded, bytes.first(section_size))) __builtin_trap();
  const auto record = bytes.subspan(section_size);
  std::vector<std::span<const std::byte>> fields(schema.value().columns().size());
  if (!schema.value().Split(record, fields)) return 0;
  std::vector<std::byte> joined;
  if (!schema.value().Join(fields, joined) || !std::ranges::equal(joined, record)) __builtin_trap();
  return 0;
}
