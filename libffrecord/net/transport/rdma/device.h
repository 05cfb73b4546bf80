#pragma once

#include <sys/types.h>

#include <atomic>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "libffrecord/base/unique_fd.h"
#include "libffrecord/net/transport/rdma/rdma.h"
#include "libffrecord/net/transport/rdma/verbs.h"

namespace ffrecord::net {

class QueuePair;

// The library's handle of a device, and the connections on it that were closed with bytes still
// under way: a thread keeps each until its peer has them all, or for kLingerMax.
class OpenRdmaDevice final : public RdmaDevice {
 public:
  OpenRdmaDevice(const Verbs& verbs, ibv_context* context, RdmaPort port);
  ~OpenRdmaDevice() override;

  const RdmaPort& port() const noexcept override { return port_; }
  std::uint64_t connection_count() const noexcept override { return connection_count_; }

  const Verbs& verbs() const noexcept { return verbs_; }
  ibv_context* context() const noexcept { return context_; }
  void AddConnection() noexcept { ++connection_count_; }
  void RemoveConnection() noexcept { --connection_count_; }

  // Takes a queue pair whose last message has been posted, and what must end after it.
  void Linger(std::unique_ptr<QueuePair> queue_pair, std::unique_ptr<Endpoint> control);

 private:
  struct Closing {
    std::unique_ptr<Endpoint> control;  // Ends last: the peer takes its end for our death.
    std::unique_ptr<QueuePair> queue_pair;
    Deadline deadline;
  };
  void RunLinger();
  void WakeLinger() noexcept;
  // Until something may have come, or the first deadline has passed.
  void WaitForClosing(const std::vector<Closing>& closing);

  const Verbs& verbs_;
  ibv_context* const context_;
  const RdmaPort port_;
  const pid_t owner_;
  std::atomic<std::uint64_t> connection_count_{0};

  const UniqueFd wake_;  // An eventfd: the next two have changed.
  std::mutex mutex_;
  std::vector<Closing> arrived_;  // Guarded by mutex_, as is the next.
  bool ends_ = false;
  std::thread linger_;  // Started by the first that lingers.
};

}  // namespace ffrecord::net
