#pragma once

#include <bit>
#include <cstdint>
#include <span>
#include <string_view>

#include "libffrecord/base/cursor.h"
#include "libffrecord/format/checkpoint_values.h"

namespace ffrecord::test {

// Writes a tree front to back: a container's call is followed by its elements, a dictionary's by
// key, value, key, value.
class ValueWriter {
 public:
  void None() { Tag(ValueTag::kNone); }
  void Bool(bool value) { Tag(value ? ValueTag::kTrue : ValueTag::kFalse); }
  void Int(std::int64_t value);
  void Float(double value);
  void Str(std::string_view value) { Sized(ValueTag::kStr, value); }
  void Bytes(std::string_view value) { Sized(ValueTag::kBytes, value); }
  void List(std::uint32_t count) { Counted(ValueTag::kList, count); }
  void Tuple(std::uint32_t count) { Counted(ValueTag::kTuple, count); }
  void Dict(std::uint32_t count) { Counted(ValueTag::kDict, count); }
  void Ranks(std::uint32_t count) { Counted(ValueTag::kRanks, count); }
  void Tensor(TensorKind kind, std::string_view key);

  std::span<const std::byte> bytes() const noexcept { return writer_.bytes(); }

 private:
  void Tag(ValueTag tag) { writer_.Put(static_cast<std::uint8_t>(tag)); }
  void Sized(ValueTag tag, std::string_view value);
  void Counted(ValueTag tag, std::uint32_t count);

  ByteWriter writer_;
};

inline void ValueWriter::Int(std::int64_t value) {
  const auto magnitude = static_cast<std::uint64_t>(value < 0 ? ~value : value);
  const auto size = static_cast<std::uint16_t>(std::bit_width(magnitude) / 8 + 1);
  Tag(ValueTag::kInt);
  writer_.Put(size);
  // 64 bits of magnitude need no ninth byte: bit_width is at most 63.
  writer_.Put(value, size);
}

inline void ValueWriter::Float(double value) {
  Tag(ValueTag::kFloat);
  writer_.Put(std::bit_cast<std::uint64_t>(value));
}

inline void ValueWriter::Tensor(TensorKind kind, std::string_view key) {
  Tag(ValueTag::kTensor);
  writer_.Put(static_cast<std::uint8_t>(kind));
  writer_.Put(static_cast<std::uint16_t>(key.size()));
  writer_.PutText(key);
}

inline void ValueWriter::Sized(ValueTag tag, std::string_view value) {
  Tag(tag);
  writer_.Put(static_cast<std::uint32_t>(value.size()));
  writer_.PutText(value);
}

inline void ValueWriter::Counted(ValueTag tag, std::uint32_t count) {
  Tag(tag);
  writer_.Put(count);
}

}  // namespace ffrecord::test
