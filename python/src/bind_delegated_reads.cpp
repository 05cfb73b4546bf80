#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include <ffrecord/delegated_reads.h>

#include "python/src/bind.h"
#include "python/src/buffer_view.h"
#include "python/src/errors.h"
#include "python/src/time_limit.h"

namespace ffrecord::python {
namespace {

using File = std::tuple<std::string, std::uint64_t, std::string>;
using Range = std::tuple<std::uint64_t, std::uint32_t, std::uint64_t, std::uint64_t>;

template <class Value, std::size_t kCount>
Value Named(const char* what, std::string_view name,
            const std::array<std::pair<std::string_view, Value>, kCount>& names) {
  for (const auto& [known, value] : names)
    if (known == name) return value;
  Raise({ErrorCode::kInvalidArgument, std::string(what) + " is '" + std::string(name) + "'"});
}

ErrorCode CodeOf(std::string_view name) {
  return Named<ErrorCode, 6>("kind", name,
                             {{{"invalid", ErrorCode::kInvalidArgument},
                               {"not_found", ErrorCode::kNotFound},
                               {"unavailable", ErrorCode::kUnavailable},
                               {"deadline", ErrorCode::kDeadlineExceeded},
                               {"conflict", ErrorCode::kConflict},
                               {"denied", ErrorCode::kDenied}}});
}

DelegatedReads::Retry RetryOf(std::string_view name) {
  using Retry = DelegatedReads::Retry;
  return Named<Retry, 3>(
      "retry", name,
      {{{"never", Retry::kNever}, {"later", Retry::kLater}, {"throttled", Retry::kThrottled}}});
}

std::shared_ptr<DelegatedReads> Make(const std::vector<File>& named, TimeLimit timeout,
                                     std::uint32_t group_count, std::uint64_t group_bytes) {
  if (group_count == 0) Raise({ErrorCode::kInvalidArgument, "group_count is 0"});
  std::vector<DelegatedReads::File> files;
  files.reserve(named.size());
  for (const auto& [name, size_bytes, version] : named)
    files.push_back({name, size_bytes, version});
  return std::make_shared<DelegatedReads>(
      std::move(files), DelegatedReads::Options{timeout.value, group_count, group_bytes});
}

// The ranges of a group, and whether help is wanted.
std::pair<std::vector<Range>, bool> Take(DelegatedReads& self) {
  const DelegatedReads::Group group = WithoutGil([&] { return self.Take(); });
  std::vector<Range> ranges;
  ranges.reserve(group.ranges.size());
  for (const auto& range : group.ranges)
    ranges.emplace_back(range.id, range.file, range.offset_bytes, range.size_bytes);
  return {std::move(ranges), group.is_help_wanted};
}

}  // namespace

void BindDelegatedReads(py::module_& module) {
  py::class_<DelegatedReads, std::shared_ptr<DelegatedReads>>(module, "DelegatedReads",
                                                              py::is_final())
      .def(py::init(&Make), py::arg("files"), py::kw_only(), py::arg("timeout_s"),
           py::arg("group_count"), py::arg("group_bytes"))
      .def("take", &Take)
      .def(
          "answer",
          [](DelegatedReads& self, std::uint64_t id, const py::object& data) {
            const BufferView view(data);
            WithoutGil([&] { self.Answer(id, view.bytes()); });
          },
          py::arg("id"), py::arg("data"))
      .def(
          "refuse",
          [](DelegatedReads& self, std::uint64_t id, const std::string& kind, std::string message,
             const std::string& retry) {
            self.Refuse(id, {CodeOf(kind), std::move(message)}, RetryOf(retry));
          },
          py::arg("id"), py::arg("kind"), py::arg("message"), py::arg("retry"))
      .def("is_wanted", &DelegatedReads::IsWanted, py::arg("id"))
      .def("close", &DelegatedReads::Close);
}

}  // namespace ffrecord::python
