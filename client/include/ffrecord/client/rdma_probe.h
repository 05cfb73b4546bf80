#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <ffrecord/export.h>

namespace ffrecord {

// A port of an RDMA device, as it is now.
struct RdmaPortFindings {
  std::string device;
  std::uint8_t port = 0;        // Counted from 1; 0 for a device that cannot be opened.
  std::string address;          // Of the network link, by which peers reach it.
  std::uint32_t mtu_bytes = 0;  // Of an RDMA packet: at most 4096.
  std::string why_skipped;      // Empty: it can be used. Else the fields before may be unset.
};

// What this machine has for RDMA; for people.
struct RdmaFindings {
  std::string why_absent;  // Empty if there is a library that lists devices.
  std::vector<RdmaPortFindings> ports;
  std::uint64_t memory_lock_limit_bytes = 0;  // UINT64_MAX: none.
};

// Loads libibverbs if it is there and looks at every port; keeps no device open. Thread-safe.
FFR_EXPORT RdmaFindings ProbeRdma();

}  // namespace ffrecord
