#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include <ffrecord/result.h>
#include <ffrecord/session_options.h>

#include "libffrecord/base/per_process.h"
#include "libffrecord/net/replicas/replica_health.h"
#include "libffrecord/net/replicas/replica_places.h"
#include "libffrecord/source/last_failure.h"
#include "libffrecord/source/range_reader.h"

namespace ffrecord::net {

class ReplicatedQueue;

// The files of one manifest, whose extents lie on several daemons. Each part of a batch is read
// from whichever daemon has it and answers, as ReplicaReads decides; a batch fails only where no
// daemon can serve a part until `options.timeout` has passed.
//
// kCorruption or kNotFound: so say all daemons that may have the extent. kUnavailable: one of them
// may come back. kDeadlineExceeded: one of them has not answered. Thread-safe; a forked child may
// go on using it.
class ReplicatedFiles final : public RangeReader {
 public:
  ReplicatedFiles(std::shared_ptr<ReplicaPlaces> places, const SessionOptions& options);
  // `replicas` are the same files at each daemon, by size and order; at least one. Their extents
  // are numbered alike for `map`; null: every daemon holds all.
  ReplicatedFiles(std::vector<std::shared_ptr<const RemoteFiles>> replicas,
                  std::shared_ptr<const ReplicaMap> map, const SessionOptions& options);
  ~ReplicatedFiles() override;

  std::size_t file_count() const noexcept override { return first().file_count(); }
  const std::string& file_name(std::uint32_t file) const noexcept override {
    return first().file_name(file);
  }
  std::uint64_t file_size_bytes(std::uint32_t file) const noexcept override {
    return first().file_size_bytes(file);
  }
  std::uint32_t alignment_bytes(std::uint32_t) const noexcept override { return 1; }
  Result<PooledBuffer> TakeMemory(std::uint64_t size_bytes) const override;
  Result<void> ReadEach(std::span<RangeRead> ranges, const Arrived& arrived,
                        Patience& patience) const override;
  Result<std::unique_ptr<RangeQueue>> MakeQueue(QueueUse use) const override;
  std::string Trouble(std::uint32_t file, ErrorCode status) const override;

  // Reads from this daemon whenever it is well, because it reads ahead for us, until LetGo() of the
  // number that is returned. Of several daemons, the last one counts.
  std::uint64_t KeepTo(NodeIndex node) const;
  void LetGo(std::uint64_t number) const;

  // --- For its queues ---
  ReplicaPlaces& places() const noexcept { return *places_; }
  std::chrono::milliseconds timeout() const noexcept { return options_.timeout; }
  bool Passes(const RangeRead& range) const noexcept { return PassesEnd(range); }
  void NoteFailure(ErrorCode status, const std::string& why) const;
  // Of this process. To be locked around each use.
  struct Health {
    std::mutex mutex;
    std::optional<ReplicaHealth> state;
    std::map<std::uint64_t, NodeIndex> kept;  // By number.
    std::uint64_t last_kept = 0;
  };
  Health& health() const;

 private:
  // Queues of calls that have ended, kept for the next ones.
  struct IdleQueues {
    std::mutex mutex;
    std::vector<std::unique_ptr<ReplicatedQueue>> queues;
  };

  const RemoteFiles& first() const noexcept { return *first_view_->replicas.front(); }
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
