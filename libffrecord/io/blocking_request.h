#pragma once

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>

#include "libffrecord/io/io_engine.h"

namespace ffrecord {

// Runs one request to its result on the calling thread, which waits for it.
inline void RunBlocking(IoRequest& request) {
  const auto size = std::min<std::uint64_t>(request.buffer.size(), kIoTransferMaxBytes);
  const auto offset = static_cast<off_t>(request.offset_bytes);
  std::int64_t moved = -1;
  switch (request.kind) {
    case IoRequest::Kind::kRead:
      moved = ::pread(request.fd, request.buffer.data(), size, offset);
      break;
    case IoRequest::Kind::kWrite:
      moved = ::pwrite(request.fd, request.buffer.data(), size, offset);
      break;
    case IoRequest::Kind::kSync:
      moved = ::fdatasync(request.fd);
      break;
  }
  request.result = moved < 0 ? -errno : moved;
}

}  // namespace ffrecord
