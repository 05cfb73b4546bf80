#include <algorithm>
#include <memory>
#include <vector>

#include "libffrecord/base/assert.h"
#include "libffrecord/io/blocking_request.h"
#include "libffrecord/io/engine_support.h"
#include "libffrecord/io/io_engine.h"

namespace ffrecord {
namespace {

class InlineEngine final : public IoEngine {
 public:
  explicit InlineEngine(std::uint32_t depth) : depth_(depth) {}

  std::string_view name() const noexcept override { return "inline"; }

  Result<std::uint32_t> Submit(std::span<IoRequest* const> requests) override {
    const std::size_t count = std::min(requests.size(), depth_ - done_.size());
    for (IoRequest* request : requests.first(count)) {
      RunBlocking(*request);
      done_.push_back(request);
    }
    return static_cast<std::uint32_t>(count);
  }

  Result<std::uint32_t> Wait(std::span<IoRequest*> done, std::uint32_t count_min,
                             std::chrono::milliseconds) override {
    FFR_ASSERT(count_min <= done.size());
    const auto count = static_cast<std::ptrdiff_t>(std::min(done.size(), done_.size()));
    std::copy_n(done_.begin(), count, done.begin());
    done_.erase(done_.begin(), done_.begin() + count);
    return static_cast<std::uint32_t>(count);
  }

  std::uint32_t in_flight() const noexcept override {
    return static_cast<std::uint32_t>(done_.size());
  }

 private:
  const std::size_t depth_;
  std::vector<IoRequest*> done_;  // Not yet given back.
};

}  // namespace

Result<std::unique_ptr<IoEngine>> MakeInlineEngine(std::uint32_t depth) {
  if (auto checked = CheckDepth(depth); !checked) return checked.error();
  return std::unique_ptr<IoEngine>(std::make_unique<InlineEngine>(depth));
}

}  // namespace ffrecord
