#include <pybind11/functional.h>

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include <ffrecord/client/dataset.h>
#include <ffrecord/client/served_files.h>

#include "python/src/bind.h"
#include "python/src/errors.h"
#include "python/src/signals.h"
#include "python/src/time_limit.h"

namespace ffrecord::python {
namespace {

void Publish(const std::vector<std::string>& files, const std::string& address, bool replace,
             bool from_origin, const std::optional<std::string>& copy_to,
             const std::string& durability, TimeLimit timeout, const py::object& progress,
             bool dry_run) {
  const std::vector<std::filesystem::path> paths(files.begin(), files.end());
  // An exception of the callback waits until the upload has ended: none may cross the library.
  std::optional<py::error_already_set> raised;
  std::function<void(std::uint64_t, std::uint64_t)> observe;
  if (!progress.is_none())
    observe = [&](std::uint64_t done_bytes, std::uint64_t total_bytes) {
      const GilAcquired acquired;
      if (raised) return;
      try {
        CallPython(progress, done_bytes, total_bytes);
      } catch (py::error_already_set& error) {
        raised.emplace(error);
      }
    };
  const auto result = WithoutGil([&] {
    const auto options = SessionOptionsOf(timeout);
    if (copy_to)
      return client::PublishThroughOrigin(paths, *copy_to, address, replace, options, observe,
                                          dry_run);
    return from_origin
               ? client::PublishFromOrigin(files, address, replace, options, observe, dry_run)
               : client::PublishDataset(paths, address, replace, options, observe, durability,
                                        dry_run);
  });
  if (raised) throw std::move(*raised);
  OkOrRaise(result);
}

using PublishedRow =
    std::tuple<std::string, std::uint64_t, std::uint64_t, std::optional<std::string>>;

std::vector<PublishedRow> List(const std::string& address, TimeLimit timeout) {
  std::vector<PublishedRow> rows;
  auto listed = Interruptible([&](const auto& give_up) {
    return client::ListPublished(address, SessionOptionsOf(timeout), give_up);
  });
  for (auto& published : ValueOrRaise(std::move(listed))) {
    std::optional<std::string> durability;
    if (!published.durability.empty()) durability = std::move(published.durability);
    rows.emplace_back(std::move(published.name), published.size_bytes, published.file_count,
                      std::move(durability));
  }
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

using client::ServedFiles;

ServedFiles OpenServed(const std::string& address, TimeLimit timeout) {
  return ValueOrRaise(Interruptible([&](const auto& give_up) {
    return ServedFiles::Open(address, SessionOptionsOf(timeout), give_up);
  }));
}

// Name, size in bytes and version of each file.
py::list DescribeServed(const ServedFiles& self) {
  py::list rows;
  for (const auto& file : self.files())
    rows.append(py::make_tuple(TextOf(file.name), file.size_bytes, file.version));
  return rows;
}

// Raises IndexError for a range that is not in its file: no memory is taken for it.
void CheckServed(const ServedFiles& self, std::uint32_t file, std::uint64_t offset_bytes,
                 std::uint64_t size_bytes) {
  const auto& files = self.files();
  if (file < files.size() && offset_bytes <= files[file].size_bytes &&
      size_bytes <= files[file].size_bytes - offset_bytes)
    return;
  Raise({ErrorCode::kOutOfRange, std::to_string(size_bytes) + " bytes at " +
                                     std::to_string(offset_bytes) + " are not in file " +
                                     std::to_string(file)});
}

// File, offset and size in bytes.
using ServedRange = std::tuple<std::uint32_t, std::uint64_t, std::uint64_t>;

// The bytes of each range.
py::list ReadServed(const ServedFiles& self, const std::vector<ServedRange>& asked) {
  for (const auto& [file, offset_bytes, size_bytes] : asked)
    CheckServed(self, file, offset_bytes, size_bytes);
  py::list read;
  std::vector<ServedFiles::Range> ranges;
  for (const auto& [file, offset_bytes, size_bytes] : asked) {
    const auto bytes = py::reinterpret_steal<py::bytes>(
        PyBytes_FromStringAndSize(nullptr, static_cast<Py_ssize_t>(size_bytes)));
    if (!bytes) throw py::error_already_set();
    // Nobody else knows of it yet, so it may still be filled.
    const auto memory = reinterpret_cast<std::byte*>(PyBytes_AS_STRING(bytes.ptr()));
    ranges.push_back({file, offset_bytes, {memory, static_cast<std::size_t>(size_bytes)}});
    read.append(bytes);
  }
  OkOrRaise(Interruptible([&](const auto& give_up) { return self.Read(ranges, give_up); }));
  return read;
}

}  // namespace

void BindDataset(py::module_& module) {
  module.def("publish", &Publish, py::arg("files"), py::arg("address"), py::kw_only(),
             py::arg("replace") = false, py::arg("from_origin") = false,
             py::arg("copy_to") = py::none(), py::arg("durability") = "",
             py::arg("timeout_s") = 30.0, py::arg("progress") = py::none(),
             py::arg("dry_run") = false);
  module.def("probe_daemon", &Probe, py::arg("address"), py::kw_only(),
             py::arg("timeout_s") = 30.0);
  module.def("list_published", &List, py::arg("address"), py::kw_only(),
             py::arg("timeout_s") = 30.0);
  module.def("remove_published", &Remove, py::arg("address"), py::kw_only(),
             py::arg("timeout_s") = 30.0);
  auto served = py::class_<ServedFiles>(module, "ServedFiles", py::is_final());
  served.attr("verified_bytes") = ServedFiles::kVerifiedBytes;
  served
      .def_static("open", &OpenServed, py::arg("address"), py::kw_only(),
                  py::arg("timeout_s") = 30.0)
      .def_property_readonly("files", &DescribeServed)
      .def("read", &ReadServed, py::arg("ranges"));
}

}  // namespace ffrecord::python
