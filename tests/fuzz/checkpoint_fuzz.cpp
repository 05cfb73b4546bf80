// Goal: no bytes of a checkpoint's manifests or values can hurt their reader.
// Method: the first byte chooses what to decode, the rest is its body, put into a frame whose
// checksum is right, for no fuzzer finds one. What is accepted must encode to itself.

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "libffrecord/base/checksum.h"
#include "libffrecord/base/cursor.h"
#include "libffrecord/format/checkpoint_manifest.h"
#include "libffrecord/format/checkpoint_values.h"

namespace {

using namespace ffrecord;  // Only here: a target is a whole program.

std::vector<std::byte> Framed(std::uint32_t kind, std::uint16_t minor,
                              std::span<const std::byte> body) {
  constexpr std::uint64_t kMagic = 0x1A0A0D4B43464689;
  ByteWriter writer;
  writer.Put(kMagic);
  writer.Put(std::uint16_t{1});
  writer.Put(minor);
  writer.Put(kind);
  writer.Put(static_cast<std::uint64_t>(body.size()));
  writer.PutBytes(body);
  writer.PutBytes(Xxh3Digest(writer.bytes()));
  return std::move(writer).Take();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  const auto body = std::as_bytes(std::span(data, size)).subspan(1);
  switch (data[0] % 4) {
    case 0: {
      const auto keys = CheckValues(body);
      if (keys && keys.value().size() > body.size()) __builtin_trap();
      break;
    }
    case 1: {
      const auto bytes = Framed(1, 0, body);
      const auto root = DecodeRootManifest(bytes);
      if (root && EncodeRootManifest(root.value()) != bytes) __builtin_trap();
      break;
    }
    case 2: {
      const auto bytes = Framed(2, data[0] < 128 ? 0 : 1, body);
      const auto part = DecodePartManifest(bytes);
      if (part && EncodePartManifest(part.value()) != bytes) __builtin_trap();
      break;
    }
    default: {
      static_cast<void>(DecodeRootManifest(body));
      static_cast<void>(DecodePartManifest(body));
    }
  }
  return 0;
}
