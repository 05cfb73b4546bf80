#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <ffrecord/export.h>

namespace ffrecord {

// The current state of one port of an RDMA device.
struct RdmaPortFindings {
  std::string device;
  std::uint8_t port = 0;        // Counts from 1; 0 for a device that cannot be opened.
  std::string address;          // Network address by which peers reach the port.
  std::uint32_t mtu_bytes = 0;  // Largest RDMA packet: at most 4096.
  std::string why_skipped;      // Empty if usable; otherwise other fields may be unset.
};

// The RDMA support of this machine; for people.
struct RdmaFindings {
  std::string why_absent;  // Empty if libibverbs is present and lists devices.
  std::vector<RdmaPortFindings> ports;
  std::uint64_t memory_lock_limit_bytes = 0;  // UINT64_MAX: none.
};

// Loads libibverbs if present and examines every port; keeps no device open. Thread-safe.
FFR_EXPORT RdmaFindings ProbeRdma();

}  // namespace ffrecord
