#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include <ffrecord/result.h>

#include "libffrecord/base/cursor.h"

namespace ffrecord::net {

// The body of a message as a list of fields in their order on the wire, the same list for Encode
// and for Decode. Integers and enumerators have the width of their type, a bool is a byte of 0 or
// 1, an array of bytes has no size before it, and a text has its size in two bytes before it.

// Reserved bytes, which must be zero.
template <std::size_t kSizeBytes>
struct Zeros {};

template <class T>
void PutField(ByteWriter& writer, const T& field) {
  if constexpr (std::is_same_v<T, bool>) {
    writer.Put(static_cast<std::uint8_t>(field));
  } else if constexpr (std::is_enum_v<T>) {
    writer.Put(static_cast<std::underlying_type_t<T>>(field));
  } else if constexpr (std::is_integral_v<T>) {
    writer.Put(field);
  } else if constexpr (std::is_convertible_v<const T&, std::string_view>) {
    const std::string_view text = field;
    FFR_ASSERT(text.size() <= UINT16_MAX);
    writer.Put(static_cast<std::uint16_t>(text.size()));
    writer.PutText(text);
  } else {
    writer.PutBytes(field);
  }
}

template <std::size_t kSizeBytes>
void PutField(ByteWriter& writer, const Zeros<kSizeBytes>& /*zeros*/) {
  writer.Put(std::uint64_t{0}, kSizeBytes);
}

// False if the bytes end before the field does, or are none. An enumerator may be an unknown one.
template <class T>
bool TakeField(ByteReader& reader, T& field) {
  if constexpr (std::is_same_v<T, bool>) {
    const auto byte = reader.Take<std::uint8_t>();
    if (byte > 1) return false;
    field = byte == 1;
  } else if constexpr (std::is_enum_v<T>) {
    field = static_cast<T>(reader.Take<std::underlying_type_t<T>>());
  } else if constexpr (std::is_integral_v<T>) {
    field = reader.Take<T>();
  } else if constexpr (std::is_same_v<T, std::string>) {
    field = reader.TakeText(reader.Take<std::uint16_t>());
  } else {
    std::ranges::copy(reader.TakeBytes(field.size()), field.begin());
  }
  return reader.ok();
}

template <std::size_t kSizeBytes>
bool TakeField(ByteReader& reader, Zeros<kSizeBytes>& /*zeros*/) {
  return reader.Take<std::uint64_t>(kSizeBytes) == 0 && reader.ok();
}

template <class... Fields>
void PutFields(ByteWriter& writer, const Fields&... fields) {
  (PutField(writer, fields), ...);
}

// Stops at the first field that is not there, and returns false.
template <class... Fields>
bool TakeFields(ByteReader& reader, Fields&&... fields) {
  return (TakeField(reader, fields) && ...);
}

template <class... Fields>
std::vector<std::byte> EncodeFields(const Fields&... fields) {
  ByteWriter writer;
  writer.Reserve((sizeof(fields) + ...));
  PutFields(writer, fields...);
  return std::move(writer).Take();
}

// Whether `body` is these fields and nothing more.
template <class... Fields>
bool DecodeFields(std::span<const std::byte> body, Fields&&... fields) {
  ByteReader reader(body);
  return TakeFields(reader, fields...) && reader.AtEnd();
}

// The error of Decode() for `message`.
inline Error MalformedBody(std::string_view message) {
  return Error{ErrorCode::kCorruption, std::string(message) + ": the body is malformed"};
}

}  // namespace ffrecord::net
