#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <ffrecord/result.h>

#include "libffrecord/base/clock.h"
#include "libffrecord/net/protocol/batch_messages.h"
#include "libffrecord/net/protocol/daemon_frames.h"
#include "libffrecord/net/transport/endpoint.h"
#include "libffrecord/net/transport/slab.h"
#include "server/service/read/disk_reader.h"
#include "server/service/read/outgoing_payload.h"
#include "server/service/read/run_plan.h"
#include "server/service/read_ahead/read_ahead_port.h"
#include "server/service/worker_metrics.h"

namespace ffrecord::server {

// The batch reads of one connection: plans them, keeps the disk busy within the connection's
// window, sends each run as it completes, to the client's slab if it has one, and ends each batch
// with BATCH_DONE. Batches begin in their order, whatever their classes: those before an urgent one
// are as urgent. Thread-bound.
class BatchReads {
 public:
  // Bytes being read for a connection, or read and not yet sent: enough to keep disk and network
  // busy at once.
  static constexpr std::uint64_t kWindowBytes = std::uint64_t{4} << 20;

  // `metrics` outlives this, and the payload that it has sent. `map_version` is that of the frames;
  // it outlives this. Null: that of a single daemon.
  BatchReads(DiskReader& disk, ReadAheadPort& read_ahead, std::uint64_t connection,
             WorkerMetrics& metrics, const std::atomic<std::uint32_t>* map_version = nullptr)
      : disk_(disk),
        read_ahead_(read_ahead),
        connection_(connection),
        metrics_(metrics),
        map_version_(map_version) {}
  ~BatchReads();
  BatchReads(const BatchReads&) = delete;
  BatchReads& operator=(const BatchReads&) = delete;

  std::size_t count() const noexcept { return batches_.size(); }
  std::size_t entry_count() const noexcept { return entry_count_; }  // Sum over all batches.

  // `slab`: where the batch is to be read to; null if it is to be sent.
  void Begin(std::uint64_t request_id, const net::BatchRead& batch,
             std::span<const ExtentPtr> table, std::shared_ptr<const ClientSlab> slab);
  // So many bytes of that batch may be sent, if there is one; they rise only.
  void Grant(std::uint64_t request_id, std::uint64_t total_bytes);
  // Reads and sends nothing more of that batch, if there is one, and frees what of it was read.
  void Cancel(std::uint64_t request_id);

  // Starts what the window allows: what is in memory completes at once, a good piece of it at a
  // time, so that it leaves while more is looked for. True if it was stopped by the disk's own
  // bound: call again when others have released.
  bool Start();
  // A batch waits for its client, with nothing to wake it at its deadline but Start().
  bool is_stalled() const noexcept;
  // Something waits for Send().
  bool has_completed() const noexcept { return has_completed_; }
  void Take(DiskReader::Completed completed);
  // Queues what has completed, and BATCH_DONE of what is complete. Fails as Endpoint::Send.
  Result<void> Send(net::Endpoint& endpoint, OutgoingPayload& payload);

 private:
  enum class RunState : std::uint8_t { kWaiting, kReading, kCompleted, kDone };
  struct Run {
    RunState state = RunState::kWaiting;
    // Once it has completed, unless in a mapped slab: its bytes, and what keeps them.
    std::span<const std::byte> bytes;
    std::shared_ptr<const void> owner;
    int file = -1;  // Which the bytes are mapped from, if they were not read.
  };
  struct Batch {
    std::uint64_t request_id = 0;
    TrafficClass traffic = TrafficClass::kUrgent;  // As the client stated it.
    bool names_disk = false;
    std::map<const Disk*, Clock::duration> disk_times;  // Times of reads, if it names one.
    RunPlan plan;
    std::vector<std::uint32_t> entry_sizes;
    std::shared_ptr<const ClientSlab> slab;
    std::vector<std::uint32_t> slab_offsets;  // One for each entry, with a slab.
    bool is_cancelled = false;
    std::uint64_t granted_bytes = 0;
    std::uint64_t begun_bytes = 0;  // Bytes of payload: sent, or on their way from the disk.
    std::vector<Run> runs;
    std::uint32_t next_run = 0;
    std::uint32_t done_count = 0;
    std::vector<std::uint32_t> completed;  // Not yet looked at by Send().
    Clock::time_point arrived;
    Clock::time_point started;
    Clock::time_point ended;  // The last run completed.
    // Since when nothing is being read, for the client takes nothing off or grants nothing; and all
    // such times.
    std::optional<Clock::time_point> stalled;
    Clock::duration stalled_time{};
    Clock::time_point deadline;
  };
  class Frame;

  static bool IsReadInPlace(const Batch& batch) { return batch.slab && batch.slab->mapped; }
  static std::span<std::byte> BytesInSlab(const Batch& batch, const ReadRun& run);
  static PooledBuffer PlaceInSlab(const Batch& batch, const ReadRun& run);
  static std::uint64_t PayloadOf(const Batch& batch, std::uint32_t run);
  static net::RemoteRegion PlaceOf(const Batch& batch, const RunPiece& piece);
  bool CompleteResident(Batch& batch, std::uint32_t run, DiskReader::Resident resident);
  bool StartRead(std::uint64_t number, Batch& batch, std::uint32_t run);
  void TakeResident(std::uint64_t number, Batch& batch, std::uint32_t run,
                    DiskReader::Resident resident);
  void Split(Batch& batch, std::uint32_t run);
  void Fail(Batch& batch, std::uint32_t run, net::EntryStatus status);
  Result<void> SendRun(Batch& batch, std::uint32_t run, Frame& frame);
  Result<void> SendDone(const Batch& batch, net::Endpoint& endpoint, OutgoingPayload& payload);
  void Measure(const Batch& batch, const net::BatchDone& done, std::string_view transport,
               OutgoingPayload& payload);
  net::FrameHeader Header(net::FrameType type, std::uint64_t request_id) const {
    return MakeHeader(type, request_id,
                      map_version_ == nullptr ? net::kMapVersion : map_version_->load());
  }
  void Release(std::uint32_t size_bytes);
  OutgoingPayload::Owner OwnerOf(Run& run, std::uint32_t size_bytes);

  bool StartRuns();
  // The class by which that batch is served now.
  TrafficClass ServedAs(std::uint64_t number) const;
  static std::string SlowestDisk(const Batch& batch);
  void NoteWanted(const Batch& batch, std::uint32_t run);
  void TellWanted();

  DiskReader& disk_;
  ReadAheadPort& read_ahead_;
  const std::uint64_t connection_;
  WorkerMetrics& metrics_;
  const std::atomic<std::uint32_t>* const map_version_;
  std::uint32_t reading_count_ = 0;         // Runs of this connection that are with the disk.
  std::map<std::uint64_t, Batch> batches_;  // By a number that rises; the oldest is served first.
  std::uint64_t next_batch_ = 0;
  std::uint64_t urgent_until_ = 0;  // The newest urgent batch is before this one.
  std::size_t entry_count_ = 0;
  bool has_completed_ = false;
  std::vector<ReadAhead::Wanted> wanted_;  // In one call, while there are plans.
  // Bytes of this connection; shared with the buffers on their way out, which may outlive it here.
  std::shared_ptr<std::uint64_t> held_bytes_ = std::make_shared<std::uint64_t>(0);
};

}  // namespace ffrecord::server
