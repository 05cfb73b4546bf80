#pragma once

#include <atomic>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "libffrecord/net/protocol/rdma_messages.h"
#include "libffrecord/net/transport/endpoint.h"

namespace ffrecord::net {

// A port of an RDMA device, as it is now.
struct RdmaPort {
  std::string device;  // "mlx5_0"
  std::uint8_t port = 0;
  std::uint32_t gid_index = 0;
  std::string gid;  // "10.0.0.1" where it stands for an IPv4 address, else as IPv6.
  std::uint32_t mtu_bytes = 0;
  std::string why_skipped;  // Empty for a port that can be used; the fields before may be unset.
};

// This machine's devices and library for RDMA.
struct RdmaFindings {
  std::string why_absent;       // Empty if the library is there and lists its devices.
  std::vector<RdmaPort> ports;  // Devices and ports in the library's order.
  std::uint64_t memory_lock_limit_bytes = 0;  // UINT64_MAX: none.
};
RdmaFindings ProbeRdma();

// The QoS that the network gives to what a process sends.
struct RdmaQos {
  std::uint8_t traffic_class = 0;  // Byte of the IP header: six bits of DSCP, two of ECN.
  std::uint8_t service_level = 0;  // 0 to 15. With RoCE, the priority in a VLAN tag.

  static constexpr std::uint8_t kServiceLevelMax = 15;
  auto operator<=>(const RdmaQos&) const = default;
};

// One opened port, for any number of connections; each keeps it open.
//
// Devices are taken away: by a driver that resets them, or by hand. Its connections then break,
// with kUnavailable, within about a second; with the last of them the device is closed, which some
// drivers wait for.
//
// libibverbs is loaded when it is first asked for, so that programs run on machines without it.
// Thread-safe. Not inherited: of what a connection holds, a forked child frees nothing.
class RdmaDevice {
 public:
  // The first port that can be used of all, of the device called `name`, or that port of it which
  // has its number behind the name, as "mlx5_0:2". Fails with kUnavailable, naming each port and
  // why it was skipped.
  static Result<std::shared_ptr<RdmaDevice>> Open(const std::string& name = {},
                                                  const RdmaQos& qos = {});
  virtual ~RdmaDevice() = default;

  virtual const RdmaPort& port() const noexcept = 0;
  // Connections that still hold a queue pair: open ones, and those whose last bytes are under way.
  virtual std::uint64_t connection_count() const noexcept = 0;
  // Taken away, for good: should it come back, it is to be opened anew.
  virtual bool is_gone() const noexcept = 0;
  // False while its network link is down.
  virtual bool is_active() const noexcept = 0;
};

// One end of a connection in the making: a queue pair with its receive buffers ready.
//
// Both ends Make() one and tell each other own() over a connection they have, the control;
// Connect() then gives the endpoint ("rdma"). The end that connects waits for the other's own(),
// which comes only after that one's Connect(); until the first word from it that end sends nothing.
// The end that connects may Expose() memory, the other may not.
class RdmaLink {
 public:
  enum class Side : std::uint8_t { kConnects, kAccepts };

  // Fails with kIo, naming the remedy, if memory may not be locked or the device has no room.
  static Result<std::unique_ptr<RdmaLink>> Make(std::shared_ptr<RdmaDevice> device, Side side);
  virtual ~RdmaLink() = default;

  virtual const RdmaConnect& own() const noexcept = 0;
  // The endpoint takes `control`, on which nothing more may be said: its end is the only sign of a
  // peer that died. Fails with kUnavailable if the peer cannot be reached this way, and then takes
  // nothing. To be called once.
  virtual Result<std::unique_ptr<Endpoint>> Connect(const RdmaConnect& peer,
                                                    std::unique_ptr<Endpoint>& control) = 0;
};

// The links of one process, on one device: opened when it is first wanted, and anew once it fails,
// for devices come and go. Thread-safe; not for a forked child.
class RdmaLinks {
 public:
  // On what RdmaDevice::Open takes for `name`.
  explicit RdmaLinks(std::string name = {}, const RdmaQos& qos = {})
      : name_(std::move(name)), qos_(qos) {}

  // Fails as RdmaDevice::Open and RdmaLink::Make, and with kUnavailable while its link is down.
  Result<std::unique_ptr<RdmaLink>> Make(RdmaLink::Side side);
  // Fails as RdmaDevice::Open.
  Result<std::shared_ptr<RdmaDevice>> Device();

 private:
  const std::string name_;
  const RdmaQos qos_;
  std::mutex mutex_;
  std::shared_ptr<RdmaDevice> device_;
};

// A process's settings of its RDMA devices.
struct RdmaOptions {
  // As RdmaDevice::Open takes them, at most kDeviceCountMax; none: all ports that can be used.
  std::vector<std::string> devices = {};
  RdmaQos qos = {};

  static constexpr std::size_t kDeviceCountMax = 64;
  // Parses a list of devices such as "mlx5_0,mlx5_1:2". Fails with kInvalidArgument.
  static Result<std::vector<std::string>> ParseDevices(std::string_view text);
  auto operator<=>(const RdmaOptions&) const = default;
};

// The devices of one process, its rails: each connection goes over one of them. Thread-safe; not
// for a forked child.
class RdmaRails {
 public:
  // Those that can be used now, if `options` name none. Fails with kUnavailable, naming each and
  // why it is none, if there is none that can be used.
  static Result<std::unique_ptr<RdmaRails>> Open(const RdmaOptions& options);

  std::size_t count() const noexcept { return rails_.size(); }
  RdmaLinks& operator[](std::size_t rail) { return rails_[rail]; }

  // As AcceptRdma, over the rail from whose address this machine reaches the peer's; else, or if
  // that fails, over the others in turn.
  Result<std::unique_ptr<Endpoint>> Accept(std::unique_ptr<Endpoint>& control);

 private:
  RdmaRails() = default;
  // In the order in which they are tried.
  std::vector<RdmaLinks*> OrderFor(const RdmaConnect& peer);

  std::deque<RdmaLinks> rails_;
  std::atomic<std::size_t> next_{0};
};

// Takes up a link when `control` has just returned RDMA_CONNECT, and replies; waits for nothing. On
// failure `control` is as it was, and the caller says so on it. A body that is malformed is
// kCorruption.
Result<std::unique_ptr<Endpoint>> AcceptRdma(RdmaLink& link, std::unique_ptr<Endpoint>& control);

}  // namespace ffrecord::net
