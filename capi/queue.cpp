#include <algorithm>
#include <chrono>
#include <cstdint>
#include <optional>
#include <utility>

#include "capi/handles.h"

namespace ffrecord::capi {
namespace {

Result<void> OpenQueue(const ffr_reader* reader, const ffr_queue_options* given,
                       ffr_queue** queue) {
  if (reader == nullptr || queue == nullptr)
    return InvalidArgument("open queue: the reader or the place for the queue is NULL");
  const ffr_queue_options taken = FFR_TRY(TakeOptions(given, "ffr_queue_options"));
  BatchQueue::Options options;
  if (taken.batches_in_flight != 0) options.batches_in_flight = taken.batches_in_flight;
  options.in_order = taken.in_order != 0;
  BatchQueue opened = FFR_TRY(reader->reader.OpenQueue(options));
  *queue = new ffr_queue{std::move(opened)};
  return {};
}

Result<void> Submit(ffr_queue* queue, const std::uint64_t* indices, std::size_t index_count,
                    std::uint64_t token, std::int64_t timeout_ms) {
  if (queue == nullptr || (indices == nullptr && index_count > 0))
    return InvalidArgument("submit batch: an argument is NULL");
  constexpr std::int64_t kYearMs = std::int64_t{365} * 24 * 3600 * 1000;
  const auto deadline =
      timeout_ms < 0
          ? BatchQueue::kNoDeadline
          : BatchQueue::Clock::now() + std::chrono::milliseconds(std::min(timeout_ms, kYearMs));
  return queue->queue.Submit({indices, index_count}, token, deadline);
}

Result<void> Poll(ffr_queue* queue, std::int64_t timeout_ms, ffr_completion* completion) {
  if (queue == nullptr || completion == nullptr)
    return InvalidArgument("poll queue: the queue or the place for the batch is NULL");
  *completion = {};
  const auto timeout =
      timeout_ms < 0 ? BatchQueue::kForever : std::chrono::milliseconds(timeout_ms);
  auto polled = FFR_TRY(queue->queue.Poll(timeout));
  if (!polled) return {};
  completion->is_complete = 1;
  completion->token = polled->token;
  if (polled->batch)
    completion->batch = new ffr_batch{std::move(polled->batch).value()};
  else
    completion->error = NewError(std::move(polled->batch).error());
  return {};
}

Result<void> FindDescriptor(ffr_queue* queue, int* descriptor) {
  if (queue == nullptr || descriptor == nullptr)
    return InvalidArgument("queue descriptor: the queue or the place for it is NULL");
  *descriptor = FFR_TRY(queue->queue.EventDescriptor());
  return {};
}

}  // namespace
}  // namespace ffrecord::capi

using ffrecord::capi::Guarded;

ffr_code ffr_queue_open(const ffr_reader* reader, const ffr_queue_options* options,
                        ffr_queue** queue, ffr_error** error) {
  return Guarded(error, [&] { return ffrecord::capi::OpenQueue(reader, options, queue); });
}

void ffr_queue_free(ffr_queue* queue) { delete queue; }

ffr_code ffr_queue_submit(ffr_queue* queue, const uint64_t* indices, size_t index_count,
                          uint64_t token, int64_t timeout_ms, ffr_error** error) {
  return Guarded(error, [&] {
    return ffrecord::capi::Submit(queue, indices, index_count, token, timeout_ms);
  });
}

ffr_code ffr_queue_poll(ffr_queue* queue, int64_t timeout_ms, ffr_completion* completion,
                        ffr_error** error) {
  return Guarded(error, [&] { return ffrecord::capi::Poll(queue, timeout_ms, completion); });
}

int ffr_queue_cancel(ffr_queue* queue, uint64_t token) {
  return queue != nullptr && queue->queue.Cancel(token) ? 1 : 0;
}

size_t ffr_queue_size(const ffr_queue* queue) { return queue->queue.size(); }

ffr_code ffr_queue_descriptor(ffr_queue* queue, int* descriptor, ffr_error** error) {
  return Guarded(error, [&] { return ffrecord::capi::FindDescriptor(queue, descriptor); });
}
