#pragma once

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <utility>

#include <ffrecord/result.h>

// Helpers that benchmark programs share. A failure ends the program with a message: there is no
// figure then.
namespace ffrecord::bench {

[[noreturn]] inline void Fail(const std::string& message) {
  std::fprintf(stderr, "benchmark: %s\n", message.c_str());
  std::exit(4);
}

template <class T>
T ValueOrFail(Result<T> result) {
  if (!result) Fail(result.error().message);
  return std::move(result).value();
}

inline void Check(const Result<void>& result) {
  if (!result) Fail(result.error().message);
}

using Clock = std::chrono::steady_clock;

inline double SecondsSince(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

}  // namespace ffrecord::bench
