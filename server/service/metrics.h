#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include <ffrecord/result.h>

namespace ffrecord::server {

// A number that grows, or a gauge that goes both ways. Thread-safe; cheap, for mostly one thread
// touches it.
class Counter {
 public:
  void Add(std::uint64_t more = 1) noexcept { value_.fetch_add(more, std::memory_order_relaxed); }
  void Remove(std::uint64_t less = 1) noexcept {
    value_.fetch_sub(less, std::memory_order_relaxed);
  }
  void Set(std::uint64_t value) noexcept { value_.store(value, std::memory_order_relaxed); }
  std::uint64_t value() const noexcept { return value_.load(std::memory_order_relaxed); }

 private:
  std::atomic<std::uint64_t> value_{0};
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

// The counters of one event loop; the admin port adds them up.
struct alignas(64) WorkerMetrics {
  static constexpr std::size_t kTransportCount = 4;
  static constexpr std::array<const char*, kTransportCount> kTransportNames{"tcp", "shm", "tls",
                                                                            "rdma"};
  static std::size_t TransportIndex(std::string_view transport) {
    return transport == "shm" ? 1 : transport == "tls" ? 2 : transport == "rdma" ? 3 : 0;
  }

  // Where the time of a batch read goes. Queue: until its first read was started. Disk: until the
  // last has completed, less grant: nothing is being read, for the client takes or grants no more.
  // Network: until the last byte of payload is the kernel's, or lies in the client's memory.
  struct ReadStages {
    Histogram queue, disk, grant, network, whole;
  };
  // Where the time of writing an extent goes. Queue: waiting for a thread.
  struct WriteStages {
    Histogram queue, disk, checksum, whole;
  };

  std::array<Counter, kTransportCount> connections;  // Now.
  std::array<Counter, kTransportCount> connections_opened;
  Counter connection_faults;
  Counter kernel_tls;  // Connections whose bytes the kernel enciphers.
  Counter tokens_refused;
  std::array<Counter, 0x60> requests;  // By type of frame.
  std::array<Counter, 10> errors;      // ERROR replies, by code.
  Counter busy_batches;                // BUSY replies.
  Counter busy_jobs;
  std::array<Counter, 9> entries;  // Entries of batches, by status.
  std::array<Counter, kTransportCount> read_bytes;
  Counter written_bytes;
  Counter batches;  // Under way now, as are those below.
  Counter jobs;
  Counter disk_reads;
  Counter held_bytes;
  ReadStages read;
  WriteStages write;
};

}  // namespace ffrecord::server
