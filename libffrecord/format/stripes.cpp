#include "libffrecord/format/stripes.h"

#include <algorithm>

#include "libffrecord/base/assert.h"
#include "libffrecord/format/slot_map.h"

namespace ffrecord {
namespace {

// The stripes from number `first` on, `count` at most.
std::vector<Stripe> Some(const DatasetManifest& manifest, std::size_t first, std::size_t count) {
  std::vector<Stripe> stripes;
  const std::size_t data = manifest.code.data, parity = manifest.code.parity;
  std::size_t skipped = first * data;
  const auto end_of = [&](Stripe& stripe) {
    const std::size_t number = first + stripes.size() - 1;
    stripe.data_count = stripe.members.size();
    const auto own = std::span(manifest.parity).subspan(number * parity, parity);
    stripe.members.insert(stripe.members.end(), own.begin(), own.end());
  };
  for (const ManifestFile& file : manifest.files) {
    std::size_t at = std::min(skipped, file.extents.size());
    skipped -= at;
    for (; at < file.extents.size(); ++at) {
      if (stripes.empty() || stripes.back().members.size() == data) {
        if (!stripes.empty()) end_of(stripes.back());
        if (stripes.size() == count) return stripes;
        stripes.emplace_back();
      }
      stripes.back().members.push_back(file.extents[at]);
    }
  }
  if (!stripes.empty()) end_of(stripes.back());
  return stripes;
}

}  // namespace

std::uint32_t Stripe::slot() const noexcept { return SlotOf(members[data_count].id); }

std::size_t StripeSizeMax(const DatasetManifest& manifest) noexcept {
  if (manifest.parity.empty()) return 0;
  return std::min<std::size_t>(manifest.extent_count(), manifest.code.data) + manifest.code.parity;
}

std::size_t StripeCountOf(const DatasetManifest& manifest) noexcept {
  return manifest.code.is_none() ? 0 : manifest.parity.size() / manifest.code.parity;
}

Stripe StripeOf(const DatasetManifest& manifest, std::size_t number) {
  FFR_ASSERT(number < StripeCountOf(manifest));
  return std::move(Some(manifest, number, 1).front());
}

std::vector<Stripe> StripesOf(const DatasetManifest& manifest) {
  const std::size_t count = StripeCountOf(manifest);
  return count == 0 ? std::vector<Stripe>() : Some(manifest, 0, count);
}

}  // namespace ffrecord
