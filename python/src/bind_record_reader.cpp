#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <ffrecord/client/dataset.h>
#include <ffrecord/delegated_reads.h>
#include <ffrecord/record_reader.h>

#include "python/src/bind.h"
#include "python/src/counting_reader.h"
#include "python/src/errors.h"
#include "python/src/signals.h"
#include "python/src/time_limit.h"

namespace ffrecord::python {

std::vector<std::uint64_t> IndicesOf(const py::array_t<std::int64_t, py::array::c_style>& array,
                                     std::uint64_t count) {
  const auto signed_count = static_cast<std::int64_t>(count);
  const std::span given(array.data(), static_cast<std::size_t>(array.size()));
  std::vector<std::uint64_t> indices(given.size());
  bool in_range = true;  // Looked at once: most batches are, and then there is no branch.
  for (std::size_t i = 0; i < given.size(); ++i) {
    indices[i] = static_cast<std::uint64_t>(given[i] + (given[i] < 0 ? signed_count : 0));
    in_range &= indices[i] < count;
  }
  if (in_range) return indices;
  const auto out = std::ranges::find_if(indices, [&](auto index) { return index >= count; });
  Raise({ErrorCode::kOutOfRange,
         "record index " + std::to_string(given[static_cast<std::size_t>(out - indices.begin())]) +
             " is out of range: there are " + std::to_string(count) + " records"});
}

namespace {

// The options of a reader, beside what it reads.
struct OpenOptions {
  RecordReader::Options reader;
  SessionOptions session;
  client::CacheOptions cache;
};

OpenOptions OpenOptionsOf(bool check_data, bool salvage, bool direct, TimeLimit timeout,
                          bool assume_running, const std::string& cache, std::uint64_t cache_size) {
  OpenOptions options{.reader = {.verify_checksums = check_data,
                                 .salvage = salvage,
                                 .io = direct ? IoPolicy::kDirect : IoPolicy::kAuto},
                      .session = SessionOptionsOf(timeout),
                      .cache = {cache, cache_size}};
  options.session.assume_running = assume_running;
  return options;
}

std::unique_ptr<CountingReader> Open(const std::vector<std::string>& locations,
                                     const OpenOptions& options) {
  return std::make_unique<CountingReader>(ValueOrRaise(Interruptible([&](const auto& give_up) {
    return client::OpenDataset(locations, options.reader, options.session, options.cache, give_up);
  })));
}

std::unique_ptr<CountingReader> OpenDelegated(const std::shared_ptr<DelegatedReads>& reads,
                                              const OpenOptions& options) {
  return std::make_unique<CountingReader>(ValueOrRaise(Interruptible([&](const auto& give_up) {
    return client::OpenDelegated(reads, options.reader, options.cache, give_up);
  })));
}

std::shared_ptr<Batch> ReadBatch(CountingReader& self,
                                 const py::array_t<std::int64_t, py::array::c_style>& array) {
  const auto indices = IndicesOf(array, self.reader.record_count());
  auto read =
      Interruptible([&](const auto& give_up) { return self.reader.ReadBatch(indices, give_up); });
  auto batch = std::make_shared<Batch>(ValueOrRaise(std::move(read)));
  ++self.batch_count;
  self.record_count += indices.size();
  self.size_bytes += batch->data().size();
  return batch;
}

py::array_t<std::int64_t> SizesOf(const CountingReader& self,
                                  const py::array_t<std::int64_t, py::array::c_style>& array) {
  const auto indices = IndicesOf(array, self.reader.record_count());
  py::array_t<std::int64_t> sizes(static_cast<py::ssize_t>(indices.size()));
  const std::span out(sizes.mutable_data(), indices.size());
  OkOrRaise(Interruptible(
      [&](const auto& give_up) { return self.reader.ReadSizes(indices, out, give_up); }));
  return sizes;
}

// For each key the index of its record, or None.
std::vector<std::optional<std::uint64_t>> Find(const CountingReader& self,
                                               const std::vector<std::string>& keys) {
  std::vector<std::span<const std::byte>> spans;
  spans.reserve(keys.size());
  for (const std::string& key : keys) spans.push_back(std::as_bytes(std::span(key)));
  return ValueOrRaise(
      Interruptible([&](const auto& give_up) { return self.reader.FindAll(spans, give_up); }));
}

// The record in the file, and the key, of each record that has one.
py::list KeysOf(const CountingReader& self, std::size_t file_index) {
  const RecordReader::Keys keys = ValueOrRaise(Interruptible(
      [&](const auto& give_up) { return self.reader.ReadKeys(file_index, give_up); }));
  py::list list(keys.indices.size());
  std::uint64_t begin = 0;
  for (std::size_t i = 0; i < keys.indices.size(); ++i) {
    const std::uint64_t size = keys.ends[i] - begin;
    list[i] = py::make_tuple(keys.indices[i], Bytes(std::span(keys.bytes).subspan(begin, size)));
    begin = keys.ends[i];
  }
  return list;
}

// Whether the records of the file may have keys, and RecordReader::KeyOrigin::column.
py::tuple KeyOriginOf(const CountingReader& self, std::size_t file_index) {
  const RecordReader::KeyOrigin origin = ValueOrRaise(Interruptible(
      [&](const auto& give_up) { return self.reader.ReadKeyOrigin(file_index, give_up); }));
  return py::make_tuple(origin.has_keys, origin.column);
}

void ReadColumn(const CountingReader& self, std::size_t column, std::uint64_t first,
                std::uint64_t count, py::array_t<std::uint8_t, py::array::c_style> destination) {
  const std::span values(destination.mutable_data(), static_cast<std::size_t>(destination.size()));
  OkOrRaise(Interruptible([&](const auto& give_up) {
    return self.reader.ReadColumn(column, first, count, std::as_writable_bytes(values), give_up);
  }));
}

std::unique_ptr<PrefetchHint> HintEpoch(const CountingReader& self, const EpochPlan& plan) {
  return ValueOrRaise(WithoutGil([&] { return self.reader.HintEpoch(plan); }));
}

void AddStore(const StoreReport& report, py::dict& stats) {
  stats["store_requests"] = report.requests;
  stats["store_retries"] = report.retries;
  stats["store_hedges"] = report.hedges;
  stats["store_throttled"] = report.throttled;
  stats["store_bytes"] = report.received_bytes;
  stats["cache_hits"] = report.cache_hits;
  stats["cache_misses"] = report.cache_misses;
  stats["cache_evictions"] = report.cache_evictions;
}

py::dict StatsOf(const CountingReader& self) {
  const RecordReader::IoReport report = self.reader.io_report();
  py::dict stats;
  stats["batches"] = self.batch_count.load();
  stats["batches_from_memory"] = report.batches_from_memory;
  stats["records"] = self.record_count.load();
  stats["size_bytes"] = self.size_bytes.load();
  stats["submit_s"] = Seconds(report.times.submit);
  stats["device_s"] = Seconds(report.times.device);
  stats["verify_s"] = Seconds(report.times.verify);
  stats["decompress_s"] = Seconds(report.times.decompress);
  if (report.store) AddStore(*report.store, stats);
  return stats;
}

std::string Describe(const CountingReader& self, std::uint64_t index, std::uint8_t status) {
  if (index >= self.reader.record_count())
    Raise({ErrorCode::kOutOfRange, "record index " + std::to_string(index) + " of " +
                                       std::to_string(self.reader.record_count())});
  return WithoutGil([&] { return self.reader.Describe(index, static_cast<ErrorCode>(status)); });
}

// The suspicions that the files' headers raise; one line each.
std::vector<std::string> WarningsOf(const CountingReader& self) {
  return WithoutGil([&] {
    std::vector<std::string> all;
    for (std::size_t i = 0; i < self.reader.file_count(); ++i) {
      const auto file = self.reader.file(i);
      all.insert(all.end(), file.warnings.begin(), file.warnings.end());
    }
    return all;
  });
}

py::dict FileOf(const CountingReader& self, std::size_t file_index) {
  const RecordReader& reader = self.reader;
  if (file_index >= reader.file_count())
    Raise({ErrorCode::kOutOfRange,
           "file " + std::to_string(file_index) + " of " + std::to_string(reader.file_count())});
  const RecordReader::FileInfo file = reader.file(file_index);
  py::dict info;
  info["name"] = TextOf(file.name);
  info["format_version"] = file.format_version;
  info["size_bytes"] = file.size_bytes;
  info["record_count"] = file.record_count;
  info["first_index"] = file.first_index;
  info["fingerprint"] = Bytes(file.fingerprint);
  info["warnings"] = TextsOf(file.warnings);
  return info;
}

py::dict MetadataOf(const CountingReader& self, std::size_t file_index) {
  const Metadata metadata = ValueOrRaise(Interruptible(
      [&](const auto& give_up) { return self.reader.metadata(file_index, give_up); }));
  py::dict result;
  for (const auto& [name, value] : metadata) result[py::str(name)] = Bytes(value);
  return result;
}

}  // namespace

void BindRecordReader(py::module_& module) {
  using Self = const CountingReader&;
  py::class_<OpenOptions>(module, "OpenOptions", py::is_final())
      .def(py::init(&OpenOptionsOf), py::kw_only(), py::arg("check_data") = true,
           py::arg("salvage") = false, py::arg("direct") = false, py::arg("timeout_s") = 30.0,
           py::arg("assume_running") = false, py::arg("cache") = "",
           py::arg("cache_size") = std::uint64_t{64} << 30);
  py::class_<EpochPlan>(module, "EpochPlan", py::is_final())
      .def(py::init([](std::uint64_t seed, std::uint64_t epoch, std::uint64_t first,
                       std::uint64_t end, std::uint32_t block, std::uint32_t window,
                       std::uint32_t step_size, std::uint32_t world_size, std::uint32_t rank,
                       bool in_file_order) {
             return EpochPlan{seed,   epoch,     first,      end,  block,
                              window, step_size, world_size, rank, in_file_order};
           }),
           py::kw_only(), py::arg("seed"), py::arg("epoch"), py::arg("first"), py::arg("end"),
           py::arg("block"), py::arg("window"), py::arg("step_size"), py::arg("world_size"),
           py::arg("rank"), py::arg("in_file_order"));
  py::class_<PrefetchHint>(module, "PrefetchHint", py::is_final())
      .def_property_readonly("alive", &PrefetchHint::alive);
  py::class_<CountingReader>(module, "RecordReader", py::is_final())
      .def_static("open", &Open, py::arg("locations"), py::arg("options"))
      .def_static("open_delegated", &OpenDelegated, py::arg("reads"), py::arg("options"))
      .def("__len__", [](Self self) { return self.reader.record_count(); })
      .def_property_readonly("schema", [](Self self) { return self.reader.schema(); })
      .def_property_readonly("file_count", [](Self self) { return self.reader.file_count(); })
      .def_property_readonly("fingerprint",
                             [](Self self) { return Bytes(self.reader.fingerprint()); })
      .def_property_readonly("warnings",
                             [](const CountingReader& self) { return TextsOf(WarningsOf(self)); })
      .def("file", &FileOf, py::arg("file_index"))
      .def("metadata", &MetadataOf, py::arg("file_index"))
      .def("read_batch", &ReadBatch, py::arg("indices"))
      .def("sizes", &SizesOf, py::arg("indices"))
      .def("find", &Find, py::arg("keys"))
      .def("keys", &KeysOf, py::arg("file_index"))
      .def("key_origin", &KeyOriginOf, py::arg("file_index"))
      .def("read_column", &ReadColumn, py::arg("column"), py::arg("first"), py::arg("count"),
           py::arg("destination"))
      .def("hint_epoch", &HintEpoch, py::arg("plan"))
      .def("stats", &StatsOf)
      .def(
          "describe",
          [](const CountingReader& self, std::uint64_t index, std::uint8_t status) {
            return TextOf(Describe(self, index, status));
          },
          py::arg("index"), py::arg("status"))
      .def(
          "raise_for",
          [](Self self, std::uint64_t index, std::uint8_t status) {
            Raise({static_cast<ErrorCode>(status), Describe(self, index, status)});
          },
          py::arg("index"), py::arg("status"));
}

}  // namespace ffrecord::python
