#include <ffrecord/file_probe.h>

#include <chrono>
#include <cmath>
#include <string>

#include "python/src/bind.h"
#include "python/src/errors.h"

namespace ffrecord::python {
namespace {

double Microseconds(std::chrono::nanoseconds time) {
  return std::chrono::duration<double, std::micro>(time).count();
}

py::dict DictOf(const ReadRate& rate) {
  py::dict dict;
  dict["direct"] = rate.is_direct;
  dict["random"] = rate.is_random;
  dict["block_bytes"] = rate.block_bytes;
  dict["depth"] = rate.depth;
  dict["reads"] = rate.read_count;
  dict["read_bytes"] = rate.read_bytes;
  dict["cached_bytes"] = rate.cached_bytes;
  dict["duration_s"] = std::chrono::duration<double>(rate.duration).count();
  dict["latency_median_us"] = Microseconds(rate.latency_median);
  dict["latency_p99_us"] = Microseconds(rate.latency_p99);
  return dict;
}

py::dict Probe(const py::bytes& path, double seconds, std::uint64_t read_bytes_max) {
  const FileProbeOptions options{std::chrono::milliseconds(std::llround(seconds * 1000)),
                                 read_bytes_max};
  const FileFindings found =
      ValueOrRaise(WithoutGil([&, name = std::string(path)] { return ProbeFile(name, options); }));
  py::dict dict;
  dict["size_bytes"] = found.size_bytes;
  dict["direct_memory_alignment_bytes"] = found.direct_memory_alignment_bytes;
  dict["direct_offset_alignment_bytes"] = found.direct_offset_alignment_bytes;
  dict["why_not_direct"] = found.why_not_direct;
  dict["resident_share"] = found.resident_share;
  dict["kept_share"] = found.kept_share;
  py::list rates;
  for (const ReadRate& rate : found.rates) rates.append(DictOf(rate));
  dict["rates"] = rates;
  return dict;
}

}  // namespace

void BindFileProbe(py::module_& module) {
  module.def("probe_file", &Probe, py::arg("path"), py::kw_only(), py::arg("seconds"),
             py::arg("read_bytes_max"));
}

}  // namespace ffrecord::python
