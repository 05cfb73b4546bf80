#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "libffrecord/format/dataset_manifest.h"

namespace ffrecord {

// The stripes of a manifest with an erasure code: `code.data` extents of its files that follow each
// other, and their parity. The last stripe may have fewer. format.md, "Erasure code".
struct Stripe {
  std::vector<ManifestExtent> members;  // Data members, then parity.
  std::size_t data_count = 0;

  // As large as its largest member.
  std::uint64_t size_bytes() const noexcept { return members.back().size_bytes; }
  // The slot of the slot map that holds the stripe.
  std::uint32_t slot() const noexcept;
};

// Members of the largest stripe; 0 without a code.
std::size_t StripeSizeMax(const DatasetManifest& manifest) noexcept;
// 0 without a code.
std::size_t StripeCountOf(const DatasetManifest& manifest) noexcept;
// Requires that there is one of that number. Walks the files.
Stripe StripeOf(const DatasetManifest& manifest, std::size_t number);
// All of them, in order. Fast.
std::vector<Stripe> StripesOf(const DatasetManifest& manifest);

}  // namespace ffrecord
