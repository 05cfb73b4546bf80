#include <string>
#include <utility>

#include <ffrecord/verify.h>

#include "python/src/bind.h"
#include "python/src/errors.h"
#include "python/src/observer.h"

namespace ffrecord::python {
namespace {

py::dict Verify(const std::string& path, const py::object& progress) {
  Observer observer(progress);
  auto result = WithoutGil([&] { return VerifyFile(path, observer.function()); });
  observer.RaiseWhatWasRaised();
  const VerifyReport report = ValueOrRaise(std::move(result));
  py::dict facts;
  facts["format_version"] = report.format_version;
  facts["record_count"] = report.record_count;
  facts["bad_record_count"] = report.bad_record_count;
  facts["size_bytes"] = report.file_size_bytes;
  facts["problem_count"] = report.problem_count;
  facts["problems"] = TextsOf(report.problems);
  return facts;
}

}  // namespace

void BindVerify(py::module_& module) {
  module.def("verify_file", &Verify, py::arg("path"), py::kw_only(),
             py::arg("progress") = py::none());
}

}  // namespace ffrecord::python
