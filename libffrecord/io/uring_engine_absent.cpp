#include <cerrno>

#include "libffrecord/io/io_engine.h"

namespace ffrecord {

Result<std::unique_ptr<IoEngine>> MakeUringEngine(std::uint32_t /*depth*/) {
  return Error{ErrorCode::kIo, "io_uring: this build has none; build with liburing", ENOSYS};
}

Result<std::unique_ptr<IoEngine>> MakeRovingUringEngine(std::uint32_t depth) {
  return MakeUringEngine(depth);
}

}  // namespace ffrecord
