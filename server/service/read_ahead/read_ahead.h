#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include <ffrecord/result.h>

#include "server/service/metrics.h"
#include "server/service/read_ahead/plan_order.h"
#include "server/service/read_ahead/planned_records.h"
#include "server/storage/extent_store.h"

namespace ffrecord::server {

// Says what to read ahead of what clients have sent prefetch hints for: into the page cache, from
// which batches are sent anyhow (15-read-ahead-into-the-page-cache.md). Workers that have nothing
// else to do take it from here and read it (34-idle-workers-follow-hints.md).
//
// Each plan is evaluated some way ahead. As many evaluated pieces as the bound allows are handed
// out, in the order of the disk; a piece that several plans want is read once. Tenants have equal
// shares of the bound and of the number of plans, no matter which came first, and the plans of a
// tenant share his. A batch that takes its pieces makes room for more, whichever connection it
// comes on. It is only ever a hint: nothing is kept from anybody, and what the kernel has dropped
// meanwhile is read again by the batch, and counted.
//
// Thread-safe; has no thread. No call but Begin() waits for the disk.
class ReadAhead {
 public:
  struct Metrics : MetricSet {
    Counter plans{*this, "ffrecord_read_ahead_plans", "Epoch plans being followed."};
    Counter held_bytes{*this, "ffrecord_read_ahead_held_bytes",
                       "Bytes read ahead and not yet requested."};
    Counter held_bytes_max{*this, "ffrecord_read_ahead_held_bytes_max",
                           "Limit of bytes held by read-ahead."};
    Counter read_bytes{*this, "ffrecord_read_ahead_bytes_total", "Bytes read ahead."};
    Counter hit_bytes = Outcome("hit");
    Counter late_bytes = Outcome("late");
    Counter lost_bytes = Outcome("lost");
    Counter unused_bytes = Outcome("unused");

   private:
    Counter Outcome(const char* outcome) {
      return {*this, "ffrecord_read_ahead_outcome_bytes_total",
              "Planned bytes by outcome: hit (in memory when requested), late (requested before "
              "they arrived), lost (dropped by the kernel before the request), unused.",
              Label("outcome", outcome)};
    }
  };

  // Ends its plan when it goes. Outlived by the ReadAhead.
  class Handle {
   public:
    Handle() = default;
    Handle(Handle&& other) noexcept
        : owner_(std::exchange(other.owner_, nullptr)), plan_(other.plan_) {}
    Handle& operator=(Handle&& other) noexcept {
      std::swap(owner_, other.owner_);
      std::swap(plan_, other.plan_);
      return *this;
    }
    ~Handle() {
      if (owner_ != nullptr) owner_->End(plan_);
    }

   private:
    friend class ReadAhead;
    Handle(ReadAhead& owner, std::uint64_t plan) : owner_(&owner), plan_(plan) {}
    ReadAhead* owner_ = nullptr;
    std::uint64_t plan_ = 0;
  };

  // A part of a batch: a run of bytes, and whether all of it was in memory then.
  struct Wanted {
    const Extent* extent = nullptr;
    std::uint64_t offset_bytes = 0;
    std::uint32_t size_bytes = 0;
    bool is_in_memory = false;
  };

  // Neighbours that are to be read together.
  struct Run {
    std::uint64_t number = 0;
    ExtentPtr extent;
    std::uint64_t offset_bytes = 0;
    std::uint32_t size_bytes = 0;  // At most kRunBytesMax.
  };
  static constexpr std::uint64_t kRunBytesMax = std::uint64_t{256} << 10;

  // Has the job run elsewhere, jobs of one tenant one after another, before the ReadAhead goes.
  using Post = std::function<void(std::string_view tenant, std::function<void()> job)>;

  // At most `bytes_max` are read and not yet asked for; 0: no plan is taken. `post` is for what may
  // block on the disk; it is not called after the last plan has ended.
  ReadAhead(std::uint64_t bytes_max, Metrics& metrics, Post post);
  ReadAhead(const ReadAhead&) = delete;
  ReadAhead& operator=(const ReadAhead&) = delete;
  ~ReadAhead();  // Plans have ended.

  // Begins to follow a plan; what is asked for from now on is taken off it. Blocks on the disk for
  // a first look into the index. Fails with kInvalidArgument if the plan is not one of these
  // records, kUnavailable if there are too many plans, or if `tenant` has as many as are left to
  // all others.
  Result<Handle> Begin(std::shared_ptr<const PlannedRecords> records, const net::PlanSet& plan,
                       std::string_view tenant = {});

  // A run that was read, or could not be: a batch that asks for it gets the reason.
  struct Finished {
    std::uint64_t number = 0;
    bool was_on_disk = false;  // It was not in memory anyhow.
  };

  bool takes_plans() const noexcept { return bytes_max_ > 0; }
  // Whether Take() is of any use. Cheap.
  bool has_plans() const noexcept { return has_plans_.load(std::memory_order_relaxed); }
  // Whether Next() may have something, now or soon. Cheap.
  bool has_work() const noexcept { return has_work_.load(std::memory_order_relaxed); }

  // These wait for each other; workers, which must not, have a ReadAheadPort.
  void Take(std::span<const Wanted> wanted);
  // The runs to read next from disks that are not in `full`: of about `bytes_max`, and at most
  // `count_max` runs. Each is to be given to Finish().
  std::vector<Run> Next(std::uint64_t bytes_max, std::size_t count_max,
                        std::span<const Disk* const> full = {});
  void Finish(const Finished& finished);

 private:
  friend class ReadAheadPort;

  // A piece of a record that some plan wants.
  struct Want {
    std::uint64_t plan = 0;
    std::uint64_t step = 0;
  };
  enum class State : std::uint8_t { kQueued, kReading, kRead };
  struct Item {
    std::uint32_t size_bytes = 0;
    State state = State::kQueued;
    bool was_on_disk = false;  // Read by us: it was not in memory anyhow.
    bool was_taken = false;
    std::uint64_t payer = 0;          // The plan in whose share it counts, unless it is queued;
    std::uint64_t charged_bytes = 0;  // with so much.
    std::vector<Want> wants;          // At least one.
  };
  struct Items {
    ExtentPtr extent;
    std::map<std::uint32_t, Item> by_offset;  // At least one.
  };
  struct Place {
    const Extent* extent = nullptr;
    std::uint32_t offset_bytes = 0;
    std::uint64_t step = 0;
  };
  struct Plan {
    Plan(std::shared_ptr<const PlannedRecords> of, PlanOrder in, std::string_view by)
        : records(std::move(of)), order(in), tenant(by) {}
    std::uint64_t number = 0;
    const std::shared_ptr<const PlannedRecords> records;
    PlanOrder order;  // Used by the thread that evaluates: Begin(), then the tenant's jobs.
    const std::string tenant;
    std::uint64_t turn = 0;     // When it was evaluated last, as turns_ counts.
    bool is_evaluated = false;  // The order is at its end.
    std::deque<Place> queued;   // Evaluated and not yet begun to read; some may be gone meanwhile.
    std::deque<Place> begun;    // Begun to read, in the plan's order.
    std::uint64_t held_bytes = 0;
    std::uint64_t newest_step = 0;  // Newest step that was asked for.
  };
  // A run before it is handed out, and the items in it.
  struct Chosen {
    ExtentPtr extent;
    std::uint64_t begin_bytes = 0;
    std::uint64_t end_bytes = 0;
    std::vector<std::uint32_t> offsets;
  };
  struct Tenant {
    std::size_t plan_count = 0;
    bool has_job = false;
  };
  using Pieces = std::vector<std::pair<PlannedRecords::Piece, std::uint64_t>>;  // And their steps.

  void End(std::uint64_t number);
  static Pieces Evaluate(Plan& plan, std::size_t count_max);
  void Enqueue(std::uint64_t number, Plan& plan, const Pieces& pieces);
  void TakeOne(const Wanted& wanted);
  void Count(const Item& item, bool is_in_memory);
  void Charge(Item& item, std::uint64_t payer);
  void Release(Item& item);
  void Withdraw(Item& item, std::uint64_t number);
  static std::vector<Want>::iterator FindWant(Item& item, std::uint64_t number, std::uint64_t step);
  void DropWant(std::uint64_t number, const Place& place);
  void DropOld(std::uint64_t number, std::deque<Place>& places, std::uint64_t newest_step);
  Item* Find(const Extent* extent, std::uint32_t offset_bytes);
  void Erase(const Extent* extent, std::uint32_t offset_bytes);
  // The share of `plan` in `whole`.
  std::uint64_t ShareOf(const Plan& plan, std::uint64_t whole) const {
    return whole / tenants_.size() / tenants_.find(plan.tenant)->second.plan_count;
  }
  std::uint64_t Share(const Plan& plan) const { return ShareOf(plan, bytes_max_); }
  std::size_t EvaluatedMax(const Plan& plan) const;
  bool NeedsMore(const Plan& plan) const;
  bool NeedsEvaluation(const Plan& plan) const;

  // Has the tenant's plans evaluated further, and runs chosen if they are asked for.
  void PostJob(std::string_view tenant);
  void RunJob(const std::string& tenant);
  // Among the tenant's plans that need it, the one that has waited longest for its turn; or none.
  std::shared_ptr<Plan> NextToEvaluate(std::string_view tenant) const;
  void EvaluateSome(std::unique_lock<std::mutex>& lock, const std::shared_ptr<Plan>& plan);
  // Takes from plans the pieces that they hold beyond their shares, so that others get theirs.
  void Reclaim();
  void ReclaimFrom(std::uint64_t number, Plan& plan);
  bool HoldsTooMuch(const Plan& plan) const;
  // True if the plan pays for what is at `place` no more: it is to be read again.
  bool ReclaimPiece(std::uint64_t number, const Plan& plan, const Place& place);
  void Choose();
  // Adds them to chosen_, in the order of the disk.
  void AddChosen(std::vector<Chosen> pieces);
  bool IsWanted(const Chosen& run);
  void AskForRuns();

  // The work of Take(), Next() and Finish(), with mutex_ held.
  void TakeAll(std::span<const Wanted> wanted);
  std::vector<Run> HandOut(std::uint64_t bytes_max, std::size_t count_max,
                           std::span<const Disk* const> full);
  void NoteFinished(const Finished& finished);

  const std::uint64_t bytes_max_;
  Metrics& metrics_;
  const Post post_;
  std::atomic<bool> has_plans_{false};
  std::atomic<bool> has_work_{false};

  std::mutex mutex_;
  bool wants_runs_ = false;  // A job is to choose some.
  std::uint64_t next_plan_ = 1;
  std::uint64_t held_bytes_ = 0;
  std::uint64_t turns_ = 0;
  std::map<std::uint64_t, std::shared_ptr<Plan>> plans_;
  std::map<std::string, Tenant, std::less<>> tenants_;
  std::unordered_map<const Extent*, Items> items_;
  // To be handed out, in this order on each disk; some are not wanted any more.
  std::map<const Disk*, std::deque<Chosen>> chosen_;
  std::map<std::uint64_t, Chosen> in_flight_;
  std::uint64_t next_run_ = 1;
  std::vector<std::uint64_t> touched_;  // By one Take().
};

}  // namespace ffrecord::server
