#pragma once

#include <string>

#include <ffrecord/export.h>

namespace ffrecord {

// How this process reads and writes files, and why so; for people.
struct IoEngineChoice {
  std::string name;    // "io_uring" or "threads".
  std::string reason;  // If it is "threads": what the kernel or the build refused.
};

// Tries what reads try. Makes and drops an engine; keeps nothing. Thread-safe.
FFR_EXPORT IoEngineChoice ProbeIoEngine();

}  // namespace ffrecord
