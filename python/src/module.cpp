#include "python/src/bind.h"

// The private face of the C++ library: python/ffrecord builds the public one on top of it.
PYBIND11_MODULE(_ffrecord, module) {
  using namespace ffrecord::python;
  module.doc() = "Private: use the package ffrecord.";
  BindSchema(module);
  BindBatch(module);
  BindRecordReader(module);
  BindRecordWriter(module);
  BindDataset(module);
  BindVerify(module);
  BindPermutation(module);
  BindIoProbe(module);
  BindCheckpoint(module);
  BindCollective(module);
}
