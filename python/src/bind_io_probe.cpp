#include <ffrecord/client/features.h>
#include <ffrecord/client/rdma_probe.h>
#include <ffrecord/io_probe.h>
#include <ffrecord/memory.h>

#include "python/src/bind.h"

namespace ffrecord::python {

void BindIoProbe(py::module_& module) {
  module.def("probe_io_engine", [] {
    const IoEngineChoice choice = WithoutGil([] { return ProbeIoEngine(); });
    return py::make_tuple(choice.name, choice.reason);
  });
  module.def("probe_rdma", [] {
    const RdmaFindings findings = WithoutGil([] { return ProbeRdma(); });
    py::list ports;
    for (const RdmaPortFindings& port : findings.ports)
      ports.append(
          py::make_tuple(port.device, port.port, port.address, port.mtu_bytes, port.why_skipped));
    return py::make_tuple(findings.why_absent, ports);
  });
  module.def("memory_room", [] {
    const MemoryRoom room = GetMemoryRoom();
    return py::make_tuple(room.free_bytes, room.limit_bytes);
  });
  module.def("memory_cap_bytes", [] { return GetMemoryUse().cap_bytes; });
  module.def("why_no_tls", &WhyNoTls);
  module.def("why_no_object_stores", [] { return WithoutGil([] { return WhyNoObjectStores(); }); });
  module.def("restore_sigbus_guard", &RestoreSigbusGuard);
}

}  // namespace ffrecord::python
