#pragma once

#include <cstddef>
#include <functional>
#include <span>
#include <vector>

#include <ffrecord/result.h>

#include "server/cluster/machine.h"

namespace ffrecord::server {

// The verified bytes of a member of a stripe. Fails if nobody who answers has it.
using FetchMember = std::function<Result<std::vector<std::byte>>(std::size_t member)>;

// Computes a member of a stripe from as many others as the stripe has data members; those that
// `order` names first are taken first. Holds two extents in memory. Fails with kNotFound if too few
// can be had, and with kCorruption if what comes of them is not the member.
Result<std::vector<std::byte>> RebuildMember(const cluster::StripePart& part,
                                             std::span<const std::size_t> order,
                                             const FetchMember& fetch);

}  // namespace ffrecord::server
