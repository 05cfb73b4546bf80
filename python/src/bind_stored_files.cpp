#include <algorithm>
#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <ffrecord/client/stored_files.h>

#include "python/src/bind.h"
#include "python/src/errors.h"
#include "python/src/signals.h"
#include "python/src/time_limit.h"

namespace ffrecord::python {
namespace {

using client::StoredFile;

// A file, and whether somebody reads it: another thread may stop one that waits for the store.
class StoredFileReader {
 public:
  explicit StoredFileReader(StoredFile file) : file_(std::move(file)) {}

  const StoredFile& file() const noexcept { return file_; }
  void Stop() noexcept { is_stopped_ = true; }

  py::bytes Read(std::uint64_t offset_bytes, std::uint64_t size_bytes) const {
    const std::uint64_t most = file_.size_bytes();
    const std::uint64_t left = offset_bytes < most ? most - offset_bytes : 0;
    const std::uint64_t wanted = std::min(size_bytes, left);
    auto bytes = py::reinterpret_steal<py::bytes>(
        PyBytes_FromStringAndSize(nullptr, static_cast<py::ssize_t>(wanted)));
    if (!bytes) throw py::error_already_set();
    if (wanted == 0) return bytes;
    const std::span destination(reinterpret_cast<std::byte*>(PyBytes_AS_STRING(bytes.ptr())),
                                wanted);
    OkOrRaise(Interruptible([&](const StoredFile::GiveUp& give_up) {
      return file_.Read(offset_bytes, destination,
                        [&] { return is_stopped_ || (give_up && give_up()); });
    }));
    return bytes;
  }

 private:
  StoredFile file_;
  std::atomic<bool> is_stopped_{false};
};

std::vector<std::optional<StoredFile>> LookFor(const std::vector<std::string>& addresses,
                                               TimeLimit timeout) {
  return ValueOrRaise(Interruptible([&](const StoredFile::GiveUp& give_up) {
    return client::LookForStoredFiles(addresses, SessionOptionsOf(timeout), give_up);
  }));
}

std::vector<StoredFile> Match(const std::string& pattern, TimeLimit timeout) {
  return ValueOrRaise(Interruptible([&](const StoredFile::GiveUp& give_up) {
    return client::MatchStoredFiles(pattern, SessionOptionsOf(timeout), give_up);
  }));
}

std::vector<StoredFile> List(const std::string& folder, TimeLimit timeout) {
  return ValueOrRaise(Interruptible([&](const StoredFile::GiveUp& give_up) {
    return client::ListStoredFiles(folder, SessionOptionsOf(timeout), give_up);
  }));
}

}  // namespace

void BindStoredFiles(py::module_& module) {
  py::class_<StoredFile>(module, "StoredFile", py::is_final())
      .def_property_readonly("name", [](const StoredFile& file) { return TextOf(file.name()); })
      .def_property_readonly("size_bytes", &StoredFile::size_bytes)
      .def_property_readonly("version",
                             [](const StoredFile& file) { return TextOf(file.version()); })
      .def("open", [](const StoredFile& file) { return std::make_unique<StoredFileReader>(file); });
  py::class_<StoredFileReader>(module, "StoredFileReader", py::is_final())
      .def("read", &StoredFileReader::Read, py::arg("offset_bytes"), py::arg("size_bytes"))
      .def("stop", &StoredFileReader::Stop);
  module.def("look_for_stored_files", &LookFor, py::arg("addresses"), py::kw_only(),
             py::arg("timeout_s"));
  module.def("match_stored_files", &Match, py::arg("pattern"), py::kw_only(), py::arg("timeout_s"));
  module.def("list_stored_files", &List, py::arg("folder"), py::kw_only(), py::arg("timeout_s"));
}

}  // namespace ffrecord::python
