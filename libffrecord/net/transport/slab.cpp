#include "libffrecord/net/transport/slab.h"

#include <fcntl.h>
#include <linux/magic.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <string>
#include <utility>

#include "libffrecord/base/uninterrupted.h"

namespace ffrecord::net {
namespace {

constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;

Result<void> CheckSize(std::uint64_t size_bytes) {
  if (size_bytes > 0 && size_bytes <= kSlabSizeBytesMax && size_bytes % kSlabPageBytes == 0)
    return {};
  return Error{ErrorCode::kInvalidArgument,
               "a slab of " + std::to_string(size_bytes) +
                   " bytes: slabs are whole pages of 4096 bytes, at most 4 GiB"};
}

Error Failed(const char* tried, std::uint64_t size_bytes) {
  const int number = errno;
  return Error{ErrorCode::kIo,
               std::string("cannot ") + tried + " shared memory of " + std::to_string(size_bytes) +
                   " bytes: " + std::strerror(number),
               number};
}

Error Refused(std::string why) {
  return Error{ErrorCode::kInvalidArgument, "the slab is refused: " + std::move(why)};
}

// Only memory has seals; what has them answers all further calls at once, and closes at once.
// Pages of other sizes may be missing when they are written to.
Result<int> CheckMemory(int fd, std::uint64_t size_bytes) {
  FFR_TRY(CheckSize(size_bytes));
  const int seals = ::fcntl(fd, F_GET_SEALS);
  if (seals < 0) return Refused("it is no memfd");
  struct statfs system {};
  if (::fstatfs(fd, &system) != 0 || system.f_type != TMPFS_MAGIC)
    return Refused("it is not made of ordinary pages");
  struct stat status {};
  if (::fstat(fd, &status) != 0 || static_cast<std::uint64_t>(status.st_size) != size_bytes)
    return Refused("it is " + std::to_string(status.st_size) + " bytes long and is said to have " +
                   std::to_string(size_bytes));
  return seals;
}

Result<void> CheckRange(std::uint64_t offset_bytes, std::uint64_t size_bytes,
                        std::uint64_t slab_bytes) {
  if (size_bytes <= slab_bytes && offset_bytes <= slab_bytes - size_bytes) return {};
  return Error{ErrorCode::kOutOfRange,
               "bytes from " + std::to_string(offset_bytes) + " on, " + std::to_string(size_bytes) +
                   " of them, pass a slab of " + std::to_string(slab_bytes)};
}

Result<std::span<std::byte>> MapShared(int fd, std::uint64_t size_bytes) {
  void* const begin = ::mmap(nullptr, size_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (begin == MAP_FAILED) return Failed("map", size_bytes);
  return std::span(static_cast<std::byte*>(begin), size_bytes);
}

}  // namespace

Result<Slab> Slab::Make(std::uint64_t size_bytes, Peer peer) {
  FFR_TRY(CheckSize(size_bytes));
  UniqueFd fd(::memfd_create("ffrecord-slab", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!fd) return Failed("make", size_bytes);
  if (::ftruncate(fd.get(), static_cast<off_t>(size_bytes)) != 0) return Failed("size", size_bytes);
  Slab slab(std::move(fd), {});
  slab.bytes_ = FFR_TRY(MapShared(slab.fd(), size_bytes));
  // Only a hint, and refused where huge pages of shared memory are switched off.
  (void)::madvise(slab.bytes_.data(), size_bytes, MADV_HUGEPAGE);
  const auto allocate = [&] {
    return ::fallocate(slab.fd(), 0, 0, static_cast<off_t>(size_bytes));
  };
  if (Uninterrupted(allocate) != 0) return Failed("allocate", size_bytes);
  // Our own mapping is older than that seal, and stays writable.
  const int seals = kSeals | (peer == Peer::kReads ? F_SEAL_FUTURE_WRITE : 0);
  if (::fcntl(slab.fd(), F_ADD_SEALS, seals) != 0) return Failed("seal", size_bytes);
  return slab;
}

Slab::Slab(Slab&& other) noexcept
    : fd_(std::move(other.fd_)), bytes_(std::exchange(other.bytes_, {})) {}

Slab& Slab::operator=(Slab&& other) noexcept {
  std::swap(fd_, other.fd_);
  std::swap(bytes_, other.bytes_);
  return *this;
}

Slab::~Slab() {
  if (!bytes_.empty()) ::munmap(bytes_.data(), bytes_.size());
}

Result<std::shared_ptr<const RemoteSlab>> RemoteSlab::Map(ForeignFd descriptor,
                                                          std::uint64_t size_bytes) {
  const int seals = FFR_TRY(CheckMemory(descriptor.get(), size_bytes));
  if ((seals & (F_SEAL_SHRINK | F_SEAL_GROW)) != (F_SEAL_SHRINK | F_SEAL_GROW))
    return Refused("it is not sealed against shrinking and growing");
  auto bytes = MapShared(descriptor.get(), size_bytes);
  if (!bytes && (bytes.error().system_errno == EPERM || bytes.error().system_errno == EACCES))
    return Refused("it cannot be written to");
  if (!bytes) return std::move(bytes).error();
  return std::shared_ptr<const RemoteSlab>(new RemoteSlab(bytes.value()));
}

RemoteSlab::~RemoteSlab() { ::munmap(bytes_.data(), bytes_.size()); }

Result<std::span<std::byte>> RemoteSlab::At(std::uint64_t offset_bytes,
                                            std::uint64_t size_bytes) const {
  FFR_TRY(CheckRange(offset_bytes, size_bytes, bytes_.size()));
  return bytes_.subspan(offset_bytes, size_bytes);
}

Result<std::shared_ptr<const UploadSlab>> UploadSlab::Take(ForeignFd descriptor,
                                                           std::uint64_t size_bytes) {
  FFR_TRY(CheckMemory(descriptor.get(), size_bytes));
  return std::shared_ptr<const UploadSlab>(
      new UploadSlab(std::move(descriptor).Trust(), size_bytes));
}

Result<void> UploadSlab::Read(std::uint64_t offset_bytes, std::span<std::byte> to) const {
  FFR_TRY(CheckRange(offset_bytes, to.size(), size_bytes_));
  while (!to.empty()) {
    const ssize_t got = ::pread(fd_.get(), to.data(), to.size(), static_cast<off_t>(offset_bytes));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return Failed("read", size_bytes_);
    if (got == 0)
      return Error{ErrorCode::kIo, "the memory of an upload was taken away while it was read", EIO};
    to = to.subspan(static_cast<std::size_t>(got));
    offset_bytes += static_cast<std::uint64_t>(got);
  }
  return {};
}

}  // namespace ffrecord::net
