#include "libffrecord/format/checkpoint_values.h"

#include <algorithm>
#include <string>

#include "libffrecord/base/cursor.h"
#include "libffrecord/base/text_index.h"
#include "libffrecord/base/utf8.h"

namespace ffrecord {
namespace {

Error Bad(const std::string& what) {
  return Error{ErrorCode::kCorruption, "checkpoint values: " + what};
}

// A dictionary's keys are given room up to here at once: its count may be a lie.
constexpr std::size_t kReservedKeysMax = 1 << 16;

// Walks one tree. Recursion is bounded by kValueDepthMax.
class Checker {
 public:
  explicit Checker(std::span<const std::byte> bytes) noexcept : whole_(bytes), cursor_(bytes) {}

  Result<std::vector<std::string_view>> Run() {
    if (whole_.size() > kValueTreeSizeMax) return Bad("larger than 64 MiB");
    FFR_TRY(Value(0));
    if (cursor_.remaining() != 0) return Bad("bytes follow the state-dict structure");
    return std::move(keys_);
  }

 private:
  Result<void> Value(std::uint32_t depth) {
    if (depth > kValueDepthMax) return Bad("nested deeper than 64");
    const auto tag = static_cast<ValueTag>(cursor_.Take<std::uint8_t>());
    if (!cursor_.ok()) return Bad("the state-dict structure ends early");
    switch (tag) {
      case ValueTag::kNone:
      case ValueTag::kFalse:
      case ValueTag::kTrue:
        return {};
      case ValueTag::kInt:
        return Int();
      case ValueTag::kFloat:
        return Take(8);
      case ValueTag::kStr:
        return Text();
      case ValueTag::kBytes:
        return Take(cursor_.Take<std::uint32_t>());
      case ValueTag::kList:
      case ValueTag::kTuple:
      case ValueTag::kRanks:
        return Elements(depth);
      case ValueTag::kDict:
        return Dict(depth);
      case ValueTag::kTensor:
        return Tensor();
      case ValueTag::kComplex:
        return Take(16);
      case ValueTag::kSet:
      case ValueTag::kFrozenSet:
        return Set(depth);
      case ValueTag::kNamed:
        return Named(depth);
    }
    return Bad("unknown tag " + std::to_string(static_cast<unsigned>(tag)));
  }

  Result<void> Take(std::uint64_t size_bytes) {
    cursor_.TakeBytes(size_bytes);
    return Good();
  }

  Result<void> Good() const {
    if (!cursor_.ok()) return Bad("the state-dict structure ends early");
    return {};
  }

  // Minimal two's complement, so that one number has one form.
  Result<void> Int() {
    const auto size = cursor_.Take<std::uint16_t>();
    const auto bytes = cursor_.TakeBytes(size);
    FFR_TRY(Good());
    if (size == 0 || size > kValueIntSizeMax) return Bad("an integer has no bytes or over 1,024");
    if (size == 1) return {};
    const bool top_is_sign = (bytes[size - 2u] & std::byte{0x80}) == std::byte{0}
                                 ? bytes[size - 1u] == std::byte{0}
                                 : bytes[size - 1u] == std::byte{0xFF};
    if (top_is_sign) return Bad("an integer has a superfluous byte");
    return {};
  }

  Result<void> Text() {
    const auto text = cursor_.TakeText(cursor_.Take<std::uint32_t>());
    FFR_TRY(Good());
    if (!IsWellFormedUtf8(text)) return Bad("a string is not UTF-8");
    return {};
  }

  Result<void> Tensor() {
    const auto kind = cursor_.Take<std::uint8_t>();
    const auto key = cursor_.TakeText(cursor_.Take<std::uint16_t>());
    FFR_TRY(Good());
    if (kind > static_cast<std::uint8_t>(TensorKind::kTorch)) return Bad("unknown kind of tensor");
    if (key.empty() || key.size() > kCheckpointKeySizeMax || !IsWellFormedUtf8(key))
      return Bad("a tensor's key is empty, over 4,096 bytes, or not UTF-8");
    keys_.push_back(key);
    return {};
  }

  Result<void> Elements(std::uint32_t depth) {
    const auto count = cursor_.Take<std::uint32_t>();
    if (count > cursor_.remaining()) return Bad("a count passes the end");
    for (std::uint32_t i = 0; i < count; ++i) FFR_TRY(Value(depth + 1));
    return Good();
  }

  Result<void> Dict(std::uint32_t depth) {
    const auto count = cursor_.Take<std::uint32_t>();
    if (count > cursor_.remaining() / 2) return Bad("a count passes the end");
    TextIndex seen;
    seen.Reserve(std::min<std::size_t>(count, kReservedKeysMax));
    for (std::uint32_t i = 0; i < count; ++i) {
      const std::size_t key_start = position();
      FFR_TRY(Key());
      if (!seen.Add(Between(key_start, position())).is_new) return Bad("a key appears twice");
      FFR_TRY(Value(depth + 1));
    }
    return Good();
  }

  // Ascending, so that one set has one form and no element twice.
  Result<void> Set(std::uint32_t depth) {
    const auto count = cursor_.Take<std::uint32_t>();
    if (count > cursor_.remaining()) return Bad("a count passes the end");
    std::string_view before;
    for (std::uint32_t i = 0; i < count; ++i) {
      const std::size_t start = position();
      FFR_TRY(Element(depth + 1));
      const std::string_view element = Between(start, position());
      if (i > 0 && element <= before) return Bad("the elements of a set do not ascend");
      before = element;
    }
    return Good();
  }

  // Checks an element of a set: a value that never changes.
  Result<void> Element(std::uint32_t depth) {
    if (cursor_.remaining() == 0) return Bad("the state-dict structure ends early");
    const auto tag = static_cast<ValueTag>(whole_[position()]);
    if (tag == ValueTag::kFrozenSet) return Value(depth);
    if (tag == ValueTag::kTuple || tag == ValueTag::kNamed) {
      if (depth > kValueDepthMax) return Bad("nested deeper than 64");
      cursor_.Take<std::uint8_t>();
      if (tag == ValueTag::kNamed) {
        FFR_TRY(Name());
        return Element(depth + 1);
      }
      const auto count = cursor_.Take<std::uint32_t>();
      if (count > cursor_.remaining()) return Bad("a count passes the end");
      for (std::uint32_t i = 0; i < count; ++i) FFR_TRY(Element(depth + 1));
      return Good();
    }
    if (tag > ValueTag::kBytes && tag != ValueTag::kComplex)
      return Bad("an element of a set is a container or a tensor");
    return Value(depth);
  }

  Result<void> Named(std::uint32_t depth) {
    FFR_TRY(Name());
    return Value(depth + 1);
  }

  Result<void> Name() {
    const auto kind = cursor_.Take<std::uint8_t>();
    FFR_TRY(Good());
    if (kind > static_cast<std::uint8_t>(NamedKind::kTensor)) return Bad("unknown kind of value");
    return Text();
  }

  Result<void> Key() {
    if (cursor_.remaining() == 0) return Bad("the state-dict structure ends early");
    if (static_cast<ValueTag>(whole_[position()]) > ValueTag::kBytes)
      return Bad("a key of a dictionary is a container or a tensor");
    return Value(kValueDepthMax);  // A leaf, so that the depth does not matter.
  }

  std::size_t position() const noexcept { return whole_.size() - cursor_.remaining(); }
  std::string_view Between(std::size_t from, std::size_t to) const noexcept {
    return {reinterpret_cast<const char*>(whole_.data()) + from, to - from};
  }

  std::span<const std::byte> whole_;
  ByteReader cursor_;
  std::vector<std::string_view> keys_;
};

}  // namespace

Result<std::vector<std::string_view>> CheckValues(std::span<const std::byte> bytes) {
  return Checker(bytes).Run();
}

}  // namespace ffrecord
