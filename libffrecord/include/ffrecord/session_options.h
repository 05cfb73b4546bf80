#pragma once

#include <chrono>
#include <cstdint>

namespace ffrecord {

// How bytes come from a daemon. A transport in the address takes precedence:
// ffrecord://host/name?transport=shm.
enum class Transport : std::uint8_t {
  kAuto,  // The first that works: shared memory, RDMA (never with TLS), TCP.
  kShm,   // Shared memory, or an error with the reason.
  kTcp,
  kRdma,  // RDMA, or an error with the reason.
};

// How to reach a daemon.
struct SessionOptions {
  std::chrono::milliseconds timeout{30'000};  // For each call, retries included.
  Transport transport = Transport::kAuto;
  // Assume that another process, such as the parent, has reached this daemon. If nothing answers,
  // calls then wait for a restart until the timeout, instead of reporting a wrong address.
  bool assume_running = false;
};

// The daemon's port when an ffrecord:// address names none.
inline constexpr std::uint16_t kDefaultPort = 9400;

}  // namespace ffrecord
