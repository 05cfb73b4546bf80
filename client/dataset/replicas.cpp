#include "client/dataset/replicas.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "client/dataset/catalog.h"
#include "client/dataset/failures.h"
#include "client/dataset/prefetch_hint.h"
#include "libffrecord/base/patience.h"
#include "libffrecord/base/random.h"
#include "libffrecord/base/side_by_side.h"
#include "libffrecord/net/replicas/replicated_files.h"
#include "libffrecord/net/rpc/remote_files.h"
#include "libffrecord/net/rpc/session.h"

namespace ffrecord::client {
namespace {

// How long the others may take to answer once one has the name.
constexpr std::chrono::milliseconds kOthersTime{500};

// What one daemon says of the name.
struct Replica {
  net::Location location;
  std::shared_ptr<net::Session> session;
  Result<Catalog::Resolved> resolved = Error{ErrorCode::kUnavailable, "was not asked"};
};

// Asks all daemons at once.
class Asking {
 public:
  Asking(std::vector<Replica>& replicas, net::Deadline deadline)
      : replicas_(replicas), deadline_(deadline) {}

  // Returns when all have answered or failed, or kOthersTime after one has answered.
  void Run() {
    Patience& caller = Patience::OfThread();
    const auto caller_thread = std::this_thread::get_id();
    const Patience::GiveUp give_up = [&] {
      if (std::this_thread::get_id() == caller_thread && caller.IsOver()) is_over_ = true;
      return is_over_ || net::Clock::now().time_since_epoch().count() > others_end_;
    };
    static_cast<void>(SideBySide::Run(replicas_.size(), [&](const SideBySide&) -> Result<void> {
      const Patience patience(give_up);
      for (std::size_t i; (i = next_++) < replicas_.size();) Ask(replicas_[i]);
      return {};
    }));
  }

 private:
  void Ask(Replica& replica) {
    replica.resolved = Catalog(replica.session).Resolve(replica.location.name, deadline_);
    if (!replica.resolved) return;
    auto never = kNever;
    others_end_.compare_exchange_strong(
        never, (net::Clock::now() + kOthersTime).time_since_epoch().count());
  }

  static constexpr auto kNever = net::Deadline::max().time_since_epoch().count();

  std::vector<Replica>& replicas_;
  const net::Deadline deadline_;
  std::atomic<std::size_t> next_{0};
  std::atomic<bool> is_over_{false};
  std::atomic<net::Deadline::rep> others_end_{kNever};  // Since the clock's beginning.
};

// Byte for byte, as far as sizes and checksums say; the extents' names do not matter.
bool HoldSame(const DatasetManifest& one, const DatasetManifest& other) {
  const auto is_same_extent = [](const ManifestExtent& a, const ManifestExtent& b) {
    return a.size_bytes == b.size_bytes && a.xxh3 == b.xxh3;
  };
  return std::ranges::equal(one.files, other.files,
                            [&](const ManifestFile& a, const ManifestFile& b) {
                              return a.name == b.name && a.size_bytes == b.size_bytes &&
                                     std::ranges::equal(a.extents, b.extents, is_same_extent);
                            });
}

// Why no daemon has the name: whatever is not their absence says more.
Error NobodyHasIt(std::span<const Replica> replicas) {
  Error error = replicas.front().resolved.error();
  std::string messages;
  for (const Replica& replica : replicas) {
    const Error& why = replica.resolved.error();
    if (error.code == ErrorCode::kNotFound || (IsAway(error) && !IsAway(why))) error = why;
    messages += (messages.empty() ? "" : "; ") + why.message;
  }
  error.message = std::move(messages);
  return error;
}

// Those to read from, the first of which has answered.
Result<std::vector<Replica>> Agree(std::vector<Replica> replicas) {
  const auto has_it = [](const Replica& replica) { return static_cast<bool>(replica.resolved); };
  const auto first = std::ranges::find_if(replicas, has_it);
  if (first == replicas.end()) return NobodyHasIt(replicas);
  for (const Replica& replica : replicas) {
    if (!replica.resolved) {
      const Error& why = replica.resolved.error();
      if (!IsAway(why) && !IsIll(why) && why.code != ErrorCode::kNotFound) return why;
    } else if (!HoldSame(replica.resolved.value().manifest, first->resolved.value().manifest)) {
      return Error{ErrorCode::kConflict,
                   first->location.ToString() + " and " + replica.location.ToString() +
                       " are different datasets; publish the same files to both, or name one "
                       "daemon"};
    }
  }
  std::erase_if(replicas, [](const Replica& replica) {
    return !replica.resolved && replica.resolved.error().code == ErrorCode::kNotFound;
  });
  std::stable_partition(replicas.begin(), replicas.end(), has_it);
  return replicas;
}

// A hint at one daemon, which is kept to meanwhile.
class KeptHint final : public PrefetchHint {
 public:
  KeptHint(std::shared_ptr<const net::ReplicatedFiles> files, net::NodeIndex node,
           std::unique_ptr<PrefetchHint> hint)
      : files_(std::move(files)), kept_(files_->KeepTo(node)), hint_(std::move(hint)) {}
  ~KeptHint() override { files_->LetGo(kept_); }
  bool alive() override { return hint_->alive(); }

 private:
  const std::shared_ptr<const net::ReplicatedFiles> files_;
  const std::uint64_t kept_;
  const std::unique_ptr<PrefetchHint> hint_;
};

// In which order daemons are asked to read ahead: those of this machine, then the others from a
// random one on, so that many clients spread over them.
std::vector<std::size_t> HintOrder(std::span<const Replica> replicas) {
  std::vector<std::size_t> order;
  const std::size_t first = RandomNumber() % replicas.size();
  for (std::size_t i = 0; i < replicas.size(); ++i) {
    const std::size_t one = (first + i) % replicas.size();
    if (replicas[one].resolved) order.push_back(one);
  }
  std::stable_partition(order.begin(), order.end(), [&](std::size_t one) {
    return replicas[one].session->link().transport == "shm";
  });
  return order;
}

}  // namespace

Result<PublishedFiles> OpenReplicas(std::span<const net::Location> locations,
                                    const SessionOptions& options) {
  std::vector<Replica> asked;
  for (const net::Location& location : locations)
    asked.push_back({location, net::Session::Get(location, options)});
  Asking(asked, net::Clock::now() + options.timeout).Run();
  auto agreed = FFR_TRY(Agree(std::move(asked)));
  const auto replicas = std::make_shared<const std::vector<Replica>>(std::move(agreed));

  const auto& manifest = replicas->front().resolved.value().manifest;
  if (manifest.files.empty())
    return Error{ErrorCode::kInvalidArgument, locations.front().ToString() + " has no files"};
  std::vector<std::shared_ptr<const net::RemoteFiles>> files;
  for (const Replica& replica : *replicas) {
    const auto& own = replica.resolved ? replica.resolved.value().manifest : manifest;
    files.push_back(std::make_shared<const net::RemoteFiles>(replica.session, own,
                                                             replica.location.ToString(), options));
  }
  auto joined = std::make_shared<const net::ReplicatedFiles>(std::move(files), nullptr, options);
  auto hinter = [=](const EpochPlan& plan) -> Result<std::unique_ptr<PrefetchHint>> {
    Result<std::unique_ptr<PrefetchHint>> hint = std::unique_ptr<PrefetchHint>();
    for (const std::size_t i : HintOrder(*replicas)) {
      const Replica& replica = (*replicas)[i];
      hint = SendPrefetchHint(*replica.session, replica.location.name,
                              replica.resolved.value().revision, plan,
                              net::Clock::now() + std::min(options.timeout, kHintTimeout));
      if (!hint) continue;
      if (hint.value() == nullptr) return hint;
      return std::unique_ptr<PrefetchHint>(std::make_unique<KeptHint>(
          joined, static_cast<net::NodeIndex>(i), std::move(hint).value()));
    }
    return hint;
  };
  return PublishedFiles{joined, std::move(hinter), manifest};
}

}  // namespace ffrecord::client
