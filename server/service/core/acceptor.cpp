#include "server/service/core/acceptor.h"

#include <poll.h>
#include <spdlog/spdlog.h>

#include <array>
#include <chrono>
#include <utility>

#include "libffrecord/base/foreign_fd.h"
#include "libffrecord/base/machine_identity.h"
#include "libffrecord/base/timed_waits.h"
#include "libffrecord/net/protocol/daemon_frames.h"
#include "libffrecord/net/protocol/messages.h"

namespace ffrecord::server {
namespace {

using Wanted = Server::Options::Transport;

constexpr auto kTickInterval = std::chrono::milliseconds(500);
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

Result<void> Acceptor::Open(std::uint64_t epoch) {
  stop_ = FFR_TRY(EventFd::Make());
  FFR_TRY(ListenLocally(epoch));
  return OpenRdma();
}

void Acceptor::Start(const Workers& workers, std::function<void()> tick) {
  workers_ = &workers;
  tick_ = std::move(tick);
  thread_ = std::thread([this] { Loop(); });
}

void Acceptor::Stop() {
  if (!thread_.joinable()) return;
  stop_.Ring();
  thread_.join();
}

Result<void> Acceptor::ListenLocally(std::uint64_t epoch) {
  const bool is_wanted =
      parts_.options.transport == Wanted::kAuto || parts_.options.transport == Wanted::kShm;
  if (!is_wanted) return {};
  const auto machine = MachineIdentity();
  auto local = machine ? net::LocalListener::Listen(net::LocalSocketName(epoch))
                       : Error{ErrorCode::kIo, "cannot tell this machine from others; mount /proc"};
  if (local) {
    local_listener_ = std::move(local).value();
    parts_.local_tickets = std::make_unique<LocalTickets>(*machine);
    return {};
  }
  if (parts_.options.transport == Wanted::kShm) return std::move(local).error();
  spdlog::warn("event=shm_unavailable error=\"{}\"", local.error().message);
  return {};
}

Result<void> Acceptor::OpenRdma() {
  const bool is_demanded = parts_.options.transport == Wanted::kRdma;
  if (!is_demanded && parts_.options.transport != Wanted::kAuto) return {};
  if (parts_.tls) {
    if (!is_demanded) return {};
    return Error{ErrorCode::kInvalidArgument,
                 "RDMA does not work with TLS, because it is not encrypted: leave out one of them"};
  }
  auto rails = net::RdmaRails::Open(parts_.options.rdma);
  if (!rails) {
    if (is_demanded) return std::move(rails).error();
    // That there is none is the rule, and nothing to warn of.
    spdlog::info("event=rdma_unavailable reason=\"{}\"", rails.error().message);
    return {};
  }
  parts_.rdma = std::move(rails).value();
  for (std::size_t i = 0; i < parts_.rdma->count(); ++i) LogRail((*parts_.rdma)[i].Device());
  return {};
}

void Acceptor::Loop() {
  auto next_tick = Clock::now();
  for (;;) {
    // A connection may bring descriptors that block: none while too many of those wait.
    const bool takes_local = local_listener_ && !ForeignFd::is_congested();
    const int local_fd = takes_local ? local_listener_->fd() : -1;
    std::array<pollfd, 3> waited{pollfd{stop_.fd(), POLLIN, 0},
                                 pollfd{is_paused_ ? -1 : parts_.listener.fd(), POLLIN, 0},
                                 pollfd{is_paused_ ? -1 : local_fd, POLLIN, 0}};
    const auto wait = is_paused_ ? kAcceptPause : kTickInterval;
    (void)PollFor(waited, wait);
    if (waited[0].revents != 0) return;
    if (Clock::now() >= next_tick) {
      tick_();
      RefreshTls();
      next_tick = Clock::now() + kTickInterval;
    }
    is_paused_ = false;
    if (waited[1].revents != 0) Take(parts_.listener.Accept(parts_.tls.get()));
    if (waited[2].revents != 0) Take(local_listener_->Accept());
  }
}

void Acceptor::Take(Result<std::unique_ptr<net::Endpoint>> accepted) {
  if (!accepted) {
    spdlog::warn("event=accept_failed error=\"{}\"", accepted.error().message);
    is_paused_ = true;
  } else if (!accepted.value()) {
    return;
  } else if (!parts_.connection_count.Add(parts_.options.connection_count_max)) {
    parts_.acceptor_metrics.connections_refused.Add();
    TurnAway(*accepted.value());
  } else {
    Give(std::move(accepted).value());
  }
}

void Acceptor::Give(std::unique_ptr<net::Endpoint> endpoint) {
  for (std::size_t i = 0; i < workers_->size(); ++i)
    if ((*workers_)[next_worker_++ % workers_->size()]->Adopt(endpoint)) return;
  TurnAway(*endpoint);
  parts_.connection_count.Remove();
}

void Acceptor::TurnAway(net::Endpoint& endpoint) {
  // To break its handshake off says the same.
  if (endpoint.transport() == "tls") return;
  // One frame into an empty socket: sent at once, or not at all.
  if (endpoint.Send(MakeHeader(net::FrameType::kBusy, 1), net::Busy{kRetryAfterMs}.Encode(), {}))
    (void)endpoint.Poll();
}

void Acceptor::RefreshTls() {
  if (!parts_.tls) return;
  const auto refreshed = parts_.tls->Refresh();
  parts_.acceptor_metrics.certificate_expires_s.Set(
      static_cast<std::uint64_t>(WallClock::to_time_t(parts_.tls->expires())));
  if (!refreshed)
    spdlog::error("event=tls_refused error=\"{}\"", refreshed.error().message);
  else if (refreshed.value())
    spdlog::info("event=tls_renewed certificate={}", parts_.options.tls.certificate.string());
}

}  // namespace ffrecord::server
