#include <algorithm>
#include <chrono>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>

#include <ffrecord/batch_queue.h>

#include "python/src/bind.h"
#include "python/src/counting_reader.h"
#include "python/src/errors.h"
#include "python/src/time_limit.h"

namespace ffrecord::python {
namespace {

using std::chrono::milliseconds;
using Clock = BatchQueue::Clock;

// A queue and the reader that counts for it, which outlives it.
struct CountingQueue {
  CountingQueue(CountingReader& of_reader, BatchQueue opened)
      : reader(of_reader), queue(std::move(opened)) {}
  ~CountingQueue() {
    const GilReleased released;  // It waits for what is on its way.
    queue.reset();
  }

  // `call` with the queue, without the GIL. Raises ValueError while another thread is in one.
  template <class Call>
  auto Do(const Call& call) {
    const std::unique_lock lock(mutex, std::try_to_lock);
    if (!lock)
      Raise({ErrorCode::kInvalidArgument,
             "read batches: another thread is calling this queue; use one queue for each thread"});
    return WithoutGil([&] { return call(*queue); });
  }

  CountingReader& reader;
  std::mutex mutex;
  std::optional<BatchQueue> queue;
};

std::unique_ptr<CountingQueue> OpenQueue(CountingReader& reader, std::uint32_t batches_in_flight,
                                         bool in_order) {
  return std::make_unique<CountingQueue>(
      reader, ValueOrRaise(WithoutGil([&] {
        return reader.reader.OpenQueue(
            {.batches_in_flight = batches_in_flight, .in_order = in_order});
      })));
}

void Submit(CountingQueue& self, const py::array_t<std::int64_t, py::array::c_style>& array,
            std::uint64_t token, const std::optional<TimeLimit>& timeout) {
  const auto indices = IndicesOf(array, self.reader.reader.record_count());
  const auto deadline = timeout ? Clock::now() + timeout->value : BatchQueue::kNoDeadline;
  OkOrRaise(self.Do([&](BatchQueue& queue) { return queue.Submit(indices, token, deadline); }));
}

// The exception that Raise() raises for it.
py::object ExceptionOf(const Error& error) {
  try {
    Raise(error);
  } catch (py::error_already_set& raised) {
    return raised.value();
  }
}

py::tuple TupleOf(CountingReader& reader, BatchQueue::Completion completion) {
  if (!completion.batch)
    return py::make_tuple(completion.token, py::none(), ExceptionOf(completion.batch.error()));
  auto batch = std::make_shared<Batch>(std::move(completion.batch).value());
  ++reader.batch_count;
  reader.record_count += batch->size();
  reader.size_bytes += batch->data().size();
  return py::make_tuple(completion.token, std::move(batch), py::none());
}

// Appends what is complete to `found`, where a signal handler that raises does not lose it. Returns
// now and then to let such handlers run.
void Poll(CountingQueue& self, WaitLimit timeout, py::list& found) {
  constexpr milliseconds kSliceMax{50};
  const auto begin = Clock::now();
  for (;;) {
    const auto passed = std::chrono::duration_cast<milliseconds>(Clock::now() - begin);
    const auto slice = std::clamp(timeout.value - passed, milliseconds(0), kSliceMax);
    std::size_t left = 0;
    auto polled = ValueOrRaise(self.Do([&](BatchQueue& queue) {
      auto result = queue.Poll(slice);
      left = queue.size();
      return result;
    }));
    if (polled) found.append(TupleOf(self.reader, *std::move(polled)));
    if (PyErr_CheckSignals() != 0) throw py::error_already_set();
    if (!found.empty() || Clock::now() - begin >= timeout.value || left == 0) return;
  }
}

}  // namespace

void BindBatchQueue(py::module_& module) {
  py::class_<CountingQueue>(module, "BatchQueue", py::is_final())
      .def(py::init(&OpenQueue), py::arg("reader"), py::kw_only(), py::arg("batches_in_flight"),
           py::arg("in_order"), py::keep_alive<1, 2>())
      .def("__len__",
           [](CountingQueue& self) {
             return self.Do([](BatchQueue& queue) { return queue.size(); });
           })
      .def("submit", &Submit, py::arg("indices"), py::arg("token"), py::arg("timeout_s"))
      .def("poll", &Poll, py::arg("timeout_s"), py::arg("found"))
      .def(
          "cancel",
          [](CountingQueue& self, std::uint64_t token) {
            return self.Do([&](BatchQueue& queue) { return queue.Cancel(token); });
          },
          py::arg("token"))
      .def("fileno", [](CountingQueue& self) {
        return ValueOrRaise(self.Do([](BatchQueue& queue) { return queue.EventDescriptor(); }));
      });
}

}  // namespace ffrecord::python
