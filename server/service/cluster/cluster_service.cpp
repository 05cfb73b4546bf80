#include "server/service/cluster/cluster_service.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <future>
#include <utility>

#include "libffrecord/base/hex.h"
#include "libffrecord/base/random.h"

namespace ffrecord::server {
namespace {

using std::chrono_literals::operator""ms;
using cluster::TimePoint;

constexpr auto kUploadPatience = 10'000ms;
constexpr auto kMemberPatience = 10'000ms;
// How long the one who published is kept waiting until this node shows what it published.
constexpr auto kShowPatience = 2'000ms;
constexpr auto kUpkeepInterval = 1'000ms;
constexpr auto kLeaveTime = 500ms;
// Of the published names that a daemon had before it was one of a cluster.
constexpr const char* kOwnNameKeys = "datasets/";

TimePoint Now() { return TimePoint::clock::now(); }

Error Stopped() { return {ErrorCode::kUnavailable, "the daemon stops"}; }

cluster::ClusterNode::Options NodeOptions(const ClusterService::Options& options) {
  cluster::ClusterNode::Options node;
  node.lease.node = options.node;
  node.lease.record.epoch = RandomNumber();
  node.lease.record.address = options.advertise;
  node.lease.ttl = options.lease;
  node.leader.row_size = std::max<std::uint32_t>(node.leader.row_size, options.replicas);
  node.leader.down_grace = options.down_grace;
  node.leader.upload_grace = options.upload_grace;
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
  if (!FFR_TRY(home.List(kOwnNameKeys, "", 1)).entries.empty())
    return Error{ErrorCode::kConflict,
                 "this daemon's data folder has names that were published without a cluster; "
                 "start it without `cluster`, or give it another data folder"};
  std::unique_ptr<ClusterService> service(
      new ClusterService(options, std::move(store), extents, home));
  auto known = FFR_TRY(service->cache_.ReadId());
  auto state = FFR_TRY(service->cache_.Load());
  if (known) state.cluster = *known;
  for (const auto& [text, name] : *state.names)
    service->references_.Change(text, nullptr, name.manifest.get());
  service->map_version_ = state.map_version();
  service->state_ = std::make_shared<const ClusterState>(std::move(state));
  service->enrolment_ = std::make_unique<Enrolment>(
      Enrolment::Options{options.node, options.domain, options.weight, known});
  service->told_trouble_ = service->enrolment_->trouble();  // Nothing to tell before an answer.
  service->thread_ = std::thread([&started = *service] { started.Run(); });
  return service;
}

ClusterService::ClusterService(const Options& options, std::shared_ptr<MetaStore> store,
                               ExtentStore& extents, BlockingStore& home)
    : options_(options),
      store_(std::move(store)),
      extents_(extents),
      node_(NodeOptions(options), extents_),
      cache_(home),
      inbox_(std::make_shared<ServiceInbox>()),
      peers_(PeerDialer(options.node, options.token_keys, options.tls),
             [this](const std::string& node) { return state()->AddressOf(node); }) {}

void ClusterService::Stop() {
  if (!thread_.joinable()) return;
  inbox_->Close();
  thread_.join();
  peers_.Stop();
  keeper_.Stop();
  for (const auto& [call, watch] : watches_) store_->StopWatch(watch);
  const auto lease = node_.view().lease.lease();
  if (lease == 0) return;
  auto left = std::make_shared<std::promise<void>>();
  auto has_left = left->get_future();
  // So that the others need not wait until it has ended.
  store_->RevokeLease(lease, Now() + kLeaveTime,
                      [left](const Result<void>&) { left->set_value(); });
  has_left.wait_for(kLeaveTime);
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
  TimePoint wake =
      std::min(upkeep_next_, enrolment_->is_done() ? node_.wake() : enrolment_->wake());
  for (const Waiter& waiter : waiters_) wake = std::min(wake, waiter.deadline);
  return wake;
}

void ClusterService::Take(const cluster::Answer& answer) {
  const TimePoint now = Now();
  if (enrolment_->is_done()) return Carry(node_.Step(now, answer));
  enrolment_->Take(now, answer);
  if (!enrolment_->is_done()) return;
  spdlog::info("event=enrolled node={} cluster={}", options_.node, Hex(*enrolment_->cluster()));
  keeper_.Post([this, id = *enrolment_->cluster()] {
    if (const auto written = cache_.WriteId(id); !written)
      spdlog::error("event=cluster_not_saved error=\"{}\"", written.error().message);
  });
}

void ClusterService::StepAll(TimePoint now) {
  if (enrolment_->is_done()) {
    Carry(node_.Step(now));
    Refresh(now);
    AnswerFinished();
  } else {
    enrolment_->Step(now, enrolment_out_);
    Carry(enrolment_out_.Take());
    NoteTrouble();
  }
  AnswerWaiters(now);
  if (now < upkeep_next_) return;
  upkeep_next_ = now + kUpkeepInterval;
  extents_.ForgetSilent(now, options_.upload_grace);
  if (!extents_.has_dropped() || is_sweeping_.exchange(true)) return;
  keeper_.Post([this] {
    extents_.Sweep();
    is_sweeping_ = false;
  });
}

void ClusterService::NoteTrouble() {
  if (enrolment_->trouble() == told_trouble_) return;
  told_trouble_ = enrolment_->trouble();
  if (!told_trouble_.empty()) spdlog::warn("event=not_enrolled why=\"{}\"", told_trouble_);
}

// Makes what others see be what the machines know.
void ClusterService::Refresh(TimePoint now) {
  const cluster::View& view = node_.view();
  if (const bool leased = view.lease.IsLeased(now); leased != is_leased_) {
    is_leased_ = leased;
    spdlog::info("event={} node={}", leased ? "lease_held" : "lease_lost", options_.node);
  }
  const bool has_names = view.names.change_count() != names_seen_;
  if (!view.mirror.was_listed() || (view.mirror.revision() == revision_seen_ && !has_names)) return;
  names_seen_ = view.names.change_count();
  revision_seen_ = view.mirror.revision();
  const ClusterStatePtr before = state();
  auto after = std::make_shared<ClusterState>();
  after->names =
      has_names || before->is_from_cache ? NamesOf(view.names, *before->names) : before->names;
  after->slots =
      before->slots->map == view.slots.map && before->slots->previous == view.slots.previous
          ? before->slots
          : std::make_shared<const cluster::SlotsRecord>(view.slots);
  after->nodes = NodesOf(view, before->nodes);
  after->cluster = *enrolment_->cluster();
  ChangeReferences(*before->names, *after->names);
  map_version_ = after->map_version();
  {
    const std::lock_guard lock(state_mutex_);
    state_ = after;
  }
  keeper_.Post([this, after] {
    // Newer ones follow by themselves.
    if (state() != after) return;
    if (const auto saved = cache_.Save(*after); !saved)
      spdlog::error("event=cluster_not_saved error=\"{}\"", saved.error().message);
  });
}

void ClusterService::ChangeReferences(const ClusterState::NameMap& before,
                                      const ClusterState::NameMap& after) {
  for (const auto& [text, name] : before) {
    const auto now = after.find(text);
    if (now == after.end()) references_.Change(text, name.manifest.get(), nullptr);
  }
  for (const auto& [text, name] : after) {
    const auto old = before.find(text);
    const auto* const was = old == before.end() ? nullptr : old->second.manifest.get();
    if (was != name.manifest.get()) references_.Change(text, was, name.manifest.get());
  }
}

ClusterStatePtr ClusterService::state() const {
  const std::lock_guard lock(state_mutex_);
  return state_;
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
  for (const auto& [request, done] : std::exchange(requests_, {})) done(Stopped());
  for (const Waiter& waiter : std::exchange(waiters_, {})) waiter.done(Stopped());
}

Error ClusterService::NotTakingPart() const {
  return {ErrorCode::kUnavailable,
          "this daemon does not take part in its cluster: " + enrolment_->trouble()};
}

// --- Requests -----------------------------------------------------------------------------------

void ClusterService::Publish(cluster::Publication::Request request, Done<std::uint64_t> done) {
  const bool is_posted = inbox_->Post([this, request, done] {
    if (!enrolment_->is_done()) return done(NotTakingPart());
    const auto id = node_.Begin(request);
    requests_[id] = [this, name = request.name, done](Result<std::uint64_t> revision) {
      if (!revision) {
        Error error = std::move(revision).error();
        if (error.code == ErrorCode::kDeadlineExceeded && !is_leased())
          error.message += "; the coordinator does not answer this daemon";
        return done(std::move(error));
      }
      AwaitName(revision.value(), name, Now() + kShowPatience,
                [done, revision](const Result<void>&) { done(revision); });
    };
  });
  if (!is_posted) done(Stopped());
}

void ClusterService::AwaitName(std::uint64_t revision, std::string name, TimePoint deadline,
                               Done<void> done) {
  const auto is_reached = [this, revision, name = std::move(name)] {
    const cluster::View& view = node_.view();
    if (!view.mirror.was_listed() || view.mirror.revision() < revision ||
        view.mirror.revision() != revision_seen_)
      return false;
    const ClusterState::Name* const found = state()->Find(name);
    return found == nullptr || found->manifest != nullptr;
  };
  waiters_.push_back({is_reached, deadline, std::move(done)});
}

void ClusterService::CatchUp(std::string name, std::chrono::milliseconds patience,
                             Done<void> done) {
  const TimePoint deadline = Now() + patience;
  const auto found = [this, inbox = inbox_, name = std::move(name), deadline,
                      done](Result<std::optional<MetaStore::KeyValue>> generation) {
    if (!generation) return done(std::move(generation).error());
    const std::uint64_t revision = generation.value() ? generation.value()->mod_revision : 0;
    const bool is_posted = inbox->Post(
        [this, revision, name, deadline, done] { AwaitName(revision, name, deadline, done); });
    if (!is_posted) done(Stopped());
  };
  const bool is_posted = inbox_->Post([this, deadline, found, done] {
    if (!enrolment_->is_done()) return done(NotTakingPart());
    store_->Get(std::string(cluster::kGenerationKey), deadline, found);
  });
  if (!is_posted) done(Stopped());
}

void ClusterService::BeginPut(const net::PutBegin& begin, Done<std::optional<NewExtent>> done) {
  const bool is_posted = inbox_->Post([this, begin, done] {
    const std::uint64_t upload = UploadOf(begin.id);
    const auto* const wanted = node_.view().names.Find(begin.id);
    if (wanted != nullptr && wanted->extent.size_bytes != begin.size_bytes)
      return done(Error{ErrorCode::kConflict, "extent " + Hex(begin.id) +
                                                  " is published with another size; upload its "
                                                  "bytes under a new id"});
    // Before anything is decided: so nobody gives it up meanwhile.
    extents_.NoteHeard(upload);
    if (wanted != nullptr || node_.TakesUpload(Now(), upload)) return done(Place(begin));
    if (!enrolment_->is_done()) return done(NotTakingPart());
    const auto id = node_.BeginUpload(upload, Now() + kUploadPatience);
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

void ClusterService::SetMember(const net::SetMember& request, Done<void> done) {
  const bool is_posted = inbox_->Post([this, request, done] {
    if (!enrolment_->is_done()) return done(NotTakingPart());
    WriteMember(request, Now() + kMemberPatience, done);
  });
  if (!is_posted) done(Stopped());
}

// The mirror has the record; where it is late the commit loses, and it is looked at again.
void ClusterService::WriteMember(const net::SetMember& request, TimePoint deadline,
                                 Done<void> done) {
  const std::string key = cluster::Key(cluster::kMemberKeys, request.node);
  const MetaStore::KeyValue* const entry = node_.view().mirror.Find(key);
  const Error unknown{ErrorCode::kNotFound, "the cluster has no member " + request.node};
  if (entry == nullptr) return done(unknown);
  auto record = cluster::MemberRecord::Decode(entry->value);
  if (!record) return done(unknown);
  const auto state = static_cast<cluster::MemberRecord::State>(request.state);
  if (record.value().state == state) return done({});
  if (Now() >= deadline)
    return done(Error{ErrorCode::kDeadlineExceeded,
                      request.node + ": the coordinator did not answer in time; try again"});
  record.value().state = state;
  MetaStore::Commit commit;
  commit.compares.push_back({key, entry->mod_revision});
  commit.puts.push_back({key, record.value().Encode()});
  const auto committed = [this, inbox = inbox_, request, deadline,
                          done](const Result<MetaStore::Outcome>& outcome) {
    if (!outcome) return done(outcome.error());
    // Then the mirror shows it, or what was faster.
    const std::uint64_t revision = outcome.value().revision;
    const bool is_posted = inbox->Post([this, request, revision, deadline, done] {
      waiters_.push_back({[this, revision] { return node_.view().mirror.revision() >= revision; },
                          deadline,
                          [this, request, deadline, done](const Result<void>&) {
                            WriteMember(request, deadline, done);
                          }});
    });
    if (!is_posted) done(Stopped());
  };
  store_->TryCommit(std::move(commit), deadline, committed);
}

ClusterService::Map ClusterService::MapFor(std::uint32_t known_version) const {
  const ClusterStatePtr now = state();
  Map map;
  map.reply.version = now->map_version();
  map.reply.replicas = options_.replicas;
  map.reply.cluster = now->cluster;
  map.reply.node = options_.node;
  map.reply.nodes = now->nodes;
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

Result<ClusterService::Status> ClusterService::GetStatus() {
  return Await<Status>([&](Done<Status> done) {
    if (!inbox_->Post([this, done] { done(MakeStatus()); })) done(Stopped());
  });
}

ClusterService::Status ClusterService::MakeStatus() const {
  const cluster::View& view = node_.view();
  Status status;
  status.state = state();
  status.is_leased = is_leased();
  status.is_leading = node_.leader().is_leading();
  status.trouble = enrolment_->is_done() ? node_.leader().trouble() : enrolment_->trouble();
  if (const auto* const leader = view.mirror.Find(cluster::kLeaderKey)) {
    const auto* const text = reinterpret_cast<const char*>(leader->value.data());
    const std::string_view words(text, leader->value.size());
    status.leader = words.substr(0, words.find(' '));
  }
  for (const auto& [id, wanted] : view.names.wanted())
    if (view.IsOwner(id, wanted.replicas) && !view.extents.Find(id)) ++status.missing_count;
  for (const ManifestExtent& extent : view.extents.All()) {
    const auto* const wanted = view.names.Find(extent.id);
    if (wanted != nullptr && !view.IsOwner(extent.id, wanted->replicas)) ++status.surplus_count;
  }
  if (view.mirror.was_listed()) status.unexplained_count = node_.Unexplained().size();
  status.refused_count = node_.replication().refused_count();
  for (const auto& [key, entry] : view.mirror.entries())
    if (key.starts_with(cluster::kUploadKeys)) ++status.open_upload_count;
  status.tombstone_count = view.tombstones.all().size();
  status.pulled_count = pulled_count_;
  status.pulled_bytes = pulled_bytes_;
  status.dropped_count = dropped_count_;
  status.is_moving = view.slots.previous.has_value();
  if (const auto silent = Now() - heard_; silent > options_.lease)
    status.silent_for = std::chrono::duration_cast<std::chrono::milliseconds>(
        heard_ == TimePoint{} ? Now() - started_ : silent);
  return status;
}

}  // namespace ffrecord::server
