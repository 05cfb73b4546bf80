#include "libffrecord/source/waiting_read.h"

#include <optional>
#include <utility>

namespace ffrecord {
namespace {

// The one group of a call that waits.
class WaitingCall final : public RangeGroup {
 public:
  WaitingCall(std::span<RangeRead> ranges, const RangeReader::Arrived& arrived)
      : ranges_(ranges), arrived_(arrived) {}

  std::span<RangeRead> ranges() noexcept override { return ranges_; }
  void Arrived(RangeRead& range) override { arrived_(range); }
  void Ended(Result<void> result) override { result_ = std::move(result); }

  const std::optional<Result<void>>& result() const noexcept { return result_; }

 private:
  const std::span<RangeRead> ranges_;
  const RangeReader::Arrived& arrived_;
  std::optional<Result<void>> result_;
};

}  // namespace

Result<void> ReadThrough(RangeQueue& queue, std::span<RangeRead> ranges,
                         const RangeReader::Arrived& arrived, Patience& patience) {
  WaitingCall call(ranges, arrived);
  queue.Submit(call);
  bool is_given_up = false;
  while (!call.result()) {
    if (!is_given_up && patience.IsOver()) {
      queue.GiveUp(call);
      is_given_up = true;
    }
    queue.Poll(patience.is_endless() ? std::chrono::milliseconds::max() : Patience::kInterval);
  }
  return *call.result();
}

}  // namespace ffrecord
