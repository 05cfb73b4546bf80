#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include <ffrecord/result.h>

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
  kComplex = 12,
  kSet = 13,
  kFrozenSet = 14,
  kNamed = 15,
};

inline constexpr std::uint32_t kValueDepthMax = 64;
inline constexpr std::uint64_t kValueTreeSizeMax = std::uint64_t{64} << 20;
inline constexpr std::uint16_t kValueIntSizeMax = 1024;
inline constexpr std::size_t kCheckpointKeySizeMax = 4096;

// The kind of a tensor in the program that saved it.
enum class TensorKind : std::uint8_t { kArray = 0, kScalar = 1, kTorch = 2 };

// The kind of a named value: a program makes an object of it only if it has one of that kind.
enum class NamedKind : std::uint8_t {
  kEnum = 0,
  kDataclass = 1,
  kNamedTuple = 2,
  kDtype = 3,
  kDevice = 4,
  kTensor = 5,  // A tensor that is made of others.
};

// Checks that `bytes` is one whole tree within the limits, and returns the keys of the tensors
// that it refers to, in order, as views of `bytes`. Fails with kCorruption.
Result<std::vector<std::string_view>> CheckValues(std::span<const std::byte> bytes);

}  // namespace ffrecord
