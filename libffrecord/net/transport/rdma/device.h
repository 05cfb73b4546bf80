#pragma once

#include <sys/types.h>

#include <atomic>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "libffrecord/base/event_fd.h"
#include "libffrecord/base/home_process.h"
#include "libffrecord/net/transport/rdma/rdma.h"
#include "libffrecord/net/transport/rdma/verbs.h"

namespace ffrecord::net {

class QueuePair;

// The library's handle of a device, with a thread that looks whether it is still there, and keeps
// the connections that were closed with bytes still under way: each until its peer has them all, or
// for kLingerMax.
class OpenRdmaDevice final : public RdmaDevice {
 public:
  // As RdmaDevice::Open, with these verbs.
  static Result<std::shared_ptr<RdmaDevice>> Open(const Verbs& verbs, const std::string& name,
                                                  const RdmaQos& qos);
  OpenRdmaDevice(const Verbs& verbs, ibv_context* context, RdmaPort port, const RdmaQos& qos,
                 EventFd gone, EventFd wake);
  ~OpenRdmaDevice() override;

  const RdmaPort& port() const noexcept override { return port_; }
  std::uint64_t connection_count() const noexcept override { return connection_count_; }
  bool is_gone() const noexcept override { return is_gone_; }
  bool is_active() const noexcept override { return is_active_; }
  // Readable from then on.
  int gone_fd() const noexcept { return gone_.fd(); }

  const Verbs& verbs() const noexcept { return verbs_; }
  const RdmaQos& qos() const noexcept { return qos_; }
  const ibv_device_attr& attributes() const noexcept { return attributes_; }
  // Valid while a connection is counted.
  ibv_context* context() const noexcept { return context_; }
  // False if the device is gone, and then nothing is counted.
  bool AddConnection() noexcept;
  void RemoveConnection() noexcept;

  // Takes a queue pair whose last message has been posted, and what must end after it.
  void Linger(std::unique_ptr<QueuePair> queue_pair, std::unique_ptr<Endpoint> control);

 private:
  struct Closing {
    std::unique_ptr<Endpoint> control;  // Ends last: the peer takes its end for our death.
    std::unique_ptr<QueuePair> queue_pair;
    Deadline deadline;
  };
  void RunKeeper();
  void WakeKeeper() noexcept;
  // Until something may have come, a deadline has passed, or the device is to be looked at again.
  void WaitForNews(const std::vector<Closing>& closing);
  void LookAtDevice();
  bool HasVanished();
  // Whether the keeper is done.
  bool CloseIfUnused();

  const Verbs& verbs_;
  ibv_context* context_;  // Null once it was closed.
  const RdmaPort port_;
  const RdmaQos qos_;
  ibv_device_attr attributes_{};  // All zero if they cannot be had.
  const std::string path_;        // The device's, while it is there; empty if unknown.
  const HomeProcess home_;
  std::atomic<std::uint64_t> connection_count_{0};  // Grows under mutex_ only.
  std::atomic<bool> is_gone_{false};
  std::atomic<bool> is_active_{true};

  const EventFd gone_;
  const EventFd wake_;  // Something for the keeper has changed.
  std::mutex mutex_;
  std::vector<Closing> arrived_;  // Guarded by mutex_, as is the next.
  bool ends_ = false;
  std::thread keeper_;
};

}  // namespace ffrecord::net
