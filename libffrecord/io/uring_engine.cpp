#include <liburing.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <string>

#include "libffrecord/base/assert.h"
#include "libffrecord/base/event_fd.h"
#include "libffrecord/base/home_process.h"
#include "libffrecord/io/engine_support.h"
#include "libffrecord/io/io_engine.h"

namespace ffrecord {
namespace {

// Tried in this order, from the newest kernel's flags to none. DEFER_TASKRUN (6.1) runs completions
// only inside Wait(), SINGLE_ISSUER drops a lock, COOP_TASKRUN (5.19) saves interrupts. A ring that
// starts disabled is bound to the thread that enables it, the first that submits, not to the one
// that made it.
constexpr std::array<unsigned, 3> kSetupFlags{
    IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_DEFER_TASKRUN | IORING_SETUP_COOP_TASKRUN |
        IORING_SETUP_SUBMIT_ALL | IORING_SETUP_R_DISABLED,
    IORING_SETUP_COOP_TASKRUN | IORING_SETUP_SUBMIT_ALL | IORING_SETUP_R_DISABLED,
    IORING_SETUP_R_DISABLED,
};

// Without SINGLE_ISSUER and DEFER_TASKRUN, any thread may submit and wait.
constexpr std::array<unsigned, 2> kRovingSetupFlags{
    IORING_SETUP_SUBMIT_ALL | IORING_SETUP_R_DISABLED,
    IORING_SETUP_R_DISABLED,
};

// A ring may lie where one of another thread was before. liburing maps rings by system calls that
// ThreadSanitizer does not see, so this tells it that the other one has ended.
std::atomic<std::uint64_t> rings_ended{0};

Error UringError(std::string_view tried, int system_errno) {
  return Error{ErrorCode::kIo,
               "io_uring: " + std::string(tried) + ": " + strerrordesc_np(system_errno),
               system_errno};
}

void Prepare(io_uring_sqe* sqe, IoRequest& request) {
  const auto size =
      static_cast<unsigned>(std::min<std::uint64_t>(request.buffer.size(), kIoTransferMaxBytes));
  // The kernel takes offset -1 for the file's current position and refuses all other negative
  // offsets; here -1 is refused too.
  const std::uint64_t offset = std::min(request.offset_bytes, ~std::uint64_t{1});
  switch (request.kind) {
    case IoRequest::Kind::kRead:
      io_uring_prep_read(sqe, request.fd, request.buffer.data(), size, offset);
      break;
    case IoRequest::Kind::kWrite:
      io_uring_prep_write(sqe, request.fd, request.buffer.data(), size, offset);
      break;
    case IoRequest::Kind::kSync:
      io_uring_prep_fsync(sqe, request.fd, IORING_FSYNC_DATASYNC);
      break;
  }
  io_uring_sqe_set_data(sqe, &request);
}

// One ring. Submit() makes one system call; Wait() makes one unless enough requests have completed
// already.
class UringEngine final : public IoEngine {
 public:
  // `setup_flags`: the first set that the kernel knows is taken. `roves`: several threads submit.
  static Result<std::unique_ptr<IoEngine>> Make(std::uint32_t depth,
                                                std::span<const unsigned> setup_flags, bool roves);
  ~UringEngine() override;

  std::string_view name() const noexcept override { return "io_uring"; }
  Result<std::uint32_t> Submit(std::span<IoRequest* const> requests) override;
  Result<std::uint32_t> Wait(std::span<IoRequest*> done, std::uint32_t count_min,
                             std::chrono::milliseconds timeout) override;
  Result<int> EventDescriptor() override;
  std::uint32_t in_flight() const noexcept override { return in_flight_; }

 private:
  UringEngine(const io_uring& ring, std::uint32_t depth, bool roves)
      : ring_(ring), depth_(depth), roves_(roves) {}
  std::int64_t ResultOf(const IoRequest& request, std::int64_t result) const noexcept;
  std::uint32_t Reap(std::span<IoRequest*> done);
  int Enter(std::uint32_t count_min, std::chrono::nanoseconds timeout);

  io_uring ring_;
  const std::uint32_t depth_;
  const bool roves_;
  const HomeProcess home_;
  EventFd event_;  // None until somebody asks for it.
  std::uint32_t in_flight_ = 0;
  bool enabled_ = false;
  int broken_ = 0;           // The errno of a Submit() that failed for good.
  std::uint32_t stuck_ = 0;  // Counted in flight, but will never complete.
};

Result<std::unique_ptr<IoEngine>> UringEngine::Make(std::uint32_t depth,
                                                    std::span<const unsigned> setup_flags,
                                                    bool roves) {
  if (auto checked = CheckDepth(depth); !checked) return checked.error();
  io_uring ring{};
  int status = -EINVAL;
  for (std::size_t i = 0; i < setup_flags.size() && status == -EINVAL; ++i) {
    ring = {};
    status = io_uring_queue_init(depth, &ring, setup_flags[i]);
  }
  if (status < 0) return UringError("set up a ring of " + std::to_string(depth), -status);
  static_cast<void>(rings_ended.load(std::memory_order_acquire));
  std::unique_ptr<IoEngine> engine(new UringEngine(ring, depth, roves));
  // Waiting with a timeout in the same call, kernel 5.11. All operations used here are older.
  if ((ring.features & IORING_FEAT_EXT_ARG) == 0)
    return UringError("wait with a timeout (needs Linux 5.11)", ENOSYS);
  // A forked child does not get the mapping of the ring; it closes the descriptor unused.
  status = io_uring_ring_dontfork(&ring);
  if (status < 0) return UringError("keep the ring from children", -status);
  return engine;
}

UringEngine::~UringEngine() {
  if (!home_.is_here()) {
    // In a forked child the mapping does not exist, and other memory may have its addresses.
    ::close(ring_.ring_fd);
    return;
  }
  FFR_ASSERT(in_flight_ == 0);
  rings_ended.fetch_add(1, std::memory_order_release);
  io_uring_queue_exit(&ring_);
}

// Polling the ring's own descriptor would not work: with DEFER_TASKRUN, completions do not wake its
// pollers (Linux 6.18: io_req_local_work_add signals the eventfd only).
Result<int> UringEngine::EventDescriptor() {
  FFR_ASSERT(home_.is_here());
  if (event_.fd() >= 0) return event_.fd();
  auto event = FFR_TRY(EventFd::Make());
  const int status = io_uring_register_eventfd(&ring_, event.fd());
  if (status < 0) return UringError("register an eventfd", -status);
  event_ = std::move(event);
  event_.Ring();  // For requests that completed before.
  return event_.fd();
}

Result<std::uint32_t> UringEngine::Submit(std::span<IoRequest* const> requests) {
  FFR_ASSERT(home_.is_here());
  if (!enabled_) {
    // liburing 2.3 declares io_uring_enable_rings() but does not export it.
    const int status = io_uring_register(static_cast<unsigned>(ring_.ring_fd),
                                         IORING_REGISTER_ENABLE_RINGS, nullptr, 0);
    if (status < 0) return UringError("enable the ring", -status);
    enabled_ = true;
  }
  if (broken_ != 0) return UringError("submit to a ring that has failed", broken_);
  const auto count =
      static_cast<std::uint32_t>(std::min<std::size_t>(requests.size(), depth_ - in_flight_));
  for (IoRequest* request : requests.first(count)) {
    io_uring_sqe* const sqe = io_uring_get_sqe(&ring_);
    FFR_ASSERT(sqe != nullptr);
    Prepare(sqe, *request);
  }

  for (;;) {
    const int status = io_uring_submit(&ring_);
    const std::uint32_t left = io_uring_sq_ready(&ring_);
    // The kernel lacks memory now; Wait() submits the rest.
    if (left == 0 || status == -EAGAIN || status == -EBUSY || status == -ENOMEM) break;
    if (status >= 0 || status == -EINTR) continue;
    // The rest must never be submitted, because its owner gets it back now.
    broken_ = -status;
    stuck_ = left - std::min(left, count);
    if (left >= count) return UringError("submit", -status);
    in_flight_ += count - left;
    return count - left;
  }
  in_flight_ += count;
  return count;
}

// When a thread exits, the kernel ends reads of its that it has not begun to copy, so that their
// caller has to submit them again (Linux 6.18: EFAULT, or ECANCELED from its workers).
std::int64_t UringEngine::ResultOf(const IoRequest& request, std::int64_t result) const noexcept {
  const bool is_left = roves_ && (result == -EFAULT || result == -ECANCELED);
  return is_left && request.kind == IoRequest::Kind::kRead ? -EAGAIN : result;
}

// Takes what has completed, without a system call.
std::uint32_t UringEngine::Reap(std::span<IoRequest*> done) {
  std::uint32_t count = 0;
  unsigned head = 0;
  io_uring_cqe* cqe = nullptr;
  io_uring_for_each_cqe(&ring_, head, cqe) {
    if (count == done.size()) break;
    auto* request = static_cast<IoRequest*>(io_uring_cqe_get_data(cqe));
    request->result = ResultOf(*request, cqe->res);
    done[count++] = request;
  }
  io_uring_cq_advance(&ring_, count);
  in_flight_ -= count;
  return count;
}

// Submits requests that Submit() could not, runs completions, and waits for `count_min` of them.
int UringEngine::Enter(std::uint32_t count_min, std::chrono::nanoseconds timeout) {
  using std::chrono::seconds;
  __kernel_timespec time{};
  io_uring_getevents_arg argument{};
  if (timeout != Deadline::kForever) {
    time.tv_sec = std::chrono::duration_cast<seconds>(timeout).count();
    time.tv_nsec = (timeout % seconds(1)).count();
    argument.ts = reinterpret_cast<std::uintptr_t>(&time);
  }
  const unsigned waiting = broken_ == 0 ? io_uring_sq_ready(&ring_) : 0;
  return io_uring_enter2(static_cast<unsigned>(ring_.enter_ring_fd), waiting, count_min,
                         IORING_ENTER_GETEVENTS | IORING_ENTER_EXT_ARG,
                         reinterpret_cast<sigset_t*>(&argument), sizeof(argument));
}

Result<std::uint32_t> UringEngine::Wait(std::span<IoRequest*> done, std::uint32_t count_min,
                                        std::chrono::milliseconds timeout) {
  FFR_ASSERT(home_.is_here());
  FFR_ASSERT(count_min <= done.size());
  if (in_flight_ == 0) {
    if (event_.fd() >= 0) event_.Clear();
    return 0U;
  }
  if (in_flight_ == stuck_) return UringError("wait on a ring that has failed", broken_);
  const std::uint32_t wanted = std::min(count_min, in_flight_ - stuck_);
  const Deadline deadline(timeout);
  // The kernel signals only the first completion that has not been run yet. So run all of them once
  // the event is cleared.
  bool entered = event_.fd() >= 0;
  if (entered) {
    event_.Clear();
    Enter(0, {});
  }
  std::uint32_t count = Reap(done);
  while (count < wanted || (count == 0 && !entered)) {
    const auto left = deadline.left();
    if (left.count() == 0 && entered) break;
    const int status = Enter(left.count() == 0 ? 0 : wanted - count, left);
    entered = true;
    count += Reap(done.subspan(count));
    const bool passing = status >= 0 || status == -EINTR || status == -ETIME || status == -EAGAIN ||
                         status == -EBUSY || status == -ENOMEM;
    if (passing) continue;
    if (count == 0) return UringError("wait", -status);
    break;
  }
  if (event_.fd() >= 0 && io_uring_cq_ready(&ring_) > 0) event_.Ring();
  return count;
}

}  // namespace

Result<std::unique_ptr<IoEngine>> MakeUringEngine(std::uint32_t depth) {
  return UringEngine::Make(depth, kSetupFlags, false);
}

Result<std::unique_ptr<IoEngine>> MakeRovingUringEngine(std::uint32_t depth) {
  return UringEngine::Make(depth, kRovingSetupFlags, true);
}

}  // namespace ffrecord
