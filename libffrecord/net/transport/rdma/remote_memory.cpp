// Memory of the other end: what is exposed to it, and what is written or read there.
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <string>

#include "libffrecord/base/assert.h"
#include "libffrecord/net/transport/rdma/queue_pair.h"

namespace ffrecord::net {
namespace {

// Writes posted together, and bytes after which they are: the device begins while more is copied.
constexpr std::size_t kChainCountMax = 32;
constexpr std::size_t kChainBytes = 128 << 10;

// Copies from memory; a file that was cut is an error.
Result<void> ReadWhole(int file, std::uint64_t offset_bytes, std::span<std::byte> to) {
  while (!to.empty()) {
    const ssize_t got = ::pread(file, to.data(), to.size(), static_cast<off_t>(offset_bytes));
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0)
      return Error{ErrorCode::kIo,
                   std::string("a file that is being sent cannot be read: ") +
                       (got == 0 ? "it was cut" : std::strerror(errno)),
                   got == 0 ? EIO : errno};
    to = to.subspan(static_cast<std::size_t>(got));
    offset_bytes += static_cast<std::uint64_t>(got);
  }
  return {};
}

}  // namespace

std::uint8_t QueuePair::ReadCountTaken() const {
  return static_cast<std::uint8_t>(std::min<int>(kReadCount, device_.attributes().max_qp_rd_atom));
}

std::uint8_t QueuePair::ReadCountMade() const {
  return static_cast<std::uint8_t>(
      std::min<int>(kReadCount, device_.attributes().max_qp_init_rd_atom));
}

Error QueuePair::NoReads(const char* what) const {
  return {ErrorCode::kIo,
          "the RDMA device " + device_.port().device + " " + what + " no reads of memory",
          EOPNOTSUPP};
}

Result<RemoteRegion> QueuePair::Expose(std::span<std::byte> bytes, RemoteMemory::Reach reach) {
  if (side_ != RdmaLink::Side::kConnects)
    return Error{ErrorCode::kInvalidArgument,
                 "the end that accepts an RDMA connection exposes no memory"};
  const bool is_read = reach == RemoteMemory::Reach::kRead;
  if (is_read && ReadCountTaken() == 0) return NoReads("answers");
  ibv_mr* const region = Register(
      bytes, is_read ? IBV_ACCESS_REMOTE_READ : IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
  if (region == nullptr)
    return Refused(("lock " + std::to_string(bytes.size()) + " bytes in memory to " +
                    (is_read ? "send from" : "read into"))
                       .c_str(),
                   errno);
  exposed_.push_back(region);
  return RemoteRegion{reinterpret_cast<std::uintptr_t>(bytes.data()), region->rkey};
}

Result<PooledBuffer> QueuePair::MakeStaging(std::size_t size_bytes) {
  FFR_ASSERT(staging_region_ == nullptr);
  if (ReadCountMade() == 0) return NoReads("makes");
  const auto memory = FFR_TRY(Map(size_bytes));
  staging_ = PooledBuffer(new std::span(memory), [home = home_](std::span<std::byte>* dead) {
    if (home.is_here()) ::munmap(dead->data(), dead->size());  // No child has it.
    delete dead;
  });
  staging_region_ = Register(memory, IBV_ACCESS_LOCAL_WRITE);
  if (staging_region_ == nullptr) return Refused("lock memory for uploads", errno);
  return staging_;
}

Result<void> QueuePair::Read(const RemoteRegion& source, std::span<std::byte> place) {
  FFR_ASSERT(!is_reading());
  const auto whole = staging_ ? *staging_ : std::span<std::byte>();
  if (place.empty() || place.data() < whole.data() ||
      place.data() + place.size() > whole.data() + whole.size())
    return Error{ErrorCode::kInvalidArgument,
                 "memory of a peer is read only into the staging buffer of its connection"};
  ibv_sge piece{reinterpret_cast<std::uintptr_t>(place.data()),
                static_cast<std::uint32_t>(place.size()), staging_region_->lkey};
  ibv_send_wr request{};
  request.sg_list = &piece;
  request.num_sge = 1;
  request.opcode = IBV_WR_RDMA_READ;
  request.send_flags = IBV_SEND_SIGNALED;
  request.wr.rdma.remote_addr = source.address;
  request.wr.rdma.rkey = source.key;
  ++posted_;
  ++reads_posted_;
  MarkPosted();
  ibv_send_wr* bad = nullptr;
  const int failed = ::ibv_post_send(pair_, &request, &bad);
  if (failed != 0) return Refused("read", failed);
  return {};
}

Result<void> QueuePair::MapWriteBuffer() {
  if (write_region_ != nullptr) return {};
  if (write_memory_.empty()) write_memory_ = FFR_TRY(Map(kWriteBufferBytes));
  write_region_ = Register(write_memory_, 0);
  if (write_region_ == nullptr) return Refused("lock its buffer in memory", errno);
  return {};
}

struct QueuePair::Chain {
  std::array<ibv_send_wr, kChainCountMax> requests{};
  std::array<ibv_sge, kChainCountMax> pieces{};
  std::size_t count = 0;
  std::size_t size_bytes = 0;

  bool is_full() const { return count == kChainCountMax || size_bytes >= kChainBytes; }

  // The write for bytes at `address` here and `place` there: the last write, if they go on where it
  // ends, here and there, or a new one. Null if there may be no more than `count_max`.
  ibv_sge* PartFor(std::uint64_t address, const RemoteRegion& place, std::size_t count_max,
                   std::uint32_t key) {
    if (count > 0) {
      ibv_sge& last = pieces[count - 1];
      const auto& there = requests[count - 1].wr.rdma;
      if (last.addr + last.length == address && there.remote_addr + last.length == place.address &&
          there.rkey == place.key && last.length < QueuePair::kWriteSizeBytesMax)
        return &last;
    }
    if (count == std::min(count_max, kChainCountMax)) return nullptr;
    pieces[count] = {address, 0, key};
    ibv_send_wr& request = requests[count];
    request.sg_list = &pieces[count];
    request.num_sge = 1;
    request.opcode = IBV_WR_RDMA_WRITE;
    request.wr.rdma.remote_addr = place.address;
    request.wr.rdma.rkey = place.key;
    return &pieces[count++];
  }
};

// Copies from the front of a piece into the buffer, and has it written to its place; returns how
// many bytes, none if there is no room. The piece goes on behind them.
Result<std::size_t> QueuePair::CopyTo(Chain& chain, RemoteMemory::PlacedPiece& piece) {
  const std::size_t begin = write_end_ % kWriteBufferBytes;
  const std::size_t room =
      std::min(kWriteBufferBytes - (write_end_ - write_begin_), kWriteBufferBytes - begin);
  if (room == 0) return std::size_t{0};
  std::byte* const to = write_memory_.data() + begin;
  ibv_sge* const part = chain.PartFor(reinterpret_cast<std::uintptr_t>(to), piece.place,
                                      kWriteCount - writes_under_way(), write_region_->lkey);
  if (part == nullptr) return std::size_t{0};
  auto& [bytes, file, file_offset_bytes] = piece.source;
  const std::size_t size_bytes =
      std::min({bytes.size(), room, std::size_t{kWriteSizeBytesMax - part->length}});
  if (file < 0)
    std::memcpy(to, bytes.data(), size_bytes);
  else
    FFR_TRY(ReadWhole(file, file_offset_bytes, {to, size_bytes}));
  part->length += static_cast<std::uint32_t>(size_bytes);
  chain.size_bytes += size_bytes;
  write_end_ += size_bytes;
  bytes = bytes.subspan(size_bytes);
  file_offset_bytes += size_bytes;
  piece.place.address += size_bytes;
  return size_bytes;
}

// One chain, one bell; its end has a completion, and so all before it.
Result<void> QueuePair::Post(Chain& chain) {
  if (chain.count == 0) return {};
  ibv_send_wr& last = chain.requests[chain.count - 1];
  for (std::size_t i = 0; i + 1 < chain.count; ++i) chain.requests[i].next = &chain.requests[i + 1];
  last.next = nullptr;
  last.send_flags = IBV_SEND_SIGNALED;
  posted_ += static_cast<std::uint32_t>(chain.count);
  writes_posted_ += static_cast<std::uint32_t>(chain.count);
  MarkPosted();
  ibv_send_wr* bad = nullptr;
  const int failed = ::ibv_post_send(pair_, chain.requests.data(), &bad);
  if (failed != 0) return Refused("write", failed);
  last.send_flags = 0;
  chain.count = 0;
  chain.size_bytes = 0;
  return {};
}

Result<std::size_t> QueuePair::Write(std::span<RemoteMemory::PlacedPiece>& pieces) {
  FFR_TRY(MapWriteBuffer());
  Chain chain;
  std::size_t written_bytes = 0;
  while (!pieces.empty()) {
    const std::size_t copied_bytes = FFR_TRY(CopyTo(chain, pieces.front()));
    written_bytes += copied_bytes;
    if (pieces.front().source.bytes.empty()) pieces = pieces.subspan(1);
    const bool is_full = chain.is_full();
    if (is_full || copied_bytes == 0) FFR_TRY(Post(chain));
    if (copied_bytes == 0 && !is_full) break;
  }
  FFR_TRY(Post(chain));
  return written_bytes;
}

}  // namespace ffrecord::net
