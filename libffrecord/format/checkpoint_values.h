#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include <ffrecord/result.h>

#include "libffrecord/base/cursor.h"
#include "libffrecord/base/utf8.h"

namespace ffrecord {

// Small values of a checkpoint as a tagged tree; format.md, "Values". Decoding never runs or
// makes anything but these kinds. The tree's leaves may be references to tensors.
enum class ValueTag : std::uint8_t {
  kNone = 0,
  kFalse = 1,
  kTrue = 2,
  kInt = 3,
  kFloat = 4,
  kStr = 5,
  kBytes = 6,
  kList = 7,
  kTuple = 8,
  kDict = 9,
  kTensor = 10,
  kRanks = 11,
};

inline constexpr std::uint32_t kValueDepthMax = 64;
inline constexpr std::uint64_t kValueTreeSizeMax = std::uint64_t{64} << 20;
inline constexpr std::uint16_t kValueIntSizeMax = 1024;
inline constexpr std::size_t kCheckpointKeySizeMax = 4096;

// What a tensor was in the program that saved it.
enum class TensorKind : std::uint8_t { kArray = 0, kScalar = 1, kTorch = 2 };

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

// Checks that `bytes` is one whole tree within the limits, and returns the keys of the tensors
// that it refers to, in order, as views of `bytes`. Fails with kCorruption.
Result<std::vector<std::string_view>> CheckValues(std::span<const std::byte> bytes);

}  // namespace ffrecord
