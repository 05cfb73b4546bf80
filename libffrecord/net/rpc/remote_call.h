#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <ffrecord/result.h>
#include <ffrecord/runtime.h>

#include "libffrecord/base/back_off.h"
#include "libffrecord/base/event_log.h"
#include "libffrecord/net/protocol/batch_messages.h"
#include "libffrecord/net/rpc/channel.h"
#include "libffrecord/net/rpc/extent_parts.h"
#include "libffrecord/net/rpc/slab_pool.h"
#include "libffrecord/source/range_queue.h"

namespace ffrecord::net {

class RemoteFiles;

// The ranges of one group, until each part of them has arrived or failed.
class RemoteCall {
 public:
  RemoteCall(const RemoteFiles& files, RangeGroup& group, Deadline deadline);

  RangeGroup& group() const noexcept { return parts_.group(); }
  Deadline deadline() const noexcept { return deadline_; }
  void Extend(Deadline::duration time) noexcept { deadline_ += time; }
  // All parts have ended.
  bool is_complete() const noexcept { return open_count_ == 0; }

  // The next parts to ask for, which lie in the same slab, or in none; at most `count_max` of them.
  struct Next {
    std::vector<ExtentPart> parts;
    const SharedSlab* slab = nullptr;
    std::uint64_t slab_begin_bytes = 0;  // In the slab: of the first part.
  };
  bool has_next() const noexcept { return next_ < pending_.size(); }
  Next TakeNext(bool has_slabs, std::size_t count_max);
  // A part that was asked for in vain.
  void PutBack(const ExtentPart& part) { pending_.push_back(part); }

  // Part ends so. True: its range has arrived with it, and the group was called, unless it was
  // given up.
  bool End(const ExtentPart& part, ErrorCode status);
  // Tells of ranges of which there is nothing to be asked for. True: there were some.
  bool TellEmpty();
  // Ends every part that has not arrived with this status.
  void EndMissing(ErrorCode status);

  // Asks again later, at least `at_least` from now; or it has failed, if that is too late.
  void Retry(Error why, std::chrono::milliseconds at_least, const std::string& peer);

  std::optional<Deadline> given_up_at;  // The group is not told of ranges any more.
  std::optional<Error> failure;         // Nothing more is asked for, and what is missing ends so.
  std::optional<Error> last;            // Why some of it was asked for in vain.
  Deadline not_before{};
  TrafficClass traffic = TrafficClass::kUrgent;

 private:
  ExtentParts parts_;
  Deadline deadline_;
  std::vector<ExtentPart> pending_;  // Not asked for: from next_ on.
  std::size_t next_ = 0;
  std::size_t open_count_;  // Parts that have not ended.
  std::optional<BackOff> back_off_;
};

// One BATCH_READ under way, for a part of a call.
class RemoteAsk {
 public:
  RemoteAsk(RemoteCall& call, RemoteCall::Next next);

  // Null: nobody wants the rest, which is received into nothing.
  RemoteCall* call() const noexcept { return call_; }
  const SharedSlab* slab() const noexcept { return next_.slab; }
  std::size_t entry_count() const noexcept { return next_.parts.size(); }
  // The daemon may write into the destinations over RDMA or shared memory.
  bool may_be_written() const noexcept { return call_ != nullptr && next_.slab != nullptr; }

  // Its entries; `base`: where the table of the connection holds the extents.
  std::vector<BatchEntry> Entries(std::uint32_t base) const;
  // States its class, as it is now, and, if a profile is on and the daemon can, asks which disk was
  // slow. Returns the class.
  TrafficClass State(BatchRead& batch, std::uint64_t capabilities);

  // Compares pieces with what was asked for, and counts them as received. Their places in the order
  // of the payload, in `nowhere` if nobody wants them; empty with a slab. None: they are not what
  // was asked for.
  std::optional<std::vector<std::span<std::byte>>> Expect(std::span<const BatchPiece> pieces,
                                                          std::uint64_t payload_size_bytes,
                                                          std::vector<std::byte>& nowhere);
  // Their bytes have arrived. True: the group was called for a range.
  bool Arrived(std::span<const BatchPiece> pieces);
  // Takes the end. False: it does not fit what has come. Otherwise only those that the daemon was
  // too busy for are left.
  bool Finish(const BatchDone& done, bool& has_told);

  // The next request asks again for every part that has not ended.
  bool has_left() const noexcept;
  void PutBack();
  // Or they end so. True: the group was called for a range.
  bool EndLeft(ErrorCode status);
  // The daemon may write on (slab.h, "Late writes"): what has not ended goes where it cannot reach.
  Result<void> Quarantine();
  void Abandon() noexcept { call_ = nullptr; }

  // Bytes of payload: all that is wanted, how much of it the daemon may send, and how much of that
  // is still to come.
  std::uint64_t payload_bytes() const noexcept { return payload_bytes_; }
  std::uint64_t granted_bytes() const noexcept { return granted_bytes_; }
  std::uint64_t owed_bytes() const noexcept { return granted_bytes_ - arrived_bytes_; }
  // Grants so much more, at most what is wanted; the caller sends that to the daemon. Returns how
  // much it is now.
  std::uint64_t Grant(std::uint64_t more_bytes) noexcept;

  // Tell the profile; `peer`: the name of the daemon there.
  void NoteAsked(std::uint16_t peer) noexcept;
  void NoteDone(std::uint16_t peer, const BatchDone& done) noexcept;

  bool is_cancelled = false;
  bool names_disk = false;  // BATCH_DONE will name a disk.

 private:
  ErrorCode StatusOf(const ExtentPart& part) const;

  std::uint64_t payload_bytes_ = 0;
  std::uint64_t granted_bytes_ = 0;
  std::uint64_t arrived_bytes_ = 0;
  RemoteCall* call_;
  RemoteCall::Next next_;
  OpenEvent profiled_;
  std::uint64_t quarantine_count_;  // Count of the slab pool, when it was made.
  std::vector<std::uint32_t> received_bytes_;
  std::vector<bool> ended_;
};

}  // namespace ffrecord::net
