#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include <ffrecord/export.h>
#include <ffrecord/result.h>

namespace ffrecord::client {

enum class ReduceType : std::uint8_t { kF32, kF64, kF16, kBf16, kI32, kI64 };
enum class ReduceOp : std::uint8_t { kSum, kAverage, kMin, kMax };

// A group of ranks that reduce arrays together, in a ring over TCP.
//
// Operations run one after another in the order of Submit(), which must be the same on all ranks.
// A progress thread of the engine moves the bytes. All ranks get identical bits, and the same bits
// in every run with the same world size. An operation that a peer does not join ends with
// kUnavailable or kDeadlineExceeded on every rank within the timeout, which counts from when it is
// first in line, and names that peer; one that differs between ranks with kInvalidArgument. The
// group is then closed, and later operations fail alike.
//
// Sums of the half types are added in fp32 and rounded to nearest-even at each rank. An average is
// divided once, in fp32 (fp64 for kF64), by the rank that completes the sum. NaNs become the one
// quiet NaN, and make a minimum or maximum NaN. Integers wrap and have no average.
//
// All but Create and Connect is thread-safe. After fork the child must not use it (asserted).
class FFR_EXPORT CollectiveEngine {
 public:
  struct Options {
    std::string listen_host = "127.0.0.1";       // Address that the ranks before this one reach.
    std::chrono::milliseconds timeout{60'000};   // For each operation, and for Connect().
    std::uint64_t chunk_size_bytes = 512 << 10;  // Pipelined piece of a ring step; 64 B to 8 MiB.
  };

  // Opens the listener. Its address and a secret of the group then travel by other means (the
  // process group that launched the ranks) to Connect().
  static Result<CollectiveEngine> Create(std::uint32_t rank, std::uint32_t world_size,
                                         const Options& options);
  CollectiveEngine(CollectiveEngine&&) noexcept;
  CollectiveEngine& operator=(CollectiveEngine&&) noexcept;
  ~CollectiveEngine();  // Fails what is pending and joins the thread.

  std::string address() const;  // "host:port" of the listener.

  // Connects to the next rank and takes the connection of the one before. `addresses` of all ranks
  // in rank order, `secret` equal on all. Fails with kUnavailable, kDeadlineExceeded, kDenied.
  Result<void> Connect(std::span<const std::string> addresses,
                       std::span<const std::byte, 16> secret);

  // Starts an all-reduce in place over `count` elements at `data`, which stay untouched by the
  // caller until the token is returned by Wait. Returns at once.
  using Token = std::uint64_t;
  Result<Token> AllReduce(void* data, std::uint64_t count, ReduceType type, ReduceOp op);

  // Waits for that operation. Success means that `data` holds the result; after an error its bytes
  // are undefined. Each end is returned once, here or by WaitAny; asking again is kInvalidArgument.
  Result<void> Wait(Token token);

  // Waits for any operation to end and says which and how: for one pump that completes futures.
  // Fails with kDeadlineExceeded when nothing ends within `timeout`, kUnavailable after Shutdown
  // when all ends were returned.
  struct Completion {
    Token token;
    Result<void> outcome;
    std::int64_t began_ns;  // CLOCK_MONOTONIC: its turn came, and it ended.
    std::int64_t ended_ns;
  };
  Result<Completion> WaitAny(std::chrono::milliseconds timeout);

  void Shutdown() noexcept;  // Fails what is pending and wakes all who wait. Idempotent.

  // Counters since the start: bytes sent and received on the wire, nanoseconds spent reducing.
  struct Stats {
    std::uint64_t bytes_sent;
    std::uint64_t bytes_received;
    std::uint64_t operations;
    std::uint64_t reduce_ns;
  };
  Stats stats() const noexcept;

 private:
  struct Impl;
  explicit CollectiveEngine(std::unique_ptr<Impl> impl) noexcept;
  std::unique_ptr<Impl> impl_;
};

}  // namespace ffrecord::client
