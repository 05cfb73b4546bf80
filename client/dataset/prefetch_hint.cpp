#include "client/dataset/prefetch_hint.h"

#include <utility>

#include "libffrecord/base/home_process.h"
#include "libffrecord/net/protocol/plan_messages.h"

namespace ffrecord::client {
namespace {

// The connection that sent it. A forked child has it too, and leaves it alone.
class SentHint final : public PrefetchHint {
 public:
  explicit SentHint(std::unique_ptr<net::Connection> connection)
      : connection_(std::move(connection)) {}
  bool alive() override { return home_.is_here() && connection_->Alive(); }

 private:
  const HomeProcess home_;
  const std::unique_ptr<net::Connection> connection_;
};

}  // namespace

Result<HintCall> HintCall::Begin(const net::Session& session, const std::string& name,
                                 std::uint64_t revision, const EpochPlan& plan,
                                 net::Deadline deadline) {
  net::PlanSet set;
  set.revision = revision;
  set.seed = plan.seed;
  set.epoch = plan.epoch;
  set.first = plan.first;
  set.end = plan.end;
  set.block = plan.block;
  set.window = plan.window;
  set.step_size = plan.step_size;
  set.world_size = plan.world_size;
  set.rank = plan.rank;
  set.name = name;
  const auto body = set.Encode();
  if (!net::PlanSet::Decode(body))
    return Error{ErrorCode::kInvalidArgument, "an epoch plan that no rank can follow"};
  auto connection = FFR_TRY(session.ConnectApart(deadline));
  if ((connection->hello().capabilities & net::kCapabilityPlans) == 0) return HintCall(nullptr, 0);
  const std::uint64_t request = FFR_TRY(connection->Send(net::FrameType::kPlanSet, body));
  return HintCall(std::move(connection), request);
}

Result<std::unique_ptr<PrefetchHint>> HintCall::Await(net::Deadline deadline) {
  if (!connection_) return std::unique_ptr<PrefetchHint>();
  const auto header = FFR_TRY(connection_->Receive(request_, deadline, "an answer to a plan"));
  if (header.type != net::ReplyTo(net::FrameType::kPlanSet) || header.payload_size_bytes != 0)
    return connection_->Break(
        {ErrorCode::kUnavailable, connection_->peer() + " sent another frame for a plan"});
  return std::unique_ptr<PrefetchHint>(new SentHint(std::move(connection_)));
}

Result<std::unique_ptr<PrefetchHint>> SendPrefetchHint(const net::Session& session,
                                                       const std::string& name,
                                                       std::uint64_t revision,
                                                       const EpochPlan& plan,
                                                       net::Deadline deadline) {
  auto call = FFR_TRY(HintCall::Begin(session, name, revision, plan, deadline));
  return call.Await(deadline);
}

}  // namespace ffrecord::client
