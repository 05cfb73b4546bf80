#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <thread>
#include <utility>
#include <vector>

#include <ffrecord/client/checkpoint.h>

namespace ffrecord::test {

// Ranks that are threads of one process, and gather through memory.
class ThreadGroup {
 public:
  explicit ThreadGroup(std::uint32_t size) : size_(size), slots_(size) {}

  // The group of one rank. `tamper`, if given, may change a rank's own bytes: a group that lies. A
  // rank that leaves makes every gather from now on fail on all ranks.
  class Rank final : public client::CheckpointGroup {
   public:
    using Bytes = std::vector<std::byte>;
    using Tamper = std::function<void(std::uint32_t round, Bytes& mine)>;

    Rank(ThreadGroup& group, std::uint32_t rank, Tamper tamper)
        : group_(group), rank_(rank), tamper_(std::move(tamper)) {}
    std::uint32_t rank() const override { return rank_; }
    std::uint32_t size() const override { return group_.size_; }
    Result<std::vector<Bytes>> AllGather(std::span<const std::byte> mine) override {
      Bytes bytes(mine.begin(), mine.end());
      if (tamper_) tamper_(round_, bytes);
      ++round_;
      return group_.Gather(rank_, std::move(bytes));
    }

   private:
    ThreadGroup& group_;
    std::uint32_t rank_;
    std::uint32_t round_ = 0;
    Tamper tamper_;
  };

  // Runs `work` once for each rank, in a thread of its own, and returns what each returned.
  template <class Work>
  auto Run(const Work& work, const Rank::Tamper& tamper = {}) {
    using Outcome = decltype(work(std::declval<Rank&>()));
    std::vector<std::unique_ptr<Outcome>> outcomes(size_);
    std::vector<std::thread> threads;
    for (std::uint32_t i = 0; i < size_; ++i)
      threads.emplace_back([&, i] {
        Rank rank(*this, i, tamper);
        outcomes[i] = std::make_unique<Outcome>(work(rank));
      });
    for (std::thread& thread : threads) thread.join();
    return outcomes;
  }

  void Leave() {
    const std::lock_guard lock(mutex_);
    broken_ = true;
    changed_.notify_all();
  }

 private:
  using Bytes = std::vector<std::byte>;

  Result<std::vector<Bytes>> Gather(std::uint32_t rank, Bytes mine) {
    std::unique_lock lock(mutex_);
    if (broken_) return Left();
    slots_[rank] = std::move(mine);
    const std::uint64_t round = round_;
    if (++arrived_ == size_) {
      arrived_ = 0;
      ++round_;
      gathered_ = slots_;
      changed_.notify_all();
    } else {
      changed_.wait(lock, [&] { return round_ != round || broken_; });
      if (round_ == round) return Left();  // A round that all took part in counts.
    }
    return gathered_;
  }

  static Error Left() { return {ErrorCode::kUnavailable, "a rank has left the group"}; }

  const std::uint32_t size_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<Bytes> slots_;
  std::vector<Bytes> gathered_;
  std::uint32_t arrived_ = 0;
  std::uint64_t round_ = 0;
  bool broken_ = false;
};

}  // namespace ffrecord::test
