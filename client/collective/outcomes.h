#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <utility>

#include <ffrecord/client/collective.h>
#include <ffrecord/result.h>
#include <ffrecord/runtime.h>

namespace ffrecord::client {

// The operations of a group that have not ended, and those that have ended and were not returned to
// the caller. A quiet one, a message, is not returned by TakeAny() until it was announced.
class Outcomes {
 public:
  using Token = CollectiveEngine::Token;
  using Completion = CollectiveEngine::Completion;

  // `is_phase`: the phase that was begun for it ends with it.
  void Begin(Token token, bool is_phase) { pending_.emplace(token, Pending{.is_phase = is_phase}); }
  void BeginQuietly(Token token) { pending_.emplace(token, Pending{.is_quiet = true}); }

  std::size_t pending_count() const { return pending_.size(); }
  bool IsPending(Token token) const { return pending_.contains(token); }

  // Requires that it is pending.
  void End(Completion completion) {
    const auto found = pending_.find(completion.token);
    if (found->second.is_phase) EndPhase(PhaseKind::kCollective);
    (found->second.is_quiet ? quiet_ : ended_).emplace(completion.token, std::move(completion));
    pending_.erase(found);
  }
  void End(Token token, const std::optional<Error>& failure, std::int64_t now_ns) {
    End({token, failure ? Result<void>(*failure) : Result<void>(), now_ns, now_ns});
  }
  void EndAll(const Error& why, std::int64_t now_ns) {
    while (!pending_.empty()) End(pending_.begin()->first, why, now_ns);
  }

  std::optional<Completion> Take(Token token) {
    for (auto* outcomes : {&ended_, &quiet_})
      if (auto found = outcomes->extract(token)) return std::move(found.mapped());
    return std::nullopt;
  }
  std::optional<Completion> TakeAny() {
    return ended_.empty() ? std::nullopt : Take(ended_.begin()->first);
  }

  // False if it was returned already, or never begun.
  bool Announce(Token token) {
    if (const auto found = pending_.find(token); found != pending_.end()) {
      found->second.is_quiet = false;
      return true;
    }
    return !ended_.insert(quiet_.extract(token)).node && ended_.contains(token);
  }

 private:
  struct Pending {
    bool is_phase = false;
    bool is_quiet = false;
  };
  std::map<Token, Pending> pending_;
  std::map<Token, Completion> ended_;
  std::map<Token, Completion> quiet_;
};

}  // namespace ffrecord::client
