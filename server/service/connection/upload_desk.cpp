#include "server/service/connection/upload_desk.h"

#include <string>
#include <utility>

#include "server/service/connection/replies.h"

namespace ffrecord::server {

Result<void> UploadDesk::TakePutBegin(const Frame& frame) {
  const auto begin = FFR_TRY(net::PutBegin::Decode(frame.body));
  // It has no name yet: that is looked at when it gets one.
  if (auto allowed = caller_.Allow(frame); !allowed) {
    put_ = nullptr;
    return conversation_.SendError(frame.header.request_id, allowed.error());
  }
  if (!jobs_.has_room()) return jobs_.RefuseBusy(frame.header);
  put_ = OpenPut::Make(begin, context_);
  next_offset_bytes_ = 0;
  heard_ = Clock::now();
  if (const auto answers = context_.names.CheckAnswers(); !answers) {
    put_->Fail(answers.error());
    return conversation_.SendError(frame.header.request_id, answers.error());
  }
  jobs_.Queue(frame.header, Kind::kMetadata, OpenPut::Begin(put_, std::string(caller_.prefix())));
  return {};
}

Result<void> UploadDesk::Continue(const ExtentId& id, std::uint64_t offset_bytes,
                                  std::uint64_t size_bytes) {
  if (!put_ || id != put_->id() || offset_bytes != next_offset_bytes_ || size_bytes == 0)
    return OutOfPlace("a piece that does not continue the open extent");
  next_offset_bytes_ += size_bytes;
  heard_ = Clock::now();
  jobs_.ExpectPiece();
  return {};
}

void UploadDesk::DropSilent(Clock::time_point now) {
  const bool is_silent = put_ && !conversation_.endpoint().is_receiving() && jobs_.is_empty();
  if (!is_silent) heard_ = now;
  if (now - heard_ > context_.upload_grace) put_ = nullptr;
}

Result<void> UploadDesk::TakePutData(const Frame& frame) {
  const auto data = FFR_TRY(net::PutData::Decode(frame.body));
  FFR_TRY(Continue(data.id, data.offset_bytes, frame.header.payload_size_bytes));
  return conversation_.Receive(frame.header,
                               [this, put = put_](const FrameHeader& sent, PooledBuffer buffer) {
                                 jobs_.QueuePiece(
                                     sent,
                                     [put, buffer, arrived = Clock::now()]() -> Result<Reply> {
                                       put->NoteQueued(Clock::now() - arrived);
                                       Reply silent;
                                       silent.is_silent = true;
                                       if (put->error())
                                         return silent;  // The client has it already.
                                       FFR_TRY(put->Append(*buffer));
                                       return silent;
                                     },
                                     OpenPut::StrandOf(put));
                                 return Result<void>();
                               });
}

// If there is something wrong with where the bytes are, the job reports it in its turn, and spoils
// the extent.
Result<void> UploadDesk::TakePutPull(const Frame& frame) {
  const auto pull = FFR_TRY(net::PutPull::Decode(frame.body));
  FFR_TRY(Continue(pull.id, pull.offset_bytes, pull.size_bytes));
  const auto slab = SlabOf(pull);
  if (!slab)
    return AddPull(frame.header, put_,
                   [error = slab.error()]() -> Result<PooledBuffer> { return error; });
  const ClientSlab& memory = *slab.value();
  if (!memory.source)
    return FetchPull(frame.header, memory.At(pull.slab_offset_bytes), pull.size_bytes);
  return AddPull(frame.header, put_, [source = memory.source, pull]() -> Result<PooledBuffer> {
    PooledBuffer buffer = FFR_TRY(BufferPool::Process().Take(pull.size_bytes));
    FFR_TRY(source->Read(pull.slab_offset_bytes, *buffer));
    return buffer;
  });
}

Result<std::shared_ptr<const ClientSlab>> UploadDesk::SlabOf(const net::PutPull& pull) const {
  auto slab = FFR_TRY(slabs_.Find(pull.slab_id, net::SlabRegister::Use::kIsRead));
  if (pull.size_bytes > slab->size_bytes ||
      pull.slab_offset_bytes > slab->size_bytes - pull.size_bytes)
    return Error{ErrorCode::kOutOfRange, "a piece of an upload passes its slab"};
  return slab;
}

// Only an endpoint that has remote memory ever registered such a slab.
Result<void> UploadDesk::FetchPull(const FrameHeader& header, const net::RemoteRegion& source,
                                   std::size_t size_bytes) {
  return conversation_.Fetch(
      header, source, slabs_.NextStaging(size_bytes),
      [this, put = put_](const FrameHeader& sent, PooledBuffer staging) {
        return AddPull(sent, put, [staging]() -> Result<PooledBuffer> { return staging; });
      });
}

Result<void> UploadDesk::AddPull(const FrameHeader& header, const std::shared_ptr<OpenPut>& put,
                                 PieceSource source) {
  jobs_.QueuePiece(
      header,
      [put, source = std::move(source), arrived = Clock::now()]() -> Result<Reply> {
        put->NoteQueued(Clock::now() - arrived);
        const auto piece = source();
        if (!piece) put->Fail(piece.error());
        if (put->error()) return *put->error();
        FFR_TRY(put->Append(*piece.value()));
        return Answer(FrameType::kPutPull);
      },
      OpenPut::StrandOf(put));
  return {};
}

Result<void> UploadDesk::TakePutSeal(const Frame& frame) {
  const auto seal = FFR_TRY(net::PutSeal::Decode(frame.body));
  if (!put_ || seal.id != put_->id()) return OutOfPlace("PUT_SEAL for an extent that is not open");
  if (!jobs_.has_room()) return jobs_.RefuseBusy(frame.header);
  const auto put = std::exchange(put_, nullptr);
  jobs_.Queue(
      frame.header, Kind::kMetadata,
      [put, seal, arrived = Clock::now()]() -> Result<Reply> { return put->Seal(seal, arrived); },
      OpenPut::StrandOf(put));
  return {};
}

}  // namespace ffrecord::server
