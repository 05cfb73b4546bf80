#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "libffrecord/net/protocol/messages.h"
#include "libffrecord/net/transport/rdma/rdma.h"
#include "server/service/access/local_tickets.h"
#include "server/service/access/tokens.h"
#include "server/service/catalog/names.h"
#include "server/service/connection/replies.h"
#include "server/service/jobs/job_pool.h"
#include "server/service/read/disk_reader.h"
#include "server/service/read_ahead/planned_records.h"
#include "server/service/read_ahead/read_ahead.h"
#include "server/service/read_ahead/read_ahead_port.h"
#include "server/service/worker_metrics.h"

namespace ffrecord::server {

class ClusterService;
class DoubtedExtents;
class OriginCache;

// The objects and limits that the connections of one worker share; all of them outlive the
// connections and their jobs.
struct ConnectionContext {
  // Which node this daemon is at the moment; none: it is of no cluster. Any thread may call it; it
  // does not wait.
  using IdentitySource = std::function<std::optional<net::NodeIdentity>()>;

  Names& names;
  ClusterService* cluster;  // Null: the daemon is in no cluster.
  const IdentitySource& identity;
  ExtentStore& extents;
  DoubtedExtents* doubts;  // Null in a cluster, whose StripeReads has its own.
  OriginCache* origins;    // Null without a cluster.
  DiskReader& disk;
  ReadAhead& read_ahead;
  ReadAheadPort& read_ahead_port;  // The worker's.
  PlannedDatasets& planned;
  JobPool& jobs;
  std::uint64_t epoch;
  WorkerMetrics& metrics;
  LocalTickets* local_tickets;  // Null: there is no local socket.
  net::RdmaRails* rdma;         // Null: not offered.
  const TokenKeys* token_keys;  // Null: everybody may do everything.
  // How long a client may take until it has said HELLO, TLS included.
  std::chrono::milliseconds greeting_timeout;
  // How long a frame that has begun may stand still, in either direction.
  std::chrono::milliseconds stall_timeout;
  std::chrono::milliseconds upload_grace;  // After which an extent nobody sends is dropped.
  // How long a job may wait for the disk of the metadata.
  std::chrono::milliseconds answer_time_max;
  // How long a connection of a node of a cluster holds what was bound and is deleted since.
  std::chrono::milliseconds deleted_hold;
  // Runs `work` in `strand`, and what follows from it, for `tenant`; then gives the reply to
  // FinishJob of the connection.
  std::function<void(std::uint64_t connection, JobPool::Strand& strand, std::string tenant,
                     Reply::Work work)>
      start_job;
};

}  // namespace ffrecord::server
