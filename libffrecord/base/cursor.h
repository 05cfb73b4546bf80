#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "libffrecord/base/endian.h"

namespace ffrecord {

// Takes little-endian fields from the front of untrusted bytes, which it borrows.
//
// A field that does not fit makes the cursor fail for good, and it then gives zeros and empty
// spans: a decoder takes all fixed fields and tests ok() once, before it believes any of them.
class ByteReader {
 public:
  explicit ByteReader(std::span<const std::byte> bytes) noexcept : bytes_(bytes) {}

  template <class T>
  T Take(std::size_t width_bytes = sizeof(T)) noexcept {
    const auto field = TakeBytes(width_bytes);
    return field.size() == width_bytes ? LoadLittleEndian<T>(field, 0, width_bytes) : T{0};
  }

  std::span<const std::byte> TakeBytes(std::size_t size_bytes) noexcept {
    if (size_bytes > bytes_.size()) {
      ok_ = false;
      bytes_ = {};
      return {};
    }
    const auto field = bytes_.first(size_bytes);
    bytes_ = bytes_.subspan(size_bytes);
    return field;
  }

  // The bytes of a text of `size_bytes`, not checked for anything.
  std::string_view TakeText(std::size_t size_bytes) noexcept {
    const auto text = TakeBytes(size_bytes);
    return {reinterpret_cast<const char*>(text.data()), text.size()};
  }

  bool ok() const noexcept { return ok_; }
  std::size_t remaining() const noexcept { return bytes_.size(); }
  // Everything fitted, and nothing is left over.
  bool AtEnd() const noexcept { return ok_ && bytes_.empty(); }

 private:
  std::span<const std::byte> bytes_;
  bool ok_ = true;
};

// Appends little-endian fields to bytes that it owns.
class ByteWriter {
 public:
  template <class T>
  void Put(T value, std::size_t width_bytes = sizeof(T)) {
    const std::size_t offset = bytes_.size();
    bytes_.resize(offset + width_bytes);
    StoreLittleEndian(std::span(bytes_), offset, value, width_bytes);
  }
  void PutBytes(std::span<const std::byte> bytes) {
    bytes_.insert(bytes_.end(), bytes.begin(), bytes.end());
  }
  void PutText(std::string_view text) { PutBytes(std::as_bytes(std::span(text))); }

  void Reserve(std::size_t size_bytes) { bytes_.reserve(size_bytes); }
  std::span<const std::byte> bytes() const noexcept { return bytes_; }
  std::vector<std::byte> Take() && { return std::move(bytes_); }

 private:
  std::vector<std::byte> bytes_;
};

}  // namespace ffrecord
