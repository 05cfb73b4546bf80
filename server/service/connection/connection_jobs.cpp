#include "server/service/connection/connection_jobs.h"

#include <utility>

#include "libffrecord/base/assert.h"
#include "libffrecord/net/protocol/begun_request.h"

namespace ffrecord::server {

Result<void> ConnectionJobs::RefuseBusy(const FrameHeader& header) {
  context_.metrics.busy_jobs.Add();
  return conversation_.SendBusy(header.request_id);
}

Result<void> ConnectionJobs::Add(const FrameHeader& header, Kind kind, Reply::Work work) {
  if (kind == Kind::kMetadata)
    if (const auto answers = context_.names.CheckAnswers(); !answers)
      return conversation_.SendError(header.request_id, answers.error());
  if (!has_room()) return RefuseBusy(header);
  Queue(header, kind, std::move(work));
  return {};
}

void ConnectionJobs::Queue(const FrameHeader& header, Kind kind, Reply::Work work,
                           StrandPlace strand) {
  Push({header.request_id, false, kind, std::move(strand), std::move(work)});
}

void ConnectionJobs::QueuePiece(const FrameHeader& header, Reply::Work work, StrandPlace strand) {
  Push({header.request_id, true, Kind::kMetadata, std::move(strand), std::move(work)});
}

// After the others were given up, a payload that was on its way then may bring one more.
void ConnectionJobs::Push(Job job) {
  if (given_up_) return (void)conversation_.SendError(job.request_id, *given_up_);
  jobs_.push_back(std::move(job));
  if (jobs_.size() == 1) StartFirst();
}

void ConnectionJobs::StartFirst() {
  Job& job = jobs_.front();
  JobPool::Strand& strand = StrandFor(job);
  job.strand = nullptr;  // The work has the owner.
  job.started = Clock::now();
  context_.start_job(connection_, strand, caller_.Tenant(), std::move(job.work));
}

JobPool::Strand& ConnectionJobs::StrandFor(const Job& job) const {
  if (job.strand && *job.strand != nullptr) return **job.strand;
  return context_.jobs.StrandOf(caller_.Tenant(), job.kind, connection_);
}

void ConnectionJobs::Finish(Result<Reply> outcome) {
  if (given_up_) return;
  FFR_ASSERT(!jobs_.empty());
  const Job job = std::move(jobs_.front());
  jobs_.pop_front();
  if (job.is_piece) --piece_count_;
  // A failure to queue closes the endpoint, which the next poll notices.
  if (!outcome)
    (void)conversation_.SendError(job.request_id, outcome.error());
  else if (!outcome.value().is_silent)
    (void)conversation_.SendReply(job.request_id, std::move(outcome).value());
  if (!jobs_.empty()) StartFirst();
}

bool ConnectionJobs::GiveUp(Clock::time_point now) {
  if (jobs_.empty() || jobs_.front().kind != Kind::kMetadata) return false;
  const auto answers = context_.names.CheckAnswers();
  if (answers || now - jobs_.front().started < context_.answer_time_max) return false;
  given_up_ = answers.error();
  Error begun = *given_up_;
  begun.system_errno = net::kBegunErrno;
  bool is_first = true;  // It has begun, and the others never will.
  for (const Job& job : std::exchange(jobs_, {}))
    (void)conversation_.SendError(job.request_id,
                                  std::exchange(is_first, false) ? begun : *given_up_);
  piece_count_ = 0;
  return true;
}

}  // namespace ffrecord::server
