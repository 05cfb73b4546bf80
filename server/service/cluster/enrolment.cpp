#include "server/service/cluster/enrolment.h"

#include <algorithm>
#include <utility>

#include "libffrecord/base/clock.h"
#include "libffrecord/base/hex.h"
#include "libffrecord/base/random.h"

namespace ffrecord::server {
namespace {

constexpr std::chrono::seconds kPatience{5};
constexpr std::chrono::seconds kRetry{1};

}  // namespace

cluster::WaitingRecord WaitsFromNowOn(std::string address, std::string daemon) {
  const auto now = WallClock::now().time_since_epoch();
  return {static_cast<std::uint64_t>(now / std::chrono::milliseconds(1)), std::move(address),
          std::move(daemon)};
}

void Enrolment::Retry(cluster::TimePoint now, Phase phase, std::string why) {
  phase_ = phase;
  trouble_ = std::move(why);
  next_ = now + kRetry;
}

void Enrolment::BeginAnew(MetaStore::Commit keys) {
  keys_ = std::move(keys);
  next_ = {};
}

void Enrolment::Step(cluster::TimePoint now, cluster::Outbox& out) {
  if (is_done() || call_ != 0 || now < next_) return;
  const std::string member_key = cluster::Key(cluster::kMemberKeys, options_.node);
  const std::string waiting_key = cluster::Key(cluster::kWaitingKeys, options_.node);
  MetaStore::Commit commit;
  switch (phase_) {
    case Phase::kLook:
      call_ = out.Ask(cluster::GetKey{std::string(cluster::kClusterKey)}, now + kPatience);
      return;
    case Phase::kFound: {
      if (keys_) commit = *keys_;
      const auto has_key = [&](std::string_view key) {
        return std::ranges::find(commit.puts, key, &MetaStore::Put::key) != commit.puts.end();
      };
      const auto id = options_.known ? *options_.known : Random<net::ClusterId>();
      commit.compares.push_back({std::string(cluster::kClusterKey), 0});
      commit.puts.push_back({std::string(cluster::kClusterKey), {id.begin(), id.end()}});
      if (!has_key(cluster::kLevelKey))
        commit.puts.push_back(
            {std::string(cluster::kLevelKey), cluster::LevelRecord{options_.level}.Encode()});
      // At once: nobody else could let it in.
      if (!has_key(member_key))
        commit.puts.push_back({member_key, Record(cluster::MemberRecord::State::kIn).Encode()});
      call_ = out.Ask(std::move(commit), now + kPatience);
      return;
    }
    case Phase::kLookAtLevel:
      call_ = out.Ask(cluster::GetKey{std::string(cluster::kLevelKey)}, now + kPatience);
      return;
    case Phase::kLookAtMember:
      call_ = out.Ask(cluster::GetKey{member_key}, now + kPatience);
      return;
    case Phase::kPutMember:
      commit.compares.push_back({member_key, member_revision_});
      commit.puts.push_back({member_key, member_.Encode()});
      call_ = out.Ask(std::move(commit), now + kPatience);
      return;
    case Phase::kLookAtWaiting:
      call_ = out.Ask(cluster::GetKey{waiting_key}, now + kPatience);
      return;
    case Phase::kPutWaiting:
      // Only beside a member that still waits: the operator's command that lets it in deletes the
      // key.
      commit.compares.push_back({member_key, member_revision_});
      commit.compares.push_back({waiting_key, waiting_revision_});
      commit.puts.push_back({waiting_key, waiting_.Encode()});
      call_ = out.Ask(std::move(commit), now + kPatience);
      return;
    case Phase::kDone:
      return;
  }
}

bool Enrolment::Take(cluster::TimePoint now, const cluster::Answer& answer) {
  if (call_ == 0 || answer.id != call_) return false;
  call_ = 0;
  if (const auto* const outcome = std::get_if<Result<MetaStore::Outcome>>(&answer.reply))
    TakeCommit(now, *outcome);
  else if (phase_ == Phase::kLook)
    TakeCluster(now, std::get<Found>(answer.reply));
  else if (phase_ == Phase::kLookAtLevel)
    TakeLevel(now, std::get<Found>(answer.reply));
  else if (phase_ == Phase::kLookAtWaiting)
    TakeWaiting(now, std::get<Found>(answer.reply));
  else
    TakeMember(now, std::get<Found>(answer.reply));
  return true;
}

void Enrolment::TakeCluster(cluster::TimePoint now, const Found& found) {
  if (!found)
    return Retry(now, Phase::kLook, "the coordinator does not answer: " + found.error().message);
  finds_nothing_ = options_.known && !found.value();
  if (!found.value()) {
    if (!options_.known || keys_) {
      phase_ = Phase::kFound;
      next_ = now;
      return;
    }
    return Retry(now, Phase::kLook,
                 "the coordinator knows no such cluster, and this node's data belongs to cluster " +
                     Hex(*options_.known) +
                     ": restore it with `ffrecord cluster restore`, or from the nodes' disks with "
                     "`ffrecord cluster rebuild`");
  }
  net::ClusterId id{};
  if (found.value()->value.size() != id.size())
    return Retry(now, Phase::kLook, "the coordinator's id of the cluster is damaged");
  std::ranges::copy(found.value()->value, id.begin());
  if (options_.known && *options_.known != id)
    return Retry(now, Phase::kLook,
                 "the coordinator has cluster " + Hex(id) + ", and this node's data belongs to " +
                     Hex(*options_.known) + ": correct `cluster` or `coordinator`");
  cluster_ = id;
  phase_ = Phase::kLookAtLevel;
  next_ = now;
}

void Enrolment::TakeLevel(cluster::TimePoint now, const Found& found) {
  if (!found)
    return Retry(now, Phase::kLookAtLevel,
                 "the coordinator does not answer: " + found.error().message);
  const std::uint32_t level = cluster::LevelIn(found.value() ? &*found.value() : nullptr);
  if (level > options_.level)
    return Retry(now, Phase::kLookAtLevel, cluster::ExplainLevel(level, options_.level));
  phase_ = Phase::kLookAtMember;
  next_ = now;
}

cluster::MemberRecord Enrolment::Record(cluster::MemberRecord::State state) const {
  return {state, options_.weight, options_.domain};
}

// Domain and weight come from this daemon's settings; operators decide whether it takes part.
void Enrolment::TakeMember(cluster::TimePoint now, const Found& found) {
  if (!found)
    return Retry(now, Phase::kLookAtMember,
                 "the coordinator does not answer: " + found.error().message);
  cluster::MemberRecord wanted = Record(cluster::MemberRecord::State::kWaiting);
  member_revision_ = found.value() ? found.value()->mod_revision : 0;
  if (found.value()) {
    const auto record = cluster::MemberRecord::Decode(found.value()->value);
    if (record) wanted.state = record.value().state;
    if (record && record.value() == wanted &&
        wanted.state == cluster::MemberRecord::State::kWaiting) {
      if (has_told_) return GoOnWaiting(now);
      phase_ = Phase::kLookAtWaiting;
      next_ = now;
      return;
    }
    if (record && record.value() == wanted) {
      phase_ = Phase::kDone;
      trouble_.clear();
      return;
    }
  }
  member_ = wanted;
  phase_ = Phase::kPutMember;
  next_ = now;
}

void Enrolment::GoOnWaiting(cluster::TimePoint now) {
  Retry(now, Phase::kLookAtMember,
        "it waits for approval: ffrecord cluster approve ADDRESS " + options_.node);
}

// For people: nothing waits for it.
void Enrolment::TakeWaiting(cluster::TimePoint now, const Found& found) {
  waiting_ = options_.waiting;
  waiting_revision_ = found && found.value() ? found.value()->mod_revision : 0;
  if (waiting_revision_ != 0) {
    const auto before = cluster::WaitingRecord::Decode(found.value()->value);
    if (before && before.value().daemon == waiting_.daemon)
      waiting_.since_unix_ms = before.value().since_unix_ms;
    has_told_ = before && before.value() == waiting_;
  }
  if (!found || has_told_) return GoOnWaiting(now);
  trouble_ = "it waits for approval: ffrecord cluster approve ADDRESS " + options_.node;
  phase_ = Phase::kPutWaiting;
  next_ = now;
}

// Whatever came of it: what there is now decides.
void Enrolment::TakeCommit(cluster::TimePoint now, const Result<MetaStore::Outcome>& outcome) {
  // The store is not what the operator has seen.
  if (outcome && outcome.value().fate == MetaStore::Outcome::Fate::kLost) keys_.reset();
  phase_ = phase_ == Phase::kFound ? Phase::kLook : Phase::kLookAtMember;
  next_ = outcome ? now : now + kRetry;
}

}  // namespace ffrecord::server
