#include <cerrno>

#include "libffrecord/io/io_engine.h"

namespace ffrecord {

Result<std::unique_ptr<IoEngine>> MakeUringEngine(std::uint32_t /*depth*/) {
  return Error{ErrorCode::kIo,
               "this build has no io_uring: install liburing-dev, then configure with "
               "-Dio_uring=enabled",
               ENOSYS};
}

Result<std::unique_ptr<IoEngine>> MakeRovingUringEngine(std::uint32_t depth) {
  return MakeUringEngine(depth);
}

}  // namespace ffrecord
