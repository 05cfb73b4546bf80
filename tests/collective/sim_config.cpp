#include "sim_config.h"

#include <algorithm>
#include <cstring>

#include "client/collective/reduce.h"
#include "client/collective/schedule.h"
#include "client/collective/shared_ring.h"

namespace ffrecord::test {

using namespace client;
using namespace std::chrono_literals;

SimConfig::SimConfig(std::uint64_t seed) : seed_(seed) {
  SimRandom random(seed * 0x9E3779B97F4A7C15ULL + 1);
  world_size = static_cast<std::uint32_t>(random.Between(2, random.OneIn(4) ? 8 : 4));
  if (random.OneIn(4)) {
    const bool is_one = random.OneIn(2);
    std::vector<std::uint32_t> machine_of_rank;
    for (std::uint32_t rank = 0; rank < world_size; ++rank)
      machine_of_rank.push_back(is_one ? 0 : rank / 2);
    machines = Machines(machine_of_rank);
  }
  streams = static_cast<std::uint16_t>(random.Between(1, 3));
  is_rdma = random.OneIn(6);
  if (random.OneIn(4)) wire = random.OneIn(2) ? WireType::kF16 : WireType::kBf16;
  // Pieces above 16 KiB are borrowed until they are taken.
  constexpr std::uint64_t kSizes[] = {64, 256, 1024, 4096, 8192, 20'000, 24'000};
  chunk_size_bytes = kSizes[random.Below(std::size(kSizes))] / 8 * 8;
  shared_piece_size_bytes =
      RingShape::For(chunk_size_bytes, std::max(machines.ranks_max(), 1U), wire == WireType::kF16)
          .piece_size_bytes;
  part_bytes = random.Between(50 + chunk_size_bytes / 8, 3 * chunk_size_bytes);
  window_bytes = random.Between(2'000 + chunk_size_bytes / 4, 4 * chunk_size_bytes + 4'000);
  constexpr SimDuration kSpans[] = {3ms, 30ms, 800ms};
  span = kSpans[random.Below(std::size(kSpans))];
  latency = random.UpTo(span / 10);
  const std::uint64_t count = random.Between(1, 5);
  for (std::uint64_t sequence = 0; sequence < count; ++sequence)
    operations.push_back(Draw(random, sequence));
}

Operation SimConfig::Draw(SimRandom& random, std::uint64_t sequence) const {
  Operation operation{.sequence = sequence,
                      .data = nullptr,
                      .plan = {},
                      .type = ReduceType::kF32,
                      .op = ReduceOp::kSum,
                      .chunk_size_bytes = chunk_size_bytes};
  constexpr ReduceType kTypes[] = {ReduceType::kF32, ReduceType::kF32, ReduceType::kI64,
                                   ReduceType::kF64};
  operation.type = kTypes[random.Below(std::size(kTypes))];
  do {
    operation.op = ReduceOps()[random.Below(ReduceOps().size())].op;
  } while (!IsOffered(operation.type, operation.op));
  Plan& plan = operation.plan;
  plan.collective =
      random.OneIn(2) ? Collective::kAllReduce : static_cast<Collective>(random.Below(4));
  const bool is_rounded = wire == WireType::kF16 && operation.type == ReduceType::kF32;
  do {
    plan.algorithm = static_cast<Algorithm>(random.Below(5));
  } while (!IsOffered(plan.collective, plan.algorithm) ||
           (plan.algorithm == Algorithm::kHierarchical && machines.ranks_each() == 0) ||
           (plan.algorithm == Algorithm::kHalvingDoubling && is_rounded));
  const std::uint64_t most = 3 * world_size * chunk_size_bytes / SizeOf(operation.type);
  plan.count = random.OneIn(8) ? random.Below(3) : random.Below(most);
  plan.count = std::min<std::uint64_t>(plan.count, 250'000 / SizeOf(operation.type));
  if (plan.collective == Collective::kBroadcast)
    plan.root = static_cast<std::uint32_t>(random.Below(world_size));
  if (plan.collective >= Collective::kAllGather) operation.op = ReduceOp::kSum;
  if (!machines.ranks_max() && random.OneIn(4)) operation.chunk_size_bytes = chunk_size_bytes / 2;
  return operation;
}

ExchangeGroup SimConfig::GroupOf(std::uint32_t rank) const {
  return {rank, world_size, chunk_size_bytes, wire, streams, kTimeout, machines};
}

std::vector<std::byte> SimConfig::InputOf(std::uint32_t rank, std::size_t index) const {
  const Operation& operation = operations[index];
  SimRandom random(seed_ ^ (rank + 1) * 0x51ED2701ULL ^ (index + 1) * 0xA24BAED4963EE407ULL);
  std::vector<std::byte> bytes(operation.plan.count * SizeOf(operation.type));
  for (std::uint64_t i = 0; i < operation.plan.count; ++i) {
    const auto integer = static_cast<std::int64_t>(random.Below(1 << 20)) - (1 << 19);
    const auto put = [&](auto value) {
      std::memcpy(bytes.data() + i * sizeof(value), &value, sizeof(value));
    };
    if (operation.type == ReduceType::kI64) put(integer);
    if (operation.type == ReduceType::kF32) put(static_cast<float>(integer) / 77.0F);
    if (operation.type == ReduceType::kF64) put(static_cast<double>(integer) / 77.0);
  }
  return bytes;
}

std::vector<std::vector<std::byte>> SimConfig::ResultsOf(std::size_t index) const {
  const Operation& operation = operations[index];
  const std::uint64_t size = SizeOf(operation.type);
  std::vector<std::vector<std::byte>> arrays;
  std::vector<Schedule> schedules;
  std::uint32_t last_step = 0;
  for (std::uint32_t rank = 0; rank < world_size; ++rank) {
    arrays.push_back(InputOf(rank, index));
    if (operation.op == ReduceOp::kAverage)
      Divide(operation.type, world_size, operation.plan.count, arrays.back().data());
    schedules.push_back(MakeSchedule(operation.plan, rank, world_size, machines));
    for (const Arrival& arrival : schedules.back().arrivals)
      last_step = std::max(last_step, arrival.step);
  }
  for (std::uint32_t step = 0; step <= last_step; ++step) {
    const auto before = arrays;
    for (std::uint32_t rank = 0; rank < world_size; ++rank) {
      for (const Arrival& arrival : schedules[rank].arrivals) {
        if (arrival.step != step || arrival.range.size() == 0) continue;
        const std::byte* const come = before[arrival.peer].data() + arrival.range.begin * size;
        std::byte* const place = arrays[rank].data() + arrival.range.begin * size;
        if (arrival.reduces)
          Reduce(operation.type, operation.op, arrival.range.size(), come, place);
        else
          std::memcpy(place, come, arrival.range.size() * size);
      }
    }
  }
  return arrays;
}

}  // namespace ffrecord::test
