#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <functional>

namespace ffrecord {

// Work in pieces that the thread it belongs to does together with workers: threads of one small
// pool of the process, as far as they are free. Without any of them all is done all the same.
//
// Pieces are numbered from 0 and become ready in that order; each is done once, by any thread, in
// any order. Worth its while for pieces of some tens of microseconds. The pool starts its threads
// as work comes, as many as the process may use processors less one, at most kWorkerCountMax; a
// forked child has a pool of its own, and after exit() has begun there are no workers.
//
// Thread-bound; lives on the stack of its thread. Destroyed, it waits for the pieces that have been
// begun and drops the rest.
class SharedWork {
 public:
  static constexpr std::uint32_t kWorkerCountMax = 63;

  // Does a piece, on any thread. `slot` tells those apart who work at the same time: 0 is this
  // work's thread, workers have 1 to worker_count(). The caller sees its changes when Finish()
  // returns.
  using DoPiece = std::function<void(std::size_t piece, std::uint32_t slot)>;

  // At most `worker_count_max` workers at a time. `do_piece` must not throw.
  SharedWork(std::uint32_t worker_count_max, DoPiece do_piece);
  SharedWork(const SharedWork&) = delete;
  SharedWork& operator=(const SharedWork&) = delete;
  ~SharedWork();

  // Workers at a time there can be here; 0 on a machine of one processor.
  std::uint32_t worker_count() const noexcept { return worker_count_; }

  // The pieces below `count` are ready; `count` never falls. If more are waiting than workers will
  // get to soon, does one of them here.
  void Ready(std::size_t count);

  // Does what is left, together with those who help, until all that is ready is done.
  void Finish();

 private:
  friend class WorkerPool;
  void WaitForWorkers();

  const DoPiece do_piece_;
  const std::uint32_t worker_count_;
  // Guarded by the pool's mutex.
  bool offered_ = false;          // To workers.
  std::size_t ready_ = 0;         // Pieces that may be begun,
  std::size_t begun_ = 0;         // and those that were.
  std::uint64_t slots_ = 0;       // Bit i: the worker of slot i is at work.
  std::condition_variable left_;  // By the last worker.
};

}  // namespace ffrecord
