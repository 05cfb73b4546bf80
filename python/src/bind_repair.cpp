#include <string>
#include <utility>

#include <ffrecord/repair.h>

#include "python/src/bind.h"
#include "python/src/errors.h"
#include "python/src/observer.h"

namespace ffrecord::python {
namespace {

py::dict Repair(const std::string& source, const std::string& destination, bool replace,
                const py::object& progress) {
  Observer observer(progress);
  const RepairOptions options{.replace = replace, .progress = observer.function()};
  auto result = WithoutGil([&] { return RepairFile(source, destination, options); });
  observer.RaiseWhatWasRaised();
  const RepairReport report = ValueOrRaise(std::move(result));
  py::list lost;
  for (const IndexRange& range : report.lost) lost.append(py::make_tuple(range.begin, range.end));
  py::dict facts;
  facts["format_version"] = report.format_version;
  facts["kept_count"] = report.kept_count;
  facts["lost_count"] = report.lost_count;
  facts["lost"] = lost;
  facts["record_count_is_known"] = report.record_count_is_known;
  facts["skipped_bytes"] = report.skipped_bytes;
  facts["kept_parts"] = report.kept_parts;
  facts["rebuilt_parts"] = report.rebuilt_parts;
  facts["other_losses"] = TextsOf(report.other_losses);
  facts["kept_key_count"] = report.kept_key_count;
  facts["lost_key_count"] = report.lost_key_count;
  facts["size_bytes"] = report.file_size_bytes;
  facts["fingerprint"] = Bytes(report.fingerprint);
  return facts;
}

}  // namespace

void BindRepair(py::module_& module) {
  module.def("repair_file", &Repair, py::arg("source"), py::arg("destination"), py::kw_only(),
             py::arg("replace") = false, py::arg("progress") = py::none());
}

}  // namespace ffrecord::python
