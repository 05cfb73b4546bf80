#include "libffrecord/io/io_engine.h"

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <vector>

#include "libffrecord/base/home_process.h"
#include "libffrecord/base/thread_scratch.h"
#include "libffrecord/io/transfer.h"
#include "libffrecord/io/transfer_queue.h"

namespace ffrecord {
namespace {

// Whether the kernel lacked a resource for this ring, rather than refusing every ring.
bool IsExhaustion(int system_errno) {
  return system_errno == EMFILE || system_errno == ENFILE || system_errno == ENOMEM ||
         system_errno == EAGAIN;
}

struct RunMemory {
  bool Recycle() const noexcept {
    constexpr std::size_t kKeptRequestsMax = std::size_t{1} << 14;
    return transfers.capacity() <= kKeptRequestsMax;
  }

  std::vector<Transfer> transfers;  // One for each request, in the same order.
  std::vector<Transfer*> ended;
  TransferQueue::Memory queue;
};

Result<void> Run(TransferQueue& queue, std::span<IoRequest> requests, RunMemory& memory,
                 const std::function<void(IoRequest&)>& ended, Patience* patience) {
  memory.transfers.clear();
  memory.transfers.reserve(requests.size());  // They must stay where they are.
  for (const IoRequest& request : requests) queue.Add(memory.transfers.emplace_back(request));
  const bool asks = patience != nullptr && !patience->is_endless();
  while (queue.count() > 0) {
    if (patience != nullptr && patience->IsOver())
      return Error{ErrorCode::kDeadlineExceeded, "run: it was given up"};
    memory.ended.clear();
    FFR_TRY(queue.Poll(asks ? Patience::kInterval : kIoForever, memory.ended));
    for (const Transfer* transfer : memory.ended) {
      IoRequest& whole = requests[static_cast<std::size_t>(transfer - memory.transfers.data())];
      whole.result = transfer->result();
      if (ended) ended(whole);
    }
  }
  return {};
}

using MakeEngine = Result<std::unique_ptr<IoEngine>> (*)(std::uint32_t depth);

Result<std::unique_ptr<IoEngine>> MakeWithRing(std::uint32_t depth, MakeEngine make_ring) {
  static std::atomic<bool> refused{false};
  if (!refused.load(std::memory_order_relaxed)) {
    auto engine = make_ring(depth);
    if (engine || engine.error().code == ErrorCode::kInvalidArgument) return engine;
    if (!IsExhaustion(engine.error().system_errno)) refused.store(true, std::memory_order_relaxed);
  }
  return MakeThreadsEngine(depth);
}

}  // namespace

Result<std::unique_ptr<IoEngine>> MakeIoEngine(std::uint32_t depth) {
  return MakeWithRing(depth, MakeUringEngine);
}

Result<std::unique_ptr<IoEngine>> MakeRovingIoEngine(std::uint32_t depth) {
  return MakeWithRing(depth, MakeRovingUringEngine);
}

Result<IoEngine*> ThreadIoEngine(std::uint32_t depth) {
  struct Slot {
    std::unique_ptr<IoEngine> engine;
    HomeProcess home;
    std::uint32_t depth = 0;
  };
  thread_local Slot slot;
  if (!slot.engine || !slot.home.is_here() || slot.depth < depth) {
    const std::uint32_t depth_made = std::max({slot.depth, depth, kThreadEngineDepth});
    slot.engine = FFR_TRY(MakeIoEngine(depth_made));
    slot.home = HomeProcess();
    slot.depth = depth_made;
  }
  return slot.engine.get();
}

Result<void> RunAll(IoEngine& engine, std::span<IoRequest> requests, std::uint32_t depth,
                    const std::function<void(IoRequest&)>& ended, Patience* patience) {
  const ThreadScratch<RunMemory> memory;  // Outlives what the engine holds of it.
  const auto wants = ended ? TransferQueue::Wants::kEach : TransferQueue::Wants::kAll;
  TransferQueue queue(engine, depth, wants, memory->queue);
  return Run(queue, requests, *memory, ended, patience);
}

}  // namespace ffrecord
