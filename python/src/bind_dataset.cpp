#include <pybind11/functional.h>

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include <ffrecord/client/dataset.h>

#include "python/src/bind.h"
#include "python/src/errors.h"
#include "python/src/time_limit.h"

namespace ffrecord::python {
namespace {

void Publish(const std::vector<std::string>& files, const std::string& address, bool replace,
             bool from_origin, const std::optional<std::string>& copy_to,
             const std::string& durability, TimeLimit timeout, const py::object& progress) {
  const std::vector<std::filesystem::path> paths(files.begin(), files.end());
  // An exception of the callback waits until the upload has ended: none may cross the library.
  std::optional<py::error_already_set> raised;
  std::function<void(std::uint64_t, std::uint64_t)> observe;
  if (!progress.is_none())
    observe = [&](std::uint64_t done_bytes, std::uint64_t total_bytes) {
      const GilAcquired acquired;
      if (raised) return;
      try {
        progress(done_bytes, total_bytes);
      } catch (py::error_already_set& error) {
        raised.emplace(error);
      }
    };
  const auto result = WithoutGil([&] {
    const auto options = SessionOptionsOf(timeout);
    if (copy_to)
      return client::PublishThroughOrigin(paths, *copy_to, address, replace, options, observe);
    return from_origin
               ? client::PublishFromOrigin(files, address, replace, options, observe)
               : client::PublishDataset(paths, address, replace, options, observe, durability);
  });
  if (raised) throw std::move(*raised);
  OkOrRaise(result);
}

std::vector<std::tuple<std::string, std::uint64_t, std::uint64_t>> List(const std::string& address,
                                                                        TimeLimit timeout) {
  std::vector<std::tuple<std::string, std::uint64_t, std::uint64_t>> rows;
  for (auto& published : ValueOrRaise(
           WithoutGil([&] { return client::ListPublished(address, SessionOptionsOf(timeout)); })))
    rows.emplace_back(std::move(published.name), published.size_bytes, published.file_count);
  return rows;
}

void Remove(const std::string& address, TimeLimit timeout) {
  OkOrRaise(
      WithoutGil([&] { return client::RemovePublished(address, SessionOptionsOf(timeout)); }));
}

// Transport, reason, round trip in seconds.
std::tuple<std::string, std::string, double> Probe(const std::string& address, TimeLimit timeout) {
  const auto link = ValueOrRaise(
      WithoutGil([&] { return client::ProbeDaemon(address, SessionOptionsOf(timeout)); }));
  return {link.transport, link.reason, std::chrono::duration<double>(link.round_trip).count()};
}

}  // namespace

void BindDataset(py::module_& module) {
  module.def("publish", &Publish, py::arg("files"), py::arg("address"), py::kw_only(),
             py::arg("replace") = false, py::arg("from_origin") = false,
             py::arg("copy_to") = py::none(), py::arg("durability") = "",
             py::arg("timeout_s") = 30.0, py::arg("progress") = py::none());
  module.def("probe_daemon", &Probe, py::arg("address"), py::kw_only(),
             py::arg("timeout_s") = 30.0);
  module.def("list_published", &List, py::arg("address"), py::kw_only(),
             py::arg("timeout_s") = 30.0);
  module.def("remove_published", &Remove, py::arg("address"), py::kw_only(),
             py::arg("timeout_s") = 30.0);
}

}  // namespace ffrecord::python
