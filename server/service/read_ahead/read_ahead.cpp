#include "server/service/read_ahead/read_ahead.h"

#include <algorithm>
#include <iterator>
#include <tuple>

#include "libffrecord/base/assert.h"

namespace ffrecord::server {
namespace {

constexpr std::uint64_t kPageBytes = 4096;
constexpr std::size_t kPlansMax = 4096;
// Pieces that are evaluated and not yet read, for all plans together and for each at least: what is
// asked for is to be found among them even where the disk is slower than the clients.
constexpr std::size_t kEvaluatedMax = 65'536;
constexpr std::size_t kEvaluatedMin = 512;
// Pieces that are looked for before a plan is answered: so many steps may be asked for at once.
constexpr std::size_t kFirstLookMax = 1024;
// Evaluated of one plan before the next has its turn.
constexpr std::size_t kEvaluatedAtOnce = 2048;
// Located at a time, so that pages of the index are fetched side by side.
constexpr std::size_t kLocatedAtOnce = 256;
// A piece that is more steps behind than any loader reads ahead will not be asked for any more.
constexpr std::uint64_t kStepsBehindMax = 512;

constexpr std::uint64_t kMergeGapBytesMax = std::uint64_t{16} << 10;
std::uint64_t PagesDown(std::uint64_t offset) { return offset / kPageBytes * kPageBytes; }
std::uint64_t PagesUp(std::uint64_t offset) { return PagesDown(offset + kPageBytes - 1); }
// The cost of a piece in the page cache, at most: its neighbours may share its pages.
std::uint64_t CostOf(std::uint32_t size_bytes) { return PagesUp(size_bytes); }

}  // namespace

ReadAhead::ReadAhead(std::uint64_t bytes_max, Metrics& metrics, Post post)
    : bytes_max_(bytes_max), metrics_(metrics), post_(std::move(post)) {
  metrics_.held_bytes_max.Set(bytes_max);
}

ReadAhead::~ReadAhead() { FFR_ASSERT(plans_.empty()); }

// --- Plans ---------------------------------------------------------------------------------------

Result<ReadAhead::Handle> ReadAhead::Begin(std::shared_ptr<const PlannedRecords> records,
                                           const net::PlanSet& hint, std::string_view tenant) {
  if (bytes_max_ == 0)
    return Error{ErrorCode::kInvalidArgument,
                 "this daemon does not read ahead: read_ahead_mib = 0"};
  const std::uint64_t count = records->record_count();
  auto order = FFR_TRY(PlanOrder::Make(hint, count));
  // A last step may be filled up from the epoch's beginning.
  if (hint.first > count || hint.end - hint.first > count + hint.step_size)
    return Error{ErrorCode::kInvalidArgument,
                 "the plan is not of one epoch of " + std::to_string(count) + " records"};
  const auto plan = std::make_shared<Plan>(std::move(records), std::move(order), tenant);
  const Pieces pieces = Evaluate(*plan, kFirstLookMax);

  const std::lock_guard lock(mutex_);
  if (plans_.size() >= kPlansMax)
    return Error{ErrorCode::kUnavailable, "the daemon follows as many plans as it can"};
  const auto own = tenants_.find(tenant);
  if (own != tenants_.end() && own->second.plan_count >= kPlansMax - plans_.size())
    return Error{ErrorCode::kUnavailable, "the daemon follows " +
                                              std::to_string(own->second.plan_count) +
                                              " plans of yours, and keeps the other places for "
                                              "others"};
  ++tenants_[plan->tenant].plan_count;
  plan->number = next_plan_++;
  plans_.emplace(plan->number, plan);
  Enqueue(plan->number, *plan, pieces);
  has_plans_.store(true, std::memory_order_relaxed);
  metrics_.plans.Add();
  if (NeedsEvaluation(*plan)) PostJob(plan->tenant);
  return Handle(*this, plan->number);
}

void ReadAhead::End(std::uint64_t number) {
  const std::lock_guard lock(mutex_);
  const auto found = plans_.find(number);
  FFR_ASSERT(found != plans_.end());
  for (const Place& place : found->second->queued) DropWant(number, place);
  for (const Place& place : found->second->begun) DropWant(number, place);
  FFR_ASSERT(found->second->held_bytes == 0);
  const auto tenant = tenants_.find(found->second->tenant);
  if (--tenant->second.plan_count == 0) tenants_.erase(tenant);
  plans_.erase(found);
  // Extents are kept for nobody: they may be about to be deleted.
  if (plans_.empty()) chosen_.clear();
  has_plans_.store(!plans_.empty(), std::memory_order_relaxed);
  metrics_.plans.Remove();
  has_work_ = !plans_.empty();  // The others have a larger share.
}

ReadAhead::Pieces ReadAhead::Evaluate(Plan& plan, std::size_t count_max) {
  Pieces pieces;
  std::vector<std::uint64_t> indices;
  std::vector<PlannedRecords::Piece> located;
  for (std::size_t count = 0; count < count_max && !plan.order.at_end();) {
    const std::uint64_t step = plan.order.step();
    plan.order.Next(std::min(count_max - count, kLocatedAtOnce), indices);
    count += indices.size();
    located.clear();
    plan.records->Locate(indices, located);
    for (const PlannedRecords::Piece& piece : located) pieces.emplace_back(piece, step);
  }
  return pieces;
}

void ReadAhead::Enqueue(std::uint64_t number, Plan& plan, const Pieces& pieces) {
  for (const auto& [piece, step] : pieces) {
    const Extent* const extent = piece.extent.get();
    Items& items = items_[extent];
    if (!items.extent) items.extent = piece.extent;
    Item& item = items.by_offset[piece.offset_bytes];
    item.size_bytes = std::max(item.size_bytes, piece.size_bytes);
    item.wants.push_back({number, step});
    plan.queued.push_back({extent, piece.offset_bytes, step});
  }
  plan.is_evaluated = plan.order.at_end();
  has_work_ = true;
}

std::size_t ReadAhead::EvaluatedMax(const Plan& plan) const {
  return std::max<std::size_t>(ShareOf(plan, kEvaluatedMax), kEvaluatedMin);
}

bool ReadAhead::NeedsMore(const Plan& plan) const {
  // Not for each piece: in larger portions neighbours are found, and the disk's order is worth
  // more.
  const bool has_room = plan.held_bytes <= Share(plan) / 4 * 3;
  return has_room && (!plan.queued.empty() || !plan.is_evaluated);
}

bool ReadAhead::NeedsEvaluation(const Plan& plan) const {
  return !plan.is_evaluated && plan.queued.size() <= EvaluatedMax(plan) / 2;
}

// --- Items ---------------------------------------------------------------------------------------

ReadAhead::Item* ReadAhead::Find(const Extent* extent, std::uint32_t offset_bytes) {
  const auto items = items_.find(extent);
  if (items == items_.end()) return nullptr;
  const auto item = items->second.by_offset.find(offset_bytes);
  return item == items->second.by_offset.end() ? nullptr : &item->second;
}

void ReadAhead::Erase(const Extent* extent, std::uint32_t offset_bytes) {
  const auto items = items_.find(extent);
  items->second.by_offset.erase(offset_bytes);
  if (items->second.by_offset.empty()) items_.erase(items);
}

void ReadAhead::Charge(Item& item, std::uint64_t payer) {
  item.payer = payer;
  item.charged_bytes = CostOf(item.size_bytes);
  plans_.at(payer)->held_bytes += item.charged_bytes;
  held_bytes_ += item.charged_bytes;
  metrics_.held_bytes.Set(held_bytes_);
}

void ReadAhead::Release(Item& item) {
  if (item.payer == 0) return;
  plans_.at(item.payer)->held_bytes -= item.charged_bytes;
  held_bytes_ -= item.charged_bytes;
  metrics_.held_bytes.Set(held_bytes_);
  item.payer = 0;
}

// The plan no longer wants the item: another one may.
void ReadAhead::Withdraw(Item& item, std::uint64_t number) {
  if (item.payer != number && !item.wants.empty()) return;
  const bool is_held = item.payer != 0;
  Release(item);
  if (is_held && !item.wants.empty()) Charge(item, item.wants.front().plan);
}

std::vector<ReadAhead::Want>::iterator ReadAhead::FindWant(Item& item, std::uint64_t number,
                                                           std::uint64_t step) {
  return std::ranges::find_if(
      item.wants, [&](const Want& one) { return one.plan == number && one.step == step; });
}

void ReadAhead::DropWant(std::uint64_t number, const Place& place) {
  Item* const item = Find(place.extent, place.offset_bytes);
  if (item == nullptr) return;
  const auto want = FindWant(*item, number, place.step);
  if (want == item->wants.end()) return;
  item->wants.erase(want);
  Withdraw(*item, number);
  if (!item->wants.empty()) return;
  if (item->was_on_disk && !item->was_taken) metrics_.unused_bytes.Add(item->size_bytes);
  Erase(place.extent, place.offset_bytes);
}

// Also what has been taken: it is in no item any more.
void ReadAhead::DropOld(std::uint64_t number, std::deque<Place>& places,
                        std::uint64_t newest_step) {
  for (; !places.empty(); places.pop_front()) {
    const Place& oldest = places.front();
    const bool is_old = oldest.step + kStepsBehindMax < newest_step;
    Item* const item = Find(oldest.extent, oldest.offset_bytes);
    const bool is_wanted =
        item != nullptr && FindWant(*item, number, oldest.step) != item->wants.end();
    if (is_wanted && !is_old) return;
    DropWant(number, oldest);
  }
}

void ReadAhead::Count(const Item& item, bool is_in_memory) {
  switch (item.state) {
    case State::kQueued:
    case State::kReading:
      if (!is_in_memory) metrics_.late_bytes.Add(item.size_bytes);
      break;
    case State::kRead:
      if (!is_in_memory && item.was_on_disk) metrics_.lost_bytes.Add(item.size_bytes);
      break;
  }
  if (is_in_memory && item.was_on_disk) metrics_.hit_bytes.Add(item.size_bytes);
}

void ReadAhead::TakeAll(std::span<const Wanted> wanted) {
  touched_.clear();
  for (const Wanted& one : wanted) TakeOne(one);
  for (const std::uint64_t number : touched_) {
    Plan& plan = *plans_.at(number);
    DropOld(number, plan.begun, plan.newest_step);
    DropOld(number, plan.queued, plan.newest_step);
    if (NeedsEvaluation(plan)) PostJob(plan.tenant);
    has_work_ = has_work_ || NeedsMore(plan);
  }
}

void ReadAhead::TakeOne(const Wanted& wanted) {
  const auto found = items_.find(wanted.extent);
  if (found == items_.end()) return;
  auto& items = found->second.by_offset;
  const std::uint64_t end_bytes = wanted.offset_bytes + wanted.size_bytes;
  auto at = items.lower_bound(static_cast<std::uint32_t>(wanted.offset_bytes));
  while (at != items.end() && at->first < end_bytes) {
    Item& item = at->second;
    Count(item, wanted.is_in_memory);
    const Want want = item.wants.front();
    item.wants.erase(item.wants.begin());
    item.was_taken = true;
    Withdraw(item, want.plan);
    at = item.wants.empty() ? items.erase(at) : std::next(at);
    Plan& plan = *plans_.at(want.plan);
    plan.newest_step = std::max(plan.newest_step, want.step);
    if (touched_.empty() || touched_.back() != want.plan) touched_.push_back(want.plan);
  }
  if (items.empty()) items_.erase(found);
}

// --- The jobs ------------------------------------------------------------------------------------

void ReadAhead::PostJob(std::string_view tenant) {
  const auto found = tenants_.find(tenant);
  if (std::exchange(found->second.has_job, true)) return;
  post_(tenant, [this, name = found->first] { RunJob(name); });
}

void ReadAhead::RunJob(const std::string& tenant) {
  std::unique_lock lock(mutex_);
  if (const auto plan = NextToEvaluate(tenant)) EvaluateSome(lock, plan);
  if (wants_runs_ && !NextToEvaluate(tenant)) Choose();
  const auto found = tenants_.find(tenant);
  if (found == tenants_.end()) return;  // It has left meanwhile.
  found->second.has_job = false;
  // Not at once: others of the tenant may wait for their first look.
  if (NextToEvaluate(tenant)) PostJob(tenant);
}

std::shared_ptr<ReadAhead::Plan> ReadAhead::NextToEvaluate(std::string_view tenant) const {
  std::shared_ptr<Plan> next;
  for (const auto& [number, plan] : plans_)
    if (plan->tenant == tenant && NeedsEvaluation(*plan) && (!next || plan->turn < next->turn))
      next = plan;
  return next;
}

void ReadAhead::EvaluateSome(std::unique_lock<std::mutex>& lock,
                             const std::shared_ptr<Plan>& plan) {
  plan->turn = ++turns_;
  const std::size_t count = std::min(EvaluatedMax(*plan) - plan->queued.size(), kEvaluatedAtOnce);
  lock.unlock();
  const Pieces pieces = Evaluate(*plan, count);
  lock.lock();
  if (plans_.contains(plan->number)) Enqueue(plan->number, *plan, pieces);
}

void ReadAhead::Reclaim() {
  if (held_bytes_ < bytes_max_) return;
  const bool is_anyone_short =
      std::ranges::any_of(plans_, [this](const auto& entry) { return NeedsMore(*entry.second); });
  if (!is_anyone_short) return;
  for (const auto& [number, plan] : plans_) ReclaimFrom(number, *plan);
}

// From the end that is wanted last. It may stay in the page cache, and is then found there when the
// plan's share has room for it again.
void ReadAhead::ReclaimFrom(std::uint64_t number, Plan& plan) {
  // A piece that was begun for another plan, and is charged to this one since that went, is still
  // queued.
  for (auto place = plan.queued.rbegin(); place != plan.queued.rend(); ++place) {
    if (!HoldsTooMuch(plan)) return;
    (void)ReclaimPiece(number, plan, *place);
  }
  std::deque<Place> kept;
  while (HoldsTooMuch(plan) && !plan.begun.empty()) {
    const Place place = plan.begun.back();
    plan.begun.pop_back();
    auto& to = ReclaimPiece(number, plan, place) ? plan.queued : kept;
    to.push_front(place);
  }
  plan.begun.insert(plan.begun.end(), kept.begin(), kept.end());
}

// By a piece at least: a plan that went below its share would get it back, from others, for ever.
bool ReadAhead::HoldsTooMuch(const Plan& plan) const {
  return plan.held_bytes >= Share(plan) + kPageBytes;
}

bool ReadAhead::ReclaimPiece(std::uint64_t number, const Plan& plan, const Place& place) {
  Item* const item = Find(place.extent, place.offset_bytes);
  if (item == nullptr || item->payer != number || item->state != State::kRead) return false;
  if (plan.held_bytes - item->charged_bytes < Share(plan)) return false;
  Release(*item);
  item->state = State::kQueued;
  return true;
}

// Chooses pieces that fit into each plan's share, in the order of the disk: names of extents sort
// as they were written.
void ReadAhead::Choose() {
  wants_runs_ = false;
  for (const auto& [number, plan] : plans_) {
    DropOld(number, plan->begun, plan->newest_step);
    DropOld(number, plan->queued, plan->newest_step);
  }
  Reclaim();
  std::vector<Chosen> pieces;
  for (const auto& [number, plan] : plans_) {
    if (!NeedsMore(*plan)) continue;
    while (!plan->queued.empty() && (plan->held_bytes == 0 || plan->held_bytes < Share(*plan))) {
      // Those who came before may hold more than what is their share by now.
      if (held_bytes_ >= bytes_max_) break;
      const Place place = plan->queued.front();
      plan->queued.pop_front();
      Item* const item = Find(place.extent, place.offset_bytes);
      // Asked for already: it may be there for others, who begin to read it in their turn.
      if (item == nullptr || FindWant(*item, number, place.step) == item->wants.end()) continue;
      plan->begun.push_back(place);
      if (item->state != State::kQueued) continue;  // Another plan wants it too.
      item->state = State::kReading;
      Charge(*item, number);
      const std::uint64_t end = std::uint64_t{place.offset_bytes} + item->size_bytes;
      for (std::uint64_t begin = place.offset_bytes; begin < end; begin += kRunBytesMax)
        pieces.push_back({items_.at(place.extent).extent,
                          begin,
                          std::min(begin + kRunBytesMax, end),
                          {place.offset_bytes}});
    }
  }
  AddChosen(std::move(pieces));
  has_work_ = !chosen_.empty();
}

void ReadAhead::AddChosen(std::vector<Chosen> pieces) {
  std::ranges::sort(pieces, [](const Chosen& a, const Chosen& b) {
    return std::tie(a.extent->id, a.begin_bytes) < std::tie(b.extent->id, b.begin_bytes);
  });
  for (Chosen& piece : pieces) {
    std::deque<Chosen>& merged = chosen_[piece.extent->disk];
    Chosen* const last = merged.empty() ? nullptr : &merged.back();
    // Over gaps that batches would read over too.
    if (last != nullptr && last->extent == piece.extent && piece.begin_bytes >= last->begin_bytes &&
        piece.begin_bytes <= last->end_bytes + kMergeGapBytesMax &&
        piece.end_bytes - last->begin_bytes <= kRunBytesMax) {
      last->end_bytes = std::max(last->end_bytes, piece.end_bytes);
      last->offsets.push_back(piece.offsets.front());
    } else {
      merged.push_back(std::move(piece));
    }
  }
}

// --- For workers ---------------------------------------------------------------------------------

void ReadAhead::Take(std::span<const Wanted> wanted) {
  const std::lock_guard lock(mutex_);
  TakeAll(wanted);
}

std::vector<ReadAhead::Run> ReadAhead::Next(std::uint64_t bytes_max, std::size_t count_max,
                                            std::span<const Disk* const> full) {
  const std::lock_guard lock(mutex_);
  return HandOut(bytes_max, count_max, full);
}

void ReadAhead::Finish(const Finished& finished) {
  const std::lock_guard lock(mutex_);
  NoteFinished(finished);
}

std::vector<ReadAhead::Run> ReadAhead::HandOut(std::uint64_t bytes_max, std::size_t count_max,
                                               std::span<const Disk* const> full) {
  std::vector<Run> runs;
  std::uint64_t bytes = 0;
  bool is_any_left = false;
  for (auto of_disk = chosen_.begin(); of_disk != chosen_.end();) {
    auto& [disk, chosen] = *of_disk;
    const bool is_full = std::ranges::find(full, disk) != full.end();
    while (!is_full && !chosen.empty() && bytes < bytes_max && runs.size() < count_max) {
      Chosen run = std::move(chosen.front());
      chosen.pop_front();
      if (!IsWanted(run)) continue;
      const auto size_bytes = static_cast<std::uint32_t>(run.end_bytes - run.begin_bytes);
      const std::uint64_t number = next_run_++;
      runs.push_back({number, run.extent, run.begin_bytes, size_bytes});
      bytes += size_bytes;
      in_flight_.emplace(number, std::move(run));
    }
    // A disk that takes none now does not keep the others from getting more.
    is_any_left = is_any_left || (!is_full && !chosen.empty());
    of_disk = chosen.empty() ? chosen_.erase(of_disk) : std::next(of_disk);
  }
  if (!is_any_left && !wants_runs_) AskForRuns();
  return runs;
}

bool ReadAhead::IsWanted(const Chosen& run) {
  return std::ranges::any_of(
      run.offsets, [&](std::uint32_t offset) { return Find(run.extent.get(), offset) != nullptr; });
}

void ReadAhead::AskForRuns() {
  const auto plan =
      std::ranges::find_if(plans_, [this](const auto& entry) { return NeedsMore(*entry.second); });
  wants_runs_ = plan != plans_.end();
  has_work_ = wants_runs_ || !chosen_.empty();
  if (wants_runs_) PostJob(plan->second->tenant);
}

void ReadAhead::NoteFinished(const Finished& finished) {
  const auto [number, was_on_disk] = finished;
  const auto found = in_flight_.find(number);
  FFR_ASSERT(found != in_flight_.end());
  const Chosen run = std::move(found->second);
  in_flight_.erase(found);
  if (was_on_disk) metrics_.read_bytes.Add(run.end_bytes - run.begin_bytes);
  for (const std::uint32_t offset : run.offsets) {
    Item* const item = Find(run.extent.get(), offset);
    if (item == nullptr || item->state != State::kReading) continue;
    item->was_on_disk = was_on_disk;
    item->state = State::kRead;
  }
}

}  // namespace ffrecord::server
