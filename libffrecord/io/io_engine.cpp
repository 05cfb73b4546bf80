#include "libffrecord/io/io_engine.h"

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <vector>

#include "libffrecord/base/assert.h"
#include "libffrecord/base/home_process.h"
#include "libffrecord/base/thread_scratch.h"
#include "libffrecord/io/transfer.h"

namespace ffrecord {
namespace {

// Whether the kernel lacked something for this one ring, rather than refusing every ring.
bool IsExhaustion(int system_errno) {
  return system_errno == EMFILE || system_errno == ENFILE || system_errno == ENOMEM ||
         system_errno == EAGAIN;
}

// What a caller that looks at each request as it ends is given at a time while it asks for more: if
// it is in the page cache it arrives with the submission, and should still be in the processor's
// cache when it is looked at.
constexpr std::uint64_t kSubmissionChunkBytes = std::uint64_t{256} << 10;

struct RunMemory {
  bool Recycle() const noexcept {
    constexpr std::size_t kKeptRequestsMax = std::size_t{1} << 14;
    return transfers.capacity() <= kKeptRequestsMax;
  }

  std::vector<Transfer> transfers;  // Of each request, in the same order.
  std::vector<IoRequest*> queue;    // Grows at its end by what must be submitted again.
  std::vector<IoRequest*> done;
};

// One RunAll.
class Run {
 public:
  Run(IoEngine& engine, std::span<IoRequest> requests, std::uint32_t depth,
      const std::function<void(IoRequest&)>& ended, Patience* patience, RunMemory& memory)
      : engine_(engine),
        requests_(requests),
        depth_(depth),
        ended_(ended),
        patience_(patience),
        transfers_(memory.transfers),
        queue_(memory.queue),
        done_(memory.done) {
    transfers_.clear();
    queue_.clear();
    transfers_.reserve(requests.size());  // They must stay where they are.
    for (const IoRequest& request : requests)
      queue_.push_back(&transfers_.emplace_back(request).request());
    done_.resize(std::min<std::size_t>(depth, requests.size()));
  }

  Result<void> ToTheEnd() {
    while (next_ < queue_.size() || engine_.in_flight() > 0) {
      if (patience_ != nullptr && patience_->IsOver())
        return Error{ErrorCode::kDeadlineExceeded, "run: it was given up"};
      FFR_TRY(Submit());
      const std::uint32_t in_flight = engine_.in_flight();
      if (ended_ && next_ < queue_.size() && in_flight < depth_) {
        const std::uint32_t count = FFR_TRY(Wait(0, std::chrono::milliseconds(0)));
        // What comes from a device comes later: ask for more of it at a time.
        chunk_bytes_ = count > 0 ? kSubmissionChunkBytes : chunk_bytes_ * 2;
        continue;
      }
      // At the end wait once for all; before it, refill when a quarter of the depth is free.
      const bool all = next_ == queue_.size() && !ended_;
      const bool asks = patience_ != nullptr && !patience_->is_endless();
      FFR_TRY(Wait(all ? in_flight : std::max(in_flight / 4, 1U),
                   asks ? Patience::kInterval : kIoForever));
    }
    return {};
  }

 private:
  Result<void> Submit() {
    std::size_t offered =
        std::min<std::size_t>(queue_.size() - next_, depth_ - engine_.in_flight());
    if (ended_) offered = SubmissionChunk(offered);
    if (offered == 0) return {};
    const std::uint32_t taken = FFR_TRY(engine_.Submit(std::span(queue_).subspan(next_, offered)));
    if (taken == 0 && engine_.in_flight() == 0)
      return Error{ErrorCode::kIo, "run: the idle engine takes no request", EAGAIN};
    next_ += taken;
    return {};
  }

  // How many of the next `count` requests make a submission chunk: at least one.
  std::size_t SubmissionChunk(std::size_t count) const {
    std::uint64_t bytes = 0;
    std::size_t taken = 0;
    while (taken < count && bytes < chunk_bytes_) bytes += queue_[next_ + taken++]->buffer.size();
    return taken;
  }

  Result<std::uint32_t> Wait(std::uint32_t count_min, std::chrono::milliseconds timeout) {
    const std::uint32_t count = FFR_TRY(engine_.Wait(done_, count_min, timeout));
    for (IoRequest* request : std::span(done_).first(count)) {
      auto* transfer = static_cast<Transfer*>(request->user);
      if (!transfer->Finish()) {
        queue_.push_back(request);
        continue;
      }
      IoRequest& whole = requests_[static_cast<std::size_t>(transfer - transfers_.data())];
      whole.result = transfer->result();
      if (ended_) ended_(whole);
    }
    return count;
  }

  IoEngine& engine_;
  const std::span<IoRequest> requests_;
  const std::uint32_t depth_;
  const std::function<void(IoRequest&)>& ended_;
  Patience* const patience_;
  std::vector<Transfer>& transfers_;
  std::vector<IoRequest*>& queue_;
  std::vector<IoRequest*>& done_;
  std::size_t next_ = 0;
  std::uint64_t chunk_bytes_ = kSubmissionChunkBytes;
};

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
  FFR_ASSERT(depth > 0);
  FFR_ASSERT(engine.in_flight() == 0);
  const ThreadScratch<RunMemory> memory;  // Outlives what the engine holds of it.
  Run run(engine, requests, depth, ended, patience, *memory);
  auto result = run.ToTheEnd();
  if (!result) DrainOrDie(engine);
  return result;
}

}  // namespace ffrecord
