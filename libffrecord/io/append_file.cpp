#include "libffrecord/io/append_file.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <string>
#include <system_error>
#include <utility>

#include "libffrecord/base/assert.h"
#include "libffrecord/base/uninterrupted.h"
#include "libffrecord/io/file.h"

namespace ffrecord {
namespace {

constexpr std::uint32_t kWritesInFlight = 4;
constexpr std::uint64_t kWitnessBytes = 4096;

Error ReadOnly(const std::filesystem::path& path) {
  return {ErrorCode::kDenied, "append to " + path.string() +
                                  ": the file is read-only; allow writing (chmod u+w) if it is not "
                                  "published, or write a new file"};
}

// Whether `path` names the open file. `path` is absolute: the process may change its folder.
Result<bool> IsNamed(const std::filesystem::path& path, int fd) {
  struct stat opened {};
  struct stat named {};
  if (::fstat(fd, &opened) != 0) return ErrnoError("stat", path, errno);
  return ::stat(path.c_str(), &named) == 0 && named.st_ino == opened.st_ino &&
         named.st_dev == opened.st_dev;
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
  const bool has_begun = appender_.has_value();
  appender_.reset();
  if (has_begun && fd_ && home_.is_here()) CutOffUncommitted();
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

  std::error_code no_folder;
  const auto absolute = std::filesystem::absolute(path, no_folder);
  if (no_folder) return ErrnoError("find", path, no_folder.value());
  if (!FFR_TRY(IsNamed(absolute, fd.get())))
    return Error{ErrorCode::kConflict,
                 "append to " + path.string() + ": another file has taken its name; try again"};
  struct stat locked {};
  if (::fstat(fd.get(), &locked) != 0) return ErrnoError("stat", path, errno);
  if (!engine) engine = FFR_TRY(MakeInlineEngine(kWritesInFlight));
  AppendFile file(path, std::move(fd), std::move(engine));
  file.absolute_path_ = absolute;
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
  if (cuts) FFR_TRY(appender_->Sync());
  return Keep(size_bytes);
}

Result<void> AppendFile::Sync() {
  FFR_TRY(appender_->Flush());
  FFR_TRY(appender_->Sync());
  auto checked = CheckIsThere();
  return checked ? std::move(checked) : appender_->Poison(std::move(checked).error());
}

Result<void> AppendFile::Commit() {
  FFR_TRY(Sync());
  return Keep(appender_->size_bytes());
}

Result<void> AppendFile::Keep(std::uint64_t size_bytes) {
  kept_size_bytes_ = size_bytes;
  witnesses_.clear();
  const std::uint64_t count = std::min(size_bytes, kWitnessBytes);
  for (const std::uint64_t offset : {std::uint64_t{0}, size_bytes - count}) {
    Witness witness{offset, std::vector<std::byte>(count)};
    FFR_TRY(ReadExactly(fd_.get(), path_, offset, witness.bytes));
    witnesses_.push_back(std::move(witness));
  }
  return {};
}

bool AppendFile::IsUnchanged() const {
  return std::ranges::all_of(witnesses_, [&](const Witness& witness) {
    std::vector<std::byte> now(witness.bytes.size());
    return ReadExactly(fd_.get(), path_, witness.offset_bytes, now) && now == witness.bytes;
  });
}

Result<void> AppendFile::CheckIsThere() {
  const char* found = nullptr;
  if (!FFR_TRY(IsNamed(absolute_path_, fd_.get())))
    found = "another program deleted, renamed or replaced the file";
  else if (!IsUnchanged())
    found = "another program wrote over the file";
  if (found == nullptr) return {};
  return Error{ErrorCode::kConflict,
               "append to " + path_.string() + ": " + found +
                   " while records were appended; those since the last commit are not in it: "
                   "append them again to the file that is there now"};
}

// If another process has written over the file, nothing of it is ours to cut.
void AppendFile::CutOffUncommitted() noexcept {
  struct stat now {};
  const auto kept = static_cast<off_t>(kept_size_bytes_);
  if (::fstat(fd_.get(), &now) != 0 || now.st_size <= kept || !IsUnchanged()) return;
  // Readers ignore bytes that cannot be cut off, and the next writer cuts them off.
  if (::ftruncate(fd_.get(), kept) == 0) ::fdatasync(fd_.get());
}

}  // namespace ffrecord
