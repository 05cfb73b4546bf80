#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include <ffrecord/client/checkpoint.h>

#include "python/src/bind.h"
#include "python/src/buffer_view.h"
#include "python/src/errors.h"

namespace ffrecord::python {
namespace {

py::bytes BlockChecksums(const py::object& data, std::size_t block_bytes, std::uint64_t first) {
  if (block_bytes == 0)
    Raise({ErrorCode::kInvalidArgument, "block_bytes is 0; it must be at least 1"});
  const BufferView view(data);
  const std::vector<std::uint64_t> sums =
      WithoutGil([&] { return client::BlockChecksums(view.bytes(), block_bytes, first); });
  return Bytes(std::as_bytes(std::span(sums)));  // Little-endian, as the machine.
}

}  // namespace

void BindChecksums(py::module_& module) {
  module.def("block_checksums", &BlockChecksums, py::arg("data"), py::arg("block_bytes"),
             py::arg("first"));
}

}  // namespace ffrecord::python
