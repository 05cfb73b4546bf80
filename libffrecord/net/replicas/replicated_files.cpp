#include "libffrecord/net/replicas/replicated_files.h"

#include <algorithm>
#include <utility>

#include "libffrecord/base/assert.h"
#include "libffrecord/net/replicas/replicated_queue.h"
#include "libffrecord/net/rpc/slab_pool.h"
#include "libffrecord/source/waiting_read.h"

namespace ffrecord::net {
namespace {

// As many as calls are usually made at a time; more are made and left.
constexpr std::size_t kIdleQueuesMax = 8;

std::shared_ptr<ReplicaPlaces> Fix(std::vector<std::shared_ptr<const RemoteFiles>> replicas,
                                   std::shared_ptr<const ReplicaMap> map) {
  if (map == nullptr) map = std::make_shared<WholeReplicas>(replicas.size());
  return std::make_shared<FixedPlaces>(ReplicaView{std::move(replicas), std::move(map)});
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

ReplicatedFiles::ReplicatedFiles(std::vector<std::shared_ptr<const RemoteFiles>> replicas,
                                 std::shared_ptr<const ReplicaMap> map,
                                 const SessionOptions& options)
    : ReplicatedFiles(Fix(std::move(replicas), std::move(map)), options) {}

ReplicatedFiles::~ReplicatedFiles() = default;

ReplicatedFiles::Health& ReplicatedFiles::health() const {
  Health& health = health_.Get();
  const std::lock_guard lock(health.mutex);
  if (!health.state) health.state.emplace(first_view_->replicas.size());
  return health;
}

std::uint64_t ReplicatedFiles::KeepTo(NodeIndex node) const {
  Health& of_all = health();
  const std::lock_guard lock(of_all.mutex);
  of_all.kept.emplace(++of_all.last_kept, node);
  of_all.state->KeepTo(node);
  return of_all.last_kept;
}

// The next hint may have been sent before the last one is let go.
void ReplicatedFiles::LetGo(std::uint64_t number) const {
  Health& of_all = health();
  const std::lock_guard lock(of_all.mutex);
  of_all.kept.erase(number);
  const auto last = of_all.kept.rbegin();
  of_all.state->KeepTo(last == of_all.kept.rend() ? std::nullopt : std::optional(last->second));
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
  return text;
}

}  // namespace ffrecord::net
