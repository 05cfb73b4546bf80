#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

#include "libffrecord/base/unique_fd.h"
#include "libffrecord/net/protocol/messages.h"
#include "libffrecord/net/transport/rdma/rdma.h"

namespace ffrecord::net {
namespace {

// The address from which this machine reaches `gid`, as RdmaPort has it; empty if there is no way.
std::string SourceFor(const std::array<std::byte, 16>& gid) {
  in6_addr whole{};
  std::memcpy(&whole, gid.data(), gid.size());
  const bool is_ipv4 = IN6_IS_ADDR_V4MAPPED(&whole);
  const int family = is_ipv4 ? AF_INET : AF_INET6;
  sockaddr_in short_form{};
  sockaddr_in6 long_form{};
  short_form.sin_family = AF_INET;
  long_form.sin6_family = AF_INET6;
  short_form.sin_port = long_form.sin6_port = htons(4791);  // The port of RoCE; nothing is sent.
  std::memcpy(&short_form.sin_addr, gid.data() + 12, sizeof(short_form.sin_addr));
  long_form.sin6_addr = whole;
  auto* const address =
      is_ipv4 ? reinterpret_cast<sockaddr*>(&short_form) : reinterpret_cast<sockaddr*>(&long_form);
  socklen_t size = is_ipv4 ? sizeof(short_form) : sizeof(long_form);

  const UniqueFd socket(::socket(family, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  if (::connect(socket.get(), address, size) != 0 ||
      ::getsockname(socket.get(), address, &size) != 0)
    return {};
  std::array<char, INET6_ADDRSTRLEN> text{};
  const void* const own = is_ipv4 ? static_cast<const void*>(&short_form.sin_addr)
                                  : static_cast<const void*>(&long_form.sin6_addr);
  ::inet_ntop(family, own, text.data(), text.size());
  return text.data();
}

}  // namespace

Result<std::shared_ptr<RdmaDevice>> RdmaLinks::Device() {
  const std::lock_guard lock(mutex_);
  if (!device_ || device_->is_gone()) device_ = FFR_TRY(RdmaDevice::Open(name_, qos_));
  return device_;
}

Result<std::unique_ptr<RdmaLink>> RdmaLinks::Make(RdmaLink::Side side) {
  const auto device = FFR_TRY(Device());
  if (!device->is_active())
    return Error{ErrorCode::kUnavailable, "the RDMA device " + device->port().device +
                                              " is not active: bring its network link up"};
  if (auto link = RdmaLink::Make(device, side)) return link;
  {
    // Perhaps it was taken away, and another has come in its place.
    const std::lock_guard lock(mutex_);
    if (device_ == device) device_.reset();
  }
  return RdmaLink::Make(FFR_TRY(Device()), side);
}

Result<std::vector<std::string>> RdmaOptions::ParseDevices(std::string_view text) {
  std::vector<std::string> devices;
  std::string_view rest = text;
  for (bool is_more = !rest.empty(); is_more;) {
    const std::size_t comma = rest.find(',');
    devices.emplace_back(rest.substr(0, comma));
    is_more = comma != std::string_view::npos;
    if (is_more) rest.remove_prefix(comma + 1);
    const bool is_new = std::ranges::count(devices, devices.back()) == 1;
    if (devices.back().empty() || !is_new || devices.size() > kDeviceCountMax)
      return Error{ErrorCode::kInvalidArgument,
                   "rdma_devices: must be a list like mlx5_0,mlx4_0:2, each once and at most " +
                       std::to_string(kDeviceCountMax) + ", not '" + std::string(text) + "'"};
  }
  return devices;
}

Result<std::unique_ptr<RdmaRails>> RdmaRails::Open(const RdmaOptions& options) {
  std::unique_ptr<RdmaRails> made(new RdmaRails);
  std::vector<std::string> names = options.devices;
  if (names.empty())
    for (const RdmaPort& port : ProbeRdma().ports)
      if (port.why_skipped.empty()) names.push_back(port.device + ":" + std::to_string(port.port));
  if (names.empty()) names.emplace_back();  // Any, which says why there is none.
  for (const std::string& name : names) made->rails_.emplace_back(name, options.qos);
  std::string why;
  for (RdmaLinks& rail : made->rails_) {
    const auto device = rail.Device();
    if (device) return made;
    why += (why.empty() ? "" : "; ") + device.error().message;
  }
  return Error{ErrorCode::kUnavailable, why};
}

std::vector<RdmaLinks*> RdmaRails::OrderFor(const RdmaConnect& peer) {
  const std::size_t first = next_++;
  std::vector<RdmaLinks*> order;
  for (std::size_t i = 0; i < count(); ++i) order.push_back(&rails_[(first + i) % count()]);
  if (count() == 1) return order;
  const std::string source = SourceFor(peer.gid);
  std::stable_partition(order.begin(), order.end(), [&](RdmaLinks* rail) {
    const auto device = rail->Device();
    return device && device.value()->port().gid == source;
  });
  return order;
}

Result<std::unique_ptr<Endpoint>> RdmaRails::Accept(std::unique_ptr<Endpoint>& control) {
  const RdmaConnect peer = FFR_TRY(RdmaConnect::Decode(control->body()));
  Error last{ErrorCode::kUnavailable, ""};
  for (RdmaLinks* const rail : OrderFor(peer)) {
    const auto link = rail->Make(RdmaLink::Side::kAccepts);
    auto accepted = link ? AcceptRdma(*link.value(), control) : link.error();
    if (accepted) return accepted;
    const std::string before = last.message.empty() ? "" : last.message + "; ";
    last = std::move(accepted).error();
    last.message = before + last.message;
  }
  return last;
}

Result<std::unique_ptr<Endpoint>> AcceptRdma(RdmaLink& link, std::unique_ptr<Endpoint>& control) {
  const RdmaConnect peer = FFR_TRY(RdmaConnect::Decode(control->body()));
  const FrameHeader reply{.type = ReplyTo(FrameType::kRdmaConnect),
                          .request_id = control->header().request_id};
  Endpoint& replies = *control;
  auto endpoint = FFR_TRY(link.Connect(peer, control));
  // Only now may the other end speak: everything is ready for it. The endpoint watches its control,
  // and so finds out what goes wrong here.
  (void)replies.Send(reply, link.own().Encode(), {});
  (void)replies.Poll();
  return endpoint;
}

}  // namespace ffrecord::net
