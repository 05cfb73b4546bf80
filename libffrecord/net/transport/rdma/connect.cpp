#include <utility>

#include "libffrecord/net/protocol/messages.h"
#include "libffrecord/net/transport/rdma/rdma.h"

namespace ffrecord::net {

Result<std::shared_ptr<RdmaDevice>> RdmaLinks::Device() {
  const std::lock_guard lock(mutex_);
  if (!device_ || device_->is_gone()) device_ = FFR_TRY(RdmaDevice::Open(name_));
  return device_;
}

Result<std::unique_ptr<RdmaLink>> RdmaLinks::Make(RdmaLink::Side side) {
  const auto device = FFR_TRY(Device());
  if (auto link = RdmaLink::Make(device, side)) return link;
  {
    // Perhaps it was taken away, and another has come in its place.
    const std::lock_guard lock(mutex_);
    if (device_ == device) device_.reset();
  }
  return RdmaLink::Make(FFR_TRY(Device()), side);
}

Result<std::unique_ptr<Endpoint>> AcceptRdma(RdmaLink& link, std::unique_ptr<Endpoint>& control) {
  const RdmaConnect peer = FFR_TRY(RdmaConnect::Decode(control->body()));
  const FrameHeader reply{.type = ReplyTo(FrameType::kRdmaConnect),
                          .request_id = control->header().request_id};
  Endpoint& replies = *control;
  auto endpoint = FFR_TRY(link.Connect(peer, control));
  // Only now may the other end speak: everything is ready for it. What goes wrong here the endpoint
  // finds out by itself: it looks at its control.
  (void)replies.Send(reply, link.own().Encode(), {});
  (void)replies.Poll();
  return endpoint;
}

}  // namespace ffrecord::net
