#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

namespace ffrecord::server {

class Counter;
class Histogram;

// The metrics of one owner, in the order in which /metrics shows them. They register when their
// owner is constructed, and live as long as the set.
class MetricSet {
 public:
  struct Metric {
    const char* name;  // The name of its family. Metrics of a family register one after another.
    const char* help;
    std::string labels;  // As they are printed; empty: none.
    std::variant<const Counter*, const Histogram*> value;
  };

  MetricSet() = default;
  MetricSet(const MetricSet&) = delete;
  MetricSet& operator=(const MetricSet&) = delete;

  void Add(Metric metric) { metrics_.push_back(std::move(metric)); }
  std::span<const Metric> metrics() const noexcept { return metrics_; }

 private:
  std::vector<Metric> metrics_;
};

// A label as it is printed. Values are ours, and need no escapes.
inline std::string Label(std::string_view name, std::string_view value) {
  return std::string(name) + "=\"" + std::string(value) + "\"";
}

// A number that grows, or a gauge that goes both ways. Thread-safe; cheap, for mostly one thread
// touches it.
class Counter {
 public:
  Counter() = default;  // No set shows it.
  Counter(MetricSet& set, const char* name, const char* help, std::string labels = {}) {
    set.Add({name, help, std::move(labels), this});
  }

  void Add(std::uint64_t more = 1) noexcept { value_.fetch_add(more, std::memory_order_relaxed); }
  void Remove(std::uint64_t less = 1) noexcept {
    value_.fetch_sub(less, std::memory_order_relaxed);
  }
  void Set(std::uint64_t value) noexcept { value_.store(value, std::memory_order_relaxed); }
  std::uint64_t value() const noexcept { return value_.load(std::memory_order_relaxed); }

 private:
  std::atomic<std::uint64_t> value_{0};
};

// A counter for each value of an enumeration, with the value's name under one label. Values without
// a name are counted, and not shown.
template <class Key>
class LabelledCounters {
 public:
  struct Name {
    Key key;
    const char* text;
  };

  LabelledCounters(MetricSet& set, const char* name, const char* help, const char* label,
                   std::span<const Name> names) {
    for (const auto& [key, text] : names) set.Add({name, help, Label(label, text), &(*this)[key]});
  }
  Counter& operator[](Key key) noexcept { return counters_[static_cast<std::size_t>(key)]; }

 private:
  static_assert(sizeof(Key) == 1);
  std::array<Counter, 256> counters_;
};

// How often something took how long. Thread-safe.
//
// Bucket i holds what took at most 2^(i + 4) microseconds and did not fit the one before: 16 us
// to 16.8 s, in which every stall of a request shows; the last one holds the rest.
class Histogram {
 public:
  using Duration = std::chrono::nanoseconds;
  static constexpr int kFirstExponent = 4;
  static constexpr std::size_t kBucketCount = 22;

  Histogram(MetricSet& set, const char* name, const char* help, std::string labels) {
    set.Add({name, help, std::move(labels), this});
  }

  // The most microseconds of bucket `i` < kBucketCount - 1.
  static constexpr std::uint64_t BoundUs(std::size_t i) {
    return std::uint64_t{1} << (i + kFirstExponent);
  }

  void Observe(Duration took) noexcept {
    const auto us = std::chrono::duration_cast<std::chrono::microseconds>(took).count();
    const std::uint64_t time_us = us > 0 ? static_cast<std::uint64_t>(us) : 0;
    // Bounds are inclusive, as `le` is.
    const int width = time_us > 0 ? static_cast<int>(std::bit_width(time_us - 1)) : 0;
    const int bucket = width - kFirstExponent;
    buckets_[static_cast<std::size_t>(std::clamp(bucket, 0, int{kBucketCount} - 1))].Add();
    sum_us_.Add(time_us);
  }

  // The sum of some histograms.
  struct Sum {
    std::array<std::uint64_t, kBucketCount> buckets{};
    std::uint64_t sum_us = 0;

    void Add(const Histogram& one) noexcept {
      for (std::size_t i = 0; i < kBucketCount; ++i) buckets[i] += one.buckets_[i].value();
      sum_us += one.sum_us_.value();
    }
  };

 private:
  std::array<Counter, kBucketCount> buckets_;
  Counter sum_us_;
};

}  // namespace ffrecord::server
