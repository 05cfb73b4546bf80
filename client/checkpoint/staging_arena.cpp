#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <string>
#include <thread>
#include <utility>

#include <ffrecord/client/checkpoint.h>

#include "libffrecord/base/assert.h"
#include "libffrecord/base/side_by_side.h"
#include "libffrecord/base/streaming_copy.h"

namespace ffrecord::client {
namespace {

// Large enough to be worth a thread's asking for it, small enough that all end together.
constexpr std::uint64_t kCopySize = std::uint64_t{16} << 20;
constexpr std::size_t kThreadsMax = 8;

}  // namespace

struct StagingArena::Impl {
  std::span<std::byte> bytes;

  explicit Impl(std::span<std::byte> mapped) : bytes(mapped) {}
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;
  ~Impl() { ::munmap(bytes.data(), bytes.size()); }
};

StagingArena::StagingArena(std::unique_ptr<Impl> impl) noexcept : impl_(std::move(impl)) {}
StagingArena::StagingArena(StagingArena&&) noexcept = default;
StagingArena& StagingArena::operator=(StagingArena&&) noexcept = default;
StagingArena::~StagingArena() = default;

Result<StagingArena> StagingArena::Create(std::uint64_t size_bytes) {
  const std::uint64_t size = std::max<std::uint64_t>(size_bytes, 1);
  void* memory = ::mmap(nullptr, size, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED)
    return Error{ErrorCode::kIo,
                 "checkpoint: no room for a staging arena of " + std::to_string(size_bytes) +
                     " bytes; stage less at a time",
                 errno};
  ::madvise(memory, size, MADV_HUGEPAGE);  // A hint; refused where huge pages are switched off.
  return StagingArena(std::make_unique<Impl>(std::span(static_cast<std::byte*>(memory), size)));
}

std::span<std::byte> StagingArena::bytes() const noexcept { return impl_->bytes; }

void StagingArena::Copy(std::span<const CopyJob> jobs) {
  std::vector<CopyJob> pieces;
  for (const CopyJob& job : jobs) {
    FFR_ASSERT(job.offset_bytes <= bytes().size());
    FFR_ASSERT(job.from.size() <= bytes().size() - job.offset_bytes);
    for (std::uint64_t at = 0; at < job.from.size(); at += kCopySize)
      pieces.push_back(
          {job.from.subspan(at, std::min<std::uint64_t>(kCopySize, job.from.size() - at)),
           job.offset_bytes + at});
  }
  std::atomic<std::size_t> next{0};
  const auto copy_some = [&](const SideBySide&) -> Result<void> {
    for (std::size_t i; (i = next++) < pieces.size();)
      StreamingCopy(bytes().subspan(pieces[i].offset_bytes), pieces[i].from);
    return {};
  };
  const std::size_t threads = std::min<std::size_t>(
      {pieces.size(), kThreadsMax, std::max(1U, std::thread::hardware_concurrency())});
  const auto copied = SideBySide::Run(threads, copy_some);
  FFR_ASSERT(copied);  // Copying does not fail.
}

}  // namespace ffrecord::client
