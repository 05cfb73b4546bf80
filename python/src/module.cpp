#include "python/src/bind.h"

// The private face of the C++ library: python/ffrecord builds the public one on top of it.
// The bound objects are immutable or guard themselves, so Python need not hold its lock for them.
PYBIND11_MODULE(_ffrecord, module, pybind11::mod_gil_not_used()) {
  using namespace ffrecord::python;
  module.doc() = "Private: use the package ffrecord.";
  module.attr("__version__") = FFRECORD_VERSION;
  BindSchema(module);
  BindBatch(module);
  BindDelegatedReads(module);
  BindRecordReader(module);
  BindBatchQueue(module);
  BindImages(module);
  BindArrays(module);
  BindBatchStream(module);
  BindRecordWriter(module);
  BindChecksums(module);
  BindCluster(module);
  BindDataset(module);
  BindVerify(module);
  BindRepair(module);
  BindPermutation(module);
  BindPlainTensors(module);
  BindExamples(module);
  BindStoredFiles(module);
  BindFileProbe(module);
  BindIoProbe(module);
  BindCheckpoint(module);
  BindCollective(module);
  BindProcess(module);
  BindRuntime(module);
  BindProfile(module);
}
