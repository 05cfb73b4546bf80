#include "client/dataset/cluster_vote.h"

#include <algorithm>
#include <utility>

#include "client/dataset/failures.h"
#include "libffrecord/base/hex.h"

namespace ffrecord::client {
namespace {

bool AreOneCluster(const ClusterView& one, const ClusterView& other) {
  return one.reply.cluster == other.reply.cluster;
}

// Whether two answers say the same: one cluster, or none.
bool Agree(const std::optional<ClusterView>& one, const std::optional<ClusterView>& other) {
  return one.has_value() == other.has_value() && (!one || AreOneCluster(*one, *other));
}

std::string WhoIs(const std::string& address, const std::optional<ClusterView>& view) {
  if (!view) return address + " is a daemon of no cluster";
  return address + " is a node of cluster " + Hex(view->reply.cluster);
}

}  // namespace

ClusterVote::ClusterVote(std::vector<std::string> addresses) {
  for (std::string& address : addresses) {
    Seat seat;
    seat.address = std::move(address);
    seats_.push_back(std::move(seat));
  }
}

void ClusterVote::NoteAnswer(std::size_t i, std::optional<ClusterView> view) {
  seats_[i].standing = Seat::Standing::kAnswered;
  seats_[i].view = std::move(view);
}

void ClusterVote::NoteAway(std::size_t i, Error why) {
  seats_[i].standing = Seat::Standing::kAway;
  seats_[i].why = std::move(why);
}

void ClusterVote::NoteSilent(std::size_t i, Error why) {
  seats_[i].standing = Seat::Standing::kSilent;
  seats_[i].why = std::move(why);
}

ClusterVote::State ClusterVote::state() const {
  if (CountOf(Seat::Standing::kAnswered) == seats_.size()) return State::kCertain;
  State state = State::kOpen;
  for (const ClusterView* view : Candidates()) {
    const Tally tally = Count(*view);
    if (IsCertain(tally)) return State::kCertain;
    if (IsLikely(tally)) state = State::kLikely;
  }
  return state;
}

Result<std::optional<ClusterView>> ClusterVote::Decide() const {
  const ClusterView* chosen = nullptr;
  std::size_t most = 0;
  for (const ClusterView* view : Candidates()) {
    const Tally tally = Count(*view);
    if (!IsCertain(tally) && !IsLikely(tally)) continue;
    if (std::exchange(most, std::max(most, tally.answered)) < tally.answered) chosen = view;
  }
  if (chosen != nullptr) return std::optional(*chosen);
  const Seat* const dissent = FindDissent();
  if (CountOf(Seat::Standing::kSilent) == 0 && dissent != nullptr) {
    const Seat* const first = FindFirst();
    return Error{ErrorCode::kConflict, WhoIs(first->address, first->view) + ", and " +
                                           WhoIs(dissent->address, dissent->view) +
                                           ": correct the address, or stop the daemon that is not "
                                           "yours"};
  }
  if (CountOf(Seat::Standing::kAnswered) == seats_.size()) return std::optional<ClusterView>();
  return TooFew();
}

ClusterVote::Tally ClusterVote::Count(const ClusterView& view) const {
  Tally tally;
  const auto& nodes = view.reply.nodes;
  for (const Seat& seat : seats_) {
    const auto node = std::ranges::find(nodes, seat.address, &net::ClusterMapReply::Node::address);
    const bool is_named = node != nodes.end();
    const bool has_answered = seat.standing == Seat::Standing::kAnswered;
    if (has_answered && seat.view && AreOneCluster(*seat.view, view)) {
      ++tally.answered;
      continue;
    }
    if (is_named && node->is_up) ++tally.said_up;
    if (has_answered)
      ++tally.against;
    else if (is_named)
      ++tally.spoken_for;
    else if (seat.standing == Seat::Standing::kSilent)
      ++tally.unaccounted;
  }
  return tally;
}

// No other cluster can have live nodes at most of the addresses.
bool ClusterVote::IsCertain(const Tally& tally) const {
  return 2 * (tally.answered + tally.said_up) > seats_.size();
}

bool ClusterVote::IsLikely(const Tally& tally) {
  return tally.against == 0 && tally.answered + tally.spoken_for > tally.unaccounted;
}

std::size_t ClusterVote::CountOf(Seat::Standing standing) const {
  return static_cast<std::size_t>(std::ranges::count(seats_, standing, &Seat::standing));
}

std::vector<const ClusterView*> ClusterVote::Candidates() const {
  std::vector<const ClusterView*> newest;
  for (const Seat& seat : seats_) {
    if (seat.standing != Seat::Standing::kAnswered || !seat.view) continue;
    const auto same = std::ranges::find_if(
        newest, [&](const ClusterView* other) { return AreOneCluster(*other, *seat.view); });
    if (same == newest.end())
      newest.push_back(&*seat.view);
    else if (seat.view->reply.version > (*same)->reply.version)
      *same = &*seat.view;
  }
  return newest;
}

const ClusterVote::Seat* ClusterVote::FindFirst() const {
  const auto first = std::ranges::find(seats_, Seat::Standing::kAnswered, &Seat::standing);
  return first == seats_.end() ? nullptr : &*first;
}

const ClusterVote::Seat* ClusterVote::FindDissent() const {
  const Seat* const first = FindFirst();
  const auto dissent = std::ranges::find_if(seats_, [&](const Seat& seat) {
    return seat.standing == Seat::Standing::kAnswered && !Agree(seat.view, first->view);
  });
  return dissent == seats_.end() ? nullptr : &*dissent;
}

Error ClusterVote::TooFew() const {
  Error error{ErrorCode::kUnavailable, ""};
  std::string answers;
  for (const Seat& seat : seats_) {
    if (seat.standing == Seat::Standing::kAnswered) {
      answers += (answers.empty() ? "" : ", ") + WhoIs(seat.address, seat.view);
      continue;
    }
    const Error why =
        seat.why.value_or(Error{ErrorCode::kUnavailable, seat.address + " does not answer"});
    error.message += (error.message.empty() ? "" : "; ") + why.message;
    // Whatever is not a daemon's absence says more than that.
    if (!IsAway(error)) continue;
    error.code = why.code;
    error.system_errno = why.system_errno;
  }
  if (answers.empty()) return error;
  if (IsAway(error)) error.code = ErrorCode::kUnavailable;
  error.message = answers +
                  "; too few others answer to tell whose address this is: " + error.message +
                  "; start the nodes, or name nodes by the addresses that they advertise";
  return error;
}

}  // namespace ffrecord::client
