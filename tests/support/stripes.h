#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "libffrecord/base/erasure_code.h"
#include "libffrecord/format/dataset_manifest.h"
#include "libffrecord/format/slot_map.h"
#include "libffrecord/format/stripes.h"

namespace ffrecord::test {

// `count` files of one extent each, of 100, 101, ... bytes, under an erasure code: data extents of
// file 0, parity of file `parity_file` of the upload. The checksums are numbers.
inline DatasetManifest StripedManifest(std::uint64_t upload, std::uint32_t count, ErasureCode code,
                                       std::uint32_t parity_file = 1) {
  DatasetManifest manifest;
  manifest.code = code;
  for (std::uint32_t i = 0; i < count; ++i) {
    manifest.files.push_back(
        {"f" + std::to_string(i), 100U + i, {{MakeExtentId(upload, 0, i), 100U + i, i}}});
    if ((i + 1) % code.data != 0 && i + 1 < count) continue;
    for (std::uint32_t row = 0; row < code.parity; ++row) {
      const auto number = static_cast<std::uint32_t>(manifest.parity.size());
      manifest.parity.push_back(
          {MakeExtentId(upload, parity_file, number), 100U + i, 1'000U + number});
    }
  }
  return manifest;
}

// One stripe of `code.data` extents, of which that node is to hold the member of that number; or
// none of which it is, if there is no member of that number.
inline DatasetManifest OneStripe(const SlotMap& map, const std::string& node, std::uint64_t upload,
                                 ErasureCode code, std::size_t member) {
  const std::uint16_t ordinal = map.Find(node);
  const std::size_t count = std::size_t{code.data} + code.parity;
  for (std::uint32_t file = 1;; ++file) {
    DatasetManifest manifest = StripedManifest(upload, code.data, code, file);
    const auto owners = map.StripeOwners(StripeOf(manifest, 0).slot(), count);
    std::size_t own = 0;
    while (own < count && owners[own] != ordinal) ++own;
    if (own == member || (own == count && member > count)) return manifest;
  }
}

}  // namespace ffrecord::test
