#include <algorithm>
#include <cstring>
#include <optional>
#include <utility>

#include <ffrecord/array_headers.h>

#include "libffrecord/decode/text_cursor.h"

namespace ffrecord {
namespace {

constexpr std::size_t kSidesMax = 32;  // NumPy's own limit, as of version 1.
constexpr std::size_t kNpyHeaderMax = 64 << 10;
// The format's own limit; a header is never larger than the value that it is read from.
constexpr std::uint64_t kSafetensorsHeaderMax = 100'000'000;

Error Npy(const std::string& what) { return {ErrorCode::kCorruption, "not a .npy file: " + what}; }
Error Safetensors(const std::string& what) {
  return {ErrorCode::kCorruption, "not a safetensors file: " + what};
}

// Text of a header in quotes, for a message: not all of a long one, and no half of a character.
std::string Quoted(std::string_view text) {
  constexpr std::size_t kShownMax = 64;
  std::size_t size = std::min(text.size(), kShownMax);
  while (size < text.size() && size > 0 && (static_cast<unsigned char>(text[size]) & 0xC0) == 0x80)
    --size;
  std::string quoted(1, '\'');
  quoted.append(text.substr(0, size));
  quoted.append(size < text.size() ? "...'" : "'");
  return quoted;
}

std::uint64_t LittleEndian(std::span<const std::byte> bytes) noexcept {
  std::uint64_t number = 0;
  for (std::size_t i = bytes.size(); i-- > 0;)
    number = number << 8 | std::to_integer<std::uint64_t>(bytes[i]);
  return number;
}

std::string_view AsText(std::span<const std::byte> bytes) noexcept {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

// item_size times all sides; nothing if that, or the distance of two items, does not fit into 63
// bits. So a side of nothing does not hide others that no array can have.
std::optional<std::uint64_t> SizeOf(const ArrayHeader& array) noexcept {
  std::uint64_t size = array.item_size_bytes;
  bool empty = false;
  for (const std::uint64_t side : array.shape) {
    empty |= side == 0;
    if (side == 0) continue;
    if (side > (~std::uint64_t{0} >> 1) / size) return std::nullopt;
    size *= side;
  }
  return empty ? 0 : size;
}

// Sides between brackets; NumPy writes a comma behind the last.
std::vector<std::uint64_t> Sides(TextCursor& text, std::string_view open, std::string_view close) {
  std::vector<std::uint64_t> sides;
  text.Expect(open);
  while (!text.failed() && !text.Skip(close)) {
    sides.push_back(text.Number());
    if (sides.size() > kSidesMax) text.Fail();
    if (!text.Skip(",")) {
      text.Expect(close);
      break;
    }
  }
  return sides;
}

// The size of an item that NumPy spells so; 0 if it is none of a number.
std::uint32_t ItemSize(const std::string& dtype) noexcept {
  static constexpr std::pair<std::string_view, std::uint32_t> kTypes[] = {
      {"b1", 1}, {"i1", 1}, {"i2", 2}, {"i4", 4}, {"i8", 8}, {"u1", 1}, {"u2", 2},
      {"u4", 4}, {"u8", 8}, {"f2", 2}, {"f4", 4}, {"f8", 8}, {"c8", 8}, {"c16", 16}};
  if (dtype.empty() || std::string_view("<>|=").find(dtype[0]) == std::string_view::npos) return 0;
  for (const auto& [name, size] : kTypes)
    if (std::string_view(dtype).substr(1) == name && (dtype[0] != '|' || size == 1)) return size;
  return 0;
}

// Safetensors' name of a type, NumPy's, and the size of an item.
struct TensorType {
  std::string_view name;
  std::string_view dtype;
  std::uint32_t item_size_bytes;
};
constexpr TensorType kTensorTypes[] = {
    {"BOOL", "|b1", 1}, {"U8", "|u1", 1},  {"I8", "|i1", 1},      {"U16", "<u2", 2},
    {"I16", "<i2", 2},  {"U32", "<u4", 4}, {"I32", "<i4", 4},     {"U64", "<u8", 8},
    {"I64", "<i8", 8},  {"F16", "<f2", 2}, {"BF16", "<u2", 2},    {"F32", "<f4", 4},
    {"F64", "<f8", 8},  {"C64", "<c8", 8}, {"F8_E4M3", "|u1", 1}, {"F8_E5M2", "|u1", 1}};

void SkipMetadata(TextCursor& text) {
  text.Expect("{");
  if (text.Skip("}")) return;
  do {
    text.String('"');
    text.Expect(":");
    text.String('"');
  } while (text.Skip(","));
  text.Expect("}");
}

// One entry's value: {"dtype": ..., "shape": [...], "data_offsets": [begin, end]} in any order.
Result<ArrayHeader> TensorEntry(TextCursor& text, const std::string& name, std::uint64_t data_begin,
                                std::uint64_t value_size) {
  ArrayHeader array;
  std::vector<std::uint64_t> offsets;
  unsigned seen = 0;
  text.Expect("{");
  do {
    const std::string key = text.String('"');
    text.Expect(":");
    const unsigned bit = key == "dtype" ? 1 : key == "shape" ? 2 : key == "data_offsets" ? 4 : 0;
    if (bit == 0 || (seen & bit) != 0) text.Fail();
    seen |= bit;
    if (bit == 1) {
      const std::string wanted = text.String('"');
      const auto* type = std::find_if(std::begin(kTensorTypes), std::end(kTensorTypes),
                                      [&](const TensorType& each) { return each.name == wanted; });
      if (!text.failed() && type == std::end(kTensorTypes))
        return Safetensors(Quoted(name) + " is of the unknown type " + Quoted(wanted));
      if (type != std::end(kTensorTypes)) {
        array.dtype = type->dtype;
        array.item_size_bytes = type->item_size_bytes;
      }
    } else if (bit == 2) {
      array.shape = Sides(text, "[", "]");
    } else if (bit == 4) {
      offsets = Sides(text, "[", "]");
    }
  } while (text.Skip(","));
  text.Expect("}");
  if (text.failed() || seen != 7 || offsets.size() != 2)
    return Safetensors(Quoted(name) + " has not dtype, shape and data_offsets");
  const auto size = SizeOf(array);
  if (offsets[0] > offsets[1] || offsets[1] > value_size - data_begin ||
      size != offsets[1] - offsets[0])
    return Safetensors(Quoted(name) + " does not fit its offsets, or these the file");
  array.offset_bytes = data_begin + offsets[0];
  array.size_bytes = *size;
  return array;
}

}  // namespace

Result<ArrayHeader> ReadNpyHeader(std::span<const std::byte> value) {
  constexpr std::string_view kMagic = "\x93NUMPY";
  if (value.size() < 12 || AsText(value.first(6)) != kMagic) return Npy("wrong magic");
  const auto version = std::to_integer<unsigned>(value[6]);
  if (version < 1 || version > 3) return Npy("version " + std::to_string(version));
  const std::size_t size_width = version == 1 ? 2 : 4;
  const std::uint64_t header_size = LittleEndian(value.subspan(8, size_width));
  const std::uint64_t data_begin = 8 + size_width + header_size;
  if (header_size > kNpyHeaderMax || data_begin > value.size())
    return Npy("a header of " + std::to_string(header_size) + " bytes does not fit");

  TextCursor text(AsText(value.subspan(8 + size_width, header_size)));
  ArrayHeader array;
  unsigned seen = 0;
  text.Expect("{");
  while (!text.failed() && !text.Skip("}")) {
    const std::string key = text.String('\'');
    text.Expect(":");
    const unsigned bit = key == "descr" ? 1 : key == "fortran_order" ? 2 : key == "shape" ? 4 : 0;
    if (bit == 0 || (seen & bit) != 0) text.Fail();
    seen |= bit;
    if (bit == 1) array.dtype = text.String('\'');
    if (bit == 2) {
      array.fortran_order = text.Skip("True");
      if (!array.fortran_order) text.Expect("False");
    }
    if (bit == 4) array.shape = Sides(text, "(", ")");
    if (!text.Skip(",")) {
      text.Expect("}");
      break;
    }
  }
  if (text.failed() || seen != 7 || !text.AtEnd()) return Npy("its header is not one of numbers");
  array.item_size_bytes = ItemSize(array.dtype);
  if (array.item_size_bytes == 0) return Npy(Quoted(array.dtype) + " is not a numeric type");
  const auto size = SizeOf(array);
  if (!size || *size != value.size() - data_begin)
    return Npy("shape and type need " + (size ? std::to_string(*size) : "too many") +
               " bytes, there are " + std::to_string(value.size() - data_begin));
  array.offset_bytes = data_begin;
  array.size_bytes = *size;
  return array;
}

Result<std::vector<NamedArray>> ReadSafetensorsHeader(std::span<const std::byte> value) {
  if (value.size() < 8) return Safetensors("it is shorter than 8 bytes");
  const std::uint64_t header_size = LittleEndian(value.first(8));
  if (header_size > std::min<std::uint64_t>(kSafetensorsHeaderMax, value.size() - 8))
    return Safetensors("a header of " + std::to_string(header_size) + " bytes does not fit");
  TextCursor text(AsText(value.subspan(8, header_size)));
  std::vector<NamedArray> arrays;
  text.Expect("{");
  if (!text.Skip("}")) {
    do {
      std::string name = text.String('"');
      text.Expect(":");
      if (text.failed()) break;
      if (name == "__metadata__") {
        SkipMetadata(text);
        continue;
      }
      ArrayHeader array = FFR_TRY(TensorEntry(text, name, 8 + header_size, value.size()));
      arrays.push_back({std::move(name), std::move(array)});
    } while (text.Skip(","));
    text.Expect("}");
  }
  if (!text.AtEnd()) return Safetensors("its header is not JSON of the kind");
  std::vector<std::string_view> names;
  for (const NamedArray& each : arrays) names.push_back(each.name);
  std::sort(names.begin(), names.end());
  if (std::adjacent_find(names.begin(), names.end()) != names.end())
    return Safetensors("a name appears twice");
  return arrays;
}

}  // namespace ffrecord
