#include "client/dataset/stripe_upload.h"

#include <algorithm>
#include <atomic>
#include <set>
#include <span>
#include <string>
#include <utility>

#include "client/dataset/stripe_parity.h"
#include "libffrecord/format/slot_map.h"

namespace ffrecord::client {
namespace {

// Each holds its parity in memory.
constexpr std::size_t kStripesAtOnce = 2;

}  // namespace

StripeUpload::StripeUpload(const ErasureCode& code, ReplicaWriter& replicas, UploadPlan& plan,
                           std::uint64_t upload, std::uint32_t parity_file)
    : code_(code), replicas_(replicas), plan_(plan) {
  const std::size_t stripe_count = (plan.extent_count() + code.data - 1) / code.data;
  for (std::size_t i = 0; i < stripe_count * code.parity; ++i)
    parity_.push_back({MakeExtentId(upload, parity_file, static_cast<std::uint32_t>(i)), 0, 0});
}

Result<std::vector<ManifestExtent>> StripeUpload::Run(const UploadProgress& progress) {
  const std::size_t stripe_count = parity_.size() / code_.parity;
  std::atomic<std::size_t> next{0};
  const UploadWork put_some = [&](const SideBySide& others,
                                  const UploadProgress& sent_more) -> Result<void> {
    for (std::size_t i; !others.failed() && (i = next++) < stripe_count;)
      FFR_TRY(PutStripe(i, others, sent_more));
    return {};
  };
  FFR_TRY(PutSideBySide(std::min(stripe_count, kStripesAtOnce), progress, put_some));
  return std::move(parity_);
}

Result<void> StripeUpload::PutStripe(std::size_t stripe, const SideBySide& others,
                                     const UploadProgress& sent_more) {
  const auto parity = std::span(parity_).subspan(stripe * code_.parity, std::size_t{code_.parity});
  const std::size_t begin = stripe * code_.data;
  const std::size_t end = std::min(begin + code_.data, plan_.extent_count());
  std::uint64_t size_bytes = 0;
  for (std::size_t i = begin; i < end; ++i)
    size_bytes = std::max(size_bytes, plan_.ExtentOf(i).size_bytes);

  StripeParity sums(code_, size_bytes);
  std::set<std::string> domains;
  StripeSpot spot{SlotOf(parity.front().id), 0, end - begin + parity.size(), &domains};
  for (std::size_t i = begin; i < end; ++i, ++spot.member) {
    const SourcedExtent extent = plan_.ExtentOf(i);
    const ExtentSource source = FFR_TRY(plan_.SourceOf(i, others));
    plan_.SetEntry(
        i, FFR_TRY(PutExtent(replicas_, extent, sums.Begin(extent, source), sent_more, &spot)));
    FFR_TRY(sums.End());
  }
  for (std::size_t row = 0; row < parity.size(); ++row, ++spot.member) {
    const auto bytes = sums.row(row);
    const ExtentSource source =
        [bytes](std::uint64_t offset_bytes,
                std::span<std::byte> room) -> Result<std::span<const std::byte>> {
      return bytes.subspan(offset_bytes,
                           std::min<std::uint64_t>(room.size(), bytes.size() - offset_bytes));
    };
    parity[row] = FFR_TRY(PutExtent(
        replicas_, {parity[row].id, 0, bytes.size()}, source, [](std::uint64_t) {}, &spot));
  }
  return {};
}

}  // namespace ffrecord::client
