#include "libffrecord/io/atomic_file.h"

#include <unistd.h>

#include <cerrno>
#include <limits>
#include <utility>

#include "libffrecord/io/file.h"
#include "libffrecord/io/file_appender.h"
#include "libffrecord/io/unnamed_file.h"

namespace ffrecord {

struct AtomicFile::Impl {
  UnnamedFile file;
  FileAppender appender;  // Writes to `file`, so goes first.
  std::uint64_t expected_size_bytes = 0;
  bool published = false;

  Result<void> Usable() const;
  Result<void> Publish();
};

Result<void> AtomicFile::Impl::Usable() const {
  if (published)
    return Error{ErrorCode::kInvalidArgument,
                 "write " + file.path().string() + ": it is published and can no longer change"};
  return appender.Usable();
}

Result<void> AtomicFile::Impl::Publish() {
  if (auto usable = Usable(); !usable) return usable;
  if (auto flushed = appender.Flush(); !flushed) return flushed;
  // Gives back the space that was reserved and not used.
  const std::uint64_t size = appender.size_bytes();
  if (expected_size_bytes > size && ::ftruncate(file.fd(), static_cast<off_t>(size)) != 0)
    return appender.Poison(ErrnoError("cut", file.path(), errno));
  if (auto synced = appender.Sync(); !synced) return synced;
  if (auto named = file.Publish(); !named) return appender.Poison(named.error());
  published = true;
  return {};
}

Result<AtomicFile> AtomicFile::Create(const std::filesystem::path& path, const Options& options,
                                      std::unique_ptr<IoEngine> engine) {
  if (options.expected_size_bytes > std::numeric_limits<std::int64_t>::max())
    return Error{ErrorCode::kInvalidArgument, "atomic file: expected_size_bytes is too large"};
  UnnamedFile file = FFR_TRY(UnnamedFile::Create(path, options.replace));
  if (options.expected_size_bytes > 0) {
    if (auto reserved = file.Reserve(options.expected_size_bytes); !reserved)
      return reserved.error();
  }
  UniqueFd direct_fd = options.direct ? file.OpenDirect() : UniqueFd();
  FileAppender appender = FFR_TRY(FileAppender::Make(
      path, file.fd(), std::move(direct_fd),
      {0, options.buffer_size_bytes, options.buffers_in_flight}, std::move(engine)));
  return AtomicFile(std::make_unique<Impl>(
      Impl{std::move(file), std::move(appender), options.expected_size_bytes}));
}

AtomicFile::AtomicFile(std::unique_ptr<Impl> impl) noexcept : impl_(std::move(impl)) {}
AtomicFile::AtomicFile(AtomicFile&&) noexcept = default;
AtomicFile& AtomicFile::operator=(AtomicFile&&) noexcept = default;
AtomicFile::~AtomicFile() = default;

Result<void> AtomicFile::Append(std::span<const std::byte> bytes) {
  if (auto usable = impl_->Usable(); !usable) return usable;
  return impl_->appender.Append(bytes);
}

Result<void> AtomicFile::AppendZeros(std::uint64_t count_bytes) {
  if (auto usable = impl_->Usable(); !usable) return usable;
  return impl_->appender.AppendZeros(count_bytes);
}

std::uint64_t AtomicFile::size_bytes() const noexcept { return impl_->appender.size_bytes(); }

Result<void> AtomicFile::WriteAt(std::uint64_t offset_bytes, std::span<const std::byte> bytes) {
  if (auto usable = impl_->Usable(); !usable) return usable;
  return impl_->appender.WriteAt(offset_bytes, bytes);
}

Result<void> AtomicFile::CutTo(std::uint64_t size_bytes) {
  if (auto usable = impl_->Usable(); !usable) return usable;
  return impl_->appender.CutTo(size_bytes);
}

int AtomicFile::fd() const noexcept { return impl_->file.fd(); }

Result<void> AtomicFile::Publish() { return impl_->Publish(); }

}  // namespace ffrecord
