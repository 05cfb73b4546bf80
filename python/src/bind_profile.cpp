#include <ffrecord/profile.h>

#include <string>

#include "python/src/bind.h"
#include "python/src/errors.h"

namespace ffrecord::python {
namespace {

ProfileEvent EventOf(std::uint16_t kind, std::uint16_t name, std::int64_t begin_ns,
                     std::int64_t end_ns, std::uint64_t size_bytes, std::uint64_t detail,
                     std::uint32_t first, std::uint32_t second) {
  return {begin_ns, end_ns, size_bytes, detail, first, second, kind, name};
}

}  // namespace

void BindProfile(py::module_& module) {
  module.def(
      "profile_open",
      [](const std::string& path, const std::string& command, std::int32_t rank,
         std::int32_t local_rank, std::int32_t world_size, std::uint32_t coarse_events,
         std::uint32_t fine_events) {
        OkOrRaise(Profile::Open(path, {.coarse_events = coarse_events,
                                       .fine_events = fine_events,
                                       .rank = rank,
                                       .local_rank = local_rank,
                                       .world_size = world_size,
                                       .command = command}));
      },
      py::arg("path"), py::arg("command") = "", py::arg("rank") = -1, py::arg("local_rank") = -1,
      py::arg("world_size") = -1, py::arg("coarse_events") = 1 << 17,
      py::arg("fine_events") = 1 << 17);
  module.def(
      "profile_attach", [](const std::string& path) { OkOrRaise(Profile::Attach(path)); },
      py::arg("path"));
  module.def("profile_close", &Profile::Close);
  module.def("profile_is_on", &Profile::is_on);
  module.def(
      "profile_name", [](const std::string& name) { return Profile::Name(name); }, py::arg("name"));
  module.def("profile_set_rank", &Profile::SetRank, py::arg("rank"), py::arg("world_size"));
  module.def(
      "profile_record",
      [](std::uint16_t kind, std::uint16_t name, std::int64_t begin_ns, std::int64_t end_ns,
         std::uint64_t size_bytes, std::uint64_t detail, std::uint32_t first,
         std::uint32_t second) {
        Profile::Record(EventOf(kind, name, begin_ns, end_ns, size_bytes, detail, first, second));
      },
      py::arg("kind"), py::arg("name"), py::arg("begin_ns"), py::arg("end_ns"),
      py::arg("size_bytes") = 0, py::arg("detail") = 0, py::arg("first") = 0,
      py::arg("second") = 0);
  module.def(
      "profile_begin",
      [](std::uint16_t kind, std::uint16_t name, std::int64_t begin_ns, std::uint64_t detail) {
        return Profile::Begin(EventOf(kind, name, begin_ns, 0, 0, detail, 0, 0));
      },
      py::arg("kind"), py::arg("name"), py::arg("begin_ns"), py::arg("detail") = 0);
  module.def(
      "profile_end",
      [](std::uint64_t token, std::uint16_t kind, std::uint16_t name, std::int64_t begin_ns,
         std::int64_t end_ns, std::uint64_t size_bytes, std::uint64_t detail, std::uint32_t first,
         std::uint32_t second) {
        Profile::End(token,
                     EventOf(kind, name, begin_ns, end_ns, size_bytes, detail, first, second));
      },
      py::arg("token"), py::arg("kind"), py::arg("name"), py::arg("begin_ns"), py::arg("end_ns"),
      py::arg("size_bytes") = 0, py::arg("detail") = 0, py::arg("first") = 0,
      py::arg("second") = 0);
  module.def("profile_drop", &Profile::Drop, py::arg("token"));
}

}  // namespace ffrecord::python
