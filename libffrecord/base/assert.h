#pragma once

#include <cstdio>
#include <cstdlib>

namespace ffrecord {

[[noreturn]] inline void AssertionFailed(const char* condition, const char* file, int line) {
  std::fprintf(stderr, "ffrecord: assertion failed: %s at %s:%d\n", condition, file, line);
  std::abort();
}

}  // namespace ffrecord

// For our own mistakes only, never for input from files, peers or callers. Stays on in release.
#define FFR_ASSERT(condition) \
  ((condition) ? static_cast<void>(0) : ::ffrecord::AssertionFailed(#condition, __FILE__, __LINE__))
