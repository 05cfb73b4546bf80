// Chosen when the library's headers were not there at build time.
#include <sys/resource.h>

#include "libffrecord/net/transport/rdma/rdma.h"

namespace ffrecord::net {
namespace {

constexpr const char* kAbsent =
    "this build has no RDMA: install libibverbs-dev, then configure with -Drdma=enabled";

}  // namespace

RdmaFindings ProbeRdma() {
  rlimit limit{};
  ::getrlimit(RLIMIT_MEMLOCK, &limit);
  return {.why_absent = kAbsent, .ports = {}, .memory_lock_limit_bytes = limit.rlim_cur};
}

Result<std::shared_ptr<RdmaDevice>> RdmaDevice::Open(const std::string&, const RdmaQos&) {
  return Error{ErrorCode::kUnavailable, kAbsent};
}

Result<std::unique_ptr<RdmaLink>> RdmaLink::Make(std::shared_ptr<RdmaDevice>, Side) {
  return Error{ErrorCode::kUnavailable, kAbsent};
}

}  // namespace ffrecord::net
