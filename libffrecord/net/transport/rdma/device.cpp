#include "libffrecord/net/transport/rdma/device.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <poll.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <optional>
#include <system_error>
#include <utility>

#include "libffrecord/base/event_fd.h"
#include "libffrecord/base/timed_waits.h"
#include "libffrecord/net/transport/rdma/queue_pair.h"

namespace ffrecord::net {
namespace {

constexpr auto kLingerMax = std::chrono::seconds(2);
// How often a device is looked for whose driver says nothing when it goes.
constexpr auto kLookEvery = std::chrono::seconds(1);

bool IsMappedIpv4(const ibv_gid& gid) {
  constexpr std::array<std::uint8_t, 12> kPrefix{0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xFF, 0xFF};
  return std::equal(kPrefix.begin(), kPrefix.end(), gid.raw);
}

std::string Text(const ibv_gid& gid) {
  std::array<char, INET6_ADDRSTRLEN> text{};
  const bool is_ipv4 = IsMappedIpv4(gid);
  ::inet_ntop(is_ipv4 ? AF_INET : AF_INET6, gid.raw + (is_ipv4 ? 12 : 0), text.data(), text.size());
  return text.data();
}

// The first RoCE version 2 address that stands for an IPv4 one; else the first of that version.
std::optional<ibv_gid_entry> ChooseGid(const Verbs& verbs, ibv_context* context, std::uint8_t port,
                                       int count) {
  std::optional<ibv_gid_entry> chosen;
  for (int i = 0; i < count; ++i) {
    ibv_gid_entry entry{};
    if (verbs.query_gid(context, port, static_cast<std::uint32_t>(i), &entry, 0, sizeof(entry)) !=
            0 ||
        entry.gid_type != IBV_GID_TYPE_ROCE_V2)
      continue;
    if (IsMappedIpv4(entry.gid)) return entry;
    if (!chosen) chosen = entry;
  }
  return chosen;
}

RdmaPort LookAtPort(const Verbs& verbs, ibv_context* context, std::string device,
                    std::uint8_t number) {
  RdmaPort port{.device = std::move(device), .port = number, .gid = {}, .why_skipped = {}};
  ibv_port_attr attributes{};
  const int failed = verbs.query_port_begin(context, number,
                                            reinterpret_cast<_compat_ibv_port_attr*>(&attributes));
  if (failed != 0) {
    port.why_skipped = std::string("its state cannot be read: ") + std::strerror(failed);
    return port;
  }
  port.mtu_bytes = 128U << attributes.active_mtu;
  if (attributes.state != IBV_PORT_ACTIVE) {
    port.why_skipped = "it is not active: bring its network link up";
  } else if (attributes.link_layer != IBV_LINK_LAYER_ETHERNET) {
    port.why_skipped = "its link is InfiniBand; only RoCE version 2 is spoken";
  } else if (const auto gid = ChooseGid(verbs, context, number, attributes.gid_tbl_len)) {
    port.gid_index = gid->gid_index;
    port.gid = Text(gid->gid);
  } else {
    port.why_skipped = "it has no RoCE version 2 address: give its network link an IP address";
  }
  return port;
}

// Whether `name` names this port: with its device, or its number too, or none at all.
bool IsNamed(const RdmaPort& port, const std::string& name) {
  return name.empty() || name == port.device ||
         name == port.device + ":" + std::to_string(port.port);
}

// Calls `visit(context, port)` for each port that `wanted` names, if it is not empty, or with a
// null context for a device that cannot be opened, until it returns true: then the context is the
// visitor's.
template <class Visit>
Result<void> VisitPorts(const Verbs& verbs, const std::string& wanted, const Visit& visit) {
  int count = 0;
  ibv_device** const list = verbs.get_device_list(&count);
  if (list == nullptr)
    return Error{ErrorCode::kUnavailable, std::string("the kernel lists no RDMA devices: ") +
                                              std::strerror(errno) + "; load the module ib_uverbs"};
  const std::unique_ptr<ibv_device*, decltype(verbs.free_device_list)> owned(
      list, verbs.free_device_list);
  for (int i = 0; i < count; ++i) {
    const std::string name = verbs.get_device_name(list[i]);
    if (!wanted.empty() && name != wanted.substr(0, wanted.find(':'))) continue;
    ibv_context* const context = verbs.open_device(list[i]);
    if (context == nullptr) {
      const std::string why = std::string("it cannot be opened: ") + std::strerror(errno) +
                              "; this user needs /dev/infiniband/uverbs*";
      visit(nullptr, RdmaPort{.device = name, .gid = {}, .why_skipped = why});
      continue;
    }
    ibv_device_attr attributes{};
    if (verbs.query_device(context, &attributes) != 0) attributes.phys_port_cnt = 0;
    bool is_taken = false;
    for (unsigned number = 1; number <= attributes.phys_port_cnt && !is_taken; ++number) {
      RdmaPort port = LookAtPort(verbs, context, name, static_cast<std::uint8_t>(number));
      is_taken = IsNamed(port, wanted) && visit(context, std::move(port));
    }
    if (is_taken) return {};
    verbs.close_device(context);
  }
  return {};
}

}  // namespace

RdmaFindings ProbeRdma() {
  RdmaFindings findings;
  rlimit limit{};
  ::getrlimit(RLIMIT_MEMLOCK, &limit);
  findings.memory_lock_limit_bytes = limit.rlim_cur;
  const auto verbs = LoadVerbs();
  if (!verbs) {
    findings.why_absent = verbs.error().message;
    return findings;
  }
  const auto visited = VisitPorts(*verbs.value(), "", [&](ibv_context*, RdmaPort port) {
    findings.ports.push_back(std::move(port));
    return false;
  });
  if (!visited) findings.why_absent = visited.error().message;
  return findings;
}

Result<std::shared_ptr<RdmaDevice>> RdmaDevice::Open(const std::string& name, const RdmaQos& qos) {
  return OpenRdmaDevice::Open(*FFR_TRY(LoadVerbs()), name, qos);
}

Result<std::shared_ptr<RdmaDevice>> OpenRdmaDevice::Open(const Verbs& verbs,
                                                         const std::string& name,
                                                         const RdmaQos& qos) {
  EventFd gone = FFR_TRY(EventFd::Make());
  EventFd wake = FFR_TRY(EventFd::Make());
  std::shared_ptr<RdmaDevice> opened;
  std::string skipped;
  bool has_threads = true;
  FFR_TRY(VisitPorts(verbs, name, [&](ibv_context* context, RdmaPort port) {
    if (!has_threads) return false;
    if (!port.why_skipped.empty()) {
      skipped +=
          "; " + port.device + " port " + std::to_string(port.port) + ": " + port.why_skipped;
      return false;
    }
    try {
      opened = std::make_shared<OpenRdmaDevice>(verbs, context, std::move(port), qos,
                                                std::move(gone), std::move(wake));
    } catch (const std::system_error&) {
      has_threads = false;
    }
    return has_threads;
  }));
  if (opened) return opened;
  if (!has_threads)
    return Error{ErrorCode::kIo, "cannot open an RDMA device: the system has no thread to give",
                 EAGAIN};
  return Error{ErrorCode::kUnavailable,
               (name.empty() ? std::string("no RDMA device can be used")
                             : "the RDMA device " + name + " cannot be used") +
                   (skipped.empty() ? "; none is there" : skipped)};
}

OpenRdmaDevice::OpenRdmaDevice(const Verbs& verbs, ibv_context* context, RdmaPort port,
                               const RdmaQos& qos, EventFd gone, EventFd wake)
    : verbs_(verbs),
      context_(context),
      port_(std::move(port)),
      qos_(qos),
      path_(::access(context->device->dev_path, F_OK) == 0 ? context->device->dev_path : ""),
      gone_(std::move(gone)),
      wake_(std::move(wake)) {
  if (verbs_.query_device(context_, &attributes_) != 0) attributes_ = {};
  ::fcntl(context_->async_fd, F_SETFL, ::fcntl(context_->async_fd, F_GETFL) | O_NONBLOCK);
  keeper_ = std::thread([this] { RunKeeper(); });
}

OpenRdmaDevice::~OpenRdmaDevice() {
  if (!home_.is_here()) {  // The thread is not in this process, the device not ours to close.
    keeper_.detach();
    return;
  }
  {
    const std::lock_guard lock(mutex_);
    ends_ = true;
  }
  WakeKeeper();
  keeper_.join();
  if (context_ != nullptr) verbs_.close_device(context_);
}

bool OpenRdmaDevice::AddConnection() noexcept {
  const std::lock_guard lock(mutex_);
  if (is_gone_) return false;
  ++connection_count_;
  return true;
}

void OpenRdmaDevice::RemoveConnection() noexcept {
  --connection_count_;
  if (is_gone_) WakeKeeper();
}

void OpenRdmaDevice::Linger(std::unique_ptr<QueuePair> queue_pair,
                            std::unique_ptr<Endpoint> control) {
  const std::lock_guard lock(mutex_);
  arrived_.push_back({std::move(control), std::move(queue_pair), Clock::now() + kLingerMax});
  WakeKeeper();
}

// --- The keeper ----------------------------------------------------------------------------------

void OpenRdmaDevice::WakeKeeper() noexcept { wake_.Ring(); }

void OpenRdmaDevice::WaitForNews(const std::vector<Closing>& closing) {
  std::vector<pollfd> waited{{wake_.fd(), POLLIN, 0}};
  // Once it is gone its events are of no use, and may never end.
  if (!is_gone_) waited.push_back({context_->async_fd, POLLIN, 0});
  Deadline first = Clock::now() + (is_gone_ ? std::chrono::hours(1) : kLookEvery);
  for (const Closing& one : closing) {
    waited.push_back({one.queue_pair->event_fd(), POLLIN, 0});
    first = std::min(first, one.deadline);
  }
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(first - Clock::now());
  (void)PollFor(waited, left);
  wake_.Clear();
}

// Drivers that can do without their users tell them; the others, soft-RoCE among them, only take
// the way to the device away, and wait.
bool OpenRdmaDevice::HasVanished() {
  bool is_fatal = false;
  ibv_async_event event{};
  while (verbs_.get_async_event(context_, &event) == 0) {
    is_fatal = is_fatal || event.event_type == IBV_EVENT_DEVICE_FATAL;
    const bool is_ours = event.element.port_num == port_.port;
    if (is_ours && event.event_type == IBV_EVENT_PORT_ACTIVE) is_active_ = true;
    if (is_ours && event.event_type == IBV_EVENT_PORT_ERR) is_active_ = false;
    verbs_.ack_async_event(&event);
  }
  return is_fatal || (!path_.empty() && ::access(path_.c_str(), F_OK) != 0 && errno == ENOENT);
}

void OpenRdmaDevice::LookAtDevice() {
  if (is_gone_ || !HasVanished()) return;
  {
    const std::lock_guard lock(mutex_);
    is_gone_ = true;
  }
  gone_.Ring();
}

bool OpenRdmaDevice::CloseIfUnused() {
  const std::lock_guard lock(mutex_);
  if (is_gone_ && connection_count_ == 0) {
    verbs_.close_device(std::exchange(context_, nullptr));
    return true;
  }
  return ends_ && arrived_.empty();
}

void OpenRdmaDevice::RunKeeper() {
  std::vector<Closing> closing;
  for (;;) {
    {
      const std::lock_guard lock(mutex_);
      std::ranges::move(arrived_, std::back_inserter(closing));
      arrived_.clear();
    }
    LookAtDevice();
    const auto now = Clock::now();
    std::erase_if(closing, [&](const Closing& one) {
      // Asked for first, so that what comes while it is looked at ends the wait.
      one.queue_pair->TakeEvents();
      one.queue_pair->AskForSent();
      return is_gone_ || one.queue_pair->HasSentAll() || now >= one.deadline;
    });
    if (closing.empty() && CloseIfUnused()) return;
    WaitForNews(closing);  // Changes since then have rung.
  }
}

}  // namespace ffrecord::net
