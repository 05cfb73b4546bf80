#include <pybind11/stl.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include <ffrecord/checkpoint_dtype.h>
#include <ffrecord/client/checkpoint.h>

#include "python/src/bind.h"
#include "python/src/errors.h"
#include "python/src/target_name.h"
#include "python/src/time_limit.h"

namespace ffrecord::python {
namespace {

using client::CheckpointReader;
using client::CheckpointShards;
using client::StagingArena;
using Shape = std::vector<std::uint64_t>;

// Addresses come from NumPy and torch; the Python side keeps their owners alive during the call.
std::span<std::byte> MemoryAt(std::uintptr_t address, std::uint64_t size_bytes) {
  return {reinterpret_cast<std::byte*>(address), static_cast<std::size_t>(size_bytes)};
}

py::tuple AsTuple(const client::Commit& commit) {
  return py::make_tuple(commit.step, commit.attempt, commit.size_bytes);
}

std::vector<std::byte> BytesOf(const py::handle& object) {
  const auto bytes = std::as_bytes(std::span(object.cast<std::string_view>()));
  return {bytes.begin(), bytes.end()};
}

// A Python object with rank, size and all_gather(bytes) -> list[bytes]. Called without the GIL.
class PyGroup final : public client::CheckpointGroup {
 public:
  explicit PyGroup(const py::object& group)
      : group_(group),
        rank_(group.attr("rank").cast<std::uint32_t>()),
        size_(group.attr("size").cast<std::uint32_t>()) {}

  std::uint32_t rank() const override { return rank_; }
  std::uint32_t size() const override { return size_; }

  Result<std::vector<std::vector<std::byte>>> AllGather(std::span<const std::byte> mine) override {
    const GilAcquired acquired;
    try {
      std::vector<std::vector<std::byte>> all;
      for (const py::handle item : CallPython(group_.attr("all_gather"), Bytes(mine)))
        all.push_back(BytesOf(item));
      return all;
    } catch (py::error_already_set& error) {
      failure_ = error;
      return Error{ErrorCode::kUnavailable, "checkpoint: the ranks could not talk"};
    } catch (const py::cast_error& error) {
      return Error{
          ErrorCode::kInvalidArgument,
          std::string("checkpoint: all_gather must return a list of bytes: ") + error.what()};
    }
  }

  // The exception of all_gather says more than our error about it, which becomes a note.
  void RethrowFailure(const Error& outcome) {
    if (!failure_) return;
    const auto note = py::reinterpret_steal<py::object>(PyUnicode_DecodeFSDefaultAndSize(
        outcome.message.data(), static_cast<Py_ssize_t>(outcome.message.size())));
    failure_->value().attr("add_note")(note);
    throw py::error_already_set(*std::move(failure_));
  }

 private:
  py::object group_;
  std::uint32_t rank_;
  std::uint32_t size_;
  std::optional<py::error_already_set> failure_;
};

// One round with the other ranks. `failed` is the type and the message of what this rank raised in
// place of a result. Returns the results, then message and type of the first failure, or None.
py::tuple GatherResults(const py::object& group, const py::bytes& mine,
                        const std::optional<std::pair<std::string, std::string>>& failed) {
  PyGroup ranks(group);
  Result<std::vector<std::byte>> result = BytesOf(mine);
  if (failed) result = Error{ErrorCode::kInvalidArgument, failed->second};
  auto gathered = WithoutGil([&] {
    return client::AllGatherResults(ranks, result, failed ? failed->first : std::string_view());
  });
  if (!gathered) ranks.RethrowFailure(gathered.error());
  const auto all = ValueOrRaise(std::move(gathered));
  py::list results;
  for (const auto& bytes : all.results) results.append(Bytes(bytes));
  if (!all.failure) return py::make_tuple(results, py::none());
  return py::make_tuple(
      results, py::make_tuple(python::TextOf(all.failure->error.message), all.failure->kind));
}

// Takes a number apart without a copy of it on the way: slices come by the 100,000.
std::uint64_t NumberOf(PyObject* value) {
  const auto number = PyLong_AsUnsignedLongLong(value);
  if (number == static_cast<unsigned long long>(-1) && PyErr_Occurred() != nullptr)
    throw py::error_already_set();
  return number;
}

std::string TextOf(PyObject* value) {
  Py_ssize_t size = 0;
  const char* text = PyUnicode_AsUTF8AndSize(value, &size);
  if (text == nullptr) throw py::error_already_set();
  return {text, static_cast<std::size_t>(size)};
}

Shape ShapeOf(PyObject* value) {
  if (!PyTuple_Check(value)) throw py::type_error("a shape is a tuple");
  Shape shape(static_cast<std::size_t>(PyTuple_GET_SIZE(value)));
  for (std::size_t i = 0; i < shape.size(); ++i)
    shape[i] = NumberOf(PyTuple_GET_ITEM(value, static_cast<Py_ssize_t>(i)));
  return shape;
}

// Copies bytes of a tensor that only Python can: a callable of offset, address and size in bytes.
// Called, copied and dropped without the GIL.
class PyFetch {
 public:
  explicit PyFetch(PyObject* callable)
      : callable_(new py::object(py::reinterpret_borrow<py::object>(callable)), [](auto* held) {
          const GilAcquired acquired;
          delete held;
        }) {}

  Result<void> operator()(std::uint64_t offset_bytes, std::span<std::byte> into) const {
    const GilAcquired acquired;
    try {
      CallPython(*callable_, offset_bytes, reinterpret_cast<std::uintptr_t>(into.data()),
                 into.size());
    } catch (py::error_already_set& error) {
      return Error{ErrorCode::kInvalidArgument,
                   std::string("checkpoint: a tensor could not be copied: ") + error.what()};
    }
    return {};
  }

 private:
  std::shared_ptr<py::object> callable_;
};

// Takes tuples: key, dtype, shape, offset, extent, address, size in bytes, and whether nobody
// changes it; the objects in them are the caller's. In place of an address there may be what
// PyFetch calls.
std::vector<client::TensorView> TensorsOf(const py::list& slices) {
  std::vector<client::TensorView> tensors;
  tensors.reserve(slices.size());
  for (const py::handle handle : slices) {
    PyObject* const slice = handle.ptr();
    if (!PyTuple_Check(slice) || PyTuple_GET_SIZE(slice) < 8)
      throw py::type_error("a slice is a tuple of 8 or more");
    const auto item = [&](Py_ssize_t i) { return PyTuple_GET_ITEM(slice, i); };
    const bool is_fetched = PyCallable_Check(item(5)) != 0;
    client::TensorView& tensor = tensors.emplace_back();
    tensor = {.key = TextOf(item(0)),
              .dtype = TextOf(item(1)),
              .shape = ShapeOf(item(2)),
              .offset = ShapeOf(item(3)),
              .extent = ShapeOf(item(4)),
              .data = MemoryAt(is_fetched ? 0 : NumberOf(item(5)), NumberOf(item(6))),
              .is_stable = item(7) == Py_True};
    if (is_fetched) tensor.fetch = PyFetch(item(5));
  }
  return tensors;
}

// Without an attempt, the coordinator's.
CheckpointShards OpenShards(const TargetName& target, std::uint64_t step,
                            const std::optional<std::string>& attempt, bool direct,
                            TimeLimit timeout, bool incremental,
                            std::shared_ptr<client::SaveProgress> progress, bool replaces,
                            std::uint64_t turn) {
  const client::SaveOptions options{
      direct, incremental, SessionOptionsOf(timeout), {}, std::move(progress), replaces, turn};
  return ValueOrRaise(WithoutGil([&] {
    return attempt ? CheckpointShards::Join(target.value, step, *attempt, options)
                   : CheckpointShards::Begin(target.value, step, options);
  }));
}

// The tensors that train, and that a save has found unchanged.
class Unchanged {
 public:
  Unchanged(std::size_t training_count, bool fails)
      : training_count_(training_count), fails_(fails) {}

  Result<void> Note(std::uint64_t last_step, std::span<const std::string> keys) {
    keys_.assign(keys.begin(), keys.end());
    last_step_ = last_step;
    if (!fails_) return {};
    return Error{ErrorCode::kInvalidArgument,
                 "checkpoint: " + std::to_string(keys_.size()) + " of " +
                     std::to_string(training_count_) +
                     " tensors that train are bit-identical to those of step " +
                     std::to_string(last_step_) + ", such as " + keys_.front() +
                     "; nothing is saved. Does the optimizer have these tensors?"};
  }
  py::tuple AsTuple() const { return py::make_tuple(last_step_, keys_); }

 private:
  std::size_t training_count_;
  bool fails_;
  std::uint64_t last_step_ = 0;
  std::vector<std::string> keys_;
};

// The shard, and what of `training` is unchanged.
py::tuple WriteShard(CheckpointShards& shards, std::uint32_t rank, const py::list& slices,
                     std::vector<std::string> training, bool fails_if_unchanged) {
  const auto tensors = TensorsOf(slices);
  Unchanged unchanged(training.size(), fails_if_unchanged);
  shards.Watch(std::move(training),
               [&](std::uint64_t last_step, std::span<const std::string> keys) {
                 return unchanged.Note(last_step, keys);
               });
  const auto written = ValueOrRaise(WithoutGil([&] { return shards.Write(rank, tensors); }));
  return py::make_tuple(Bytes(written), unchanged.AsTuple());
}

py::tuple CommitShards(CheckpointShards& shards, const py::list& written,
                       const std::string& structure) {
  std::vector<std::vector<std::byte>> reports;
  for (const py::handle report : written) reports.push_back(BytesOf(report));
  return AsTuple(ValueOrRaise(
      WithoutGil([&] { return shards.Commit(reports, std::as_bytes(std::span(structure))); })));
}

// One rank's side of a save. Whatever can fail on this rank alone fails in the constructor, before
// other ranks wait for this one; the memory that slices name is the caller's until Commit has
// ended.
class PreparedSave {
 public:
  PreparedSave(TargetName target, std::uint64_t step, const py::list& slices, bool direct,
               TimeLimit timeout, bool incremental, std::shared_ptr<client::SaveProgress> progress,
               bool replaces, std::uint64_t turn, std::vector<std::string> training,
               bool fails_if_unchanged)
      : target_(std::move(target.value)),
        step_(step),
        tensors_(TensorsOf(slices)),
        options_{direct,   incremental, SessionOptionsOf(timeout), {}, std::move(progress),
                 replaces, turn,        std::move(training)},
        unchanged_(options_.training.size(), fails_if_unchanged) {
    options_.unchanged = [this](std::uint64_t last_step, std::span<const std::string> keys) {
      return unchanged_.Note(last_step, keys);
    };
  }
  PreparedSave(const PreparedSave&) = delete;
  PreparedSave& operator=(const PreparedSave&) = delete;

  // The tensors that train and are as in the last save, and its step.
  py::tuple unchanged() const { return unchanged_.AsTuple(); }

  py::tuple Commit(const py::bytes& structure, const py::object& group,
                   const py::object& released) {
    const std::string_view structure_view = structure;
    std::optional<PyGroup> ranks;
    if (!group.is_none()) ranks.emplace(group);
    if (!released.is_none())
      options_.released = [&released] {
        const GilAcquired acquired;
        try {
          CallPython(released);
        } catch (py::error_already_set& error) {
          error.discard_as_unraisable("ffrecord: telling that tensors are free");
        }
      };
    auto saved = WithoutGil([&] {
      return client::SaveCheckpoint(target_, step_, tensors_,
                                    std::as_bytes(std::span(structure_view)),
                                    ranks ? &*ranks : nullptr, options_);
    });
    if (!saved && ranks) ranks->RethrowFailure(saved.error());
    return AsTuple(ValueOrRaise(std::move(saved)));
  }

 private:
  std::string target_;
  std::uint64_t step_;
  std::vector<client::TensorView> tensors_;
  client::SaveOptions options_;
  Unchanged unchanged_;
};

StagingArena MakeArena(std::uint64_t size_bytes) {
  return ValueOrRaise(StagingArena::Create(size_bytes));
}

// Takes tuples: address, size in bytes, and offset in the arena. Whether a job fits is checked
// here, for C++ holds it for its caller's mistake.
void CopyInto(StagingArena& arena,
              const std::vector<std::tuple<std::uintptr_t, std::uint64_t, std::uint64_t>>& jobs) {
  std::vector<StagingArena::CopyJob> copies;
  copies.reserve(jobs.size());
  for (const auto& [address, size, offset] : jobs) {
    if (offset > arena.bytes().size() || size > arena.bytes().size() - offset)
      throw py::value_error("a copy passes the end of the arena");
    copies.push_back({MemoryAt(address, size), offset});
  }
  WithoutGil([&] { arena.Copy(copies); });
}

CheckpointReader OpenReader(const TargetName& target, std::optional<std::uint64_t> step,
                            TimeLimit timeout, std::uint64_t below) {
  return ValueOrRaise(WithoutGil([&] {
    return step ? CheckpointReader::Open(target.value, *step, SessionOptionsOf(timeout))
                : CheckpointReader::OpenBelow(target.value, below, SessionOptionsOf(timeout));
  }));
}

py::list SlicesOf(const CheckpointReader& reader) {
  py::list slices;
  for (const client::SavedSlice& slice : reader.slices())
    slices.append(py::make_tuple(slice.key, slice.offset, slice.extent));
  return slices;
}

py::list StoredTensorsOf(const CheckpointReader& reader) {
  py::list tensors;
  for (const client::StoredTensor& tensor : reader.tensors())
    tensors.append(py::make_tuple(tensor.key, tensor.dtype, tensor.shape));
  return tensors;
}

using Wanted = std::tuple<std::string, Shape, Shape, std::uintptr_t, std::uint64_t>;

void Read(const CheckpointReader& reader, const std::vector<Wanted>& wanted) {
  std::vector<CheckpointReader::Request> requests;
  requests.reserve(wanted.size());
  for (const auto& [key, offset, extent, address, size] : wanted)
    requests.push_back({key, offset, extent, MemoryAt(address, size)});
  OkOrRaise(WithoutGil([&] { return reader.Read(requests); }));
}

// Returns tuples as commits are, with what is damaged behind them, and whether they were given up.
py::list List(const TargetName& target, TimeLimit timeout, bool roots_only,
              const std::optional<TargetName>& line_of) {
  const auto depth = roots_only ? client::ListDepth::kRoots : client::ListDepth::kManifests;
  const auto commits = ValueOrRaise(WithoutGil([&] {
    return client::ListCheckpoints(target.value, SessionOptionsOf(timeout), depth,
                                   line_of ? line_of->value : std::string_view());
  }));
  py::list list;
  for (const client::Commit& commit : commits)
    list.append(py::make_tuple(commit.step, commit.attempt, commit.size_bytes,
                               python::TextOf(commit.damage), commit.is_given_up));
  return list;
}

std::vector<std::uint64_t> Steps(const TargetName& target, TimeLimit timeout) {
  return ValueOrRaise(
      WithoutGil([&] { return client::ListSteps(target.value, SessionOptionsOf(timeout)); }));
}

// 16 bytes for each slice, which are as those of a save.
py::bytes Digests(const py::list& slices) {
  const auto tensors = TensorsOf(slices);
  const auto digests = ValueOrRaise(WithoutGil([&] { return client::ContentDigests(tensors); }));
  return Bytes(std::as_bytes(std::span(digests)));
}

bool SharePlace(const TargetName& first, const TargetName& second) {
  return WithoutGil([&] { return client::SharePlace(first.value, second.value); });
}

py::list Prune(const TargetName& target, std::uint64_t keep_last, std::uint64_t keep_every,
               bool verify, bool dry_run, TimeLimit timeout) {
  const auto removed = ValueOrRaise(WithoutGil([&] {
    return client::PruneCheckpoints(target.value, {keep_last, keep_every, verify, dry_run},
                                    SessionOptionsOf(timeout));
  }));
  py::list list;
  for (const client::Commit& commit : removed) list.append(AsTuple(commit));
  return list;
}

py::tuple Copy(const TargetName& from, std::uint64_t step, const TargetName& to, TimeLimit timeout,
               bool compresses, const std::string& replaces, bool is_of_run) {
  return AsTuple(ValueOrRaise(WithoutGil([&] {
    return client::CopyCheckpoint(from.value, step, to.value, SessionOptionsOf(timeout), compresses,
                                  replaces, is_of_run);
  })));
}

void Remove(const TargetName& target, std::uint64_t step, TimeLimit timeout,
            const std::string& attempt) {
  OkOrRaise(WithoutGil([&] {
    return client::RemoveCheckpoint(target.value, step, SessionOptionsOf(timeout), attempt);
  }));
}

std::uint64_t DigestOfMemory(std::uintptr_t address, std::uint64_t size_bytes,
                             std::uint64_t offset_bytes) {
  const auto* const bytes = reinterpret_cast<const std::byte*>(address);
  return WithoutGil([&] { return client::TensorDigest({bytes, size_bytes}, offset_bytes); });
}

// Abandons what is not committed, which talks to the target: other threads go on meanwhile.
struct EndedWithoutGil {
  void operator()(CheckpointShards* shards) const {
    const GilReleased released;
    std::default_delete<CheckpointShards>()(shards);
  }
};

}  // namespace

void BindCheckpoint(py::module_& module) {
  py::class_<StagingArena>(module, "StagingArena", py::is_final())
      .def(py::init(&MakeArena), py::arg("size_bytes"))
      .def_property_readonly("address",
                             [](const StagingArena& arena) {
                               return reinterpret_cast<std::uintptr_t>(arena.bytes().data());
                             })
      .def_property_readonly("size_bytes",
                             [](const StagingArena& arena) { return arena.bytes().size(); })
      .def("copy", &CopyInto, py::arg("jobs"));
  py::class_<client::SaveProgress, std::shared_ptr<client::SaveProgress>>(module, "SaveProgress",
                                                                          py::is_final())
      .def(py::init<>())
      .def_property_readonly(
          "total_bytes", [](const client::SaveProgress& save) { return save.total_bytes.load(); })
      .def_property_readonly(
          "done_bytes", [](const client::SaveProgress& save) { return save.done_bytes.load(); });
  py::class_<PreparedSave>(module, "PreparedSave", py::is_final())
      .def(py::init<TargetName, std::uint64_t, const py::list&, bool, TimeLimit, bool,
                    std::shared_ptr<client::SaveProgress>, bool, std::uint64_t,
                    std::vector<std::string>, bool>(),
           py::arg("target"), py::arg("step"), py::arg("slices"), py::arg("direct"),
           py::arg("timeout_s"), py::arg("incremental"), py::arg("progress"),
           py::arg("replaces") = false, py::arg("turn") = 0,
           py::arg("training") = std::vector<std::string>(), py::arg("fails_if_unchanged") = false)
      .def_property_readonly("unchanged", &PreparedSave::unchanged)
      .def("commit", &PreparedSave::Commit, py::arg("structure"), py::arg("group"),
           py::arg("released"));
  py::class_<CheckpointReader>(module, "CheckpointReader", py::is_final())
      .def(py::init(&OpenReader), py::arg("target"), py::arg("step"), py::arg("timeout_s"),
           py::arg("below") = CheckpointReader::kLatest)
      .def_property_readonly(
          "commit", [](const CheckpointReader& reader) { return AsTuple(reader.commit()); })
      .def_property_readonly("world_size", &CheckpointReader::world_size)
      .def_property_readonly(
          "structure", [](const CheckpointReader& reader) { return Bytes(reader.structure()); })
      .def_property_readonly("tensors", &StoredTensorsOf)
      .def("slices", &SlicesOf)
      .def_property_readonly("digests",
                             [](const CheckpointReader& reader) {
                               py::list digests;
                               for (const auto& digest : reader.digests()) digests.append(digest);
                               return digests;
                             })
      .def_property_readonly(
          "skipped", [](const CheckpointReader& reader) { return TextsOf(reader.skipped()); })
      .def_property_readonly(
          "unseen", [](const CheckpointReader& reader) { return TextsOf(reader.unseen()); })
      .def("read", &Read, py::arg("wanted"))
      .def("verify",
           [](const CheckpointReader& reader) {
             return TextsOf(ValueOrRaise(WithoutGil([&] { return reader.Verify(); })));
           })
      .def(
          "go_on",
          [](const CheckpointReader& reader, bool is_certain) {
            OkOrRaise(WithoutGil([&] { return reader.GoOn(is_certain); }));
          },
          py::arg("is_certain"))
      .def("is_whole", [](const CheckpointReader& reader) {
        return ValueOrRaise(WithoutGil([&] { return reader.IsWhole(); }));
      });
  py::class_<CheckpointShards, std::unique_ptr<CheckpointShards, EndedWithoutGil>>(
      module, "CheckpointShards", py::is_final())
      .def(py::init(&OpenShards), py::arg("target"), py::arg("step"), py::arg("attempt"),
           py::arg("direct"), py::arg("timeout_s"), py::arg("incremental"),
           py::arg("progress") = nullptr, py::arg("replaces") = false, py::arg("turn") = 0)
      .def_property_readonly("attempt", &CheckpointShards::attempt)
      .def("write", &WriteShard, py::arg("rank"), py::arg("slices"),
           py::arg("training") = std::vector<std::string>(), py::arg("fails_if_unchanged") = false)
      .def("commit", &CommitShards, py::arg("shards"), py::arg("structure"));
  module.def("checkpoint_item_sizes", [] {
    py::dict sizes;
    for (const CheckpointDtype& dtype : CheckpointDtypes())
      sizes[py::str(dtype.name)] = dtype.size_bytes;
    return sizes;
  });
  module.def("all_gather_results", &GatherResults, py::arg("group"), py::arg("mine"),
             py::arg("failed"));
  module.def("tensor_digest", &DigestOfMemory, py::arg("address"), py::arg("size_bytes"),
             py::arg("offset_bytes"));
  module.def("take_turn", &client::TakeTurn);
  module.def("forget_where_runs_go_on", &client::ForgetWhereRunsGoOn);
  module.def("content_digests", &Digests, py::arg("slices"));
  module.def("share_place", &SharePlace, py::arg("first"), py::arg("second"));
  module.def("list_checkpoints", &List, py::arg("target"), py::arg("timeout_s"),
             py::arg("roots_only") = false, py::arg("line_of") = py::none());
  module.def("list_steps", &Steps, py::arg("target"), py::arg("timeout_s"));
  module.def("copy_checkpoint", &Copy, py::arg("source"), py::arg("step"), py::arg("target"),
             py::arg("timeout_s"), py::arg("compresses") = false, py::arg("replaces") = "",
             py::arg("is_of_run") = false);
  module.def("prune_checkpoints", &Prune, py::arg("target"), py::arg("keep_last"),
             py::arg("keep_every"), py::arg("verify"), py::arg("dry_run"), py::arg("timeout_s"));
  module.def("remove_checkpoint", &Remove, py::arg("target"), py::arg("step"), py::arg("timeout_s"),
             py::arg("attempt") = "");
}

}  // namespace ffrecord::python
