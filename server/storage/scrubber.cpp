#include "server/storage/scrubber.h"

#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <memory>
#include <utility>

#include "libffrecord/base/checksum.h"
#include "libffrecord/io/file.h"
#include "server/storage/extent_scan.h"
#include "server/storage/extent_trailer.h"

namespace ffrecord::server {
namespace {

constexpr std::size_t kPieceSizeBytes = 1 << 20;
constexpr std::size_t kAlignment = 4096;

struct FreeBuffer {
  void operator()(std::byte* bytes) const noexcept { std::free(bytes); }
};
using Buffer = std::unique_ptr<std::byte[], FreeBuffer>;

// Of <linux/ioprio.h>, some of which are no C++.
constexpr int kWhoProcess = 1;
constexpr int kIdleClass = 3 << 13;

// Where this is refused, as by a service manager, the rate alone has to do.
void LowerPriority() {
  (void)::setpriority(PRIO_PROCESS, 0, 19);
  (void)::syscall(SYS_ioprio_set, kWhoProcess, 0, kIdleClass);
}

}  // namespace

Scrubber::Scrubber(ExtentStore& extents, const Options& options, Found found)
    : extents_(extents),
      options_(options),
      found_(std::move(found)),
      last_end_(Clock::now().time_since_epoch().count()) {
  if (options_.bytes_per_s > 0) thread_ = std::thread([this] { Run(); });
}

Scrubber::~Scrubber() {
  if (!thread_.joinable()) return;
  {
    const std::lock_guard lock(mutex_);
    is_ending_ = true;
  }
  ending_.notify_one();
  thread_.join();
}

std::chrono::seconds Scrubber::age() const noexcept {
  const Clock::time_point end{Clock::duration(last_end_.load(std::memory_order_relaxed))};
  return std::chrono::duration_cast<std::chrono::seconds>(Clock::now() - end);
}

bool Scrubber::IsEnding() {
  const std::lock_guard lock(mutex_);
  return is_ending_;
}

bool Scrubber::Sleep(Clock::time_point until) {
  std::unique_lock lock(mutex_);
  while (!is_ending_ && Clock::now() < until) ending_.wait_until(lock, until);
  return !is_ending_;
}

void Scrubber::Run() {
  LowerPriority();
  for (;;) {
    const auto begin = Clock::now();
    due_ = begin;
    Pass();
    if (IsEnding()) return;
    last_end_.store(Clock::now().time_since_epoch().count(), std::memory_order_relaxed);
    pass_count_.fetch_add(1, std::memory_order_relaxed);
    if (!Sleep(begin + options_.interval)) return;
  }
}

void Scrubber::Pass() {
  std::vector<ExtentId> ids;  // Not the extents: those that are held cannot be unlinked.
  for (const auto& extent : extents_.FindAll([](const Extent&) { return true; }))
    ids.push_back(extent->id);
  std::ranges::sort(ids);  // As they lie in their folders, more or less.
  for (const ExtentId& id : ids) {
    const ExtentPtr extent = extents_.Find(id);
    if (!extent) continue;
    std::string why = Examine(*extent);
    if (!why.empty()) why = Examine(*extent);  // What fails but once is not the disk's.
    if (IsEnding()) return;
    if (extents_.Mark(*extent, !why.empty())) found_(*extent, why);
  }
}

std::string Scrubber::Examine(const Extent& extent) {
  const auto sum = Sum(extent);
  if (extent.is_condemned.load(std::memory_order_acquire) || IsEnding()) return {};
  if (!sum) return sum.error().message;
  if (sum.value() == extent.xxh3) return {};
  return extents_.PathOf(extent.id).string() + ": the bytes are not those of the checksum";
}

Result<std::uint64_t> Scrubber::Sum(const Extent& extent) {
  const auto path = extents_.PathOf(extent.id);
  const UniqueFd file = FFR_TRY(extents_.OpenFile(extent.id));
  const DirectFile direct = OpenDirect(file.get());
  const bool is_direct = direct.fd && direct.alignment.memory_bytes <= kAlignment &&
                         direct.alignment.offset_bytes <= kAlignment;
  const int fd = is_direct ? direct.fd.get() : file.get();
  const Buffer buffer(static_cast<std::byte*>(std::aligned_alloc(kAlignment, kPieceSizeBytes)));
  if (!buffer) return ErrnoError("have memory to check", path, ENOMEM);
  Xxh3Stream sum;
  for (std::uint64_t at = 0; at < extent.size_bytes;) {
    if (!Sleep(due_)) return std::uint64_t{0};
    // Whole pieces: direct reads want sizes that are aligned; the trailer comes along.
    const ssize_t got = ::pread(fd, buffer.get(), kPieceSizeBytes, static_cast<off_t>(at));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return ErrnoError("read", path, errno);
    const auto data =
        std::min<std::uint64_t>(static_cast<std::uint64_t>(got), extent.size_bytes - at);
    if (data == 0) return Error{ErrorCode::kCorruption, path.string() + " has become shorter"};
    sum.Update({buffer.get(), static_cast<std::size_t>(data)});
    // A short read in the middle would not be aligned any more.
    if (is_direct && at + data < extent.size_bytes && data != kPieceSizeBytes)
      return Error{ErrorCode::kIo, path.string() + " was read in part only", EIO};
    at += data;
    read_bytes_.fetch_add(data, std::memory_order_relaxed);
    // What was not used for a while is not made up for.
    const auto cost = std::chrono::nanoseconds(data * 1'000'000'000 / options_.bytes_per_s);
    due_ = std::max(due_, Clock::now() - std::chrono::seconds(1)) + cost;
  }
  // What the extent is known by where no manifest says so.
  const auto trailer = ReadTrailer(file.get(), path);
  if (!trailer) return Error{trailer.error().code, path.string() + ": " + trailer.error().message};
  if (trailer.value() != ExtentTrailer{extent.id, extent.size_bytes, extent.xxh3})
    return Error{ErrorCode::kCorruption, path.string() + ": the trailer is that of other bytes"};
  return sum.Finish64();
}

}  // namespace ffrecord::server
