#pragma once

#include <cstddef>
#include <cstdint>
#include <mutex>
#include <span>
#include <vector>

#include "server/service/read_ahead/read_ahead.h"

namespace ffrecord::server {

// One worker's way to the ReadAhead, which never waits for others that use it: what cannot be said
// at once is said the next time. Thread-bound.
class ReadAheadPort {
 public:
  // Beyond so much that was not said, it waits: nothing holds the ReadAhead for so long.
  static constexpr std::size_t kUnsaidMax = 65'536;

  explicit ReadAheadPort(ReadAhead& read_ahead) : read_ahead_(read_ahead) {}

  bool has_plans() const noexcept { return read_ahead_.has_plans(); }
  bool has_work() const noexcept { return read_ahead_.has_work(); }

  // As those of ReadAhead. Next() gives nothing while others are at it.
  void Take(std::span<const ReadAhead::Wanted> wanted);
  void Finish(const ReadAhead::Finished& finished);
  std::vector<ReadAhead::Run> Next(std::uint64_t bytes_max, std::size_t count_max,
                                   std::span<const Disk* const> full);
  // Passes on what was not passed on yet, unless another thread holds the lock; to be called now
  // and then.
  void Say();

 private:
  // Requires the lock of the ReadAhead.
  void SayAll();

  ReadAhead& read_ahead_;
  std::vector<ReadAhead::Wanted> wanted_;
  std::vector<ReadAhead::Finished> finished_;
};

}  // namespace ffrecord::server
