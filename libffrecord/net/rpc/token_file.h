#pragma once

#include <sys/stat.h>

#include <cstddef>
#include <cstdint>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include <ffrecord/result.h>

#include "libffrecord/base/clock.h"

namespace ffrecord::net {

// The file of a token that somebody may replace at any time: by one that holds longer, or by one
// with other rights. `path` is the same in all calls, as Location has it; empty: there is no token.
//
// Thread-safe.
class TokenFile {
 public:
  struct Token {
    std::vector<std::byte> bytes;  // Empty: none.
    std::uint64_t number = 0;      // Counts the tokens that the file has held.
  };
  // The token of this moment. Fails with kInvalidArgument, naming the file, if it holds none, and
  // as OpenReadOnly.
  Result<Token> Read(const std::string& path);
  // Its number. Cheap: the file is read only if it may have changed. While it cannot be read, the
  // number of the last token stays.
  std::uint64_t Number(const std::string& path);

 private:
  bool IsUnchanged(const std::string& path) const;  // Requires the mutex.

  std::mutex mutex_;
  Token last_;
  // Status of the file when it was read; none: it was not.
  std::optional<struct stat> status_;
  WallClock::time_point read_at_{};
};

}  // namespace ffrecord::net
