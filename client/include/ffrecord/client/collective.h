#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include <ffrecord/export.h>
#include <ffrecord/result.h>

namespace ffrecord::client {

enum class ReduceType : std::uint8_t {
  kF32,
  kF64,
  kF16,
  kBf16,
  kI32,
  kI64,
  kBytes,  // Moved only: all-gathered or broadcast.
};
enum class ReduceOp : std::uint8_t { kSum, kAverage, kMin, kMax };

// How an all-reduce of S bytes over n ranks goes. In time, with latency a and b for each byte:
enum class Algorithm : std::uint8_t {
  kRing,             // 2 (n - 1) a + 2 (n - 1) / n S b: large arrays, any n.
  kHalvingDoubling,  // 2 log2(n) a, else as the ring: n a power of two, else one rank more to fold.
  kRecursiveDoubling,  // log2(n) (a + S b): small arrays.
  kDoubleTree,         // about 2 log2(n) a + 2 S b, in pieces: small and medium arrays, any n.
  // Where m machines have g > 1 ranks each that share memory: summed within each machine, each of
  // its ranks a part; then each part by a ring of its own over the machines, 2 (m - 1) / m S / g
  // bytes from each rank; then passed on within each machine.
  kHierarchical,
};

// What kF32 arrays of an all-reduce are sent as. The halves take half of the bytes. Sums are still
// made in fp32; each is rounded when it is sent on, by the ring n times, by halving or doubling and
// by trees log2(n) times, each time by at most the part of its magnitude that is given here.
enum class WireType : std::uint8_t {
  kExact,
  kBf16,  // 2^-8.
  // 2^-11, or 2^-39 of the largest magnitude in the same chunk if that is more: each chunk is
  // scaled by a power of two of its own, so nothing overflows. Not by kHalvingDoubling.
  kF16,
};

// How ranks reach each other, but for those that share memory.
enum class GroupTransport : std::uint8_t {
  kTcp,
  // Each piece is written into memory of the rank that it goes to, and added from there. The ranks
  // meet over TCP. Takes four chunks of locked memory for each rank and stream that sends to one.
  kRdma,
};

// A group of ranks that reduce and pass on arrays together: over TCP or RDMA, and between ranks of
// one machine through shared memory.
//
// Operations run in the order of submission, which must be the same on all ranks; the next begins
// when the one before has nothing more to send. A progress thread of the engine moves the bytes.
// All ranks get identical bits, and the same bits in every run with the same world size and
// algorithm. An operation that a peer does not join ends with
// kUnavailable, at once if its process has ended, or kDeadlineExceeded on every rank, once nothing
// has moved for the timeout while it was first in line; the error names that peer, and whether it
// answers but has not joined. One that differs between ranks ends with kInvalidArgument. The group
// is then closed, and later operations fail alike.
//
// Sums of the half types are added in fp32 and rounded to nearest-even at each rank. For an average
// each rank divides its own array first, in fp32 (fp64 for kF64), so that no partial sum overflows
// where the average does not. NaNs become the one quiet NaN, and make a minimum or maximum NaN.
// Integers wrap and have no average.
//
// All but Create and Connect is thread-safe. After fork the child must not use it (asserted).
class FFR_EXPORT CollectiveEngine {
 public:
  static constexpr std::uint16_t kStreamsMax = 16;
  struct Options {
    std::string listen_host = "127.0.0.1";       // Address that the ranks before this one reach.
    std::chrono::milliseconds timeout{60'000};   // Without any progress; and for Connect().
    std::uint64_t chunk_size_bytes = 512 << 10;  // Largest piece of a step; 64 B to 8 MiB.
    // None: Connect() measures latency and bandwidth, and each all-reduce goes by what that makes
    // quickest for its size. Then two groups may choose otherwise, and round otherwise.
    std::optional<Algorithm> algorithm = std::nullopt;
    WireType wire = WireType::kExact;  // The same on all ranks.
    // Connections from each rank to each other over the network, 1 to kStreamsMax; the same on all
    // ranks. Each carries as much as it can, so that a slow one costs its share only; one that is
    // lost is told of (events()), the others carry on, and it is made anew.
    std::uint16_t streams = 1;
    // Ranks that were started on the same boot of a machine, in the same network namespace, and
    // have this on find each other by their addresses, and speak through memory that both have
    // mapped. Connect() fails with the reason if that cannot be had.
    bool shares_memory = true;
    // The same on all ranks. What cannot be had fails Create() or Connect() with the reason; with
    // kRdma a stream that is lost is not made anew.
    GroupTransport transport = GroupTransport::kTcp;
    // With kRdma: the devices, of which stream i takes number i modulo their count; so they are the
    // rails, in the same order on all ranks. Empty: the first that can be used.
    std::vector<std::string> rdma_devices = {};
    // With kRdma: how what is sent is marked, in the IP header (DSCP times 4; at most 255) and in a
    // VLAN tag (at most 15).
    std::uint32_t rdma_traffic_class = 0;
    std::uint32_t rdma_service_level = 0;
  };

  // Opens the listener, and the devices, which fails with kUnavailable if there is none or none
  // that can be used. Its address and a secret of the group then travel by other means (the
  // process group that launched the ranks) to Connect().
  static Result<CollectiveEngine> Create(std::uint32_t rank, std::uint32_t world_size,
                                         const Options& options);
  CollectiveEngine(CollectiveEngine&&) noexcept;
  CollectiveEngine& operator=(CollectiveEngine&&) noexcept;
  ~CollectiveEngine();  // Fails what is pending and joins the thread.

  // "host:port" of the listener, and behind it what those of the same machine find it by.
  std::string address() const;

  // Connects to those of the group that this rank speaks to: about 2 log2(world_size) + 6 of them,
  // and all of its machine.
  // `addresses` of all ranks in rank order, `secret` equal on all. Fails with kUnavailable,
  // kDeadlineExceeded, kDenied.
  Result<void> Connect(std::span<const std::string> addresses,
                       std::span<const std::byte, 16> secret);

  // Each starts an operation in place over `count` elements at `data`, which stay untouched by the
  // caller until the token is returned by Wait or WaitAny, and returns at once. All ranks pass the
  // same `count`.
  using Token = std::uint64_t;
  Result<Token> AllReduce(void* data, std::uint64_t count, ReduceType type, ReduceOp op);
  // Leaves the result in this rank's part only; the other elements are undefined.
  Result<Token> ReduceScatter(void* data, std::uint64_t count, ReduceType type, ReduceOp op);
  // Each rank provides its part and gets all others.
  Result<Token> AllGather(void* data, std::uint64_t count, ReduceType type);
  Result<Token> Broadcast(void* data, std::uint64_t count, ReduceType type, std::uint32_t root);
  // Ends when all ranks have submitted it.
  Result<Token> Barrier();

  // A rank's part of an array: elements [begin, end). Parts are in rank order, and their sizes
  // differ by one at most.
  struct Part {
    std::uint64_t begin;
    std::uint64_t end;
  };
  static Part PartOf(std::uint64_t count, std::uint32_t world_size, std::uint32_t rank) noexcept;

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

  // Counters since the start: bytes sent and received on the wire, and given to ranks of this
  // machine in shared memory; nanoseconds spent reducing.
  struct Stats {
    std::uint64_t bytes_sent;
    std::uint64_t bytes_received;
    std::uint64_t bytes_shared;
    std::uint64_t operations;
    std::uint64_t reduce_ns;
    std::uint32_t streams_lost;
  };
  Stats stats() const noexcept;

  // What has happened since the start that a person should know of, in order: streams that were
  // lost, and why. The newest 1,000.
  struct Event {
    std::int64_t at_ns;  // CLOCK_MONOTONIC.
    std::string text;
  };
  std::vector<Event> events() const;

  // What operations that are submitted from now on go by. Chunk and algorithm decide how ranks cut
  // arrays: all ranks change them between the same two operations. Fails with kInvalidArgument for
  // a chunk above Options::chunk_size_bytes or below 64 B, or an algorithm that the group cannot
  // go by.
  struct Tuning {
    std::uint64_t chunk_size_bytes = 0;                 // 0: that of Options.
    std::optional<Algorithm> algorithm = std::nullopt;  // Of all-reduces of 64 KiB and more.
    std::uint16_t streams = 0;                          // At most so many are used; 0: all.
  };
  Result<void> Tune(const Tuning& tuning);

 private:
  struct Impl;
  Result<void> ChooseAlgorithms();
  explicit CollectiveEngine(std::unique_ptr<Impl> impl) noexcept;
  std::unique_ptr<Impl> impl_;
};

}  // namespace ffrecord::client
