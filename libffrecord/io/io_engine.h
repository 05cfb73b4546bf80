#pragma once

#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string_view>

#include <ffrecord/result.h>

#include "libffrecord/base/patience.h"

namespace ffrecord {

// The most that one request moves; RunAll cuts what is larger.
inline constexpr std::uint64_t kIoTransferMaxBytes = std::uint64_t{1} << 30;

// A timeout for Wait() that never passes.
inline constexpr std::chrono::milliseconds kIoForever = std::chrono::milliseconds::max();

// One operation. The caller owns it, and keeps it and its buffer in place until Wait() returns it.
struct IoRequest {
  enum class Kind : std::uint8_t { kRead, kWrite, kSync };  // kSync is fdatasync; no buffer.
  Kind kind = Kind::kRead;
  int fd = -1;
  std::uint64_t offset_bytes = 0;  // With O_DIRECT a multiple of the file's direct alignment.
  std::span<std::byte> buffer;     // Borrowed. The same rule for its address and size.
  std::int64_t result = 0;         // Set by the engine: bytes moved, perhaps too few, or -errno.
  void* user = nullptr;            // The caller's own.
};

// Moves bytes between files and memory, many requests at a time.
//
// Thread-bound from its first Submit() on, and bound to the process that made it: after fork the
// child makes its own, and may only destroy what it inherited, which the parent does not notice.
// Submit() never blocks and nothing is ever called back: results come out of Wait(), so a caller's
// state changes only where it asks. Destroyed only when nothing is in flight (asserted).
class IoEngine {
 public:
  virtual ~IoEngine() = default;

  // "io_uring", "threads", "inline" or "faulty".
  virtual std::string_view name() const noexcept = 0;

  // Takes requests from the front while there is room and returns how many. Fewer than given is
  // back-pressure, not failure: Wait(), then submit the rest. Moves at most kIoTransferMaxBytes of
  // a request. If it fails, it has taken none.
  virtual Result<std::uint32_t> Submit(std::span<IoRequest* const> requests) = 0;

  // Blocks until `count_min` requests are done, all that are in flight if those are fewer, or
  // `timeout` has passed. Fills `done` from the front with as many as fit and returns how many.
  // Requires count_min <= done.size(). Fails only if the kernel no longer lets us ask.
  virtual Result<std::uint32_t> Wait(std::span<IoRequest*> done, std::uint32_t count_min,
                                     std::chrono::milliseconds timeout) = 0;

  // A descriptor that is readable while Wait() can return requests without waiting. It may be
  // readable once too often, until a Wait() finds nothing. The engine owns it. Fails with kIo if
  // there is none to be had.
  virtual Result<int> EventDescriptor() {
    return Error{ErrorCode::kIo, "I/O engine: it has no descriptor to wait for", ENOTSUP};
  }

  // Requests taken and not yet returned by Wait().
  virtual std::uint32_t in_flight() const noexcept = 0;
};

// An engine of its own kind, with room for `depth` requests in flight (1 to 4096). MakeUringEngine
// fails with kIo if the kernel or the container refuses io_uring; the other always works.
Result<std::unique_ptr<IoEngine>> MakeUringEngine(std::uint32_t depth);
Result<std::unique_ptr<IoEngine>> MakeThreadsEngine(std::uint32_t depth);

// An engine that is bound to no thread, as long as no two calls overlap: for owners that another
// thread may destroy. It costs interrupts that the engine of MakeUringEngine avoids. A read whose
// thread has exited may end with -EAGAIN.
Result<std::unique_ptr<IoEngine>> MakeRovingUringEngine(std::uint32_t depth);

// An engine that runs each request in Submit(), which then blocks: for writes through the page
// cache, which are copies of memory. A ring would hand such writes to kernel threads, one at a time
// for each file, which is no faster and has more ways to fail.
Result<std::unique_ptr<IoEngine>> MakeInlineEngine(std::uint32_t depth);

// io_uring where it is allowed, else threads. If io_uring is refused, the process does not try
// again; if there are no descriptors or memory for one more ring, only this engine uses threads.
// FFRECORD_IO_ENGINE=threads in the environment is not read here: only server/config reads the
// environment; tests choose by calling the maker they want.
Result<std::unique_ptr<IoEngine>> MakeIoEngine(std::uint32_t depth);
// The same, bound to no thread.
Result<std::unique_ptr<IoEngine>> MakeRovingIoEngine(std::uint32_t depth);

// The calling thread's engine, made at first use and anew in a forked child. Never destroyed while
// requests are in flight. Has room for `depth` requests (1 to 4096) or more; one with less room is
// replaced, which ends what earlier calls of this thread returned.
inline constexpr std::uint32_t kThreadEngineDepth = 256;
Result<IoEngine*> ThreadIoEngine(std::uint32_t depth = kThreadEngineDepth);

// Runs all `requests` to their end on `engine`, which has nothing in flight: submits under
// back-pressure, continues short transfers, retries EINTR and EAGAIN. At most `depth` in flight. On
// return each request's result is its whole size, fewer bytes only where a read met the end of the
// file, or -errno; nothing else in it has changed. Fails as a whole, with nothing in flight, only
// if the engine itself fails.
//
// `ended`, if given, is called on this thread for each request as soon as its result is set, in any
// order, while others are in flight: what came from the page cache is then still in the processor's
// cache. It must not use the engine.
//
// Once `patience`, if given, is over, no more is submitted, what is in flight is waited for, and it
// fails with kDeadlineExceeded.
Result<void> RunAll(IoEngine& engine, std::span<IoRequest> requests, std::uint32_t depth,
                    const std::function<void(IoRequest&)>& ended = {},
                    Patience* patience = nullptr);

}  // namespace ffrecord
