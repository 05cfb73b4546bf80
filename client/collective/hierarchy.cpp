#include <algorithm>
#include <utility>

#include "client/collective/schedule.h"
#include "libffrecord/base/assert.h"

namespace ffrecord::client {
namespace {

// On one machine the array is worked off in blocks that stay in the caches from the first time they
// are touched to the last: so many elements of each for each rank.
constexpr std::uint64_t kBlockElements = 64 << 10;
constexpr std::uint64_t kBlocksMax = 4096;

// Steps of a block follow one another: g - 1 in which each rank gets its part of the block from all
// others of its machine, and adds; those of a ring over the machines, on that part; g - 1 in which
// each passes its part on. With several machines all is one block: rings are for large parts.
class Builder {
 public:
  Builder(std::uint64_t count, std::uint32_t rank, const Machines& machines)
      : machines_(machines),
        g_(machines.ranks_each()),
        m_(machines.count()),
        own_(machines.PlaceOf(rank)),
        count_(count) {}

  Schedule Build() {
    if (m_ > 1) {
      const Range all{0, count_};
      Gather(all, 0);
      Ring(PartOf(all, own_.local), g_ - 1);
      Spread(all, g_ - 1 + 2 * (m_ - 1));
      return std::move(schedule_);
    }
    // The next block is under way before the results of one are passed on, so that nobody waits.
    const auto blocks = static_cast<std::uint32_t>(
        std::clamp<std::uint64_t>(count_ / (g_ * kBlockElements), 1, kBlocksMax));
    std::uint32_t step = 0;
    for (std::uint32_t block = 0; block <= blocks; ++block) {
      if (block < blocks)
        Gather(client::PartOf(count_, blocks, block), std::exchange(step, step + g_ - 1));
      if (block > 0)
        Spread(client::PartOf(count_, blocks, block - 1), std::exchange(step, step + g_ - 1));
    }
    return std::move(schedule_);
  }

 private:
  Range PartOf(Range of, std::uint32_t index) const { return Within(of, g_, index); }
  static Range Within(Range of, std::uint32_t parts, std::uint32_t index) {
    const Range part = client::PartOf(of.size(), parts, index);
    return {of.begin + part.begin, of.begin + part.end};
  }
  std::uint32_t Near(std::uint32_t local) const {
    return machines_.RankAt({own_.machine, local % g_});
  }
  std::uint32_t Far(std::uint32_t machine) const {
    return machines_.RankAt({machine % m_, own_.local});
  }

  void Gather(Range of, std::uint32_t first_step) {
    for (std::uint32_t i = 1; i < g_; ++i) {
      const std::uint32_t to = (own_.local + i) % g_;
      const std::uint32_t step = first_step + i - 1;
      schedule_.sends.push_back({step, Near(to), PartOf(of, to)});
      schedule_.arrivals.push_back({{step, Near(own_.local + g_ - i), PartOf(of, own_.local)},
                                    true,
                                    m_ == 1 && i + 1 == g_});
    }
  }

  // As the ring over all ranks, but of one of each machine.
  void Ring(Range of, std::uint32_t first_step) {
    const auto segment = [&](std::uint32_t step) {
      return Within(of, m_, (own_.machine + 2 * m_ - step - 1) % m_);
    };
    for (std::uint32_t step = 0; step < 2 * (m_ - 1); ++step) {
      schedule_.sends.push_back({first_step + step, Far(own_.machine + 1), segment(step)});
      schedule_.arrivals.push_back(
          {{first_step + step, Far(own_.machine + m_ - 1), segment(step + 1)},
           step + 1 < m_,
           step + 2 == m_});
    }
  }

  // By the segments of the rings: what was rounded for the wire has to go on in the same pieces.
  void Spread(Range of, std::uint32_t first_step) {
    for (std::uint32_t i = 1; i < g_; ++i) {
      const std::uint32_t from = (own_.local + g_ - i) % g_;
      const std::uint32_t step = first_step + i - 1;
      for (std::uint32_t k = 0; k < m_; ++k) {
        const Range sent = Within(PartOf(of, own_.local), m_, k);
        const Range arrives = Within(PartOf(of, from), m_, k);
        // Empty ranges touch each other: of those one is enough.
        if (k == 0 || sent.size() > 0)
          schedule_.sends.push_back({step, Near(own_.local + i), sent});
        if (k == 0 || arrives.size() > 0)
          schedule_.arrivals.push_back({{step, Near(from), arrives}});
      }
    }
  }

  const Machines& machines_;
  const std::uint32_t g_;
  const std::uint32_t m_;
  const Machines::Place own_;
  const std::uint64_t count_;
  Schedule schedule_;
};

}  // namespace

Schedule Hierarchy(std::uint64_t count, std::uint32_t rank, const Machines& machines) {
  FFR_ASSERT(machines.ranks_each() > 1);
  return Builder(count, rank, machines).Build();
}

}  // namespace ffrecord::client
