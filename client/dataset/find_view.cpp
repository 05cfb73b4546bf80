#include "client/dataset/find_view.h"

#include <atomic>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "client/dataset/cluster_vote.h"
#include "libffrecord/base/patience.h"
#include "libffrecord/base/side_by_side.h"
#include "libffrecord/net/rpc/session.h"

namespace ffrecord::client {
namespace {

using std::chrono_literals::operator""ms;

// How long others have to contradict a likely result.
constexpr auto kOthersTime = 500ms;

std::vector<std::string> AddressesOf(std::span<const net::Location> locations) {
  std::vector<std::string> addresses;
  for (const net::Location& location : locations) addresses.push_back(location.address.ToString());
  return addresses;
}

// Asks the daemons, each in a thread of its own, and ends them once their answers are enough.
class Asking {
 public:
  Asking(std::span<const net::Location> locations, const SessionOptions& options)
      : locations_(locations),
        options_(options),
        deadline_(net::Clock::now() + options.timeout),
        vote_(AddressesOf(locations)) {}

  Result<std::optional<ClusterView>> Run() {
    Patience& caller = Patience::OfThread();
    const auto caller_thread = std::this_thread::get_id();
    const Patience::GiveUp give_up = [&] {
      if (std::this_thread::get_id() == caller_thread && caller.IsOver()) is_over_ = true;
      return IsOver();
    };
    std::atomic<std::size_t> next{0};
    static_cast<void>(SideBySide::Run(locations_.size(), [&](const SideBySide&) -> Result<void> {
      const Patience patience(give_up);
      for (std::size_t i; (i = next++) < locations_.size();) Ask(i);
      return {};
    }));
    return vote_.Decide();
  }

 private:
  static constexpr auto kNever = net::Deadline::max().time_since_epoch().count();

  bool IsOver() const {
    return is_over_ || net::Clock::now().time_since_epoch().count() > others_end_;
  }

  void Ask(std::size_t i) {
    const net::Location& location = locations_[i];
    std::optional<ClusterView> view;
    bool is_node = false;  // One that cannot tell its view now: it may do so yet.
    const auto ask = [&](net::Connection& connection) -> Result<void> {
      const net::HelloReply& hello = connection.hello();
      is_node = (hello.capabilities & net::kCapabilityCluster) != 0;
      if (is_node) {
        view = FFR_TRY(AskView(connection, nullptr, location, deadline_));
        view->has_own_names = HasOwnNames(connection);
      } else if (hello.identity && locations_.size() > 1) {
        return Error{ErrorCode::kUnavailable, location.address.ToString() +
                                                  " is not yet a node of its cluster, which its "
                                                  "`status` explains"};
      }
      return {};
    };
    const auto note = [&](const Error& why, bool is_busy) {
      NoteFailure(i, why, std::exchange(is_node, false) || is_busy);
    };
    const auto session = net::Session::Get(location, options_);
    const auto done = session->Run(ask, deadline_, /*patient=*/false, note);
    if (!done) return NoteEnd(i, done.error());
    // From now on only the nodes are asked, each over a session that makes sure which one it is.
    if (view) session->CloseIdle([](const net::Connection&) { return true; });
    const std::lock_guard lock(mutex_);
    vote_.NoteAnswer(i, std::move(view));
    Judge();
  }

  // The call has ended with `why`; its failures with kUnavailable are noted already.
  void NoteEnd(std::size_t i, const Error& why) {
    const bool has_no_time =
        why.code == ErrorCode::kDeadlineExceeded || IsOver() || net::Clock::now() >= deadline_;
    if (!has_no_time || why.code != ErrorCode::kUnavailable) NoteFailure(i, why, has_no_time);
  }

  void NoteFailure(std::size_t i, const Error& why, bool may_answer) {
    const std::lock_guard lock(mutex_);
    if (may_answer)
      vote_.NoteSilent(i, why);
    else
      vote_.NoteAway(i, why);
    Judge();
  }

  // Requires the mutex.
  void Judge() {
    const auto state = vote_.state();
    if (state == ClusterVote::State::kCertain) is_over_ = true;
    if (state == ClusterVote::State::kOpen)
      others_end_ = kNever;
    else if (others_end_ == kNever)
      others_end_ = (net::Clock::now() + kOthersTime).time_since_epoch().count();
  }

  const std::span<const net::Location> locations_;
  const SessionOptions& options_;
  const net::Deadline deadline_;
  std::atomic<bool> is_over_{false};
  std::atomic<net::Deadline::rep> others_end_{kNever};  // Since the clock's beginning.
  std::mutex mutex_;
  ClusterVote vote_;
};

}  // namespace

bool HasOwnNames(const net::Connection& connection) {
  return (connection.hello().capabilities & net::kCapabilityOwnNames) != 0;
}

Result<ClusterView> AskView(net::Connection& connection, const ClusterView* before,
                            const net::Location& seed, net::Deadline deadline) {
  const net::ClusterMap question{before == nullptr ? 0 : before->map.version};
  const auto reply = FFR_TRY(connection.Call(net::FrameType::kClusterMap, question.Encode(), {},
                                             deadline, "the map of its cluster"));
  auto decoded = FFR_TRY(net::ClusterMapReply::Decode(reply.body));
  return NextView(before, std::move(decoded), reply.payload, seed);
}

Result<std::optional<ClusterView>> FindView(std::span<const net::Location> locations,
                                            const SessionOptions& options) {
  return Asking(locations, options).Run();
}

}  // namespace ffrecord::client
