#include "server/cluster/lease_keeper.h"

#include <algorithm>
#include <utility>

namespace ffrecord::server::cluster {
void LeaseKeeper::Ask(Asked what, Call call, TimePoint now, Outbox& out) {
  asked_ = what;
  asked_at_ = now;
  call_ = out.Ask(std::move(call), now + options_.ttl / 3);
}

void LeaseKeeper::Forget(TimePoint retry_at) {
  lease_ = 0;
  is_named_ = must_look_ = false;
  valid_until_ = {};
  next_ = retry_at;
}

void LeaseKeeper::LookAgain(TimePoint now) {
  is_named_ = false;
  must_look_ = lease_ != 0;
  // An answer to an earlier question does not count.
  if (asked_ == Asked::kName || asked_ == Asked::kLook) asked_ = Asked::kNothing;
  next_ = std::min(next_, now);
}

std::vector<std::byte> LeaseKeeper::Value() const {
  NodeRecord record = options_.record;
  record.lease = lease_;
  return record.Encode();
}

void LeaseKeeper::Step(TimePoint now, Outbox& out) {
  if (!may_ask_ || call_ != 0 || now < next_) return;
  const std::string key = Key(kNodeKeys, options_.node);
  if (lease_ == 0) {
    Ask(Asked::kGrant, GrantLease{options_.ttl}, now, out);
  } else if (now >= renew_at_) {
    Ask(Asked::kKeep, KeepLease{lease_}, now, out);
  } else if (must_look_) {
    Ask(Asked::kLook, GetKey{key}, now, out);
  } else if (!is_named_) {
    MetaStore::Commit commit;
    commit.compares.push_back({key, replaced_revision_});
    commit.puts.push_back({key, Value(), lease_});
    Ask(Asked::kName, std::move(commit), now, out);
  } else {
    next_ = renew_at_;
  }
}

bool LeaseKeeper::Take(TimePoint now, const Answer& answer, Outbox& out) {
  if (call_ == 0 || answer.id != call_) return false;
  call_ = 0;
  switch (asked_) {
    case Asked::kGrant:
      Granted(now, answer);
      break;
    case Asked::kKeep:
      Kept(now, answer);
      break;
    case Asked::kName:
      Named(now, answer);
      break;
    case Asked::kLook:
      Looked(now, answer);
      break;
    case Asked::kNothing:
      break;
  }
  Step(now, out);
  return true;
}

void LeaseKeeper::Renewed(std::chrono::milliseconds ttl) {
  ttl_ = ttl;
  valid_until_ = asked_at_ + ttl_ - ttl_ / 16;
  renew_at_ = asked_at_ + ttl_ / 3;
}

void LeaseKeeper::Granted(TimePoint now, const Answer& answer) {
  const auto& granted = std::get<Result<MetaStore::Lease>>(answer.reply);
  if (!granted) return Forget(now + options_.retry);
  lease_ = granted.value().id;
  Renewed(granted.value().ttl);
  next_ = now;
}

void LeaseKeeper::Kept(TimePoint now, const Answer& answer) {
  const auto& kept = std::get<Result<std::optional<std::chrono::milliseconds>>>(answer.reply);
  if (!kept) {  // It may have been renewed; what we believe in ends no later than before.
    renew_at_ = next_ = now + options_.retry;
    return;
  }
  if (!kept.value()) return Forget(now);
  Renewed(*kept.value());
  next_ = std::min(next_, renew_at_);
}

void LeaseKeeper::Named(TimePoint now, const Answer& answer) {
  const auto& outcome = std::get<Result<MetaStore::Outcome>>(answer.reply);
  if (!outcome) {  // Perhaps our lease has ended: the store knows.
    if (outcome.error().code == ErrorCode::kNotFound) return Forget(now);
    next_ = now + options_.retry;
    return;
  }
  is_named_ = outcome.value().fate == MetaStore::Outcome::Fate::kCommitted;
  must_look_ = !is_named_;
  next_ = now;
}

void LeaseKeeper::Looked(TimePoint now, const Answer& answer) {
  const auto& found = std::get<Result<std::optional<MetaStore::KeyValue>>>(answer.reply);
  next_ = now + options_.retry;
  if (!found) return;
  must_look_ = false;
  rival_.clear();
  replaced_revision_ = 0;
  if (!found.value()) {
    next_ = now;
    return;
  }
  if (found.value()->value == Value()) {
    is_named_ = true;
    next_ = now;
    return;
  }
  // A record of ours under a lease that has ended for us is replaced at once. Another daemon's
  // record stays until its lease ends.
  const auto record = NodeRecord::Decode(found.value()->value);
  if (record && record.value().epoch == options_.record.epoch) {
    replaced_revision_ = found.value()->mod_revision;
    next_ = now;
  } else {
    must_look_ = true;
    if (record) rival_ = record.value().address;
  }
}

}  // namespace ffrecord::server::cluster
