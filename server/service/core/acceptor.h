#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <thread>
#include <vector>

#include <ffrecord/result.h>

#include "libffrecord/base/event_fd.h"
#include "libffrecord/net/transport/endpoint.h"
#include "server/service/core/server_parts.h"
#include "server/service/core/worker.h"

namespace ffrecord::server {

// Takes a daemon's connections, over TCP or TLS and over the local socket, and gives them to its
// workers in turn; keeps its certificate fresh.
//
// Open, Start and Stop belong to the server's thread; between Start and Stop all else runs on the
// acceptor's own. Owns that thread and the local socket.
class Acceptor {
 public:
  using Workers = std::vector<std::unique_ptr<Worker>>;

  // `parts` outlives this.
  explicit Acceptor(ServerParts& parts) : parts_(parts) {}
  Acceptor(const Acceptor&) = delete;
  Acceptor& operator=(const Acceptor&) = delete;
  ~Acceptor() { Stop(); }

  // Listens on the local socket, and opens the adapters for RDMA, as the options want it. Fails if
  // they demand what is not to be had. `epoch` is the daemon's.
  Result<void> Open(std::uint64_t epoch);
  bool is_local_open() const noexcept { return local_listener_.has_value(); }
  // Looks whether there is a newer certificate. Before Start, and then on the acceptor's thread.
  void RefreshTls();

  // Takes connections for `workers`, which outlive this, until Stop; calls `tick` now and then.
  void Start(const Workers& workers, std::function<void()> tick);
  void Stop();  // Idempotent.

 private:
  Result<void> ListenLocally(std::uint64_t epoch);
  Result<void> OpenRdma();
  void Loop();
  void Take(Result<std::unique_ptr<net::Endpoint>> accepted);
  void Give(std::unique_ptr<net::Endpoint> endpoint);
  void TurnAway(net::Endpoint& endpoint);

  ServerParts& parts_;
  std::optional<net::LocalListener> local_listener_;
  EventFd stop_;
  const Workers* workers_ = nullptr;
  std::function<void()> tick_;
  std::size_t next_worker_ = 0;
  bool is_paused_ = false;  // Descriptors are exhausted.
  std::thread thread_;      // Last: it uses all the others.
};

}  // namespace ffrecord::server
