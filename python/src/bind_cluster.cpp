#include <array>
#include <string>
#include <string_view>
#include <utility>

#include <ffrecord/client/cluster.h>

#include "python/src/bind.h"
#include "python/src/errors.h"
#include "python/src/time_limit.h"

namespace ffrecord::python {
namespace {

using client::NodeState;

constexpr std::array<std::pair<NodeState, std::string_view>, 3> kStates{{
    {NodeState::kIn, "in"},
    {NodeState::kDraining, "draining"},
    {NodeState::kOut, "out"},
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
                  "slot_count"_a = node.slot_count);
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
    if (name != state) continue;
    const auto set = [&, wanted = one] {
      return client::SetNodeState(address, node, wanted, SessionOptionsOf(timeout));
    };
    return OkOrRaise(WithoutGil(set));
  }
  throw py::value_error("a node is in, draining or out, not " + state);
}

}  // namespace

void BindCluster(py::module_& module) {
  module.def("describe_cluster", &Describe, py::arg("address"), py::kw_only(),
             py::arg("timeout_s") = 30.0);
  module.def("set_node_state", &SetState, py::arg("address"), py::arg("node"), py::arg("state"),
             py::kw_only(), py::arg("timeout_s") = 30.0);
}

}  // namespace ffrecord::python
