#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <ffrecord/result.h>
#include <ffrecord/session_options.h>

#include "libffrecord/base/per_process.h"
#include "libffrecord/net/replicas/replica_health.h"
#include "libffrecord/net/replicas/replica_places.h"
#include "libffrecord/source/file_copies.h"
#include "libffrecord/source/last_failure.h"
#include "libffrecord/source/range_reader.h"

namespace ffrecord::net {

class ReplicatedQueue;

// The files of one manifest, whose extents lie on several daemons. Each part of a batch is read
// from whichever daemon has it and answers, as ReplicaReads decides; a batch fails only where no
// daemon can serve a part until `options.timeout` has passed.
//
// Bytes that fail their checksum at the caller are read again from the other daemons (FileCopies).
//
// kCorruption or kNotFound: so say all daemons that may have the extent. kUnavailable: one of them
// may come back. kDeadlineExceeded: one of them has not answered. Thread-safe; a forked child may
// go on using it.
class ReplicatedFiles final : public RangeReader, public FileCopies {
 public:
  ReplicatedFiles(std::shared_ptr<ReplicaPlaces> places, const SessionOptions& options);
  ~ReplicatedFiles() override;

  std::size_t file_count() const noexcept override { return first().file_count(); }
  const std::string& file_name(std::uint32_t file) const noexcept override {
    return first().file_name(file);
  }
  std::uint64_t file_size_bytes(std::uint32_t file) const noexcept override {
    return first().file_size_bytes(file);
  }
  std::uint32_t alignment_bytes(std::uint32_t) const noexcept override { return 1; }
  const CoalescingOptions& coalescing() const noexcept override { return kDaemonCoalescing; }
  Result<PooledBuffer> TakeMemory(std::uint64_t size_bytes) const override;
  Result<void> ReadEach(std::span<RangeRead> ranges, const Arrived& arrived,
                        Patience& patience) const override;
  Result<std::unique_ptr<RangeQueue>> MakeQueue(QueueUse use) const override;
  std::string Trouble(std::uint32_t file, ErrorCode status) const override;
  // Looks at each copy of an owner once, unless a damaged one is known already: so it is known
  // which ones are damaged, and they are the last to be read from then on; their daemons receive a
  // report, and verify and mend them. If all are, none of them is noted. Copies that move are
  // sought where the newest view says. Where daemons fetch what they lack, the first that answers
  // verifies what it has, and fetches it again if it is damaged.
  Result<PooledBuffer> ReadFromCopies(std::uint32_t file, std::uint64_t offset_bytes,
                                      std::uint64_t size_bytes, const IsRight& is_right,
                                      Patience& patience) const override;
  std::vector<std::string> DamagedCopies(std::uint32_t file) const override;

  // Prefers the first owner of each extent that is well, because it reads ahead for us: until
  // StopKeepingToOrder() was called as often.
  void KeepToOrder() const;
  void StopKeepingToOrder() const;

  // --- For its queues ---
  ReplicaPlaces& places() const noexcept { return *places_; }
  std::chrono::milliseconds timeout() const noexcept { return options_.timeout; }
  void NoteFailure(ErrorCode status, const std::string& why) const;
  // The health in this process. To be locked around each use.
  struct Health {
    std::mutex mutex;
    std::optional<ReplicaHealth> state;
    std::size_t order_keeper_count = 0;
    // A line about each damaged copy, by file and node; kDamagedCopiesMax at most.
    std::map<std::pair<std::uint32_t, NodeIndex>, std::string> damaged_copies;
  };
  Health& health() const;

 private:
  // Queues of calls that have ended, kept for the next ones.
  struct IdleQueues {
    std::mutex mutex;
    std::vector<std::unique_ptr<ReplicatedQueue>> queues;
  };

  const RemoteFiles& first() const noexcept { return *first_view_->replicas.front(); }
  // A range that is read from one copy after the other.
  struct Copied {
    std::uint32_t file;
    std::uint64_t offset_bytes;
    std::uint64_t size_bytes;
  };
  std::vector<std::uint32_t> ExtentsOf(const Copied& range) const;
  std::vector<NodeIndex> CopiesOf(const Copied& range, const ReplicaView& view) const;
  // A search for the right bytes among the copies of a range, as far as it has come.
  struct CopySearch {
    const Copied& range;
    const IsRight& is_right;
    const bool is_damage_known;
    std::optional<PooledBuffer> found;
    std::vector<NodeIndex> answered;
    std::vector<NodeIndex> away;     // They may answer later, or have it no more.
    std::vector<NodeIndex> damaged;  // They have answered, and are not noted yet.
  };
  enum class Asks : std::uint8_t {
    kOnce,
    kUntilTimeout,
    kToVerify,  // Until the timeout, and the daemon is to verify what it has.
  };
  Result<void> AskCopies(CopySearch& search, Asks asks, Patience& patience) const;
  Result<void> AskCopy(CopySearch& search, const std::shared_ptr<const ReplicaView>& view,
                       std::span<const NodeIndex> asked, Asks asks, Patience& patience) const;
  std::optional<NodeIndex> NextCopy(const Copied& range, const ReplicaView& view,
                                    std::span<const NodeIndex> asked) const;
  Result<void> AwaitNewer(const ReplicaView& view, Patience& patience) const;
  Result<PooledBuffer> ReadVerified(const Copied& range, const ReplicaView& view,
                                    const IsRight& is_right, Patience& patience) const;
  void PutWellFirst(std::span<const std::uint32_t> extents, std::vector<NodeIndex>& nodes) const;
  static Result<void> ReadCopy(const RemoteFiles& replica, RangeRead& copy,
                               std::chrono::milliseconds time, Asks asks,
                               const std::function<bool()>& is_elsewhere, Patience& patience);
  bool IsDamageKnown(const Copied& range, const ReplicaMap& map) const;
  void NoteDamage(const Copied& range, NodeIndex node, const RemoteFiles& replica) const;
  Result<void> TellDoubt(const Copied& range, const RemoteFiles& replica, Patience& patience) const;
  Result<std::unique_ptr<ReplicatedQueue>> TakeIdle() const;
  void PutIdle(std::unique_ptr<ReplicatedQueue> queue) const;

  const std::shared_ptr<ReplicaPlaces> places_;
  const std::shared_ptr<const ReplicaView> first_view_;  // Keeps what first() refers to.
  const SessionOptions options_;
  mutable PerProcess<Health> health_;
  mutable PerProcess<IdleQueues> idle_;
  mutable LastFailure last_failure_;
};

}  // namespace ffrecord::net
