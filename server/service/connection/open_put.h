#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>

#include <ffrecord/result.h>

#include "libffrecord/base/clock.h"
#include "libffrecord/net/protocol/storage_messages.h"
#include "server/service/connection/connection_context.h"
#include "server/service/connection/connection_jobs.h"
#include "server/service/connection/replies.h"
#include "server/service/jobs/job_pool.h"
#include "server/storage/extent_store.h"

namespace ffrecord::server {

// An extent on its way from a client to a disk.
//
// Not thread-safe: the upload desk makes it and its jobs use it, one at a time and in their order,
// on threads of the pool; id() and StrandOf() may be called on the desk's thread meanwhile. Shared
// by both, for jobs may outlive the connection. Owns the extent's place, and then its writer, which
// lives in a strand of the disk: so this is destroyed there.
class OpenPut {
 public:
  // `context` outlives it.
  static std::shared_ptr<OpenPut> Make(const net::PutBegin& begin,
                                       const ConnectionContext& context);
  OpenPut(const OpenPut&) = delete;
  OpenPut& operator=(const OpenPut&) = delete;

  const ExtentId& id() const noexcept { return begin_.id; }
  TrafficClass traffic() const noexcept {
    return net::TrafficOf(begin_.traffic_class.value_or(net::BatchRead::Class::kCheckpoint));
  }
  // Where the jobs that follow on the first one run.
  static ConnectionJobs::StrandPlace StrandOf(const std::shared_ptr<OpenPut>& put) {
    return {put, &put->strand_};
  }

  // The work of the first job: the metadata first; then the file, in a strand of its disk. The
  // client may publish below `owner_prefix`.
  static Reply::Work Begin(const std::shared_ptr<OpenPut>& put, std::string owner_prefix);
  // The work of others. Each fails with what has failed first, which stays.
  void Fail(Error error);
  const std::optional<Error>& error() const noexcept { return error_; }
  Result<void> Append(std::span<const std::byte> bytes);
  Result<Reply> Seal(const net::PutSeal& seal, Clock::time_point arrived);
  // A piece has waited so long for a thread.
  void NoteQueued(Clock::duration time) { queue_time_ += time; }

 private:
  OpenPut(const net::PutBegin& begin, const ConnectionContext& context)
      : context_(context), begin_(begin) {}

  static Result<Reply> Placed(const std::shared_ptr<OpenPut>& put,
                              Result<std::optional<NewExtent>> place);
  // Has the file made where `put` has its place, by a strand of that disk.
  static Reply OpenIn(const std::shared_ptr<OpenPut>& put);
  static Result<Reply> Open(const std::shared_ptr<OpenPut>& put);
  Result<void> SealWriter(const net::PutSeal& seal, Clock::time_point arrived);

  const ConnectionContext& context_;
  const net::PutBegin begin_;
  // Read on the desk's thread while no job runs. Null: no disk has to do with it.
  JobPool::Strand* strand_ = nullptr;
  std::optional<NewExtent> place_;      // Before there is a writer.
  std::optional<ExtentWriter> writer_;  // None: sealed already, or failed.
  std::optional<Error> error_;          // The first failure.
  // When it began, how long it waited for a thread, and how long it was written.
  const Clock::time_point begun_ = Clock::now();
  Clock::duration queue_time_{};
  Clock::duration write_time_{};
  Clock::time_point heard_ = Clock::now();  // When the catalog last heard of it.
};

}  // namespace ffrecord::server
