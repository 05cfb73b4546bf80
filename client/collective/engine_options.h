#pragma once

#include <cstdint>
#include <deque>

#include <ffrecord/client/collective.h>
#include <ffrecord/result.h>

#include "client/collective/machines.h"
#include "client/collective/schedule.h"
#include "libffrecord/net/transport/rdma/rdma.h"

namespace ffrecord::client {

inline constexpr std::uint64_t kGroupChunkSizeMin = 64;
// Arrays of up to 2^44 elements: sizes in bytes and all sums of them stay far from overflow.
inline constexpr std::uint64_t kCountMax = std::uint64_t{1} << 44;

// Fails with kInvalidArgument if a group cannot have this rank, size or options.
Result<void> CheckOptions(std::uint32_t rank, std::uint32_t world_size,
                          const CollectiveEngine::Options& options);

// Fails with kInvalidArgument if a group cannot run it.
Result<void> CheckOperation(const Plan& plan, const void* data, ReduceType type, ReduceOp op);

// Fails with kInvalidArgument if a group with these options cannot be tuned so.
Result<void> CheckTuning(const CollectiveEngine::Tuning& tuning,
                         const CollectiveEngine::Options& options, const Machines& machines);

// The devices that streams go by, each opened; none for TCP.
Result<std::deque<net::RdmaLinks>> OpenRails(const CollectiveEngine::Options& options);

}  // namespace ffrecord::client
