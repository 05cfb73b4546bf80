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

// A file that shrinks while it is mapped is an error of the read, not the end of the process, as
// long as our handler of SIGBUS is in place. Where somebody has replaced it without calling it, as
// torch does in its worker processes, this puts it back, in front of theirs. Not thread-safe.
FFR_EXPORT void GuardLostPagesAgain() noexcept;

}  // namespace ffrecord
