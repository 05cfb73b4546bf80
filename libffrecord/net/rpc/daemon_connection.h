#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <unordered_map>
#include <utility>
#include <vector>

#include <ffrecord/result.h>

#include "libffrecord/net/protocol/storage_messages.h"
#include "libffrecord/net/rpc/channel.h"
#include "libffrecord/net/rpc/slab_pool.h"
#include "libffrecord/net/transport/slab.h"

namespace ffrecord::net {

// Memory that a daemon takes uploads from.
struct UploadMemory {
  Slab slab;
  std::uint32_t slab_id = 0;  // The daemon's id for it; 0: it was refused.
};

// A channel, and what its daemon knows over it: which extents it has bound, which memory of ours it
// may reach. All of that ends with the connection.
//
// Thread-bound.
class Connection final : public Channel {
 public:
  // A daemon takes uploads out of a ring of pieces: one is being filled, one is under way, two are
  // being written.
  static constexpr std::uint32_t kUploadPieceBytes = PutPull::kSizeBytesMax;
  static constexpr std::uint32_t kUploadPieceCount = 4;

  explicit Connection(Channel channel) noexcept : Channel(std::move(channel)) {}

  // The number of the token (TokenFile) by which it was made.
  std::uint64_t token_number() const noexcept { return token_number_; }
  void NoteToken(std::uint64_t number) noexcept { token_number_ = number; }
  // Over which of the session's RDMA devices it goes.
  std::optional<std::size_t> rail() const noexcept { return rail_; }
  // Goes on over RDMA: as Channel::UseRdma.
  Result<void> UseRail(RdmaLinks& links, std::size_t rail, Deadline deadline);

  // Where the daemon's table for this connection holds the extents `ids` of one set, which has the
  // number `set` in this process. A new set is sent to the daemon without waiting, and `requests`
  // are then to be received. Requires ids.size() <= kBoundExtentCountMax.
  Result<std::uint32_t> Bind(std::uint64_t set, std::span<const ExtentId> ids,
                             std::vector<std::uint64_t>& requests);
  bool HasBound(std::uint64_t set) const { return bound_.contains(set); }
  // Some of the set was not there: the next Bind() asks for it again, once per kBindEvery.
  void NoteMissing(std::uint64_t set);
  static constexpr std::chrono::milliseconds kBindEvery{250};

  // The number by which the daemon knows `slab`, on a connection that writes_slabs(). A new slab is
  // announced to the daemon without waiting, and `requests` are then to be received. Over RDMA the
  // slab stays locked in memory, and within the daemon's reach, as long as the connection lives.
  //
  // Fails with kUnavailable, and breaks the connection, if it may know no more slabs; with kIo,
  // naming the remedy, if the slab cannot be locked in memory.
  Result<std::uint32_t> SlabIdOf(const SharedSlab& slab, std::vector<std::uint64_t>& requests);

  // Whether the daemon knows a slab that is used no more. It keeps such memory as long as the
  // connection lives.
  bool HoldsRetiredSlab() const;

  // Makes the slab known that the next block would be taken from: over RDMA that shows early what
  // may not be locked. Fails as SlabIdOf, and breaks the connection.
  Result<void> ExposeSlab(Deadline deadline);

  // Gives the daemon memory to take uploads from, if it pulls() and has none yet. It is tried once:
  // while reusable() after a failure, uploads go over the connection as payloads.
  Result<void> ExposeUploads(Deadline deadline);
  // That memory, kUploadPieceCount pieces, and its number; empty where uploads go as payloads.
  std::span<std::byte> upload_memory() noexcept;
  std::uint32_t upload_slab_id() const noexcept { return uploads_ ? uploads_->slab_id : 0; }

 private:
  struct Registered {
    std::uint32_t slab_id;
    std::uint64_t request;
  };
  Result<Registered> Register(const Slab& slab, SlabRegister::Use use);

  std::uint64_t token_number_ = 0;
  std::optional<std::size_t> rail_;
  struct Bound {
    std::uint32_t base;  // The first place of the set.
    Deadline at;
    bool is_outdated = false;  // The next Bind() does it again.
  };
  std::unordered_map<std::uint64_t, Bound> bound_;  // By set.
  std::uint32_t bound_end_ = 0;                     // The next free place.
  // The daemon's number for each slab, by its number in this process.
  std::unordered_map<std::uint64_t, std::uint32_t> slab_ids_;
  std::uint32_t slab_count_ = 0;  // With the memory of uploads.
  std::uint64_t slab_bytes_ = 0;  // Sum over all of them.
  std::optional<UploadMemory> uploads_;
};

}  // namespace ffrecord::net
