#include "libffrecord/net/replicas/replicated_files.h"

#include <algorithm>
#include <utility>

#include "libffrecord/base/assert.h"
#include "libffrecord/base/timed_waits.h"
#include "libffrecord/net/replicas/replica_reads.h"
#include "libffrecord/net/replicas/replicated_queue.h"
#include "libffrecord/net/rpc/slab_pool.h"
#include "libffrecord/source/waiting_read.h"

namespace ffrecord::net {
namespace {

// As many as calls are usually made at a time; more are made and left.
constexpr std::size_t kIdleQueuesMax = 8;
// How long a copy of damaged bytes is waited for while there are others.
constexpr std::chrono::seconds kCopyTime{2};
// So often a newer view is looked for while nobody else can be asked.
constexpr std::chrono::milliseconds kLookEvery{10};
// Limit for pairs of files and daemons.
constexpr std::size_t kDamagedCopiesMax = 1024;

std::span<const NodeIndex> OwnersOf(const ReplicaMap& map, std::uint32_t extent) {
  return map.NodesOf(extent).first(map.OwnerCountOf(extent));
}

}  // namespace

ReplicatedFiles::ReplicatedFiles(std::shared_ptr<ReplicaPlaces> places,
                                 const SessionOptions& options)
    : places_(std::move(places)),
      first_view_(places_->Now()),
      options_(options),
      health_([] { return new Health; }),
      idle_([] { return new IdleQueues; }) {
  FFR_ASSERT(!first_view_->replicas.empty());
}

ReplicatedFiles::~ReplicatedFiles() = default;

ReplicatedFiles::Health& ReplicatedFiles::health() const {
  Health& health = health_.Get();
  const std::lock_guard lock(health.mutex);
  if (!health.state) health.state.emplace(first_view_->replicas.size());
  return health;
}

void ReplicatedFiles::KeepToOrder() const {
  Health& of_all = health();
  const std::lock_guard lock(of_all.mutex);
  of_all.state->KeepToOrder(++of_all.order_keeper_count > 0);
}

// Ends one KeepToOrder(): the next hint may have been sent before the last one ends.
void ReplicatedFiles::StopKeepingToOrder() const {
  Health& of_all = health();
  const std::lock_guard lock(of_all.mutex);
  of_all.state->KeepToOrder(--of_all.order_keeper_count > 0);
}

// Where one daemon writes into our memory, its files are read without a copy; the others do not
// mind.
Result<PooledBuffer> ReplicatedFiles::TakeMemory(std::uint64_t size_bytes) const {
  const auto view = places_->Now();
  const bool uses_slabs = std::ranges::any_of(
      view->replicas, [](const auto& replica) { return replica->session().uses_slabs(); });
  return uses_slabs ? SlabPool::Process().Take(size_bytes) : BufferPool::Process().Take(size_bytes);
}

Result<void> ReplicatedFiles::ReadEach(std::span<RangeRead> ranges, const Arrived& arrived,
                                       Patience& patience) const {
  if (patience.IsOver()) return GivenUp();
  if (ranges.empty()) return {};
  auto queue = FFR_TRY(TakeIdle());
  auto read = ReadThrough(*queue, ranges, arrived, patience);
  PutIdle(std::move(queue));
  return read;
}

Result<std::unique_ptr<RangeQueue>> ReplicatedFiles::MakeQueue(QueueUse /*use*/) const {
  return std::unique_ptr<RangeQueue>(FFR_TRY(ReplicatedQueue::Make(*this)));
}

Result<std::unique_ptr<ReplicatedQueue>> ReplicatedFiles::TakeIdle() const {
  IdleQueues& idle = idle_.Get();
  {
    const std::lock_guard lock(idle.mutex);
    if (!idle.queues.empty()) {
      auto queue = std::move(idle.queues.back());
      idle.queues.pop_back();
      return queue;
    }
  }
  return ReplicatedQueue::Make(*this);
}

void ReplicatedFiles::PutIdle(std::unique_ptr<ReplicatedQueue> queue) const {
  IdleQueues& idle = idle_.Get();
  const std::lock_guard lock(idle.mutex);
  if (idle.queues.size() < kIdleQueuesMax) idle.queues.push_back(std::move(queue));
}

// --- Copies --------------------------------------------------------------------------------------

Result<PooledBuffer> ReplicatedFiles::ReadFromCopies(std::uint32_t file, std::uint64_t offset_bytes,
                                                     std::uint64_t size_bytes,
                                                     const IsRight& is_right,
                                                     Patience& patience) const {
  const Copied range{file, offset_bytes, size_bytes};
  const auto first_view = places_->Now();
  if (first_view->map->AsksInOrder()) return ReadVerified(range, *first_view, is_right, patience);
  CopySearch search{range, is_right, IsDamageKnown(range, *first_view->map), {}, {}, {}, {}};
  // A daemon that does not answer is waited for only where none of the others has it.
  for (const Asks asks : {Asks::kOnce, Asks::kUntilTimeout}) {
    if (!search.away.empty()) FFR_TRY(AwaitNewer(*first_view, patience));
    FFR_TRY(AskCopies(search, asks, patience));
    // Where all are alike, no daemon is to blame: the file may have been published like this.
    if (search.found || !search.away.empty())
      for (const NodeIndex node : std::exchange(search.damaged, {})) {
        const RemoteFiles& replica = *places_->Now()->replicas[node];
        NoteDamage(range, node, replica);
        FFR_TRY(TellDoubt(range, replica, patience));
      }
    if (search.found) return *std::move(search.found);
  }
  if (search.away.empty()) return Error{ErrorCode::kCorruption, "every replica of it is damaged"};
  const RemoteFiles& away = *places_->Now()->replicas[search.away.front()];
  return Error{ErrorCode::kUnavailable,
               "a replica is damaged, and " + away.session().peer() + " has not sent it"};
}

// Asks all that have not answered yet, unless one is enough.
Result<void> ReplicatedFiles::AskCopies(CopySearch& search, Asks asks, Patience& patience) const {
  std::vector<NodeIndex> asked = search.answered;
  search.away.clear();
  const bool one_is_enough = asks != Asks::kOnce || search.is_damage_known;
  while (!search.found || !one_is_enough) {
    // The newest: the copies may have moved since the last one was asked.
    const auto view = places_->Now();
    const auto node = NextCopy(search.range, *view, asked);
    if (!node) break;
    asked.push_back(*node);
    FFR_TRY(AskCopy(search, view, asked, asks, patience));
  }
  return {};
}

// Asks the last one of `asked`.
Result<void> ReplicatedFiles::AskCopy(CopySearch& search,
                                      const std::shared_ptr<const ReplicaView>& view,
                                      std::span<const NodeIndex> asked, Asks asks,
                                      Patience& patience) const {
  const NodeIndex node = asked.back();
  auto memory = FFR_TRY(BufferPool::Process().Take(search.range.size_bytes));
  RangeRead copy{search.range.file, search.range.offset_bytes, *memory};
  const auto is_elsewhere = [&] {
    const auto newest = places_->Now();
    return newest != view && NextCopy(search.range, *newest, asked);
  };
  FFR_TRY(ReadCopy(*view->replicas[node], copy, asks == Asks::kOnce ? kCopyTime : options_.timeout,
                   asks, is_elsewhere, patience));
  const bool has_moved = copy.status == ErrorCode::kNotFound && view->map->MovesExtents();
  const bool is_away = has_moved || copy.status == ErrorCode::kUnavailable ||
                       copy.status == ErrorCode::kDeadlineExceeded;
  (is_away ? search.away : search.answered).push_back(node);
  if (is_away) places_->NoteFailure();
  if (copy.status != ErrorCode::kOk) return {};
  if (!search.is_right(*memory))
    search.damaged.push_back(node);
  else if (!search.found)
    search.found = std::move(memory);
  return {};
}

// The most promising owner of all of it but `asked`; none: there is no other.
std::optional<NodeIndex> ReplicatedFiles::NextCopy(const Copied& range, const ReplicaView& view,
                                                   std::span<const NodeIndex> asked) const {
  for (const NodeIndex node : CopiesOf(range, view))
    if (std::ranges::find(asked, node) == asked.end()) return node;
  return std::nullopt;
}

// Where copies move: until there is a newer view, or long enough that there would be one.
Result<void> ReplicatedFiles::AwaitNewer(const ReplicaView& view, Patience& patience) const {
  if (!view.map->MovesExtents()) return {};
  const auto end = Clock::now() + ReplicaReads::kMovedPause;
  while (places_->Now().get() == &view && Clock::now() < end) {
    if (patience.IsOver()) return GivenUp();
    SleepFor(kLookEvery);
  }
  return {};
}

// Any node of any view gets what it lacks from elsewhere: this need not follow newer ones.
Result<PooledBuffer> ReplicatedFiles::ReadVerified(const Copied& range, const ReplicaView& view,
                                                   const IsRight& is_right,
                                                   Patience& patience) const {
  const auto candidates = view.map->NodesOf(ExtentsOf(range).front());
  std::vector<NodeIndex> nodes(candidates.begin(), candidates.end());
  PutWellFirst(ExtentsOf(range), nodes);
  const auto end = Clock::now() + options_.timeout;
  std::string away;
  for (std::size_t i = 0; i < nodes.size(); ++i) {
    const RemoteFiles& replica = *view.replicas[nodes[i]];
    // Some of the time is left to the others.
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(end - Clock::now());
    const auto time = i + 1 < nodes.size() ? left / 2 : left;
    auto memory = FFR_TRY(BufferPool::Process().Take(range.size_bytes));
    RangeRead copy{range.file, range.offset_bytes, *memory};
    FFR_TRY(ReadCopy(
        replica, copy, time, Asks::kToVerify, [] { return false; }, patience));
    if (copy.status == ErrorCode::kOk && is_right(*memory)) return memory;
    if (copy.status == ErrorCode::kOk) NoteDamage(range, nodes[i], replica);
    if (copy.status == ErrorCode::kUnavailable || copy.status == ErrorCode::kDeadlineExceeded)
      away += (away.empty() ? "" : ", ") + replica.session().peer();
  }
  if (away.empty()) return Error{ErrorCode::kCorruption, "every node has other bytes of it"};
  return Error{ErrorCode::kUnavailable,
               "what a node has of it is damaged, and others do not have it yet: " + away};
}

std::vector<std::uint32_t> ReplicatedFiles::ExtentsOf(const Copied& range) const {
  const std::uint32_t first = this->first().first_extent(range.file);
  std::vector<std::uint32_t> extents;
  const std::uint64_t end = range.offset_bytes + range.size_bytes;
  for (std::uint64_t at = range.offset_bytes / kExtentSizeMax; at * kExtentSizeMax < end; ++at)
    extents.push_back(first + static_cast<std::uint32_t>(at));
  return extents;
}

// The owners of all of it, the most promising first.
std::vector<NodeIndex> ReplicatedFiles::CopiesOf(const Copied& range,
                                                 const ReplicaView& view) const {
  const auto extents = ExtentsOf(range);
  const auto of_first = OwnersOf(*view.map, extents.front());
  std::vector<NodeIndex> nodes(of_first.begin(), of_first.end());
  std::erase_if(nodes, [&](NodeIndex node) {
    return std::ranges::any_of(extents, [&](std::uint32_t extent) {
      return std::ranges::count(OwnersOf(*view.map, extent), node) == 0;
    });
  });
  PutWellFirst(extents, nodes);
  return nodes;
}

void ReplicatedFiles::PutWellFirst(std::span<const std::uint32_t> extents,
                                   std::vector<NodeIndex>& nodes) const {
  Health& of_all = health();
  const std::lock_guard lock(of_all.mutex);
  for (const NodeIndex node : nodes) of_all.state->Grow(std::size_t{node} + 1);
  const auto now = Clock::now();
  std::stable_partition(nodes.begin(), nodes.end(), [&](NodeIndex node) {
    return of_all.state->MayAsk(node, now) &&
           std::ranges::none_of(extents, [&](std::uint32_t extent) {
             return of_all.state->IsDamaged(extent, node, now);
           });
  });
}

// Sets the status of `copy`. Leaves the daemon as well once `is_elsewhere` says so.
Result<void> ReplicatedFiles::ReadCopy(const RemoteFiles& replica, RangeRead& copy,
                                       std::chrono::milliseconds time, Asks asks,
                                       const std::function<bool()>& is_elsewhere,
                                       Patience& patience) {
  const auto end = Clock::now() + time;
  const Patience::GiveUp give_up = [&] {
    return patience.IsOver() || Clock::now() >= end || is_elsewhere();
  };
  Patience until(give_up);
  RemoteQueue queue(
      replica, RemoteQueue::Connects::kInPoll,
      asks == Asks::kOnce ? RemoteQueue::Retries::kNever : RemoteQueue::Retries::kUntilTimeout,
      asks == Asks::kToVerify ? RemoteQueue::Trust::kDoubted : RemoteQueue::Trust::kTrusted);
  const auto read = ReadThrough(
      queue, {&copy, 1}, [](RangeRead&) {}, until);
  if (patience.was_over()) return GivenUp();
  if (!read) copy.status = read.error().code;
  return {};
}

// One byte of each extent is enough; what comes of it does not matter.
Result<void> ReplicatedFiles::TellDoubt(const Copied& range, const RemoteFiles& replica,
                                        Patience& patience) const {
  const std::uint64_t end = range.offset_bytes + range.size_bytes;
  for (std::uint64_t at = range.offset_bytes; at < end;
       at += kExtentSizeMax - at % kExtentSizeMax) {
    std::byte byte{};
    RangeRead doubt{range.file, at, {&byte, 1}};
    FFR_TRY(ReadCopy(
        replica, doubt, kCopyTime, Asks::kToVerify, [] { return false; }, patience));
  }
  return {};
}

bool ReplicatedFiles::IsDamageKnown(const Copied& range, const ReplicaMap& map) const {
  Health& of_all = health();
  const std::lock_guard lock(of_all.mutex);
  const auto now = Clock::now();
  for (const std::uint32_t extent : ExtentsOf(range))
    for (const NodeIndex node : map.NodesOf(extent))
      if (of_all.state->IsDamaged(extent, node, now)) return true;
  return false;
}

void ReplicatedFiles::NoteDamage(const Copied& range, NodeIndex node,
                                 const RemoteFiles& replica) const {
  Health& of_all = health();
  const std::lock_guard lock(of_all.mutex);
  const auto extents = ExtentsOf(range);
  for (const std::uint32_t extent : extents) of_all.state->NoteDamage(extent, node, Clock::now());
  if (of_all.damaged_copies.size() >= kDamagedCopiesMax) return;
  of_all.damaged_copies.try_emplace(
      {range.file, node}, replica.file_name(range.file) + ": this daemon has sent damaged bytes (" +
                              std::to_string(range.size_bytes) + " at " +
                              std::to_string(range.offset_bytes) + "); see whether its disk fails");
}

std::vector<std::string> ReplicatedFiles::DamagedCopies(std::uint32_t file) const {
  Health& of_all = health();
  const std::lock_guard lock(of_all.mutex);
  std::vector<std::string> lines;
  auto copy = of_all.damaged_copies.lower_bound({file, NodeIndex{0}});
  for (; copy != of_all.damaged_copies.end() && copy->first.first == file; ++copy)
    lines.push_back(copy->second);
  return lines;
}

// --- Messages ------------------------------------------------------------------------------------

void ReplicatedFiles::NoteFailure(ErrorCode status, const std::string& why) const {
  last_failure_.Note({status, why});
}

std::string ReplicatedFiles::Trouble(std::uint32_t file, ErrorCode status) const {
  std::string text = last_failure_.Of(status);
  const auto view = places_->Now();
  for (const auto& replica : view->replicas) {
    const std::string one = replica->Trouble(file, status);
    if (!one.empty()) text += (text.empty() ? "" : "; ") + one;
  }
  if (first().has_stripes())
    return text + (text.empty() ? "" : "; ") +
           "it has an erasure code, and nodes compute what others do not have: if too few members "
           "of "
           "a stripe are left, event=stripe_member_missing in their logs says which; start the "
           "nodes "
           "that are down";
  const std::string& origin = first().origin_address(file);
  if (origin.empty()) return text;
  return text + (text.empty() ? "" : "; ") + "the nodes fetch it from " + origin +
         (status == ErrorCode::kIo ? ", and have no room on their disks to cache it: "
                                   : ": if they cannot, or it has changed, ") +
         "event=origin_fails in their logs says why";
}

}  // namespace ffrecord::net
