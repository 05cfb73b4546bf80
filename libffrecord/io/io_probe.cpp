#include <ffrecord/io_probe.h>

#include "libffrecord/io/io_engine.h"

namespace ffrecord {

IoEngineChoice ProbeIoEngine() {
  constexpr std::uint32_t kDepth = 8;
  const auto engine = MakeUringEngine(kDepth);
  if (engine) return {"io_uring", "the kernel allows it"};
  return {"threads", engine.error().message};
}

}  // namespace ffrecord
