#include "libffrecord/io/mapped_file.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <limits>
#include <string>
#include <utility>

namespace ffrecord {
namespace {

Error MapError(std::uint64_t offset_bytes, std::uint64_t size_bytes, int system_errno) {
  return Error{ErrorCode::kIo,
               "map " + std::to_string(size_bytes) + " bytes from " + std::to_string(offset_bytes) +
                   ": " + ::strerrordesc_np(system_errno),
               system_errno};
}

}  // namespace

Result<MappedFile> MappedFile::Map(int fd, std::uint64_t offset_bytes, std::uint64_t size_bytes) {
  MappedFile mapped;
  if (size_bytes == 0) return mapped;
  constexpr std::uint64_t kMax = std::numeric_limits<std::int64_t>::max();
  if (offset_bytes > kMax || size_bytes > kMax - offset_bytes)
    return MapError(offset_bytes, size_bytes, EOVERFLOW);
  const auto page_size = static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE));
  const std::uint64_t skipped = offset_bytes % page_size;
  const std::size_t mapped_size = size_bytes + skipped;
  void* address = ::mmap(nullptr, mapped_size, PROT_READ, MAP_SHARED, fd,
                         static_cast<off_t>(offset_bytes - skipped));
  if (address == MAP_FAILED) return MapError(offset_bytes, size_bytes, errno);
  mapped.address_ = address;
  mapped.mapped_size_bytes_ = mapped_size;
  mapped.guard_ = SigbusGuard(address, mapped_size);
  mapped.bytes_ = {static_cast<const std::byte*>(address) + skipped, size_bytes};
  return mapped;
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : address_(std::exchange(other.address_, nullptr)),
      mapped_size_bytes_(std::exchange(other.mapped_size_bytes_, 0)),
      guard_(std::move(other.guard_)),
      bytes_(std::exchange(other.bytes_, {})) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  std::swap(address_, other.address_);
  std::swap(mapped_size_bytes_, other.mapped_size_bytes_);
  std::swap(guard_, other.guard_);
  std::swap(bytes_, other.bytes_);
  return *this;
}

MappedFile::~MappedFile() {
  guard_ = SigbusGuard();  // The handler must not touch what takes these addresses next.
  if (address_ != nullptr) ::munmap(address_, mapped_size_bytes_);
}

}  // namespace ffrecord
