#pragma once

#include <chrono>
#include <cstdint>

#include <ffrecord/result.h>

#include "libffrecord/net/rpc/daemon_connection.h"

namespace ffrecord::client {

// The failed tries of one change, at one daemon or at several nodes of a cluster: whether one of
// them may have taken effect, so that no other node's refusal hides it.
class ChangeTries {
 public:
  // How long a node of a cluster may take before another one is asked. A change may wait there for
  // the cluster's next leader.
  static constexpr std::chrono::milliseconds kAnswerTime{10'000};
  // For a node that answers while it is waited for; 0: this one would not understand it.
  static std::uint32_t PatienceFor(const net::Connection& connection, net::Deadline until);

  // One over `connection` has failed. If a node says that it has not done the change, it is not
  // done.
  void Note(const net::Connection& connection, const Error& error);
  bool may_be_done() const noexcept { return may_be_done_; }
  // The last refusal, whatever its reason: it says so if a try may have taken effect.
  Error Explain(Error last) const;

 private:
  bool may_be_done_ = false;
  bool was_told_ = false;  // By a node, in so many words.
};

}  // namespace ffrecord::client
