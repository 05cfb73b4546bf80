#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "libffrecord/base/checksum.h"
#include "server/cluster/cluster_node.h"
#include "server/cluster/placement.h"
#include "server/metadata/meta_state.h"

namespace ffrecord::test {

// Extents of one node, as a test says.
class HandExtents final : public server::cluster::LocalExtents {
 public:
  std::optional<ManifestExtent> Find(const ExtentId& id) const override {
    const auto found = extents.find(id);
    return found == extents.end() ? std::nullopt : std::optional(found->second);
  }
  std::vector<ManifestExtent> All() const override {
    std::vector<ManifestExtent> all;
    for (const auto& [id, extent] : extents) all.push_back(extent);
    Arrive();
    return all;
  }
  std::vector<ExtentId> InMotion() const override {
    std::vector<ExtentId> moving;
    if (arriving) moving.push_back(arriving->id);
    Arrive();
    return moving;
  }
  // A test changes them as it likes: what they are now.
  std::uint64_t ChangeCount() const override {
    std::uint64_t digest = 0;
    for (const auto& [id, extent] : extents) digest += Xxh3(id) ^ extent.xxh3 ^ extent.size_bytes;
    Arrive();
    return digest;
  }
  bool HasRoomFor(std::uint64_t) const override { return has_room; }
  std::optional<server::cluster::TimePoint> LastHeard(std::uint64_t) const override {
    return std::nullopt;
  }

  mutable std::map<ExtentId, ManifestExtent> extents;
  // Another thread writes it: it is here as soon as somebody has looked.
  mutable std::optional<ManifestExtent> arriving;
  bool has_room = true;

 private:
  void Arrive() const {
    if (arriving) extents[arriving->id] = *arriving;
    arriving.reset();
  }
};

// The node "n1" of a cluster of four, whose other nodes and store are in the hands of a test.
//
// The store answers at once. The node's questions to other nodes and to its disks wait in `asked`
// until the test answers; manifests are found at once. Time passes in Run() alone.
class OneNode {
 public:
  using Action = server::cluster::Action;
  using MetaStore = server::MetaStore;

  explicit OneNode(const std::string& leader = "n2", std::size_t batch_max = 4096,
                   bool approves_members = false)
      : batch_max_(batch_max), approves_members_(approves_members) {
    using namespace server::cluster;
    Put(std::string(kClusterKey), std::vector<std::byte>(16));
    std::vector<PlacedNode> nodes;
    for (int i = 1; i <= 4; ++i) {
      const std::string id = "n" + std::to_string(i);
      nodes.push_back({id, "d-" + id, 1});
      Put(Key(kMemberKeys, id), MemberRecord{MemberRecord::State::kIn, 1, "d-" + id}.Encode());
      if (i > 1) Put(Key(kNodeKeys, id), NodeRecord{1, 0, ""}.Encode());
    }
    slots.map = Place({}, std::move(nodes), {.row_size = 3}).value();
    Put(std::string(kSlotsKey), slots.Encode());
    if (!leader.empty()) Put(std::string(kLeaderKey), Bytes(leader));
    Start();
  }

  // The node starts, or starts anew: with what is on its disk.
  void Start(const server::cluster::HistoryMark& mark = {},
             const server::cluster::KnownNames& known = {}) {
    server::cluster::ClusterNode::Options options;
    options.lease.node = "n1";
    options.lease.record.epoch = ++epoch_;
    options.lease.record.level = server::cluster::kFeatureLevel;
    options.leader.upload_grace = std::chrono::seconds(60);
    options.replication.batch_max = batch_max_;
    options.leader.approves_members = approves_members_;
    options.mark = mark;
    options.known = known;
    watch_ = 0;
    asked.clear();
    node = std::make_unique<server::cluster::ClusterNode>(options, extents);
    Run(std::chrono::seconds(1));
  }

  static std::vector<std::byte> Bytes(const std::string& text) {
    const auto bytes = std::as_bytes(std::span(text));
    return {bytes.begin(), bytes.end()};
  }

  // --- The store
  void Put(const std::string& key, std::vector<std::byte> value) {
    (void)state.TryCommit({{}, {{key, std::move(value)}}, {}}, now);
    Tell();
  }
  void Delete(const std::string& key) {
    (void)state.TryCommit({{}, {}, {key}}, now);
    Tell();
  }
  // The store is put back to an older state; watches are silent, as etcd's are, or break.
  void PutBack(const server::MetaState& older, bool breaks_watch = true) {
    state.PutBack(older, now);
    if (!breaks_watch || watch_ == 0) return;
    MetaStore::News news;
    news.kind = MetaStore::News::Kind::kBroken;
    Carry(node->Step(now, {std::exchange(watch_, 0), std::move(news)}));
  }
  std::uint64_t RevisionOf(const std::string& key) const {
    const auto found = state.Get(key);
    return found ? found->mod_revision : 0;
  }

  // --- Extents and names
  // An extent of which n1 is an owner, or is none; `which` tells those of one kind apart.
  ManifestExtent ExtentOf(bool is_owner, std::uint64_t upload, std::size_t replicas = 2) const {
    for (std::uint32_t number = 0;; ++number) {
      const ExtentId id = MakeExtentId(upload, 0, number);
      if (slots.IsOwner("n1", id, replicas) == is_owner) return {id, 100, upload};
    }
  }
  server::cluster::Body ManifestOf(const std::vector<ManifestExtent>& of) const {
    DatasetManifest manifest;
    for (const ManifestExtent& extent : of)
      manifest.files.push_back(
          {"f" + std::to_string(manifest.files.size()), extent.size_bytes, {extent}});
    return EncodeDatasetManifest(manifest).value();
  }
  // As another node would. n1 has the manifest if it is to have it.
  void Publish(const std::string& name, const std::vector<ManifestExtent>& of,
               std::uint8_t replicas, std::uint64_t attempt) {
    PublishBody(name, ManifestOf(of), replicas, attempt);
  }
  void PublishBody(const std::string& name, server::cluster::Body body, std::uint8_t replicas,
                   std::uint64_t attempt) {
    server::cluster::DatasetRecord record;
    record.attempt = attempt;
    record.replicas = replicas;
    if (const auto manifest = DecodeDatasetManifest(body))
      record.size_bytes = manifest.value().size_bytes();
    record.body = {{MakeExtentId(attempt, 0xFFFFFFFF, 0), body.size(), Xxh3(body)}};
    const ManifestExtent& own = record.body.front();
    if (slots.IsOwner("n1", own.id, server::cluster::BodyReplicas(replicas)))
      extents.extents[own.id] = own;
    bodies_[own.id] = std::move(body);
    Put(server::cluster::Key(server::cluster::kDatasetKeys, name), record.Encode());
  }

  // --- The node
  void Run(std::chrono::milliseconds time) {
    const auto end = now + time;
    for (;;) {
      const auto next = std::max(node->wake(), now);
      Carry(node->Step(now));
      if (next > end) break;
      now = std::max(next, now + std::chrono::milliseconds(1));
    }
    now = end;
    Tell();
    Carry(node->Step(now));
  }
  // Questions of this kind that wait for an answer.
  template <class T>
  std::vector<T> Asked() const {
    std::vector<T> found;
    for (const Action& action : asked)
      if (const auto* const call = std::get_if<T>(&action.call)) found.push_back(*call);
    return found;
  }
  // Answers all questions of this kind: `answer` makes the reply of each, or none to let it wait.
  template <class T, class F>
  void Answer(F answer) {
    std::vector<Action> waiting = std::exchange(asked, {});
    for (Action& action : waiting) {
      const auto* const call = std::get_if<T>(&action.call);
      if (call == nullptr) {
        asked.push_back(std::move(action));
        continue;
      }
      Carry(node->Step(now, {action.id, server::cluster::Reply(answer(*call))}));
    }
  }
  // As far as they are known to the test: every node holds, or promises, what it is asked for.
  void AnswerHoldings(server::cluster::Holding holding) {
    Answer<server::cluster::AskHoldings>([&](const server::cluster::AskHoldings& question) {
      return Result<server::cluster::Holdings>(
          server::cluster::Holdings(question.extents.size(), holding));
    });
  }
  // The extents that it has dropped since the last call: they are gone at once.
  std::vector<ExtentId> TakeDrops() { return std::exchange(drops_, {}); }

  server::MetaState state;
  bool is_store_silent = false;
  bool is_watch_silent = false;            // Reports changes later.
  bool loses_answers = false;              // Makes commits, and loses their answers.
  bool delays_commits = false;             // They are on their way for long, as far as is known.
  bool holds_commits = false;              // They wait in `asked`, and are not made.
  std::set<std::uint64_t> lost_bodies;     // Attempts whose manifests are on no node.
  std::vector<MetaStore::Commit> commits;  // That the node has made.
  server::cluster::TimePoint now{std::chrono::seconds(1'000)};
  HandExtents extents;
  server::cluster::SlotsRecord slots;
  std::unique_ptr<server::cluster::ClusterNode> node;
  std::vector<Action> asked;

 private:
  const std::size_t batch_max_;
  const bool approves_members_;
  void Carry(std::vector<Action> actions) {
    for (Action& action : actions) Carry(std::move(action));
  }
  void Carry(Action action) {
    using namespace server::cluster;
    auto reply = ReplyTo(action.call);
    if (const auto* const watch = std::get_if<WatchKeys>(&action.call)) {
      watch_ = action.id;
      told_ = watch->from_revision - 1;
      Tell();
    } else if (const auto* const end = std::get_if<EndWatch>(&action.call)) {
      if (watch_ == end->watch) watch_ = 0;
    } else if (reply) {
      Carry(node->Step(now, {action.id, std::move(*reply)}));
      Tell();
    } else if (const auto* const drop = std::get_if<DropExtent>(&action.call)) {
      extents.extents.erase(drop->id);
      drops_.push_back(drop->id);
    } else {
      if (const auto* const store = std::get_if<StoreBody>(&action.call))
        bodies_[store->extent.id] = store->bytes;
      asked.push_back(std::move(action));
    }
  }
  std::optional<server::cluster::Reply> ReplyTo(const server::cluster::Call& call) {
    using namespace server::cluster;
    if (const auto* const fetch = std::get_if<FetchBody>(&call)) {
      const ExtentId& id = fetch->extents.front().id;
      if (!lost_bodies.contains(UploadOf(id))) return Result<Body>(bodies_.at(id));
      return Result<Body>(Error{ErrorCode::kUnavailable, "no node has it"});
    }
    if (is_store_silent) return std::nullopt;
    state.ExpireLeases(now);
    if (const auto* const get = std::get_if<GetKey>(&call))
      return Result<std::optional<MetaStore::KeyValue>>(state.Get(get->key));
    if (const auto* const list = std::get_if<MetaStore::ListRequest>(&call))
      return state.List(*list);
    if (const auto* const grant = std::get_if<GrantLease>(&call))
      return Result<MetaStore::Lease>(state.GrantLease(grant->ttl, now));
    if (const auto* const keep = std::get_if<KeepLease>(&call))
      return Result<std::optional<std::chrono::milliseconds>>(state.KeepLease(keep->lease, now));
    if (const auto* const commit = std::get_if<MetaStore::Commit>(&call)) {
      if (holds_commits) return std::nullopt;
      commits.push_back(*commit);
      auto outcome = delays_commits ? MetaStore::Outcome{} : state.TryCommit(*commit, now);
      if (loses_answers || delays_commits)
        return Result<MetaStore::Outcome>(MetaStore::Outcome{
            MetaStore::Outcome::Fate::kUnknown, 0, Error{ErrorCode::kUnavailable, "lost"}});
      return outcome;
    }
    return std::nullopt;
  }
  // The watch tells what has changed.
  void Tell() {
    if (watch_ == 0 || is_watch_silent || state.revision() <= told_) return;
    MetaStore::News news;
    news.events = state.EventsSince("", told_ + 1).value();
    told_ = state.revision();
    Carry(node->Step(now, {watch_, std::move(news)}));
  }

  std::map<ExtentId, server::cluster::Body> bodies_;
  std::vector<ExtentId> drops_;
  server::cluster::CallId watch_ = 0;
  std::uint64_t told_ = 0;
  std::uint64_t epoch_ = 6;
};

}  // namespace ffrecord::test
