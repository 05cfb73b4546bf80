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

Result<MappedFile> MappedFile::MapBehindEachOther(std::span<const Part> parts) {
  const auto page_size = static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE));
  const auto whole_pages = [&](std::uint64_t size_bytes) {
    return (size_bytes + page_size - 1) / page_size * page_size;
  };
  std::uint64_t size = 0;
  for (const Part& part : parts) size += whole_pages(part.size_bytes);
  MappedFile mapped;
  void* const room = ::mmap(nullptr, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (room == MAP_FAILED) return MapError(0, size, errno);
  mapped.address_ = room;
  mapped.mapped_size_bytes_ = size;
  auto* address = static_cast<std::byte*>(room);
  std::uint64_t end = 0;
  for (const Part& part : parts) {
    if (::mmap(address, part.size_bytes, PROT_READ, MAP_SHARED | MAP_FIXED, part.fd,
               static_cast<off_t>(part.offset_bytes)) == MAP_FAILED)
      return MapError(part.offset_bytes, part.size_bytes, errno);
    end = static_cast<std::uint64_t>(address - static_cast<std::byte*>(room)) + part.size_bytes;
    address += whole_pages(part.size_bytes);
  }
  mapped.guard_ = SigbusGuard(room, size);
  mapped.bytes_ = {static_cast<const std::byte*>(room), end};
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
