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
#include "python/src/time_limit.h"

namespace ffrecord::python {
namespace {

using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;

// A column that is gathered: its number, and the type and shape of one value.
using GatheredColumn = std::tuple<std::uint32_t, py::dtype, std::vector<py::ssize_t>>;

// A stream and the reader that counts for it, which outlives it.
class CountingStream {
 public:
  CountingStream(CountingReader& reader, const EpochPlan& plan, std::uint64_t epoch_end,
                 BatchStream::Options options, std::vector<GatheredColumn> columns)
      : reader_(reader), columns_(std::move(columns)) {
    for (const auto& column : columns_) options.gathered_columns.push_back(std::get<0>(column));
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

  // Ends the threads. Who waits for a batch, in another thread, then gets none.
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
    auto batch = std::make_shared<Batch>(ValueOrRaise(std::move(item->batch)));
    if (item->columns.empty()) return py::make_tuple(std::move(batch), py::none());
    return py::make_tuple(batch, ArraysOf(*item, batch));
  }

  // Seconds by stage.
  py::dict Times() {
    const BatchStream::Stats times = WithoutGil([&] {
      const std::lock_guard lock(mutex_);
      Count();
      return counted_;
    });
    const auto seconds = [](std::chrono::nanoseconds time) {
      return std::chrono::duration<double>(time).count();
    };
    py::dict sums;
    sums["plan"] = seconds(times.plan);
    sums["read"] = seconds(times.read);
    sums["check"] = seconds(times.cpu);
    sums["collate"] = seconds(times.collate);
    sums["queue"] = seconds(times.queue);
    sums["idle"] = seconds(times.idle);
    return sums;
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

  // What is ready is taken at once; else waits without the GIL, and lets signal handlers run.
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

  // Tells the reader what was read since it was told last.
  void Count() {
    if (!stream_ || ::getpid() != home_) return;  // A child's copy has read nothing.
    const BatchStream::Stats now = stream_->stats();
    reader_.batch_count += now.batches - counted_.batches;
    reader_.record_count += now.records - counted_.records;
    reader_.size_bytes += now.size_bytes - counted_.size_bytes;
    reader_.wait_ns += (now.read - counted_.read).count();
    reader_.cpu_ns += (now.cpu - counted_.cpu).count();
    counted_ = now;
  }

  py::tuple ArraysOf(const BatchStream::Item& item, const std::shared_ptr<Batch>& batch) const {
    // Arrays share the memory that they lie in. Where that is not the batch's, the batch may go: it
    // is as large as all columns of its records.
    const auto in = item.columns_owner ? item.columns_owner : Batch::Owner(batch);
    const py::capsule owner(new Batch::Owner(in),
                            [](void* shared) { delete static_cast<Batch::Owner*>(shared); });
    py::tuple arrays(columns_.size());
    for (std::size_t i = 0; i < columns_.size(); ++i) {
      std::vector<py::ssize_t> shape{static_cast<py::ssize_t>(batch->size())};
      const auto& [number, type, value_shape] = columns_[i];
      shape.insert(shape.end(), value_shape.begin(), value_shape.end());
      arrays[i] = py::array(type, std::move(shape), item.columns[i].data(), owner);
    }
    return arrays;
  }

  const pid_t home_ = ::getpid();
  CountingReader& reader_;
  const std::vector<GatheredColumn> columns_;
  std::atomic<bool> is_closed_{false};
  std::mutex mutex_;  // Of whoever calls the stream.
  std::optional<BatchStream> stream_;
  BatchStream::Stats counted_;  // What the reader knows.
};

}  // namespace

void BindBatchStream(py::module_& module) {
  py::class_<CountingStream>(module, "BatchStream", py::is_final())
      .def(py::init([](CountingReader& reader, std::uint64_t seed, std::uint64_t epoch,
                       std::uint64_t first, std::uint64_t end, std::uint64_t epoch_end,
                       std::uint32_t block, std::uint32_t window, std::uint32_t step_size,
                       std::uint32_t world_size, std::uint32_t rank, std::uint32_t threads,
                       std::uint32_t batches_ahead, std::uint64_t memory_limit_bytes,
                       std::vector<GatheredColumn> columns) {
             const EpochPlan plan{seed,   epoch,     first,      end, block,
                                  window, step_size, world_size, rank};
             return std::make_unique<CountingStream>(
                 reader, plan, epoch_end,
                 BatchStream::Options{threads, batches_ahead, memory_limit_bytes, {}},
                 std::move(columns));
           }),
           py::arg("reader"), py::kw_only(), py::arg("seed"), py::arg("epoch"), py::arg("first"),
           py::arg("end"), py::arg("epoch_end"), py::arg("block"), py::arg("window"),
           py::arg("step_size"), py::arg("world_size"), py::arg("rank"), py::arg("threads"),
           py::arg("batches_ahead"), py::arg("memory_limit_bytes"), py::arg("columns"),
           py::keep_alive<1, 2>())
      .def_property_readonly("depth", &CountingStream::depth)
      .def_property_readonly("pending", &CountingStream::pending)
      .def("next", &CountingStream::Next, py::arg("timeout_s"))
      .def("times", &CountingStream::Times)
      .def("close", &CountingStream::Close);
}

}  // namespace ffrecord::python
