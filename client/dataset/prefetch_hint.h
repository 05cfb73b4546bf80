#pragma once

#include <chrono>
#include <memory>
#include <string>

#include <ffrecord/epoch_plan.h>
#include <ffrecord/result.h>

#include "libffrecord/net/rpc/session.h"

namespace ffrecord::client {

// A hint is not worth waiting for longer than reading ahead can win back.
inline constexpr std::chrono::milliseconds kHintTimeout{2'000};

// Tells the daemon of `session` what is going to be read of the dataset `name` at `revision`, over
// a connection of its own, with which the hint ends. Null if the daemon takes no hints. Fails with
// kInvalidArgument if the plan makes no sense, and as a call does.
Result<std::unique_ptr<PrefetchHint>> SendPrefetchHint(const net::Session& session,
                                                       const std::string& name,
                                                       std::uint64_t revision,
                                                       const EpochPlan& plan,
                                                       net::Deadline deadline);

}  // namespace ffrecord::client
