#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <tuple>
#include <utility>
#include <vector>

#include <ffrecord/batch_stream.h>

#include "python/src/bind.h"
#include "python/src/counting_reader.h"
#include "python/src/errors.h"
#include "python/src/native_decoder.h"
#include "python/src/time_limit.h"

namespace ffrecord::python {
namespace {

using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;

// A column that is gathered: its number, and the type and shape of one value.
using GatheredColumn = std::tuple<std::uint32_t, py::dtype, std::vector<py::ssize_t>>;
// One that is decoded: its number, or none for whole records.
using DecodedColumn = std::pair<std::optional<std::uint32_t>, NativeDecoder>;

// A stream and the reader that counts for it, which outlives it.
class CountingStream {
 public:
  CountingStream(CountingReader& reader, const EpochPlan& plan, std::uint64_t epoch_end,
                 BatchStream::Options options, std::vector<GatheredColumn> columns,
                 const std::vector<DecodedColumn>& decoded)
      : reader_(reader), columns_(std::move(columns)) {
    for (const auto& column : columns_) options.gathered_columns.push_back(std::get<0>(column));
    for (const auto& [column, decoder] : decoded)
      options.decoded_columns.push_back({column, decoder.inner});
    stream_.emplace(ValueOrRaise(
        WithoutGil([&] { return BatchStream::Open(reader.reader, plan, epoch_end, options); })));
  }
  ~CountingStream() {
    const GilReleased released;
    Count();  // Nobody else is left, in a forked child not even who may have locked the mutex.
    stream_.reset();
  }
  CountingStream(const CountingStream&) = delete;
  CountingStream& operator=(const CountingStream&) = delete;

  // Ends the threads. A caller that waits for a batch, in another thread, then gets none.
  void Close() {
    const GilReleased released;
    is_closed_ = true;  // Else who waits would take the mutex again and again.
    const std::lock_guard lock(mutex_);
    Count();
    stream_.reset();
  }

  // None: the time is over, or the stream was closed. Else the batch, and the values of the
  // columns, if they were gathered.
  py::object Next(WaitLimit timeout) {
    auto item = Take(timeout);
    if (!item) return py::none();
    const auto begin = Clock::now();
    auto batch = std::make_shared<Batch>(ValueOrRaise(std::move(item->batch)));
    py::object values = py::none();
    if (!item->columns.empty()) values = ValuesOf(*item, batch);
    py::tuple found = py::make_tuple(std::move(batch), std::move(values));
    handover_ns_ += std::chrono::nanoseconds(Clock::now() - begin).count();
    return found;
  }

  // Seconds by stage, but for those of the reader.
  py::dict Times() {
    const BatchStream::Stats times = WithoutGil([&] {
      const std::lock_guard lock(mutex_);
      Count();
      return counted_;
    });
    py::dict sums;
    sums["submit"] = Seconds(times.order);
    sums["decode"] = Seconds(times.decode);
    sums["collate"] = Seconds(times.collate);
    sums["queue"] = Seconds(times.queue);
    sums["handover"] = Seconds(std::chrono::nanoseconds(handover_ns_));
    return sums;
  }

  std::uint64_t held_bytes() {
    return WithoutGil([&] {
      const std::lock_guard lock(mutex_);
      return stream_ ? stream_->stats().held_bytes : 0;
    });
  }
  std::uint32_t depth() { return Ask(&BatchStream::depth); }
  std::uint32_t pending() { return Ask(&BatchStream::pending); }

 private:
  std::uint32_t Ask(std::uint32_t (BatchStream::*what)() const) {
    return WithoutGil([&] {
      const std::lock_guard lock(mutex_);
      return stream_ ? (*stream_.*what)() : 0;
    });
  }

  // Takes a batch that is ready at once; else waits without the GIL, and lets signal handlers run.
  std::optional<BatchStream::Item> Take(WaitLimit timeout) {
    constexpr milliseconds kSliceMax{50};
    if (auto item = TryTake(milliseconds(0))) return item;
    const auto end = Clock::now() + timeout.value;
    for (;;) {
      const auto left = std::chrono::ceil<milliseconds>(end - Clock::now());
      auto item = WithoutGil([&] { return TryTake(std::clamp(left, milliseconds(0), kSliceMax)); });
      if (item || left <= kSliceMax || is_closed_) return item;
      if (PyErr_CheckSignals() != 0) throw py::error_already_set();
    }
  }

  std::optional<BatchStream::Item> TryTake(milliseconds timeout) {
    const std::unique_lock lock(mutex_, std::try_to_lock);
    if (!lock || !stream_) return std::nullopt;
    auto item = stream_->Next(timeout);
    if (!item || !item.value()) return std::nullopt;
    Count();
    return std::move(item).value();
  }

  // Counts in the reader what was read since the last call.
  void Count() {
    if (!stream_ || ::getpid() != home_) return;  // A child's copy has read nothing.
    const BatchStream::Stats now = stream_->stats();
    reader_.batch_count += now.batches - counted_.batches;
    reader_.record_count += now.records - counted_.records;
    reader_.size_bytes += now.size_bytes - counted_.size_bytes;
    counted_ = now;
  }

  // Arrays of the columns that were gathered; then of those that were decoded: the bytes, and the
  // places in them.
  py::tuple ValuesOf(const BatchStream::Item& item, const std::shared_ptr<Batch>& batch) const {
    py::tuple values(item.columns.size());
    std::optional<py::capsule> owner;
    for (std::size_t i = 0; i < item.columns.size(); ++i) {
      const ColumnValues& column = item.columns[i];
      // Gathered columns share a block, decoded ones have their own.
      if (!owner || column.owner != item.columns[i - 1].owner) owner = Owner(column, batch);
      if (i >= columns_.size()) {
        values[i] =
            py::make_tuple(View<std::uint8_t>(column.data.data(), column.data.size(), *owner),
                           PlacesOf(column.places));
        continue;
      }
      std::vector<py::ssize_t> shape{static_cast<py::ssize_t>(item.indices.size())};
      const auto& [number, type, value_shape] = columns_[i];
      shape.insert(shape.end(), value_shape.begin(), value_shape.end());
      values[i] = py::array(type, std::move(shape), column.data.data(), *owner);
    }
    return values;
  }

  // Keeps the memory of a column alive. Where that is not the batch's, the batch may go: it is as
  // large as all columns of its records.
  static py::capsule Owner(const ColumnValues& column, const std::shared_ptr<Batch>& batch) {
    const auto in = column.owner ? column.owner : Batch::Owner(batch);
    return {new Batch::Owner(in), [](void* held) { delete static_cast<Batch::Owner*>(held); }};
  }

  const pid_t home_ = ::getpid();
  CountingReader& reader_;
  const std::vector<GatheredColumn> columns_;
  std::atomic<bool> is_closed_{false};
  std::mutex mutex_;  // Held by each caller of the stream.
  std::optional<BatchStream> stream_;
  BatchStream::Stats counted_;  // Counts that the reader has.
  std::atomic<std::int64_t> handover_ns_{0};
};

}  // namespace

void BindBatchStream(py::module_& module) {
  py::class_<CountingStream>(module, "BatchStream", py::is_final())
      .def(py::init([](CountingReader& reader, const EpochPlan& plan, std::uint64_t epoch_end,
                       std::uint32_t threads, std::uint32_t batches_ahead,
                       std::uint64_t memory_limit_bytes, std::vector<GatheredColumn> columns,
                       const std::vector<DecodedColumn>& decoded, bool keeps_records) {
             return std::make_unique<CountingStream>(
                 reader, plan, epoch_end,
                 BatchStream::Options{.threads = threads,
                                      .batches_ahead = batches_ahead,
                                      .memory_limit_bytes = memory_limit_bytes,
                                      .keeps_records = keeps_records},
                 std::move(columns), decoded);
           }),
           py::arg("reader"), py::arg("plan"), py::kw_only(), py::arg("epoch_end"),
           py::arg("threads"), py::arg("batches_ahead"), py::arg("memory_limit_bytes"),
           py::arg("columns"), py::arg("decoded"), py::arg("keeps_records"), py::keep_alive<1, 2>())
      .def_property_readonly("depth", &CountingStream::depth)
      .def_property_readonly("pending", &CountingStream::pending)
      .def_property_readonly("held_bytes", &CountingStream::held_bytes)
      .def("next", &CountingStream::Next, py::arg("timeout_s"))
      .def("times", &CountingStream::Times)
      .def("close", &CountingStream::Close);
}

}  // namespace ffrecord::python
