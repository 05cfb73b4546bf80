#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <utility>

#include <ffrecord/epoch_plan.h>
#include <ffrecord/result.h>

#include "libffrecord/net/rpc/session.h"

namespace ffrecord::client {

// A hint is not worth waiting for longer than reading ahead can win back.
inline constexpr std::chrono::milliseconds kHintTimeout{2'000};

// A hint on its way to a daemon, so that several can be at a time.
class HintCall {
 public:
  // As SendPrefetchHint, but for the answer.
  static Result<HintCall> Begin(const net::Session& session, const std::string& name,
                                std::uint64_t revision, const EpochPlan& plan,
                                net::Deadline deadline);
  // Once.
  Result<std::unique_ptr<PrefetchHint>> Await(net::Deadline deadline);

 private:
  HintCall(std::unique_ptr<net::Connection> connection, std::uint64_t request)
      : connection_(std::move(connection)), request_(request) {}
  std::unique_ptr<net::Connection> connection_;  // Null: the daemon takes no hints.
  std::uint64_t request_;
};

// Tells the daemon of `session` what is going to be read of the dataset `name` at `revision`, over
// a connection of its own, with which the hint ends. Null if the daemon takes no hints. Fails with
// kInvalidArgument if the plan makes no sense, and as a call does.
Result<std::unique_ptr<PrefetchHint>> SendPrefetchHint(const net::Session& session,
                                                       const std::string& name,
                                                       std::uint64_t revision,
                                                       const EpochPlan& plan,
                                                       net::Deadline deadline);

}  // namespace ffrecord::client
