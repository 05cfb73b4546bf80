#include "libffrecord/io/io_engine.h"

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <vector>

#include "libffrecord/base/assert.h"
#include "libffrecord/io/fork_generation.h"
#include "libffrecord/io/transfer.h"

namespace ffrecord {
namespace {

// Whether the kernel lacked something for this one ring, rather than refusing every ring.
bool IsExhaustion(int system_errno) {
  return system_errno == EMFILE || system_errno == ENFILE || system_errno == ENOMEM ||
         system_errno == EAGAIN;
}

}  // namespace

Result<std::unique_ptr<IoEngine>> MakeIoEngine(std::uint32_t depth) {
  static std::atomic<bool> refused{false};
  if (!refused.load(std::memory_order_relaxed)) {
    auto engine = MakeUringEngine(depth);
    if (engine || engine.error().code == ErrorCode::kInvalidArgument) return engine;
    if (!IsExhaustion(engine.error().system_errno)) refused.store(true, std::memory_order_relaxed);
  }
  return MakeThreadsEngine(depth);
}

Result<IoEngine*> ThreadIoEngine() {
  struct Slot {
    std::unique_ptr<IoEngine> engine;
    std::uint32_t generation = 0;
  };
  thread_local Slot slot;
  const std::uint32_t generation = ForkGeneration();
  if (!slot.engine || slot.generation != generation) {
    slot.engine = FFR_TRY(MakeIoEngine(kThreadEngineDepth));
    slot.generation = generation;
  }
  return slot.engine.get();
}

Result<void> RunAll(IoEngine& engine, std::span<IoRequest> requests, std::uint32_t depth) {
  FFR_ASSERT(depth > 0);
  FFR_ASSERT(engine.in_flight() == 0);
  std::vector<Transfer> transfers;
  std::vector<IoRequest*> queue;  // Grows behind `next` by what must be submitted again.
  transfers.reserve(requests.size());
  queue.reserve(requests.size());
  for (const IoRequest& request : requests)
    queue.push_back(&transfers.emplace_back(request).request());

  std::vector<IoRequest*> done(std::min<std::size_t>(depth, requests.size()));
  std::size_t next = 0;
  while (next < queue.size() || engine.in_flight() > 0) {
    const std::size_t room = depth - engine.in_flight();
    const std::size_t offered = std::min(queue.size() - next, room);
    if (offered > 0) {
      const auto taken = engine.Submit(std::span(queue).subspan(next, offered));
      if (!taken || (taken.value() == 0 && engine.in_flight() == 0)) {
        DrainOrDie(engine);
        if (!taken) return taken.error();
        return Error{ErrorCode::kIo, "run: the idle engine takes no request", EAGAIN};
      }
      next += taken.value();
    }
    // At the end wait once for all; before it, refill when a quarter of the depth is free.
    const std::uint32_t in_flight = engine.in_flight();
    const std::uint32_t count_min = next == queue.size() ? in_flight : std::max(in_flight / 4, 1U);
    const auto count = engine.Wait(done, count_min, kIoForever);
    if (!count) {
      DrainOrDie(engine);
      return count.error();
    }
    for (IoRequest* request : std::span(done).first(count.value()))
      if (!static_cast<Transfer*>(request->user)->Finish()) queue.push_back(request);
  }
  for (std::size_t i = 0; i < requests.size(); ++i) requests[i].result = transfers[i].result();
  return {};
}

}  // namespace ffrecord
