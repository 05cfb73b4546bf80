#include "libffrecord/source/delegated_files.h"

#include <algorithm>
#include <utility>

#include "libffrecord/base/assert.h"
#include "libffrecord/base/per_process.h"
#include "libffrecord/source/delegated_queue.h"
#include "libffrecord/source/last_failure.h"
#include "libffrecord/source/recent_failure.h"

namespace ffrecord {

struct DelegatedReads::Impl {
  std::vector<File> files;
  Options options;
  DelegatedQueue::Counts counts;
  PerProcess<DelegatedQueue> queue{[] { return new DelegatedQueue; }};

  DelegatedQueue::Terms terms() { return {files, options, counts}; }
};

DelegatedReads::DelegatedReads(std::vector<File> files, const Options& options)
    : impl_(std::make_unique<Impl>()) {
  FFR_ASSERT(options.group_count_max > 0);
  impl_->files = std::move(files);
  impl_->options = options;
}
DelegatedReads::~DelegatedReads() = default;

const std::vector<DelegatedReads::File>& DelegatedReads::files() const noexcept {
  return impl_->files;
}

DelegatedReads::Group DelegatedReads::Take() { return impl_->queue.Get().Take(impl_->terms()); }

void DelegatedReads::Answer(std::uint64_t id, std::span<const std::byte> bytes) {
  impl_->queue.Get().Answer(impl_->terms(), id, bytes);
}

void DelegatedReads::Refuse(std::uint64_t id, Error error, Retry retry) {
  impl_->queue.Get().Refuse(impl_->terms(), id, std::move(error), retry);
}

bool DelegatedReads::IsWanted(std::uint64_t id) const { return impl_->queue.Get().IsWanted(id); }

void DelegatedReads::Close() { impl_->queue.Get().Close(); }

namespace {

class DelegatedFiles final : public RangeReader {
 public:
  explicit DelegatedFiles(std::shared_ptr<DelegatedReads> reads) : reads_(std::move(reads)) {}

  std::size_t file_count() const noexcept override { return files().size(); }
  const std::string& file_name(std::uint32_t file) const noexcept override {
    return files()[file].name;
  }
  std::uint64_t file_size_bytes(std::uint32_t file) const noexcept override {
    return files()[file].size_bytes;
  }
  std::uint32_t alignment_bytes(std::uint32_t /*file*/) const noexcept override { return 1; }
  const CoalescingOptions& coalescing() const noexcept override { return kStoreCoalescing; }

  Result<void> ReadEach(std::span<RangeRead> ranges, const Arrived& arrived,
                        Patience& patience) const override {
    if (patience.IsOver()) return GivenUp();
    std::vector<RangeRead*> wanted;
    wanted.reserve(ranges.size());
    for (RangeRead& range : ranges) {
      range.status = PassesEnd(range) ? ErrorCode::kCorruption : ErrorCode::kOk;
      if (range.status == ErrorCode::kOk && ranges.size() == 1)
        range.status = recent_failure_.Of(range.file).value_or(ErrorCode::kOk);
      if (range.status != ErrorCode::kOk || range.destination.empty())
        arrived(range);
      else
        wanted.push_back(&range);
    }
    if (wanted.empty()) return {};
    const auto ended = [&](std::size_t number, const std::optional<Error>& error) {
      RangeRead& range = *wanted[number];
      if (error) Note(range, *error);
      arrived(range);
    };
    return impl().queue.Get().Read(impl().terms(), wanted, ended, patience);
  }

  std::string Trouble(std::uint32_t /*file*/, ErrorCode status) const override {
    return last_failure_.Of(status);
  }

  Report report() const override {
    const DelegatedQueue::Counts& counts = impl().counts;
    StoreReport store;
    store.requests = counts.requests;
    store.retries = counts.retries;
    store.throttled = counts.throttled;
    store.received_bytes = counts.received_bytes;
    return {IoPolicy::kBuffered, store};
  }

 private:
  DelegatedReads::Impl& impl() const noexcept { return reads_->impl(); }
  const std::vector<DelegatedReads::File>& files() const noexcept { return reads_->files(); }

  void Note(RangeRead& range, const Error& error) const {
    range.status = error.code;
    recent_failure_.Note(range.file, range.status);
    last_failure_.Note(error);
  }

  const std::shared_ptr<DelegatedReads> reads_;
  mutable LastFailure last_failure_;
  mutable RecentFailure recent_failure_;
};

}  // namespace

std::unique_ptr<RangeReader> OpenDelegatedFiles(std::shared_ptr<DelegatedReads> reads) {
  return std::make_unique<DelegatedFiles>(std::move(reads));
}

}  // namespace ffrecord
