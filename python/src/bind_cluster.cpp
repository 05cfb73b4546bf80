#include <array>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include <ffrecord/client/cluster.h>

#include "python/src/bind.h"
#include "python/src/errors.h"
#include "python/src/time_limit.h"

namespace ffrecord::python {
namespace {

using client::NodeState;

constexpr std::array<std::pair<NodeState, std::string_view>, 4> kStates{{
    {NodeState::kIn, "in"},
    {NodeState::kDraining, "draining"},
    {NodeState::kOut, "out"},
    {NodeState::kWaiting, "waiting"},
}};

std::string NameOf(NodeState state) {
  for (const auto& [one, name] : kStates)
    if (one == state) return std::string(name);
  return "";
}

py::dict DescribeNode(const client::ClusterNodeInfo& node) {
  using py::literals::operator""_a;
  return py::dict("id"_a = node.id, "address"_a = node.address, "domain"_a = node.domain,
                  "weight"_a = node.weight, "state"_a = NameOf(node.state), "is_up"_a = node.is_up,
                  "slot_count"_a = node.slot_count,
                  "waiting_since_unix_ms"_a = node.waiting_since_unix_ms, "daemon"_a = node.daemon);
}

py::dict Describe(const std::string& address, TimeLimit timeout) {
  using py::literals::operator""_a;
  const auto info = ValueOrRaise(
      WithoutGil([&] { return client::DescribeCluster(address, SessionOptionsOf(timeout)); }));
  py::list nodes;
  for (const auto& node : info.nodes) nodes.append(DescribeNode(node));
  return py::dict("id"_a = info.id, "map_version"_a = info.map_version,
                  "replica_count"_a = info.replica_count, "answered_by"_a = info.answered_by,
                  "nodes"_a = nodes);
}

void SetState(const std::string& address, const std::string& node, const std::string& state,
              TimeLimit timeout) {
  for (const auto& [one, name] : kStates) {
    if (name != state || one == NodeState::kWaiting) continue;
    const auto set = [&, wanted = one] {
      return client::SetNodeState(address, node, wanted, SessionOptionsOf(timeout));
    };
    return OkOrRaise(WithoutGil(set));
  }
  throw py::value_error("a node is in, draining or out, not " + state);
}

std::uint32_t RaiseLevel(const std::string& address, std::uint32_t level, TimeLimit timeout) {
  return ValueOrRaise(WithoutGil(
      [&] { return client::RaiseFeatureLevel(address, level, SessionOptionsOf(timeout)); }));
}

// Keys of the metadata as tuples of key, revision and value.
py::tuple ReadMetadata(const std::string& address, TimeLimit timeout) {
  const auto metadata = ValueOrRaise(
      WithoutGil([&] { return client::ReadMetadata(address, SessionOptionsOf(timeout)); }));
  py::list keys;
  for (const auto& key : metadata.keys)
    keys.append(py::make_tuple(key.key, key.revision, py::bytes(key.value)));
  return py::make_tuple(metadata.revision, keys);
}

void RestoreMetadata(const std::string& address, std::uint64_t backup,
                     const std::vector<std::tuple<std::string, std::uint64_t, py::bytes>>& keys,
                     TimeLimit timeout) {
  std::vector<client::MetadataKey> given;
  for (const auto& [key, revision, value] : keys) given.push_back({key, revision, value});
  OkOrRaise(WithoutGil(
      [&] { return client::RestoreMetadata(address, backup, given, SessionOptionsOf(timeout)); }));
}

constexpr std::array<std::pair<client::MetadataWork, std::string_view>, 3> kWorks{{
    {client::MetadataWork::kCompare, "compare"},
    {client::MetadataWork::kRebuild, "rebuild"},
    {client::MetadataWork::kRebuildAndRemove, "rebuild and remove"},
}};

// A JSON object.
std::string WorkOnMetadata(const std::string& address, const std::string& work, TimeLimit timeout) {
  for (const auto& [one, name] : kWorks) {
    if (name != work) continue;
    return ValueOrRaise(WithoutGil([&, wanted = one] {
      return client::WorkOnMetadata(address, wanted, SessionOptionsOf(timeout));
    }));
  }
  throw py::value_error("the work is compare, rebuild, or rebuild and remove, not " + work);
}

void ConfirmMetadata(const std::string& address, std::uint64_t incarnation, TimeLimit timeout) {
  OkOrRaise(WithoutGil(
      [&] { return client::ConfirmMetadata(address, incarnation, SessionOptionsOf(timeout)); }));
}

}  // namespace

void BindCluster(py::module_& module) {
  module.def("describe_cluster", &Describe, py::arg("address"), py::kw_only(),
             py::arg("timeout_s") = 30.0);
  module.def("set_node_state", &SetState, py::arg("address"), py::arg("node"), py::arg("state"),
             py::kw_only(), py::arg("timeout_s") = 30.0);
  module.def("raise_feature_level", &RaiseLevel, py::arg("address"), py::arg("level"),
             py::kw_only(), py::arg("timeout_s") = 30.0);
  module.def("read_metadata", &ReadMetadata, py::arg("address"), py::kw_only(),
             py::arg("timeout_s") = 30.0);
  module.def("restore_metadata", &RestoreMetadata, py::arg("address"), py::arg("backup"),
             py::arg("keys"), py::kw_only(), py::arg("timeout_s") = 30.0);
  module.def("work_on_metadata", &WorkOnMetadata, py::arg("address"), py::arg("work"),
             py::kw_only(), py::arg("timeout_s") = 30.0);
  module.def("confirm_metadata", &ConfirmMetadata, py::arg("address"), py::arg("incarnation"),
             py::kw_only(), py::arg("timeout_s") = 30.0);
}

}  // namespace ffrecord::python
