#include "libffrecord/net/rpc/connector.h"

#include <algorithm>
#include <chrono>
#include <utility>
#include <vector>

#include "libffrecord/base/hex.h"
#include "libffrecord/base/machine_identity.h"
#include "libffrecord/net/rpc/location.h"
#include "libffrecord/net/transport/tls/tls.h"

namespace ffrecord::net {
namespace {

using std::chrono_literals::operator""ms;

// How long a daemon that breaks a handshake off is left alone: there was no room for a frame.
constexpr auto kTurnedAwayFor = 1000ms;
// And one that is not the node that was meant: it answers, and will go on doing so.
constexpr auto kStrangerFor = 1000ms;
// How long a connection over RDMA may take to be made, where there is another way.
constexpr auto kRailMax = 5000ms;

Result<std::unique_ptr<Connection>> Greeted(Result<std::unique_ptr<Channel>> channel) {
  if (!channel) return std::move(channel).error();
  return std::make_unique<Connection>(std::move(*channel.value()));
}

}  // namespace

Connector::Connector(Address address, Transport transport, std::string tls_folder, RdmaOptions rdma,
                     std::optional<NodeIdentity> node)
    : address_(std::move(address)),
      transport_(transport),
      tls_folder_(std::move(tls_folder)),
      rdma_(std::move(rdma)),
      node_(std::move(node)),
      peer_(std::string(Location::kScheme) + address_.ToString()) {}

Connector::Made Connector::ConnectRemotely(Deadline deadline, std::span<const std::byte> token,
                                           RetryAfter& busy) const {
  auto made = FFR_TRY(Greet(deadline, token, busy));
  auto checked = CheckIdentity(*made);
  if (checked) return made;
  busy = kStrangerFor;
  return std::move(checked).error();
}

Result<void> Connector::CheckIdentity(const Channel& channel) const {
  if (!node_) return {};
  const HelloReply& hello = channel.hello();
  if (hello.identity == node_) return {};
  const auto wrong = [&](const std::string& who, const char* remedy) {
    return Error{ErrorCode::kUnavailable, peer_ + " is " + who + ", at the address of node " +
                                              node_->node + " of cluster " + Hex(node_->cluster) +
                                              "; " + remedy};
  };
  if (hello.identity && hello.identity->cluster == ClusterId{})
    return wrong("node " + hello.identity->node + ", which has not found its cluster yet",
                 "its `status` says why");
  if (hello.identity)
    return wrong("node " + hello.identity->node + " of cluster " + Hex(hello.identity->cluster),
                 "correct `advertise` of one of the two, or stop the one that is not yours");
  if ((hello.capabilities & kCapabilityCluster) != 0) return {};  // A daemon of an earlier version.
  return wrong("a daemon of no cluster", "stop it, or start it with the settings of the node");
}

Connector::Made Connector::Greet(Deadline deadline, std::span<const std::byte> token,
                                 RetryAfter& busy) const {
  if (tls_folder_.empty()) return Greeted(Channel::Connect(address_, deadline, token, &busy));
  // Read each time: certificates are renewed as tokens are, by new files in place of the old ones.
  const auto tls = FFR_TRY(TlsContext::Load(TlsContext::Side::kClient, TlsFiles::In(tls_folder_)));
  bool is_turned_away = false;
  auto endpoint = ConnectTls(address_, *tls, deadline, &is_turned_away);
  if (is_turned_away) busy = kTurnedAwayFor;
  if (!endpoint) return std::move(endpoint).error();
  return Greeted(Channel::Open(std::move(endpoint).value(), deadline, token, &busy));
}

// The daemon is the process that has the TCP port: only it knows where its local socket is, and
// turns the connection into one over RDMA.
Result<Connector::Connected> Connector::Connect(std::span<const std::byte> token, Rails& rails,
                                                Deadline deadline, RetryAfter& busy) const {
  auto tcp = FFR_TRY(ConnectRemotely(deadline, token, busy));
  const std::string cipher = tls_folder_.empty() ? "" : tcp->cipher();
  const auto and_cipher = [&](const char* separator) {
    return cipher.empty() ? std::string() : separator + cipher;
  };
  const std::string transport(tcp->transport());
  if (transport_ == Transport::kTcp)
    return Connected{std::move(tcp), {transport, "asked for" + and_cipher(", ")}};

  std::string why;
  if (transport_ != Transport::kRdma) {
    auto local = ConnectLocally(*tcp, deadline, busy);
    if (local)
      return Connected{
          std::move(local).value(),
          {"shm", transport_ == Transport::kShm ? "asked for" : "the daemon is on this machine"}};
    // There is room for one of us less: that says nothing about shared memory.
    if (busy) return std::move(local).error();
    why = "no shared memory: " + local.error().message;
    if (transport_ == Transport::kShm)
      return DemandFailed(*tcp, std::move(local).error(), "run the client on the daemon's machine",
                          deadline);
  }
  auto over = GoOverRdma(tcp, rails, deadline, token, busy);
  if (over) return Connected{std::move(tcp), std::move(over).value()};
  if (transport_ == Transport::kRdma)
    return DemandFailed(*tcp, std::move(over).error(), "ffrecord doctor rdma shows what is there",
                        deadline);
  if ((tcp->hello().capabilities & kCapabilityRdma) != 0)
    why += "; no RDMA: " + over.error().message;
  if (!tcp->reusable()) tcp = FFR_TRY(ConnectRemotely(deadline, token, busy));
  return Connected{std::move(tcp), {transport, why + and_cipher("; ")}};
}

Result<Connector::Link> Connector::GoOverRdma(std::unique_ptr<Connection>& tcp, Rails& rails,
                                              Deadline deadline, std::span<const std::byte> token,
                                              RetryAfter& busy) const {
  if (!tls_folder_.empty())
    return Error{ErrorCode::kInvalidArgument, "it is not encrypted, and the address requires TLS"};
  if ((tcp->hello().capabilities & kCapabilityRdma) == 0)
    return Error{ErrorCode::kUnavailable, "the daemon does not offer it"};
  const bool is_demanded = transport_ == Transport::kRdma;
  const auto order = FFR_TRY(rails.Order(rdma_, /*all=*/is_demanded));
  Result<Link> over = Link{};
  for (const std::size_t rail : order) {
    if (!tcp->reusable()) tcp = FFR_TRY(ConnectRemotely(deadline, token, busy));
    // Where there is another way, one that reaches nobody may not use up the caller's time.
    const bool is_only_way = is_demanded && rail == order.back();
    const Deadline end = is_only_way ? deadline : std::min(deadline, Clock::now() + kRailMax);
    over = TakeRail(*tcp, rails, rail, end);
    if (over) {
      rails.Worked(rail);
      return over;
    }
    rails.Failed(rail);
    if (Clock::now() >= deadline) return over;
  }
  return over;
}

Result<Connector::Link> Connector::TakeRail(Connection& tcp, Rails& rails, std::size_t rail,
                                            Deadline deadline) const {
  RdmaLinks& links = rails.links(rail);
  FFR_TRY(tcp.UseRail(links, rail, deadline));
  // Exposes the first slab, so that a limit of locked memory is an error here and not in the first
  // read.
  FFR_TRY(tcp.ExposeSlab(deadline));
  const auto device = links.Device();
  return Link{"rdma", (transport_ == Transport::kRdma ? "asked for" : "both ends support it") +
                          (device ? ", " + device.value()->port().device + " (" +
                                        device.value()->port().gid + ")"
                                  : "")};
}

// Only of a daemon that still answers can it be said that it does not give the transport. One that
// was killed, stopped or cut off meanwhile is another matter, and its connection may look whole.
Error Connector::DemandFailed(Connection& tcp, Error why, std::string_view remedy,
                              Deadline deadline) const {
  if (why.code == ErrorCode::kDeadlineExceeded || !tcp.reusable()) return why;
  if (auto ping = tcp.Call(FrameType::kPing, {}, {}, deadline, "an answer to PING"); !ping)
    return std::move(ping).error();
  return CannotBeHad(why.message, remedy);
}

Error Connector::CannotBeHad(const std::string& why, std::string_view remedy) const {
  return {ErrorCode::kInvalidArgument,
          "transport=" + std::string(NameOf(transport_)) + " was asked for, and " + peer_ +
              " does not give it: " + why + "; " + std::string(remedy) +
              ", or leave the transport to auto"};
}

// `tcp` stays open meanwhile: what was offered on it is good for so long. Where the daemon does not
// run, the name of its socket is anybody's.
Connector::Made Connector::ConnectLocally(const Connection& tcp, Deadline deadline,
                                          RetryAfter& busy) const {
  const HelloReply& greeted = tcp.hello();
  if (!tcp.has_local_peer())
    return Error{ErrorCode::kUnavailable, "the daemon is on another machine"};
  if (!greeted.local) return Error{ErrorCode::kUnavailable, "the daemon does not offer it"};
  if (MachineIdentity() != greeted.local->machine)
    return Error{ErrorCode::kUnavailable,
                 "the daemon is on another machine, or in another network namespace"};
  auto local = FFR_TRY(ConnectLocal(LocalSocketName(greeted.epoch), address_.ToString(), deadline));
  return Greeted(Channel::OpenLocal(std::move(local), *greeted.local, deadline, &busy));
}

}  // namespace ffrecord::net
