#include <ffrecord/client/collective.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "python/src/bind.h"
#include "python/src/errors.h"
#include "python/src/time_limit.h"

namespace ffrecord::python {
namespace {

using client::Algorithm;
using client::CollectiveEngine;
using client::ReduceOp;
using client::ReduceType;

constexpr std::array<std::pair<std::string_view, Algorithm>, 5> kAlgorithms{
    {{"ring", Algorithm::kRing},
     {"halving_doubling", Algorithm::kHalvingDoubling},
     {"recursive_doubling", Algorithm::kRecursiveDoubling},
     {"double_tree", Algorithm::kDoubleTree},
     {"hierarchical", Algorithm::kHierarchical}}};
constexpr std::array<std::pair<std::string_view, client::WireType>, 3> kWires{
    {{"exact", client::WireType::kExact},
     {"bfloat16", client::WireType::kBf16},
     {"float16", client::WireType::kF16}}};
constexpr std::array<std::pair<std::string_view, client::GroupTransport>, 2> kTransports{
    {{"tcp", client::GroupTransport::kTcp}, {"rdma", client::GroupTransport::kRdma}}};

[[noreturn]] void RaiseUnknown(std::string_view name, const char* what) {
  Raise({ErrorCode::kInvalidArgument, "no " + std::string(what) + " '" + std::string(name) + "'"});
}

template <class Table>
auto Named(const Table& table, std::string_view name, const char* what) {
  for (const auto& [known, value] : table)
    if (known == name) return value;
  RaiseUnknown(name, what);
}

ReduceType TypeNamed(std::string_view name) {
  for (const auto& traits : client::ReduceTypes())
    if (traits.name == name) return traits.type;
  RaiseUnknown(name, "element type");
}

ReduceOp OpNamed(std::string_view name) {
  for (const auto& traits : client::ReduceOps())
    if (traits.name == name) return traits.op;
  RaiseUnknown(name, "operation");
}

// The exception that Raise() would raise, as a value; None for success.
py::object AsException(const Result<void>& outcome) {
  if (outcome) return py::none();
  try {
    Raise(outcome.error());
  } catch (const py::error_already_set& raised) {
    return raised.value();
  }
}

py::object WaitAny(CollectiveEngine& engine, WaitLimit timeout) {
  auto completion = WithoutGil([&] { return engine.WaitAny(timeout.value); });
  if (!completion && completion.error().code == ErrorCode::kDeadlineExceeded) return py::none();
  const auto ended = ValueOrRaise(std::move(completion));
  return py::make_tuple(ended.token, AsException(ended.outcome), ended.began_ns, ended.ended_ns);
}

void* At(std::uintptr_t address) { return reinterpret_cast<void*>(address); }

// Binds the methods that move or reduce the `count` elements at `address`, and return a token.
void BindOperations(py::class_<CollectiveEngine>& engine_class) {
  engine_class
      .def(
          "all_reduce",
          [](CollectiveEngine& engine, std::uintptr_t address, std::uint64_t count,
             std::string_view dtype, std::string_view op) {
            return ValueOrRaise(
                engine.AllReduce(At(address), count, TypeNamed(dtype), OpNamed(op)));
          },
          py::arg("address"), py::arg("count"), py::arg("dtype"), py::arg("op"))
      .def(
          "reduce_scatter",
          [](CollectiveEngine& engine, std::uintptr_t address, std::uint64_t count,
             std::string_view dtype, std::string_view op) {
            return ValueOrRaise(
                engine.ReduceScatter(At(address), count, TypeNamed(dtype), OpNamed(op)));
          },
          py::arg("address"), py::arg("count"), py::arg("dtype"), py::arg("op"))
      .def(
          "all_gather",
          [](CollectiveEngine& engine, std::uintptr_t address, std::uint64_t count,
             std::string_view dtype) {
            return ValueOrRaise(engine.AllGather(At(address), count, TypeNamed(dtype)));
          },
          py::arg("address"), py::arg("count"), py::arg("dtype"))
      .def(
          "broadcast",
          [](CollectiveEngine& engine, std::uintptr_t address, std::uint64_t count,
             std::string_view dtype, std::uint32_t root) {
            return ValueOrRaise(engine.Broadcast(At(address), count, TypeNamed(dtype), root));
          },
          py::arg("address"), py::arg("count"), py::arg("dtype"), py::arg("root"))
      .def("barrier", [](CollectiveEngine& engine) { return ValueOrRaise(engine.Barrier()); });
}

// Binds messages: of the `size_bytes` bytes at `address`; each method returns a token.
void BindMessages(py::class_<CollectiveEngine>& engine_class) {
  engine_class
      .def(
          "send",
          [](CollectiveEngine& engine, std::uintptr_t address, std::uint64_t size_bytes,
             std::int64_t tag) { return ValueOrRaise(engine.Send(At(address), size_bytes, tag)); },
          py::arg("address"), py::arg("size_bytes"), py::arg("tag"))
      .def(
          "receive",
          [](CollectiveEngine& engine, std::uintptr_t address, std::uint64_t size_bytes,
             std::int64_t tag) {
            return ValueOrRaise(engine.Receive(At(address), size_bytes, tag));
          },
          py::arg("address"), py::arg("size_bytes"), py::arg("tag"))
      .def(
          "receive_kept",
          [](CollectiveEngine& engine, std::uintptr_t address, std::uint64_t size_bytes,
             std::int64_t tag) {
            return ValueOrRaise(engine.ReceiveKept(At(address), size_bytes, tag));
          },
          py::arg("address"), py::arg("size_bytes"), py::arg("tag"))
      .def(
          "probe",
          [](CollectiveEngine& engine, std::int64_t tag) {
            return ValueOrRaise(engine.Probe(tag));
          },
          py::arg("tag"))
      .def("keep_next", [](CollectiveEngine& engine) { OkOrRaise(engine.KeepNext()); })
      .def(
          "announce",
          [](CollectiveEngine& engine, std::uint64_t token) { OkOrRaise(engine.Announce(token)); },
          py::arg("token"));
}

void Connect(CollectiveEngine& engine, const std::vector<std::string>& addresses,
             const std::string& secret) {
  std::array<std::byte, 16> bytes{};
  if (secret.size() != bytes.size())
    Raise({ErrorCode::kInvalidArgument, "the secret of a group has 16 bytes"});
  std::transform(secret.begin(), secret.end(), bytes.begin(),
                 [](char byte) { return static_cast<std::byte>(byte); });
  OkOrRaise(WithoutGil([&] { return engine.Connect(addresses, bytes); }));
}

py::dict Stats(const CollectiveEngine& engine) {
  const auto stats = engine.stats();
  py::dict dict;
  dict["bytes_sent"] = stats.bytes_sent;
  dict["bytes_received"] = stats.bytes_received;
  dict["bytes_shared"] = stats.bytes_shared;
  dict["operations"] = stats.operations;
  dict["reduce_ns"] = stats.reduce_ns;
  dict["streams_lost"] = stats.streams_lost;
  return dict;
}

py::list Events(const CollectiveEngine& engine) {
  py::list list;
  for (const auto& [at_ns, text] : engine.events()) list.append(py::make_tuple(at_ns, text));
  return list;
}

void Tune(CollectiveEngine& engine, std::uint64_t chunk_size_bytes,
          const std::optional<std::string>& algorithm, std::uint16_t streams) {
  CollectiveEngine::Tuning tuning{.chunk_size_bytes = chunk_size_bytes, .streams = streams};
  if (algorithm) tuning.algorithm = Named(kAlgorithms, *algorithm, "algorithm");
  OkOrRaise(engine.Tune(tuning));
}

}  // namespace

void BindCollective(py::module_& module) {
  py::class_<CollectiveEngine> engine_class(module, "CollectiveEngine", py::is_final());
  engine_class
      .def(py::init([](std::uint32_t rank, std::uint32_t world_size, std::string listen_host,
                       WaitLimit timeout, std::uint64_t chunk_size_bytes,
                       const std::optional<std::string>& algorithm, std::string_view wire,
                       bool shares_memory, std::uint16_t streams, std::string_view transport,
                       std::vector<std::string> rdma_devices, std::uint32_t rdma_traffic_class,
                       std::uint32_t rdma_service_level, bool carries_messages) {
             CollectiveEngine::Options options{
                 .listen_host = std::move(listen_host),
                 .timeout = timeout.value,
                 .chunk_size_bytes = chunk_size_bytes,
                 .wire = Named(kWires, wire, "wire type"),
                 .streams = streams,
                 .shares_memory = shares_memory,
                 .transport = Named(kTransports, transport, "transport"),
                 .rdma_devices = std::move(rdma_devices),
                 .rdma_traffic_class = rdma_traffic_class,
                 .rdma_service_level = rdma_service_level,
                 .carries_messages = carries_messages};
             if (algorithm) options.algorithm = Named(kAlgorithms, *algorithm, "algorithm");
             return ValueOrRaise(CollectiveEngine::Create(rank, world_size, options));
           }),
           py::kw_only(), py::arg("rank"), py::arg("world_size"), py::arg("listen_host"),
           py::arg("timeout_s"), py::arg("chunk_size_bytes"), py::arg("algorithm") = py::none(),
           py::arg("wire") = "exact", py::arg("shares_memory") = true, py::arg("streams") = 1,
           py::arg("transport") = "tcp", py::arg("rdma_devices") = std::vector<std::string>(),
           py::arg("rdma_traffic_class") = 0, py::arg("rdma_service_level") = 0,
           py::arg("carries_messages") = false)
      .def_property_readonly("address", &CollectiveEngine::address)
      .def(
          "connect",
          [](CollectiveEngine& engine, const std::vector<std::string>& addresses,
             const py::bytes& secret) { Connect(engine, addresses, secret); },
          py::arg("addresses"), py::arg("secret"))
      .def(
          "wait",
          [](CollectiveEngine& engine, std::uint64_t token) {
            OkOrRaise(WithoutGil([&] { return engine.Wait(token); }));
          },
          py::arg("token"))
      .def(
          "wait_for",
          [](CollectiveEngine& engine, std::uint64_t token, WaitLimit limit) {
            return ValueOrRaise(WithoutGil([&] { return engine.WaitFor(token, limit.value); }));
          },
          py::arg("token"), py::arg("limit_s"))
      .def("wait_any", &WaitAny, py::arg("timeout_s"))
      .def("shutdown", &CollectiveEngine::Shutdown)
      .def("tune", &Tune, py::kw_only(), py::arg("chunk_size_bytes") = 0,
           py::arg("algorithm") = py::none(), py::arg("streams") = 0)
      .def("events", &Events)
      .def("stats", &Stats);
  BindOperations(engine_class);
  BindMessages(engine_class);
}

}  // namespace ffrecord::python
