#include <ffrecord/io_probe.h>

#include "python/src/bind.h"

namespace ffrecord::python {

void BindIoProbe(py::module_& module) {
  module.def("probe_io_engine", [] {
    const IoEngineChoice choice = WithoutGil([] { return ProbeIoEngine(); });
    return py::make_tuple(choice.name, choice.reason);
  });
}

}  // namespace ffrecord::python
