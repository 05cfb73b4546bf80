#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <vector>

#include "server/service/cluster/node_extents.h"
#include "server/service/cluster/task_threads.h"

namespace ffrecord::server {

// Removes the files of dropped extents, or takes the extents back while the metadata is frozen. A
// disk that hangs keeps its own extents; no other disk waits for it.
//
// Threads: a thread for each disk removes files; Trust() and Sweep() belong to the node's thread,
// and wait for no disk. Ownership: ClusterService owns it; it borrows the extents.
class ExtentSweepers {
 public:
  // `post`: runs a task on the thread that writes to this node's disk; that thread stops before
  // this is gone.
  ExtentSweepers(NodeExtents& extents, std::function<void(TaskThreads::Task)> post);
  ~ExtentSweepers() { Stop(); }
  ExtentSweepers(const ExtentSweepers&) = delete;
  ExtentSweepers& operator=(const ExtentSweepers&) = delete;
  void Stop();  // Waits for what is being removed.

  // Whether the machines trust the metadata. While they do not, nothing more is removed.
  void Trust(bool is_trusted) noexcept { is_trusted_ = is_trusted; }
  // Begins with what was dropped and is not being removed. `is_frozen`: nothing may be removed, as
  // the metadata was put back to an older state; then dropped extents are extents of the node
  // again.
  void Sweep(bool is_frozen);

 private:
  struct Sweeper {
    explicit Sweeper(const Disk* of) : disk(of) {}
    const Disk* const disk;  // Null: of extents on no disk.
    std::atomic<bool> is_running{false};
    TaskThreads thread{1};
  };
  void TakeBack();

  NodeExtents& extents_;
  const std::function<void(TaskThreads::Task)> post_;
  std::atomic<bool> is_taking_back_{false};
  std::atomic<bool> is_trusted_{false};
  std::vector<std::unique_ptr<Sweeper>> sweepers_;
};

}  // namespace ffrecord::server
