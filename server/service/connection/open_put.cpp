#include "server/service/connection/open_put.h"

#include <cerrno>
#include <chrono>

namespace ffrecord::server {
namespace {

// How often the catalog hears that an extent goes on: an upload may last longer than the grace.
constexpr auto kHeardInterval = std::chrono::seconds(1);

// The file system's own quota is a full disk to clients: to them EDQUOT is a quota of the daemon's,
// which no other node would answer otherwise.
Error OfDisk(Error error) {
  if (error.system_errno == EDQUOT) error.system_errno = ENOSPC;
  return error;
}

}  // namespace

std::shared_ptr<OpenPut> OpenPut::Make(const net::PutBegin& begin,
                                       const ConnectionContext& context) {
  auto put = std::unique_ptr<OpenPut>(new OpenPut(begin, context));
  return {put.release(), [&jobs = context.jobs](OpenPut* ended) {
            if (ended->strand_ == nullptr)
              delete ended;
            else
              jobs.Post(*ended->strand_, [ended] { delete ended; });
          }};
}

Reply::Work OpenPut::Begin(const std::shared_ptr<OpenPut>& put, std::string owner_prefix) {
  return [put, owner = std::move(owner_prefix)]() -> Result<Reply> {
    Reply reply;
    reply.later = [put, owner](auto tell) {
      put->context_.names.BeginPut(
          put->begin_, owner, [put, tell](auto place) { tell(Placed(put, std::move(place))); });
    };
    return reply;
  };
}

Result<Reply> OpenPut::Placed(const std::shared_ptr<OpenPut>& put,
                              Result<std::optional<NewExtent>> place) {
  if (!place) {
    put->error_ = place.error();
    return std::move(place).error();
  }
  if (!place.value()) return Answer(FrameType::kPutBegin, net::PutBeginReply{true}.Encode());
  put->place_ = std::move(place).value();
  return OpenIn(put);
}

Reply OpenPut::OpenIn(const std::shared_ptr<OpenPut>& put) {
  put->strand_ = &put->context_.jobs.StrandOf(put->place_->disk());
  Reply reply;
  reply.next = [put] { return Open(put); };
  reply.next_strand = put->strand_;
  return reply;
}

Result<Reply> OpenPut::Open(const std::shared_ptr<OpenPut>& put) {
  auto opened = put->place_->Open();
  if (opened && !opened.value()) return OpenIn(put);
  put->place_.reset();
  if (!opened) {
    put->error_ = OfDisk(std::move(opened).error());
    return *put->error_;
  }
  put->writer_ = std::move(opened).value();
  return Answer(FrameType::kPutBegin, net::PutBeginReply{false}.Encode());
}

void OpenPut::Fail(Error error) {
  if (!error_) error_ = std::move(error);
}

Result<void> OpenPut::Append(std::span<const std::byte> bytes) {
  if (!error_ && !writer_)
    error_ = Error{ErrorCode::kInvalidArgument, "data for an extent that is sealed already"};
  if (error_) return *error_;
  const auto started = Clock::now();
  auto appended = writer_->Append(bytes);
  write_time_ += Clock::now() - started;
  if (appended) {
    context_.metrics.written_bytes.Add(bytes.size());
    context_.metrics.class_written_bytes[traffic()].Add(bytes.size());
    if (Clock::now() - heard_ > kHeardInterval) {
      context_.names.NoteHeard(begin_.id);
      heard_ = Clock::now();
    }
    return {};
  }
  error_ = OfDisk(std::move(appended).error());
  writer_.reset();
  return *error_;
}

Result<Reply> OpenPut::Seal(const net::PutSeal& seal, Clock::time_point arrived) {
  if (error_) return *error_;
  if (writer_) {
    FFR_TRY(SealWriter(seal, arrived));
    return Answer(FrameType::kPutSeal);
  }
  const ExtentPtr extent = context_.extents.Find(seal.id);
  if (extent && extent->xxh3 == seal.xxh3) return Answer(FrameType::kPutSeal);
  return Error{ErrorCode::kConflict, "the extent is sealed with other bytes"};
}

Result<void> OpenPut::SealWriter(const net::PutSeal& seal, Clock::time_point arrived) {
  const auto begin = Clock::now();
  auto sealed = context_.names.Seal(*writer_, seal);
  const auto end = Clock::now();
  const auto checksum_time = writer_->checksum_time();
  writer_.reset();
  write_time_ += end - begin;
  RequestTimes& times = context_.metrics.times;
  times.write_queue.Observe(queue_time_ + (begin - arrived));
  times.write_checksum.Observe(checksum_time);
  times.write_disk.Observe(write_time_ - checksum_time);
  times.write_whole.Observe(end - begun_);
  if (!sealed) return OfDisk(std::move(sealed).error());
  return {};
}

}  // namespace ffrecord::server
