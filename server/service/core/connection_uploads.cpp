// The frames that bring extents: protocol.md, "Storing".

#include <utility>

#include "libffrecord/base/buffer_pool.h"
#include "libffrecord/net/transport/remote_memory.h"
#include "server/service/core/connection.h"
#include "server/service/core/replies.h"

namespace ffrecord::server {

// How often the catalog hears that an extent goes on: an upload may last longer than the grace.
constexpr auto kHeardInterval = std::chrono::seconds(1);

std::shared_ptr<Connection::OpenPut> Connection::MakePut(const net::PutBegin& begin) const {
  auto put = std::make_unique<OpenPut>();
  put->begin = begin;
  return {put.release(), [&jobs = context_.jobs](OpenPut* ended) {
            if (ended->strand == nullptr)
              delete ended;
            else
              jobs.Post(*ended->strand, [ended] { delete ended; });
          }};
}

Result<void> Connection::TakePutBegin(const FrameHeader& header) {
  const auto begin = FFR_TRY(net::PutBegin::Decode(endpoint_->body()));
  // It has no name yet: that is looked at when it gets one.
  if (auto allowed = Allow(Right::kWrite, token_ ? token_->prefix : ""); !allowed) {
    put_ = nullptr;
    return SendError(header.request_id, allowed.error());
  }
  if (!has_room_for_job()) return RefuseJob(header);
  put_ = MakePut(begin);
  put_heard_ = Clock::now();
  if (const auto answers = context_.names.CheckAnswers(); !answers) {
    put_->error = answers.error();
    return SendError(header.request_id, answers.error());
  }
  // The metadata first; then the file, in a strand of its disk.
  QueueJob({header.request_id, false, Kind::kMetadata, nullptr,
            [put = put_, &names = context_.names, &jobs = context_.jobs,
             owner = token_ ? token_->prefix : std::string()]() -> Result<Reply> {
              Reply reply;
              reply.later = [put, &names, &jobs, owner](auto tell) {
                names.BeginPut(put->begin, owner, [put, &jobs, tell](auto place) {
                  tell(OpenPut::Placed(put, jobs, std::move(place)));
                });
              };
              return reply;
            }});
  return {};
}

Result<Reply> Connection::OpenPut::Placed(const std::shared_ptr<OpenPut>& put, JobPool& jobs,
                                          Result<std::optional<NewExtent>> place) {
  if (!place) {
    put->error = place.error();
    return std::move(place).error();
  }
  if (!place.value()) return Answer(FrameType::kPutBegin, net::PutBeginReply{true}.Encode());
  put->place = std::move(place).value();
  return OpenIn(put, jobs);
}

Reply Connection::OpenPut::OpenIn(const std::shared_ptr<OpenPut>& put, JobPool& jobs) {
  put->strand = &jobs.StrandOf(put->place->disk());
  Reply reply;
  reply.next = [put, &jobs] { return Open(put, jobs); };
  reply.next_strand = put->strand;
  return reply;
}

Result<Reply> Connection::OpenPut::Open(const std::shared_ptr<OpenPut>& put, JobPool& jobs) {
  auto opened = put->place->Open();
  if (opened && !opened.value()) return OpenIn(put, jobs);
  put->place.reset();
  if (!opened) {
    put->error = opened.error();
    return std::move(opened).error();
  }
  put->writer = std::move(opened).value();
  return Answer(FrameType::kPutBegin, net::PutBeginReply{false}.Encode());
}

Result<void> Connection::OpenPut::Append(std::span<const std::byte> bytes, const Context& context) {
  if (!error && !writer)
    error = Error{ErrorCode::kInvalidArgument, "data for an extent that is sealed already"};
  if (error) return *error;
  const auto started = Clock::now();
  auto appended = writer->Append(bytes);
  write_time += Clock::now() - started;
  if (appended) {
    context.metrics.written_bytes.Add(bytes.size());
    if (Clock::now() - heard > kHeardInterval) {
      context.names.NoteHeard(begin.id);
      heard = Clock::now();
    }
    return {};
  }
  error = std::move(appended).error();
  writer.reset();
  return *error;
}

Result<void> Connection::ContinuePut(const ExtentId& id, std::uint64_t offset_bytes,
                                     std::uint64_t size_bytes) {
  if (!put_ || id != put_->begin.id || offset_bytes != put_->next_offset_bytes || size_bytes == 0)
    return OutOfPlace("a piece that does not continue the open extent");
  put_->next_offset_bytes += size_bytes;
  put_heard_ = Clock::now();
  ++put_data_count_;
  return {};
}

Result<void> Connection::TakePutData(const FrameHeader& header) {
  const auto data = FFR_TRY(net::PutData::Decode(endpoint_->body()));
  FFR_TRY(ContinuePut(data.id, data.offset_bytes, header.payload_size_bytes));
  return Receive(header, [this, put = put_](const FrameHeader& sent, PooledBuffer buffer) {
    QueueJob({sent.request_id, true, Kind::kMetadata, put,
              [put, buffer, arrived = Clock::now(), &context = context_]() -> Result<Reply> {
                put->queue_time += Clock::now() - arrived;
                Reply silent;
                silent.is_silent = true;
                if (put->error) return silent;  // Was told when it happened.
                FFR_TRY(put->Append(*buffer, context));
                return silent;
              }});
    return Result<void>();
  });
}

// If there is something wrong with where the bytes are, the job reports it in its turn, and spoils
// the extent.
Result<void> Connection::TakePutPull(const FrameHeader& header) {
  const auto pull = FFR_TRY(net::PutPull::Decode(endpoint_->body()));
  FFR_TRY(ContinuePut(pull.id, pull.offset_bytes, pull.size_bytes));
  const auto slab = SlabOf(pull);
  if (!slab)
    return AddPull(header, [error = slab.error()]() -> Result<PooledBuffer> { return error; });
  const ClientSlab& memory = *slab.value();
  if (!memory.source) return FetchPull(header, memory.At(pull.slab_offset_bytes), pull.size_bytes);
  return AddPull(header, [source = memory.source, pull]() -> Result<PooledBuffer> {
    PooledBuffer buffer = FFR_TRY(BufferPool::Process().Take(pull.size_bytes));
    FFR_TRY(source->Read(pull.slab_offset_bytes, *buffer));
    return buffer;
  });
}

Result<std::shared_ptr<const ClientSlab>> Connection::SlabOf(const net::PutPull& pull) const {
  auto slab = FFR_TRY(FindSlab(pull.slab_id, net::SlabRegister::Use::kIsRead));
  if (pull.size_bytes > slab->size_bytes ||
      pull.slab_offset_bytes > slab->size_bytes - pull.size_bytes)
    return Error{ErrorCode::kOutOfRange, "a piece of an upload passes its slab"};
  return slab;
}

// Jobs end in their order, and pieces beyond kPutDataCountMax are held: so the place that was used
// longest ago is free.
Result<void> Connection::FetchPull(const FrameHeader& header, const net::RemoteRegion& source,
                                   std::size_t size_bytes) {
  const std::size_t begin = staging_next_ * net::PutPull::kSizeBytesMax;
  staging_next_ = (staging_next_ + 1) % kPutDataCountMax;
  const PooledBuffer place(new std::span(staging_->subspan(begin, size_bytes)),
                           [staging = staging_](std::span<std::byte>* dead) { delete dead; });
  incoming_ =
      Incoming{header, place, [this](const FrameHeader& sent, PooledBuffer staging) {
                 return AddPull(sent, [staging]() -> Result<PooledBuffer> { return staging; });
               }};
  // Only an endpoint that has remote memory ever registered such a slab.
  return endpoint_->remote_memory()->FetchPayload(source, *place);
}

Result<void> Connection::AddPull(const FrameHeader& header, PieceSource source) {
  QueueJob({header.request_id, true, Kind::kMetadata, put_,
            [put = put_, source = std::move(source), arrived = Clock::now(),
             &context = context_]() -> Result<Reply> {
              put->queue_time += Clock::now() - arrived;
              const auto piece = source();
              if (!piece && !put->error) put->error = piece.error();
              if (put->error) return *put->error;
              FFR_TRY(put->Append(*piece.value(), context));
              return Answer(FrameType::kPutPull);
            }});
  return {};
}

Result<void> Connection::TakePutSeal(const FrameHeader& header) {
  const auto seal = FFR_TRY(net::PutSeal::Decode(endpoint_->body()));
  if (!put_ || seal.id != put_->begin.id)
    return OutOfPlace("PUT_SEAL for an extent that is not open");
  if (!has_room_for_job()) return RefuseJob(header);
  const auto put = std::exchange(put_, nullptr);
  QueueJob({header.request_id, false, Kind::kMetadata, put,
            [put, seal, &context = context_, arrived = Clock::now()]() -> Result<Reply> {
              if (put->error) return *put->error;
              if (put->writer) {
                const auto begin = Clock::now();
                auto sealed = context.names.Seal(*put->writer, seal);
                const auto end = Clock::now();
                const auto checksum_time = put->writer->checksum_time();
                put->writer.reset();
                put->write_time += end - begin;
                RequestTimes& times = context.metrics.times;
                times.write_queue.Observe(put->queue_time + (begin - arrived));
                times.write_checksum.Observe(checksum_time);
                times.write_disk.Observe(put->write_time - checksum_time);
                times.write_whole.Observe(end - put->begun);
                FFR_TRY(std::move(sealed));
                return Answer(FrameType::kPutSeal);
              }
              const ExtentPtr extent = context.extents.Find(seal.id);
              if (extent && extent->xxh3 == seal.xxh3) return Answer(FrameType::kPutSeal);
              return Error{ErrorCode::kConflict, "the extent is sealed with other bytes"};
            }});
  return {};
}

}  // namespace ffrecord::server
