#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>

#include <ffrecord/batch.h>
#include <ffrecord/export.h>
#include <ffrecord/result.h>

namespace ffrecord {

// Reads several batches of one RecordReader at a time, without a call that waits for each: Submit()
// begins a batch, Poll() returns those that are complete. With local files the reads of all batches
// share one ring, so that the device has work while one batch ends and the next begins.
// RecordReader::OpenQueue makes it.
//
// Any thread may call it, one at a time: calls must not overlap. (Options::one_thread: one thread.)
// The reader outlives it. In a forked child a queue of the parent's can only be destroyed; the
// child opens its own.
class FFR_EXPORT BatchQueue {
 public:
  struct Options {
    // Batches that are read at a time, 1 to 64; the others wait in the order of Submit(). With
    // their memory: a batch that is complete holds its memory until the Batch is destroyed.
    std::uint32_t batches_in_flight = 4;
    // Poll() returns batches in the order of Submit(); else in that in which they become complete.
    bool in_order = false;
    // The thread that submits first makes all calls and destroys the queue. With local files that
    // saves about a quarter of the processor's time for small records.
    bool one_thread = false;
  };

  // A batch that is complete.
  struct Completion {
    std::uint64_t token;  // As it was submitted.
    // As RecordReader::ReadBatch returns it; also kDeadlineExceeded, once the batch's time is over.
    Result<Batch> batch;
  };

  using Clock = std::chrono::steady_clock;
  static constexpr Clock::time_point kNoDeadline = Clock::time_point::max();
  static constexpr std::chrono::milliseconds kForever = std::chrono::milliseconds::max();

  BatchQueue(BatchQueue&&) noexcept;
  BatchQueue& operator=(BatchQueue&&) noexcept;
  // Cancels incomplete batches, and waits until nothing writes to their memory.
  ~BatchQueue();

  // Begins to read the records `indices`, which are copied. `token` is the caller's; two batches
  // may have the same one. Does not wait for records, nor for pages of an index that a daemon or a
  // store has, but does the work of a batch whose records are all in memory. `deadline`: then the
  // batch completes with kDeadlineExceeded, as soon as nothing writes to its memory.
  //
  // Fails with kOutOfRange, as ReadBatch, and in a forked child with kInvalidArgument; then there
  // is no batch.
  Result<void> Submit(std::span<const std::uint64_t> indices, std::uint64_t token,
                      Clock::time_point deadline = kNoDeadline);

  // Returns the next complete batch; waits for at most `timeout`. Returns nullopt after that, or at
  // once if there is no batch to wait for. Fails with kInvalidArgument in a forked child.
  Result<std::optional<Completion>> Poll(std::chrono::milliseconds timeout);

  // Drops the oldest batch with `token`: Poll() will not return it, and reads that have not begun
  // are not made. Returns false if there is no such batch, or if Poll() has returned it.
  bool Cancel(std::uint64_t token);

  // Batches that were submitted and neither returned nor cancelled.
  std::size_t size() const noexcept;

  // Memory of the batches that have begun and were not returned.
  std::uint64_t held_bytes() const noexcept;

  // A descriptor for an event loop: readable while Poll() would find something to do without
  // waiting. Call Poll(0) until it returns nothing, once after each Submit() and whenever the
  // descriptor is readable; if batches have deadlines, also at these times. The queue owns the
  // descriptor. Fails with kIo if the process has no free descriptor.
  Result<int> EventDescriptor();

  struct Impl;  // For the library's own layers.
  explicit BatchQueue(std::unique_ptr<Impl> impl) noexcept;

 private:
  std::unique_ptr<Impl> impl_;
};

}  // namespace ffrecord
