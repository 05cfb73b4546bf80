#include "server/service/core/server_impl.h"

#include <poll.h>
#include <spdlog/spdlog.h>

#include <array>

#include "libffrecord/base/foreign_fd.h"
#include "libffrecord/base/machine_identity.h"
#include "libffrecord/base/timed_waits.h"
#include "libffrecord/net/protocol/daemon_frames.h"
#include "libffrecord/net/protocol/messages.h"

namespace ffrecord::server {
namespace {

constexpr auto kCollectInterval = std::chrono::milliseconds(500);
// While descriptors are exhausted: a pause, not a spin.
constexpr auto kAcceptPause = std::chrono::milliseconds(100);
constexpr std::uint32_t kRetryAfterMs = 1000;

void LogRail(const Result<std::shared_ptr<net::RdmaDevice>>& device) {
  if (!device)
    return spdlog::warn("event=rdma_rail_unavailable error=\"{}\"", device.error().message);
  const net::RdmaPort& port = device.value()->port();
  spdlog::info("event=rdma_offered device={} port={} gid={} mtu={}", port.device, port.port,
               port.gid, port.mtu_bytes);
}

}  // namespace

Result<void> Server::Impl::ListenLocally(std::uint64_t epoch) {
  const bool is_wanted = options.transport == Options::Transport::kAuto ||
                         options.transport == Options::Transport::kShm;
  if (!is_wanted) return {};
  const auto machine = MachineIdentity();
  auto local = machine ? net::LocalListener::Listen(net::LocalSocketName(epoch))
                       : Error{ErrorCode::kIo, "cannot tell this machine from others; mount /proc"};
  if (local) {
    local_listener = std::move(local).value();
    local_tickets = std::make_unique<LocalTickets>(*machine);
    return {};
  }
  if (options.transport == Options::Transport::kShm) return std::move(local).error();
  spdlog::warn("event=shm_unavailable error=\"{}\"", local.error().message);
  return {};
}

Result<void> Server::Impl::OpenRdma() {
  const bool is_demanded = options.transport == Options::Transport::kRdma;
  if (!is_demanded && options.transport != Options::Transport::kAuto) return {};
  if (tls) {
    if (!is_demanded) return {};
    return Error{ErrorCode::kInvalidArgument,
                 "RDMA does not work with TLS, because it is not encrypted: leave out one of them"};
  }
  auto rails = net::RdmaRails::Open(options.rdma);
  if (!rails) {
    if (is_demanded) return std::move(rails).error();
    // That there is none is the rule, and nothing to warn of.
    spdlog::info("event=rdma_unavailable reason=\"{}\"", rails.error().message);
    return {};
  }
  rdma = std::move(rails).value();
  for (std::size_t i = 0; i < rdma->count(); ++i) LogRail((*rdma)[i].Device());
  return {};
}

void Server::Impl::Accept() {
  auto next_collect = Clock::now();
  for (;;) {
    // A connection may bring descriptors that block: none while too many of those wait.
    const bool takes_local = local_listener && !ForeignFd::is_congested();
    const int local_fd = takes_local ? local_listener->fd() : -1;
    std::array<pollfd, 3> waited{pollfd{stop_accepting.fd(), POLLIN, 0},
                                 pollfd{is_paused ? -1 : listener.fd(), POLLIN, 0},
                                 pollfd{is_paused ? -1 : local_fd, POLLIN, 0}};
    const auto wait = is_paused ? kAcceptPause : kCollectInterval;
    (void)PollFor(waited, wait);
    if (waited[0].revents != 0) return;
    if (Clock::now() >= next_collect) {
      Collect();
      RefreshTls();
      next_collect = Clock::now() + kCollectInterval;
    }
    is_paused = false;
    if (waited[1].revents != 0) Take(listener.Accept(tls.get()));
    if (waited[2].revents != 0) Take(local_listener->Accept());
  }
}

void Server::Impl::Take(Result<std::unique_ptr<net::Endpoint>> accepted) {
  if (!accepted) {
    spdlog::warn("event=accept_failed error=\"{}\"", accepted.error().message);
    is_paused = true;
  } else if (!accepted.value()) {
    return;
  } else if (!connection_count.Add(options.connection_count_max)) {
    acceptor_metrics.connections_refused.Add();
    TurnAway(*accepted.value());
  } else {
    Give(std::move(accepted).value());
  }
}

void Server::Impl::Give(std::unique_ptr<net::Endpoint> endpoint) {
  for (std::size_t i = 0; i < workers.size(); ++i)
    if (workers[next_worker++ % workers.size()]->Adopt(endpoint)) return;
  TurnAway(*endpoint);
  connection_count.Remove();
}

void Server::Impl::TurnAway(net::Endpoint& endpoint) {
  // To break its handshake off says the same.
  if (endpoint.transport() == "tls") return;
  // One frame into an empty socket: sent at once, or not at all.
  if (endpoint.Send(MakeHeader(net::FrameType::kBusy, 1), net::Busy{kRetryAfterMs}.Encode(), {}))
    (void)endpoint.Poll();
}

void Server::Impl::RefreshTls() {
  if (!tls) return;
  const auto refreshed = tls->Refresh();
  acceptor_metrics.certificate_expires_s.Set(
      static_cast<std::uint64_t>(WallClock::to_time_t(tls->expires())));
  if (!refreshed)
    spdlog::error("event=tls_refused error=\"{}\"", refreshed.error().message);
  else if (refreshed.value())
    spdlog::info("event=tls_renewed certificate={}", options.tls.certificate.string());
}

}  // namespace ffrecord::server
