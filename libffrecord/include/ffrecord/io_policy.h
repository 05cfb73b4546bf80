#pragma once

#include <cstdint>

namespace ffrecord {

// How local files are read.
enum class IoPolicy : std::uint8_t {
  kBuffered = 0,  // Through the page cache: best when the data fits in memory.
  kDirect = 1,    // O_DIRECT, straight into the batch: best for data that is read once.
                  // Falls back to buffered, file by file, if the file system refuses O_DIRECT.
  kAuto = 2,      // The page cache first. Reads of missing data are buffered if all files together
                  // fill at most half of the memory that was free when they were opened, so that
                  // the next epoch finds them there. Otherwise they are direct, because the files
                  // would evict each other.
};

}  // namespace ffrecord
