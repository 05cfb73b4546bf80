#include "server/service/cluster/stripe_rebuild.h"

#include <set>
#include <string>

#include "libffrecord/base/hex.h"
#include "server/service/cluster/node_extents.h"

namespace ffrecord::server {
namespace {

using Members = std::vector<std::size_t>;

Error TooFew(const cluster::StripePart& part, std::size_t found, const Error& last) {
  const std::size_t needed = part.stripe.data_count;
  return {ErrorCode::kNotFound,
          "extent " + Hex(part.stripe.members[part.member].id) + " is on no node that is up, and " +
              std::to_string(found) + " of the " + std::to_string(needed) +
              " other members of its stripe that it can be computed from are; start the nodes that "
              "are down (" +
              last.message + ")"};
}

}  // namespace

Result<std::vector<std::byte>> RebuildMember(const cluster::StripePart& part,
                                             std::span<const std::size_t> order,
                                             const FetchMember& fetch) {
  const ManifestExtent& wanted = part.stripe.members[part.member];
  std::set<std::size_t> missing{part.member};
  Error last{ErrorCode::kUnavailable, "no node answers"};
  for (;;) {
    Members present;
    for (const std::size_t member : order)
      if (present.size() < part.stripe.data_count && !missing.contains(member))
        present.push_back(member);
    if (present.size() < part.stripe.data_count) return TooFew(part, present.size(), last);
    const auto coefficients =
        RebuildCoefficients(part.code, part.stripe.data_count, part.member, present);
    std::vector<std::byte> sum(part.stripe.size_bytes());
    std::size_t added = 0;
    for (; added < present.size(); ++added) {
      const auto bytes = fetch(present[added]);
      if (!bytes) {
        last = bytes.error();
        break;
      }
      AddMultiple(coefficients[added], bytes.value(), sum);
    }
    if (added < present.size()) {  // Others have other coefficients.
      missing.insert(present[added]);
      continue;
    }
    sum.resize(wanted.size_bytes);
    FFR_TRY(CheckBytes(wanted, sum));
    return sum;
  }
}

}  // namespace ffrecord::server
