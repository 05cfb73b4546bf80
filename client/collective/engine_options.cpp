#include "client/collective/engine_options.h"

#include <string>
#include <utility>

#include "client/collective/reduce.h"
#include "libffrecord/net/protocol/frame.h"

namespace ffrecord::client {
namespace {

constexpr std::uint32_t kWorldSizeMax = 65'536;
constexpr std::uint64_t kChunkSizeMax = net::FrameLimits{}.payload_size_bytes_max;

Error Refused(const std::string& what) { return {ErrorCode::kInvalidArgument, what}; }

}  // namespace

Result<void> CheckOptions(std::uint32_t rank, std::uint32_t world_size,
                          const CollectiveEngine::Options& options) {
  if (world_size == 0 || world_size > kWorldSizeMax || rank >= world_size)
    return Refused("a group cannot have rank " + std::to_string(rank) + " of " +
                   std::to_string(world_size) + " ranks; the limit is " +
                   std::to_string(kWorldSizeMax));
  if (options.timeout.count() <= 0) return Refused("a collective's timeout must be above zero");
  if (options.wire > WireType::kF16) return Refused("no such wire type");
  if (options.streams == 0 || options.streams > CollectiveEngine::kStreamsMax)
    return Refused(std::to_string(options.streams) + " streams are not from 1 to " +
                   std::to_string(CollectiveEngine::kStreamsMax));
  if (options.wire == WireType::kF16 && options.algorithm == Algorithm::kHalvingDoubling)
    return Refused(
        "halving-doubling cuts arrays anew in each step, and fp16 is scaled by chunk:"
        " take another algorithm, or bf16");
  if (options.chunk_size_bytes < kGroupChunkSizeMin || options.chunk_size_bytes > kChunkSizeMax)
    return Refused("a chunk of " + std::to_string(options.chunk_size_bytes) +
                   " bytes is not from 64 bytes to 8 MiB");
  if (options.transport > GroupTransport::kRdma) return Refused("no such transport");
  if (options.carries_messages && world_size != 2)
    return Refused("messages go between two ranks, and the group has " +
                   std::to_string(world_size));
  return {};
}

Result<std::deque<net::RdmaLinks>> OpenRails(const CollectiveEngine::Options& options) {
  std::deque<net::RdmaLinks> rails;
  const std::uint32_t traffic_class = options.rdma_traffic_class;
  const std::uint32_t service_level = options.rdma_service_level;
  if (options.transport == GroupTransport::kTcp) {
    if (!options.rdma_devices.empty() || traffic_class != 0 || service_level != 0)
      return Refused("RDMA devices or QoS are given, but the transport is TCP");
    return rails;
  }
  if (traffic_class > UINT8_MAX || service_level > net::RdmaQos::kServiceLevelMax)
    return Refused("rdma_traffic_class is at most 255, rdma_service_level at most 15");
  const net::RdmaQos qos{static_cast<std::uint8_t>(traffic_class),
                         static_cast<std::uint8_t>(service_level)};
  if (options.rdma_devices.empty()) rails.emplace_back("", qos);
  for (const std::string& name : options.rdma_devices) rails.emplace_back(name, qos);
  for (net::RdmaLinks& rail : rails) FFR_TRY(rail.Device());
  return rails;
}

Result<void> CheckOperation(const Plan& plan, const void* data, ReduceType type, ReduceOp op) {
  if (FindTraits(type) == nullptr || FindTraits(op) == nullptr)
    return Refused("no such type or operation");
  if (!IsNumber(type) && IsReduction(plan.collective))
    return Refused("bytes cannot be reduced; pass a numeric type");
  if (data == nullptr && plan.count > 0) return Refused("a collective needs an array");
  if (plan.count > kCountMax)
    return Refused("a collective of " + std::to_string(plan.count) +
                   " elements; the limit is 2^44");
  if (IsReduction(plan.collective) && !IsOffered(type, op))
    return Refused(op == ReduceOp::kAverage
                       ? "integers have no average; sum them and divide"
                       : "a " + std::string(FindTraits(op)->label) + " is of integers, not of " +
                             std::string(FindTraits(type)->label));
  return {};
}

Result<void> CheckTuning(const CollectiveEngine::Tuning& tuning,
                         const CollectiveEngine::Options& options, const Machines& machines) {
  if (tuning.chunk_size_bytes != 0 && (tuning.chunk_size_bytes < kGroupChunkSizeMin ||
                                       tuning.chunk_size_bytes > options.chunk_size_bytes))
    return Refused("chunks of " + std::to_string(tuning.chunk_size_bytes) +
                   " bytes are not from 64 bytes to the group's " +
                   std::to_string(options.chunk_size_bytes));
  if (tuning.algorithm == Algorithm::kHierarchical && machines.ranks_each() == 0)
    return Refused("the hierarchical algorithm needs machines with equally many ranks");
  if (tuning.algorithm == Algorithm::kHalvingDoubling && options.wire == WireType::kF16)
    return Refused("halving-doubling does not work with fp16");
  return {};
}

}  // namespace ffrecord::client
