#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include <ffrecord/verify.h>

#include "python/src/bind.h"
#include "python/src/errors.h"

namespace ffrecord::python {
namespace {

py::dict Verify(const std::string& path, const py::object& progress) {
  // What the callback or a signal handler raises breaks the check off, and is raised afterwards.
  std::optional<py::error_already_set> raised;
  const std::function<bool(std::uint64_t, std::uint64_t)> observe = [&](std::uint64_t done_bytes,
                                                                        std::uint64_t total_bytes) {
    const py::gil_scoped_acquire acquire;
    try {
      if (PyErr_CheckSignals() != 0) throw py::error_already_set();
      if (!progress.is_none()) progress(done_bytes, total_bytes);
      return true;
    } catch (py::error_already_set& error) {
      raised.emplace(error);
      return false;
    }
  };
  auto result = WithoutGil([&] { return VerifyFile(path, observe); });
  if (raised) throw std::move(*raised);
  const VerifyReport report = ValueOrRaise(std::move(result));
  py::dict facts;
  facts["format_version"] = report.format_version;
  facts["record_count"] = report.record_count;
  facts["bad_record_count"] = report.bad_record_count;
  facts["size_bytes"] = report.file_size_bytes;
  facts["problem_count"] = report.problem_count;
  facts["problems"] = report.problems;
  return facts;
}

}  // namespace

void BindVerify(py::module_& module) {
  module.def("verify_file", &Verify, py::arg("path"), py::kw_only(),
             py::arg("progress") = py::none());
}

}  // namespace ffrecord::python
