#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "libffrecord/io/sigbus_guard.h"
#include "libffrecord/net/protocol/batch_messages.h"
#include "libffrecord/net/transport/slab.h"
#include "server/storage/extent_store.h"

namespace ffrecord::server {

// A piece of a run that belongs to an entry.
struct RunPiece {
  std::uint32_t entry = 0;
  std::uint32_t entry_offset_bytes = 0;
  std::uint32_t run_offset_bytes = 0;
  std::uint32_t size_bytes = 0;
};

// Bytes of one extent that are read together.
struct ReadRun {
  // Borrowed from the maker of the run: copies of it would count on a line that all workers share.
  const ExtentPtr* extent = nullptr;
  std::uint64_t offset_bytes = 0;
  std::uint32_t size_bytes = 0;
  std::uint32_t first_piece = 0;
  std::uint32_t piece_count = 0;
  bool continues = false;  // Its piece follows the one of the run before, in the same entry.
};

// Memory of a client that batches are read into, or that uploads are taken from: of this machine,
// or reached over RDMA. Shared by all who write or read there.
struct ClientSlab {
  std::uint64_t size_bytes = 0;
  std::shared_ptr<const net::RemoteSlab> mapped = {};  // Null over RDMA.
  SigbusGuard guard = {};  // Guards `mapped`: the client can have its pages become unobtainable.
  net::RemoteRegion remote = {};
  net::SlabRegister::Use use = net::SlabRegister::Use::kIsWritten;
  std::shared_ptr<const net::UploadSlab> source = {};  // If it is read. Null over RDMA.

  // Where the byte at `offset_bytes` is, over RDMA.
  net::RemoteRegion At(std::uint64_t offset_bytes) const {
    return {remote.address + offset_bytes, remote.key};
  }
};

// How a batch is read: runs in the order of the disk, neighbours merged, large entries cut.
struct RunPlan {
  RunPlan() = default;
  RunPlan(RunPlan&&) = default;
  RunPlan& operator=(RunPlan&&) = default;

  std::deque<ExtentPtr> extents;  // Extents that the runs point to; a move leaves them in place.
  std::vector<ReadRun> runs;
  std::vector<RunPiece> pieces;            // Pieces of all runs, in their order.
  std::vector<net::EntryStatus> statuses;  // One for each entry: kOk if it is in `runs`.
};

// `table` is the connection's. Entries that are bound to nothing, or pass their extent, get their
// status here and are in no run. With a `slab`, so do those that pass it; if it is mapped, nothing
// is merged: each run has its own place there.
RunPlan PlanBatch(std::span<const net::BatchEntry> entries, std::span<const ExtentPtr> table,
                  const ClientSlab* slab = nullptr);

}  // namespace ffrecord::server
