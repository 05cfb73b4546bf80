#include "libffrecord/net/protocol/messages.h"
#include "libffrecord/net/transport/rdma/rdma.h"

namespace ffrecord::net {

Result<std::unique_ptr<Endpoint>> ConnectRdma(std::shared_ptr<RdmaDevice> device,
                                              std::unique_ptr<Endpoint> control,
                                              Deadline deadline) {
  const auto link = FFR_TRY(RdmaLink::Make(std::move(device)));
  FFR_TRY(control->Send({.type = FrameType::kRdmaConnect}, link->own().Encode(), {}));
  const auto event = FFR_TRY(NextEvent(*control, deadline, "the reply to RDMA_CONNECT"));
  if (event != Endpoint::Event::kFrame)
    return Error{ErrorCode::kUnavailable, control->peer() + " closed instead of using RDMA"};
  if (control->header().type == FrameType::kError)
    return ToError(FFR_TRY(ErrorReply::Decode(control->body())), control->peer());
  if (control->header().type != ReplyTo(FrameType::kRdmaConnect))
    return Error{ErrorCode::kCorruption, control->peer() + " does not answer RDMA_CONNECT"};
  const RdmaConnect peer = FFR_TRY(RdmaConnect::Decode(control->body()));
  return link->Connect(peer, RdmaLink::Side::kConnects, std::move(control));
}

Result<std::unique_ptr<Endpoint>> AcceptRdma(std::shared_ptr<RdmaDevice> device,
                                             std::unique_ptr<Endpoint> control, Deadline deadline) {
  const RdmaConnect peer = FFR_TRY(RdmaConnect::Decode(control->body()));
  const auto link = FFR_TRY(RdmaLink::Make(std::move(device)));
  Endpoint& replies = *control;
  auto endpoint = FFR_TRY(link->Connect(peer, RdmaLink::Side::kAccepts, std::move(control)));
  // Only now may the other end speak: everything is ready for it.
  FFR_TRY(replies.Send({.type = ReplyTo(FrameType::kRdmaConnect)}, link->own().Encode(), {}));
  FFR_TRY(Flush(replies, deadline));
  return endpoint;
}

}  // namespace ffrecord::net
