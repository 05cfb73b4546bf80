#pragma once

#include <gtest/gtest.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <sys/stat.h>

#include <array>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "libffrecord/base/clock.h"
#include "libffrecord/base/cursor.h"
#include "libffrecord/base/hex.h"
#include "temp_folder.h"

namespace ffrecord::test {

inline constexpr std::uint8_t kRead = 1;
inline constexpr std::uint8_t kWrite = 2;
inline constexpr std::uint8_t kDelete = 4;

// The file of keys that tokens of MakeToken() are made with.
inline std::filesystem::path WriteTokenKeys(const TempFolder& folder) {
  const std::filesystem::path path = folder / "keys";
  WriteFile(path, std::string(64, '7'));
  EXPECT_EQ(::chmod(path.c_str(), 0600), 0);
  return path;
}

// protocol.md, "Tokens".
inline std::vector<std::byte> MakeToken(std::uint8_t rights, const std::string& prefix,
                                        std::int64_t lifetime_s = 3600) {
  ByteWriter writer;
  writer.Put(std::uint8_t{1});
  writer.Put(rights);
  writer.Put(std::uint16_t{0});
  writer.Put(static_cast<std::uint64_t>(WallClock::to_time_t(WallClock::now()) + lifetime_s));
  for (const std::string& text : {prefix, std::string("test")}) {
    writer.Put(static_cast<std::uint16_t>(text.size()));
    writer.PutText(text);
  }
  const std::string key(32, '\x77');
  std::array<unsigned char, 32> mac;
  unsigned size = 0;
  ::HMAC(EVP_sha256(), key.data(), static_cast<int>(key.size()),
         reinterpret_cast<const unsigned char*>(writer.bytes().data()), writer.bytes().size(),
         mac.data(), &size);
  writer.PutBytes(std::as_bytes(std::span(mac)));
  return {writer.bytes().begin(), writer.bytes().end()};
}

// As clients read it from a file.
inline void WriteToken(const std::filesystem::path& path, std::span<const std::byte> token) {
  WriteFile(path, Hex(token) + "\n");
}

}  // namespace ffrecord::test
