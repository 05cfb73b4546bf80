#include <ffrecord/client/rdma_probe.h>

#include "libffrecord/net/transport/rdma/rdma.h"

namespace ffrecord {

RdmaFindings ProbeRdma() {
  const net::RdmaFindings found = net::ProbeRdma();
  RdmaFindings findings{found.why_absent, {}, found.memory_lock_limit_bytes};
  for (const net::RdmaPort& port : found.ports)
    findings.ports.push_back({port.device, port.port, port.gid, port.mtu_bytes, port.why_skipped});
  return findings;
}

}  // namespace ffrecord
