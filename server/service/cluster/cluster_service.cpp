#include "server/service/cluster/cluster_service.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <future>
#include <set>
#include <utility>

#include "libffrecord/base/hex.h"
#include "libffrecord/base/random.h"
#include "libffrecord/base/timed_waits.h"

namespace ffrecord::server {
namespace {

using std::chrono_literals::operator""ms;
using cluster::TimePoint;

constexpr auto kUploadPatience = 10'000ms;
// How long the one who published is kept waiting until this node shows what it published.
constexpr auto kShowPatience = 2'000ms;
// And how long beyond the deadline of the request.
constexpr auto kLateAnswerTime = 500ms;
constexpr auto kUpkeepInterval = 1'000ms;
constexpr auto kRefusedInterval = 5'000ms;
constexpr auto kLeaveTime = 500ms;

cluster::ClusterNode::Options NodeOptions(const ClusterService::Options& options,
                                          ClusterService::Kept kept) {
  cluster::ClusterNode::Options node;
  node.mark = kept.mark;
  node.ancestors = std::move(kept.ancestors);
  node.known = std::move(kept.names);
  node.lease.node = options.node;
  node.lease.record.epoch = RandomNumber();
  node.lease.record.address = options.advertise;
  node.lease.record.level = options.feature_level;
  node.lease.record.origins_hash = options.origins_hash;
  node.lease.ttl = options.lease;
  node.leader.row_size = std::max<std::uint32_t>(node.leader.row_size, options.replicas);
  node.leader.replicas = options.replicas;
  node.leader.down_grace = options.down_grace;
  node.leader.upload_grace = options.upload_grace;
  node.leader.approves_members = options.approves_members;
  return node;
}

// Waits for what `begin` tells the promise.
template <class T, class Begin>
Result<T> Await(const Begin& begin) {
  auto promise = std::make_shared<std::promise<Result<T>>>();
  auto result = promise->get_future();
  begin([promise](Result<T> made) { promise->set_value(std::move(made)); });
  return result.get();
}

}  // namespace

Result<std::unique_ptr<ClusterService>> ClusterService::Start(const Options& options,
                                                              std::shared_ptr<MetaStore> store,
                                                              ExtentStore& extents,
                                                              BlockingStore& home) {
  if (!options.tls.certificate.empty() && options.tls.authorities.empty())
    return Error{ErrorCode::kInvalidArgument,
                 "the nodes of a cluster with TLS check each other's certificates, and no "
                 "authority is given"};
  if (!options.adopt) FFR_TRY(Adoption::Finish(home));
  ClusterCache cache(home);
  auto known = FFR_TRY(cache.ReadId());
  FFR_TRY(cache.CheckNode(options.node));
  auto state = FFR_TRY(cache.Load());
  Kept kept{FFR_TRY(cache.ReadMark()), state.ancestors, {}};
  for (const auto& [text, name] : *state.names) kept.names[text] = {name.record, name.revision};
  std::unique_ptr<ClusterService> service(
      new ClusterService(options, std::move(store), extents, std::move(cache), std::move(kept)));
  if (known) state.cluster = *known;
  for (const auto& [text, name] : *state.names)
    if (name.manifest) service->ChangeName(text, nullptr, name.manifest);
  if (options.adopt) {
    service->adoption_ = FFR_TRY(Adoption::Open(home));
    service->extents_.Keep(service->adoption_->extents());
    spdlog::info("event=adopting names={} extents={}", service->adoption_->left_count(),
                 service->adoption_->extents().size());
  }
  service->map_version_ = service->AdvertisedVersion(state);
  service->state_ = std::make_shared<const ClusterState>(std::move(state));
  service->Enrol(known);
  service->logged_reason_ = service->enrolment_->trouble();  // Nothing to tell before an answer.
  service->thread_ = std::thread([&started = *service] { started.Run(); });
  return service;
}

ClusterService::ClusterService(const Options& options, std::shared_ptr<MetaStore> store,
                               ExtentStore& extents, ClusterCache cache, Kept kept)
    : options_(options),
      store_(std::move(store)),
      extents_(extents),
      node_(NodeOptions(options, std::move(kept)), extents_),
      cache_(std::move(cache)),
      inbox_(std::make_shared<ServiceInbox>()),
      peers_(
          PeerDialer(options.node, options.token_keys, options.tls),
          [this](const std::string& node) {
            const ClusterStatePtr known = state();
            return Peers::Place{known->AddressOf(node), known->cluster, known->map_version(),
                                known->IsGone(node)};
          },
          options.pull_bytes_per_s, options.pull_clock),
      stripe_reads_(extents,
                    [this](const ManifestExtent& extent, const cluster::StripePlace& place) {
                      return BringMember(extent, place);
                    }) {
  const auto show = [this](const char* name, const char* help, const Counter& counter) {
    metrics_.Add({name, help, "", &counter});
  };
  show("ffrecord_cluster_pulled_total", "Extents copied from other nodes.", counters_.pulled);
  show("ffrecord_cluster_pulled_bytes_total", "Bytes of them.", counters_.pulled_bytes);
  show("ffrecord_cluster_rebuilt_total", "Of them, members of stripes that were computed.",
       counters_.rebuilt);
  show("ffrecord_cluster_brought_total",
       "Members of stripes that readers wanted here, copied or computed.", stripe_reads_.brought());
  show("ffrecord_cluster_brought_failures_total", "Tries to bring one that failed.",
       stripe_reads_.failed());
  show("ffrecord_cluster_dropped_total", "Extents that the cluster had the node remove.",
       counters_.dropped);
  show("ffrecord_cluster_doubted_damaged_total",
       "Extents that readers reported, and that were damaged.", stripe_reads_.doubts().damaged());
  show("ffrecord_cluster_healed_total", "Damaged extents replaced from other nodes.",
       extents_.healed());
  sweepers_.push_back(std::make_unique<Sweeper>(nullptr));
  for (const auto& disk : extents.disks())
    sweepers_.push_back(std::make_unique<Sweeper>(disk.get()));
}

void ClusterService::Stop() {
  if (!thread_.joinable()) return;
  inbox_->Close();
  thread_.join();
  stripe_reads_.Stop();
  peers_.Stop();
  keeper_.Stop();
  for (const auto& sweeper : sweepers_) sweeper->thread.Stop();
  for (const auto& [call, watch] : watches_) store_->StopWatch(watch);
  GiveLeaseBack();
  // The store answers all waiting calls as it ends: their callers must still be there.
  store_.reset();
}

void ClusterService::GiveLeaseBack() {
  const auto lease = node_.view().lease.lease();
  if (lease == 0) return;
  auto left = std::make_shared<std::promise<void>>();
  auto has_left = left->get_future();
  // So that the others need not wait until it has ended.
  store_->RevokeLease(lease, Now() + kLeaveTime,
                      [left](const Result<void>&) { left->set_value(); });
  (void)WaitUntil(has_left, Now() + kLeaveTime);
}

// --- The thread ---------------------------------------------------------------------------------

void ClusterService::Run() {
  std::vector<ServiceInbox::Message> messages;
  StepAll(Now());
  while (inbox_->Take(Wake(), messages)) {
    for (const auto& message : messages) message();
    StepAll(Now());
  }
  AnswerAll();
}

TimePoint ClusterService::Wake() const {
  TimePoint wake = std::min(upkeep_next_, enrolment_->wake());
  if (was_enrolled_) wake = std::min(wake, node_.wake());
  if (MayAdopt()) wake = std::min(wake, adoption_->wake());
  for (const Waiter& waiter : waiters_) wake = std::min(wake, waiter.deadline);
  return wake;
}

void ClusterService::Take(const cluster::Answer& answer) {
  const TimePoint now = Now();
  if (!enrolment_->Take(now, answer)) {
    const bool was_checked = node_.view().continuity.is_checked();
    Carry(node_.Step(now, answer));
    if (!was_checked && node_.view().continuity.is_checked()) enrolment_->LookNow();
    return;
  }
  if (!enrolment_->is_done()) return;
  if (was_enrolled_) node_.Doubt();  // It was founded again, or put back.
  was_enrolled_ = true;
  spdlog::info("event=enrolled node={} cluster={}", options_.node, Hex(*enrolment_->cluster()));
  {
    const std::lock_guard lock(state_mutex_);
    unsaved_id_ = enrolment_->cluster();
  }
  keeper_.Post([this] { SaveKept(); });
}

void ClusterService::Enrol(const std::optional<net::ClusterId>& known) {
  enrolment_ = std::make_unique<Enrolment>(Enrolment::Options{
      options_.node, options_.domain, options_.weight, known, options_.feature_level,
      WaitsFromNowOn(options_.advertise, options_.daemon)});
}

void ClusterService::StepAll(TimePoint now) {
  if (!enrolment_->is_done()) {
    if (now < may_found_until_ && enrolment_->finds_nothing()) {
      may_found_until_ = {};
      BeginAnew();
    }
    enrolment_->Step(now, enrolment_out_);
    Carry(enrolment_out_.Take());
  }
  if (was_enrolled_) {
    Carry(node_.Step(now));
    // The store was emptied: it may be founded again, with what this node knows.
    if (node_.view().continuity.finds_nothing() && enrolment_->is_done()) Enrol(state()->cluster);
    is_metadata_trusted_ = node_.view().continuity.is_trusted();
    Refresh(now);
    extents_.NoteElsewhere(node_.replication().elsewhere());
    AnswerFinished();
    if (MayAdopt()) Adopt(now);
    AnswerRebuilt();
  }
  NoteTrouble();
  AnswerWaiters(now);
  if (now < upkeep_next_) return;
  upkeep_next_ = now + kUpkeepInterval;
  extents_.ForgetSilent(now, options_.upload_grace);
  if (now >= refused_next_) {
    refused_next_ = now + kRefusedInterval;
    peers_.AskRefusedAgain();
  }
  if (is_unsaved_.exchange(false)) keeper_.Post([this] { SaveKept(); });
  if (extents_.has_dropped()) SweepDropped();
}

// A disk that hangs keeps its own extents; no other disk waits for it, and nothing that is kept of
// the metadata.
void ClusterService::SweepDropped() {
  if (is_taking_back_) return;
  if (node_.view().continuity.is_frozen()) {
    if (std::ranges::any_of(sweepers_, [](const auto& one) { return one->is_running.load(); }))
      return;
    is_taking_back_ = true;
    return keeper_.Post([this] {
      extents_.TakeBack();
      is_taking_back_ = false;
    });
  }
  for (const auto& sweeper : sweepers_) {
    if (!is_metadata_trusted_ || sweeper->is_running.exchange(true)) continue;
    sweeper->thread.Post([this, &sweeper = *sweeper] {
      extents_.Sweep(sweeper.disk, [this] { return is_metadata_trusted_.load(); });
      sweeper.is_running = false;
    });
  }
}

void ClusterService::NoteTrouble() {
  std::string trouble = Trouble();
  if (trouble == logged_reason_) return;
  logged_reason_ = std::move(trouble);
  if (!logged_reason_.empty()) spdlog::warn("event=takes_no_part why=\"{}\"", logged_reason_);
}

bool ClusterService::IsPreferredOwner(const ExtentId& id, std::size_t replicas) const {
  const ClusterStatePtr known = state();
  // A member of a stripe has one owner. Without it nodes bring what they lack at the first read.
  if (const auto place = stripe_reads_.PlaceOf(id)) return OwnerOf(*known, *place) == options_.node;
  const auto is_up = [&](const std::string& node) {
    const auto found =
        std::ranges::lower_bound(known->nodes, node, {}, &net::ClusterMapReply::Node::id);
    return found != known->nodes.end() && found->id == node && found->is_up;
  };
  const SlotMap& map = known->slots->map;
  const std::size_t count = replicas != 0 ? replicas : options_.replicas;
  for (const std::uint16_t owner : map.OwnersByAffinity(SlotOf(id), count)) {
    const std::string& node = map.nodes[owner].id;
    if (node == options_.node) return true;
    if (is_up(node)) return false;
  }
  return false;
}

std::shared_ptr<PeerRanges> ClusterService::MakePeerRanges() const {
  return std::make_shared<PeerRanges>(peers_, [this](const ExtentId& id) {
    const ClusterStatePtr known = state();
    if (const auto place = stripe_reads_.PlaceOf(id)) return HoldersUp(*known, *place, id);
    auto nodes = known->slots->CandidatesOf(id, known->NodesUp());
    std::erase(nodes, options_.node);
    return nodes;
  });
}

void ClusterService::AnswerFinished() {
  for (auto& finished : node_.TakeFinished()) {
    const auto found = requests_.find(finished.request);
    const auto done = std::move(found->second);
    requests_.erase(found);
    done(std::move(finished.result));
  }
}

void ClusterService::AnswerWaiters(TimePoint now) {
  for (auto at = waiters_.begin(); at != waiters_.end();) {
    const bool is_reached = at->is_reached();
    if (!is_reached && now < at->deadline) {
      ++at;
      continue;
    }
    const auto done = std::move(at->done);
    at = waiters_.erase(at);
    if (is_reached)
      done({});
    else
      done(Error{ErrorCode::kDeadlineExceeded, "this node does not show it yet; try again"});
  }
}

void ClusterService::AnswerAll() {
  node_.GiveUp(Stopped());
  AnswerFinished();
  for (const auto& [request, done] : std::exchange(rebuilds_, {})) done(Stopped());
  // A callback may begin to wait for something else.
  while (!waiters_.empty())
    for (const Waiter& waiter : std::exchange(waiters_, {})) waiter.done(Stopped());
}

std::string ClusterService::Trouble() const {
  if (!enrolment_->is_done()) return enrolment_->trouble();
  // The record of its own start before this one ends with its lease.
  const std::string& rival = node_.view().lease.rival();
  if (!rival.empty() && rival != options_.advertise)
    return "the daemon at " + rival + " runs as node " + options_.node +
           " too: give each daemon a `node` of its own";
  const cluster::Continuity& continuity = node_.view().continuity;
  if (continuity.is_frozen() && !continuity.is_checked())
    return "the coordinator does not have the metadata that this daemon has seen, and reads go on "
           "by that. Bring the coordinator's data back; or empty the coordinator, and run "
           "`ffrecord "
           "cluster restore` or `ffrecord cluster rebuild`";
  if (node_.is_outdated()) return cluster::ExplainLevel(node_.level(), options_.feature_level);
  return "";
}

Error ClusterService::NotTakingPart() const {
  return {ErrorCode::kUnavailable, "this daemon does not take part in its cluster: " + Trouble()};
}

// --- Requests -----------------------------------------------------------------------------------

void ClusterService::Publish(cluster::Publication::Request request, Done<std::uint64_t> done) {
  const bool is_posted = inbox_->Post([this, request, done] {
    if (!enrolment_->is_done()) return done(NotTakingPart());
    const auto id = node_.Begin(request);
    // The one who waits hears of it in any case, and of success before it has given up.
    const TimePoint answer_by = request.deadline + kLateAnswerTime;
    requests_[id] = [this, name = request.name, answer_by,
                     done](const Result<std::uint64_t>& revision) {
      if (!revision) return done(revision);
      const auto shown_by = [answer_by] { return std::min(Now() + kShowPatience, answer_by); };
      AwaitName(revision.value(), name, shown_by(),
                [this, done, shown_by, revision](const Result<void>&) {
                  AwaitKept(revision.value(), shown_by(),
                            [done, revision](const Result<void>&) { done(revision); });
                });
    };
  });
  if (!is_posted) done(Stopped());
}

// So that this node knows of it also if the metadata is lost before another node has heard.
void ClusterService::AwaitKept(std::uint64_t revision, TimePoint deadline, Done<void> done) {
  waiters_.push_back({[this, revision] {
                        return kept_revision_ >= revision || node_.view().continuity.is_frozen();
                      },
                      deadline, std::move(done)});
}

void ClusterService::AwaitName(std::uint64_t revision, std::string name, TimePoint deadline,
                               Done<void> done) {
  const auto is_reached = [this, revision, name = std::move(name)] {
    return node_.Shows(revision, name) && node_.view().mirror.revision() == revision_seen_;
  };
  waiters_.push_back({is_reached, deadline, std::move(done)});
}

void ClusterService::CatchUp(std::string name, std::chrono::milliseconds patience,
                             Done<void> done) {
  const TimePoint deadline = Now() + patience;
  const bool is_posted = inbox_->Post([this, name = std::move(name), deadline, done] {
    if (!enrolment_->is_done()) return done(NotTakingPart());
    requests_[node_.BeginLook(name, deadline)] = [this, done](const Result<std::uint64_t>& found) {
      if (found) return done({});
      done(Trouble().empty() ? found.error() : NotTakingPart());
    };
  });
  if (!is_posted) done(Stopped());
}

void ClusterService::BeginPut(const net::PutBegin& begin, const std::string& owner,
                              const NameQuotas& quotas, Done<std::optional<NewExtent>> done) {
  const auto room = cluster::RoomOf(begin.id, begin.size_bytes, owner, quotas);
  const bool is_posted = inbox_->Post([this, begin, room, done] {
    const std::uint64_t upload = UploadOf(begin.id);
    const auto* const wanted = node_.view().names.Find(begin.id);
    if (wanted != nullptr && wanted->extent.size_bytes != begin.size_bytes)
      return done(Error{ErrorCode::kConflict, "extent " + Hex(begin.id) +
                                                  " is published with another size; upload its "
                                                  "bytes under a new id"});
    // Every name's extents are known, and this one is none that nodes hold.
    if (wanted == nullptr && node_.view().names.IsComplete() && references_.Contains(begin.id))
      return done(Error{ErrorCode::kConflict, "extent " + Hex(begin.id) +
                                                  " is published, and is fetched from its origin; "
                                                  "upload the bytes under a new id"});
    // Before anything is decided: so nobody gives it up meanwhile.
    extents_.NoteHeard(upload);
    const bool is_taken = node_.TakesUpload(Now(), upload) && HasRoom(node_.view(), room);
    if (wanted != nullptr || is_taken) return done(Place(begin));
    if (!enrolment_->is_done()) return done(NotTakingPart());
    const auto id = node_.BeginUpload(upload, Now() + kUploadPatience, room);
    requests_[id] = [this, begin, upload, done](const Result<std::uint64_t>& opened) {
      if (!opened) return done(opened.error());
      if (auto may = MayTake(upload); !may) return done(std::move(may).error());
      done(Place(begin));
    };
  });
  if (!is_posted) done(Stopped());
}

Result<std::optional<NewExtent>> ClusterService::Place(const net::PutBegin& begin) const {
  ExtentStore& store = extents_.store();
  const ExtentPtr extent = store.Find(begin.id);
  if (extent && extent->size_bytes != begin.size_bytes)
    return Error{ErrorCode::kConflict, "extent " + Hex(begin.id) + " exists with another size"};
  // "Sealed already" would make the client count this node as a holder. It tries another one.
  if (extent && !extents_.Find(begin.id))
    return Error{ErrorCode::kUnavailable,
                 "extent " + Hex(begin.id) + " is damaged or missing on this node's disks"};
  if (extent) return std::optional<NewExtent>();
  return std::optional(FFR_TRY(store.Place(begin.id, begin.size_bytes)));
}

Result<void> ClusterService::MayTake(std::uint64_t upload) const {
  if (node_.TakesUpload(Now(), upload)) return {};
  if (node_.view().mirror.Find(cluster::UploadKey(upload)) == nullptr)
    return Error{ErrorCode::kConflict,
                 "the upload was silent for too long and was given up; start again"};
  return Error{ErrorCode::kUnavailable,
               "this daemon takes no uploads now, as its lease in the cluster is not renewed; see "
               "the coordinator"};
}

Result<void> ClusterService::CheckSeal(const net::PutSeal& seal) {
  return Await<void>([&](Done<void> done) {
    const bool is_posted = inbox_->Post([this, seal, done] {
      const auto* const wanted = node_.view().names.Find(seal.id);
      if (wanted == nullptr) return done(MayTake(UploadOf(seal.id)));
      if (wanted->extent.xxh3 == seal.xxh3) return done({});
      done(Error{ErrorCode::kConflict, "extent " + Hex(seal.id) +
                                           " is published with other bytes; upload them under a "
                                           "new id"});
    });
    if (!is_posted) done(Stopped());
  });
}

ClusterService::Map ClusterService::MapFor(std::uint32_t known_version) const {
  const ClusterStatePtr now = state();
  Map map;
  map.reply.version = now->map_version();
  map.reply.replicas = options_.replicas;
  map.reply.cluster = now->cluster;
  map.reply.node = options_.node;
  map.reply.nodes = now->nodes;
  for (const auto& [node, record] : now->waiting)
    map.reply.waiting.push_back({node, record.address, record.since_unix_ms, record.daemon});
  if (map.reply.version != 0 && map.reply.version != known_version)
    map.slots = EncodeSlotMap(now->slots->map);
  return map;
}

// --- Questions ----------------------------------------------------------------------------------

template <class T, class Question>
void ClusterService::AskNode(Question question, Done<T> done) {
  const bool is_posted = inbox_->Post(
      [this, question = std::move(question), done] { done(node_.OnAsk(Now(), question)); });
  if (!is_posted) done(Stopped());
}

void ClusterService::Ask(cluster::AskHoldings question, Done<cluster::Holdings> done) {
  AskNode<cluster::Holdings>(std::move(question), std::move(done));
}
void ClusterService::Ask(cluster::AskHeard question, Done<cluster::Flags> done) {
  AskNode<cluster::Flags>(std::move(question), std::move(done));
}
void ClusterService::Ask(cluster::AskBuried question, Done<cluster::Flags> done) {
  AskNode<cluster::Flags>(std::move(question), std::move(done));
}
void ClusterService::Ask(cluster::AskFilled question, Done<cluster::Flags> done) {
  AskNode<cluster::Flags>(std::move(question), std::move(done));
}
void ClusterService::Ask(cluster::AskKnown question, Done<cluster::Known> done) {
  AskNode<cluster::Known>(std::move(question), std::move(done));
}

Result<std::string> ClusterService::Describe(
    const std::function<Result<std::string>(const cluster::ClusterNode&)>& describe) {
  return Await<std::string>([&](Done<std::string> done) {
    const bool is_posted = inbox_->Post([this, describe, done] {
      if (!enrolment_->is_done()) return done(NotTakingPart());
      done(describe(node_));
    });
    if (!is_posted) done(Stopped());
  });
}

Result<ClusterService::Status> ClusterService::GetStatus() {
  return Await<Status>([&](Done<Status> done) {
    if (!inbox_->Post([this, done] { done(MakeStatus()); })) done(Stopped());
  });
}

}  // namespace ffrecord::server
