#include "libffrecord/io/append_file.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <string>
#include <utility>

#include "libffrecord/base/assert.h"
#include "libffrecord/base/uninterrupted.h"
#include "libffrecord/io/file.h"

namespace ffrecord {
namespace {

constexpr std::uint32_t kWritesInFlight = 4;

Error ReadOnly(const std::filesystem::path& path) {
  return {ErrorCode::kDenied, "append to " + path.string() +
                                  ": the file is read-only; allow writing (chmod u+w) if it is not "
                                  "published, or write a new file"};
}

// Takes the lock without waiting for it.
Result<void> Lock(int fd, const std::filesystem::path& path) {
  if (Uninterrupted([&] { return ::flock(fd, LOCK_EX | LOCK_NB); }) == 0) return {};
  if (errno == EWOULDBLOCK)
    return Error{
        ErrorCode::kConflict,
        "append to " + path.string() + ": another writer appends to it; wait until it is closed"};
  return ErrnoError("lock", path, errno);
}

}  // namespace

AppendFile::AppendFile(const std::filesystem::path& path, UniqueFd fd,
                       std::unique_ptr<IoEngine> engine)
    : path_(path), fd_(std::move(fd)), engine_(std::move(engine)) {}

AppendFile::AppendFile(AppendFile&& other) noexcept = default;

AppendFile::~AppendFile() {
  appender_.reset();
  // Unlocks explicitly: a forked child may keep the descriptor, and with it the lock, open for
  // long.
  if (fd_ && home_.is_here()) ::flock(fd_.get(), LOCK_UN);
}

Result<AppendFile> AppendFile::Open(const std::filesystem::path& path,
                                    std::unique_ptr<IoEngine> engine) {
  FFR_TRY(CheckPath(path));
  // O_NONBLOCK: opening a FIFO must not block.
  UniqueFd fd(::open(path.c_str(), O_RDWR | O_CLOEXEC | O_NONBLOCK | O_NOCTTY));
  if (!fd && (errno == EACCES || errno == EPERM || errno == EROFS)) return ReadOnly(path);
  if (!fd && errno != ENXIO && errno != EISDIR) return ErrnoError("open", path, errno);
  struct stat opened {};
  if (fd && ::fstat(fd.get(), &opened) != 0) return ErrnoError("stat", path, errno);
  if (!fd || !S_ISREG(opened.st_mode))
    return Error{ErrorCode::kInvalidArgument,
                 "append to " + path.string() + ": not a regular file"};
  // Root could open it for writing in spite of its mode.
  if ((opened.st_mode & (S_IWUSR | S_IWGRP | S_IWOTH)) == 0) return ReadOnly(path);
  if (::fcntl(fd.get(), F_SETFL, 0) != 0) return ErrnoError("open", path, errno);
  FFR_TRY(Lock(fd.get(), path));

  struct stat locked {};
  struct stat named {};
  if (::fstat(fd.get(), &locked) != 0) return ErrnoError("stat", path, errno);
  if (::stat(path.c_str(), &named) != 0 || named.st_ino != locked.st_ino ||
      named.st_dev != locked.st_dev)
    return Error{ErrorCode::kConflict,
                 "append to " + path.string() + ": another file has taken its name; try again"};
  if (!engine) engine = FFR_TRY(MakeInlineEngine(kWritesInFlight));
  AppendFile file(path, std::move(fd), std::move(engine));
  file.old_size_bytes_ = static_cast<std::uint64_t>(locked.st_size);
  return file;
}

Result<void> AppendFile::Read(std::uint64_t offset_bytes, std::span<std::byte> destination) {
  if (appender_) return ReadExactly(fd_.get(), path_, offset_bytes, destination);
  if (destination.empty()) return {};
  IoRequest request;
  request.kind = IoRequest::Kind::kRead;
  request.fd = fd_.get();
  request.offset_bytes = offset_bytes;
  request.buffer = destination;
  FFR_TRY(RunAll(*engine_, {&request, 1}, 1));
  if (request.result < 0) return ErrnoError("read", path_, static_cast<int>(-request.result));
  if (static_cast<std::uint64_t>(request.result) == destination.size()) return {};
  return Error{ErrorCode::kCorruption, "read " + path_.string() + ": " +
                                           std::to_string(destination.size()) + " bytes at " +
                                           std::to_string(offset_bytes) + " pass its end"};
}

Result<void> AppendFile::BeginAt(std::uint64_t size_bytes) {
  FFR_ASSERT(!appender_ && size_bytes <= old_size_bytes_);
  const bool cuts = size_bytes < old_size_bytes_;
  if (cuts && ::ftruncate(fd_.get(), static_cast<off_t>(size_bytes)) != 0)
    return ErrnoError("cut", path_, errno);
  FileAppender::Options options;
  options.begin_bytes = size_bytes;
  options.buffers_in_flight = kWritesInFlight;
  appender_.emplace(
      FFR_TRY(FileAppender::Make(path_, fd_.get(), UniqueFd(), options, std::move(engine_))));
  // Without it, a power cut could leave new bytes among the old ones.
  if (cuts) return appender_->Sync();
  return {};
}

Result<void> AppendFile::Sync() {
  FFR_TRY(appender_->Flush());
  return appender_->Sync();
}

}  // namespace ffrecord
