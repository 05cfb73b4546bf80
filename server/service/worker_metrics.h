#pragma once

#include <array>
#include <cstdint>
#include <string_view>

#include <ffrecord/result.h>
#include <ffrecord/runtime.h>

#include "libffrecord/net/protocol/batch_messages.h"
#include "libffrecord/net/protocol/frame.h"
#include "server/service/metrics.h"

namespace ffrecord::server {

enum class Transport : std::uint8_t { kTcp, kShm, kTls, kRdma };

inline Transport TransportOf(std::string_view name) {
  return name == "shm"    ? Transport::kShm
         : name == "tls"  ? Transport::kTls
         : name == "rdma" ? Transport::kRdma
                          : Transport::kTcp;
}

namespace metric_names {

inline constexpr std::array<LabelledCounters<Transport>::Name, 4> kTransports{{
    {Transport::kTcp, "tcp"},
    {Transport::kShm, "shm"},
    {Transport::kTls, "tls"},
    {Transport::kRdma, "rdma"},
}};
inline constexpr std::array<LabelledCounters<net::FrameType>::Name, 29> kRequests{{
    {net::FrameType::kHello, "hello"},
    {net::FrameType::kPing, "ping"},
    {net::FrameType::kLocalOpen, "local_open"},
    {net::FrameType::kResolve, "resolve"},
    {net::FrameType::kSlabRegister, "slab_register"},
    {net::FrameType::kExtentBind, "extent_bind"},
    {net::FrameType::kBatchRead, "batch_read"},
    {net::FrameType::kCancel, "cancel"},
    {net::FrameType::kPlanSet, "plan_set"},
    {net::FrameType::kPlanCancel, "plan_cancel"},
    {net::FrameType::kPutBegin, "put_begin"},
    {net::FrameType::kPutData, "put_data"},
    {net::FrameType::kPutPull, "put_pull"},
    {net::FrameType::kPutSeal, "put_seal"},
    {net::FrameType::kDelete, "delete"},
    {net::FrameType::kPublish, "publish"},
    {net::FrameType::kList, "list"},
    {net::FrameType::kCheckRoom, "check_room"},
    {net::FrameType::kClusterMap, "cluster_map"},
    {net::FrameType::kSetMember, "set_member"},
    {net::FrameType::kSetLevel, "set_level"},
    {net::FrameType::kMetadataHistory, "metadata_history"},
    {net::FrameType::kMetadataList, "metadata_list"},
    {net::FrameType::kMetadataPut, "metadata_put"},
    {net::FrameType::kAskHoldings, "ask_holdings"},
    {net::FrameType::kAskHeard, "ask_heard"},
    {net::FrameType::kAskBuried, "ask_buried"},
    {net::FrameType::kAskFilled, "ask_filled"},
    {net::FrameType::kAskKnown, "ask_known"},
}};
inline constexpr std::array<LabelledCounters<ErrorCode>::Name, 9> kErrors{{
    {ErrorCode::kInvalidArgument, "invalid_argument"},
    {ErrorCode::kNotFound, "not_found"},
    {ErrorCode::kCorruption, "corruption"},
    {ErrorCode::kIo, "io"},
    {ErrorCode::kUnavailable, "unavailable"},
    {ErrorCode::kDeadlineExceeded, "deadline_exceeded"},
    {ErrorCode::kConflict, "conflict"},
    {ErrorCode::kDenied, "denied"},
    {ErrorCode::kOutOfRange, "out_of_range"},
}};
inline constexpr std::array<LabelledCounters<net::EntryStatus>::Name, 9> kEntries{{
    {net::EntryStatus::kOk, "ok"},
    {net::EntryStatus::kNotHere, "not_here"},
    {net::EntryStatus::kCorrupt, "corrupt"},
    {net::EntryStatus::kBusy, "busy"},
    {net::EntryStatus::kDenied, "denied"},
    {net::EntryStatus::kCancelled, "cancelled"},
    {net::EntryStatus::kIoError, "io_error"},
    {net::EntryStatus::kOutOfRange, "out_of_range"},
    {net::EntryStatus::kDeadline, "deadline"},
}};

inline constexpr std::array<LabelledCounters<TrafficClass>::Name, kTrafficClassCount> kTraffic{{
    {TrafficClass::kUrgent, "urgent"},
    {TrafficClass::kPrefetch, "prefetch"},
    {TrafficClass::kCheckpoint, "checkpoint"},
    {TrafficClass::kRepair, "repair"},
}};

}  // namespace metric_names

// Times of requests by stage. The stages of a batch read:
//
// - queue: until the disk gets the first read;
// - disk: until the last read has completed, without the time of `grant`;
// - grant: time in which nothing is read because the client takes or grants no more;
// - network: until the kernel or the client's memory has the last byte of payload.
//
// For the upload of an extent, queue is the wait for a thread.
struct RequestTimes : MetricSet {
  Histogram read_queue = Stage("read", "queue");
  Histogram read_disk = Stage("read", "disk");
  Histogram read_grant = Stage("read", "grant");
  Histogram read_network = Stage("read", "network");
  Histogram write_queue = Stage("write", "queue");
  Histogram write_disk = Stage("write", "disk");
  Histogram write_checksum = Stage("write", "checksum");
  Histogram read_whole = Whole("read");
  Histogram write_whole = Whole("write");

 private:
  Histogram Stage(const char* request, const char* stage) {
    return {*this, "ffrecord_stage_seconds", "Time of requests by stage.",
            Label("request", request) + "," + Label("stage", stage)};
  }
  Histogram Whole(const char* request) {
    return {*this, "ffrecord_request_seconds", "Time from a request to the end of its answer.",
            Label("request", request)};
  }
};

// The metrics of one thread that takes connections or serves them. All threads of a daemon have the
// same ones, and /metrics shows the sums.
struct alignas(64) WorkerMetrics : MetricSet {
  LabelledCounters<Transport> connections{*this, "ffrecord_connections", "Open connections.",
                                          "transport", metric_names::kTransports};
  Counter connections_max{*this, "ffrecord_connections_max", "Maximum number of open connections."};
  LabelledCounters<Transport> connections_opened{*this, "ffrecord_connections_opened_total",
                                                 "Accepted connections.", "transport",
                                                 metric_names::kTransports};
  Counter connections_refused{*this, "ffrecord_connections_refused_total",
                              "Connections rejected with BUSY."};
  Counter connection_faults{*this, "ffrecord_connection_faults_total",
                            "Connections closed for a fault of the client or the network."};
  Counter certificate_expires_s{*this, "ffrecord_certificate_expires_timestamp_seconds",
                                "Unix time at which the TLS certificate expires; 0 without one."};
  Counter kernel_tls{*this, "ffrecord_kernel_tls_connections_total",
                     "TLS connections encrypted by the kernel."};
  Counter tokens_refused{*this, "ffrecord_tokens_refused_total",
                         "Connection attempts without a valid token."};
  LabelledCounters<net::FrameType> requests{*this, "ffrecord_requests_total", "Requests received.",
                                            "type", metric_names::kRequests};
  LabelledCounters<ErrorCode> errors{*this, "ffrecord_errors_total",
                                     "Requests answered with an error.", "code",
                                     metric_names::kErrors};
  Counter busy_batches = Busy("read");
  Counter busy_jobs = Busy("other");
  LabelledCounters<net::EntryStatus> entries{*this, "ffrecord_entries_total",
                                             "Pieces of records requested by batches, by status.",
                                             "status", metric_names::kEntries};
  LabelledCounters<Transport> read_bytes{*this, "ffrecord_read_bytes_total",
                                         "Bytes read for clients.", "transport",
                                         metric_names::kTransports};
  LabelledCounters<TrafficClass> class_read_bytes{*this, "ffrecord_class_read_bytes_total",
                                                  "Bytes read for clients, by traffic class.",
                                                  "class", metric_names::kTraffic};
  Counter written_bytes{*this, "ffrecord_written_bytes_total", "Bytes of extents written."};
  LabelledCounters<TrafficClass> class_written_bytes{
      *this, "ffrecord_class_written_bytes_total",
      "Bytes of extents written, by traffic class. Clients that state none upload checkpoints.",
      "class", metric_names::kTraffic};
  Counter batches = Depth("batches");
  Counter disk_reads = Depth("disk_reads");
  Counter jobs = Depth("jobs");
  Counter held_bytes{*this, "ffrecord_inflight_bytes",
                     "Bytes being read, or read and not yet sent."};
  Counter held_bytes_max{*this, "ffrecord_inflight_bytes_max", "Limit of bytes in flight."};
  RequestTimes times;

 private:
  Counter Busy(const char* request) {
    return {*this, "ffrecord_busy_total", "Requests answered with BUSY.",
            Label("request", request)};
  }
  Counter Depth(const char* queue) {
    return {*this, "ffrecord_queue_depth", "Operations in progress.", Label("queue", queue)};
  }
};

}  // namespace ffrecord::server
