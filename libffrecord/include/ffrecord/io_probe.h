#pragma once

#include <string>

#include <ffrecord/export.h>

namespace ffrecord {

// The I/O engine of this process and the reason for it; for people.
struct IoEngineChoice {
  std::string name;    // "io_uring" or "threads".
  std::string reason;  // If it is "threads": what the kernel or the build refused.
};

// Creates an engine as reads do, and destroys it. Thread-safe.
FFR_EXPORT IoEngineChoice ProbeIoEngine();

// Reinstalls our SIGBUS handler in front of the current one. While our handler is installed, a read
// of a mapped file that shrinks fails with an error and does not end the process. Call this after
// other code has replaced the handler without calling it, as torch does in its worker processes.
// Not thread-safe.
FFR_EXPORT void RestoreSigbusGuard() noexcept;

}  // namespace ffrecord
