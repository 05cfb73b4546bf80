// Fronts of indexes in place, and samples of tars and MDS. Invariant: a front that is decoded
// encodes to the same bytes but for those that have no meaning, and a record that is made fits its
// schema, and is the same in whatever memory it is made.

#include <algorithm>
#include <array>
#include <span>
#include <vector>

#include "libffrecord/format/in_place_front.h"
#include "libffrecord/format/record_form.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace ffrecord;
  if (size == 0) return 0;
  const auto bytes = std::as_bytes(std::span(data, size)).subspan(1);
  if (const auto front = DecodeInPlaceFront(bytes)) {
    std::array<std::byte, InPlaceFront::kSizeBytes> encoded;
    EncodeInPlaceFront(front.value(), encoded);
    const auto again = DecodeInPlaceFront(encoded);
    if (!again || !(again.value() == front.value())) __builtin_trap();
  }
  const std::vector<Column> labelled{
      {"label:valid", ColumnType::kBool}, {"label", ColumnType::kI64}, {"name", ColumnType::kUtf8},
      {"jpg:valid", ColumnType::kBool},   {"jpg", ColumnType::kBytes}, {"txt", ColumnType::kUtf8}};
  const std::vector<Column> single{{"name", ColumnType::kUtf8}, {"payload", ColumnType::kBytes}};
  const auto schema = Schema::Make(data[0] % 2 == 0 ? labelled : single);
  const auto form = data[0] % 4 < 2 ? RecordForm::kTar : RecordForm::kMds;
  const FormedRecords formed(form, schema.value());
  std::vector<std::byte> record;
  if (!formed.Form(bytes, record)) return 0;
  std::vector<std::span<const std::byte>> fields(schema.value().columns().size());
  if (!schema.value().Split(record, fields)) __builtin_trap();
  std::vector<std::byte> again(record.size());
  if (!formed.FormInto(bytes, again) || again != record) __builtin_trap();
  if (record.size() > bytes.size()) return 0;
  std::vector<std::byte> memory(bytes.begin(), bytes.end());
  const auto begin = formed.FormWithin(memory, record.size());
  if (!begin ||
      !std::ranges::equal(std::span(memory).subspan(begin.value(), record.size()), record))
    __builtin_trap();
  return 0;
}
