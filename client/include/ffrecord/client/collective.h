#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <ffrecord/export.h>
#include <ffrecord/result.h>

namespace ffrecord::client {

// The values of these two travel between ranks.
enum class ReduceType : std::uint8_t {
  kF32 = 0,
  kF64 = 1,
  kF16 = 2,
  kBf16 = 3,
  kI32 = 4,
  kI64 = 5,
  kBytes = 6,  // Moved only: all-gathered or broadcast.
};
enum class ReduceOp : std::uint8_t {
  kSum = 0,
  kAverage = 1,
  kMin = 2,
  kMax = 3,
  kProduct = 4,
  kBitAnd = 5,
  kBitOr = 6,
  kBitXor = 7,
};

struct ReduceTypeTraits {
  ReduceType type;
  std::string_view name;   // As NumPy and torch call it.
  std::string_view label;  // In messages.
  std::size_t size_bytes;
  enum class Kind : std::uint8_t { kReal, kInteger, kBytes } kind;
};
struct ReduceOpTraits {
  ReduceOp op;
  std::string_view name;
  std::string_view label;  // In messages.
  bool is_of_reals, is_of_integers;
};
// All types, and all operations.
FFR_EXPORT std::span<const ReduceTypeTraits> ReduceTypes() noexcept;
FFR_EXPORT std::span<const ReduceOpTraits> ReduceOps() noexcept;

// Algorithm of an all-reduce of S bytes over n ranks. The comments give its time, with latency a
// and time b per byte.
enum class Algorithm : std::uint8_t {
  kRing,  // 2 (n - 1) a + 2 (n - 1) / n S b: large arrays, any n.
  // 2 log2(n) a, else as the ring. Unless n is a power of two, extra ranks are folded in first.
  kHalvingDoubling,
  kRecursiveDoubling,  // log2(n) (a + S b): small arrays.
  kDoubleTree,         // about 2 log2(n) a + 2 S b, in pieces: small and medium arrays, any n.
  // For m machines with g > 1 ranks each that share memory. Each machine first sums within itself,
  // one shard of the array per rank. A separate ring over the machines then sums each shard:
  // 2 (m - 1) / m S / g bytes from each rank. Each machine then distributes the result to its
  // ranks.
  kHierarchical,
};

// Wire format of kF32 arrays in an all-reduce. The half types send half of the bytes. Sums are
// still computed in fp32 and rounded when they are sent on: n times by the ring, log2(n) times by
// halving, doubling and trees. The comments give the largest relative error of each rounding.
enum class WireType : std::uint8_t {
  kExact,
  kBf16,  // 2^-8.
  // 2^-11, or 2^-39 of the largest magnitude in the same chunk if that is more. Each chunk is
  // scaled by its own power of two, so nothing overflows. Not with kHalvingDoubling.
  kF16,
};

// Transport between ranks that do not share memory.
enum class GroupTransport : std::uint8_t {
  kTcp,
  // The sender writes each piece into memory of the receiver, which adds it from there. Ranks
  // connect over TCP first. Each rank locks four chunks of memory per stream and sending rank.
  kRdma,
};

// A group of ranks that runs collective operations on arrays: over TCP or RDMA, and through shared
// memory between ranks of one machine.
//
// Operations run in the order of submission, which must be the same on all ranks. The next one
// begins when the one before has nothing more to send. A progress thread of the engine moves the
// bytes. All ranks get identical bits, and the same bits in every run with the same world size and
// algorithm.
//
// If a peer does not join an operation, the operation fails on every rank: with kUnavailable, at
// once, if the peer's process has ended; with kDeadlineExceeded if the operation was first in line
// and nothing moved for the timeout. The error names the peer, and says whether it answers but has
// not joined. If ranks submit different operations, they fail with kInvalidArgument. After any of
// these errors the group is closed, and later operations fail too.
//
// Sums of the half types are added in fp32 and rounded to nearest-even at each rank. For an average
// each rank first divides its own array, in fp32 (fp64 for kF64), so that a partial sum overflows
// only if the average does. NaNs become the one quiet NaN; a minimum or maximum over a NaN is NaN.
// Integers wrap and have no average; only integers have bits to combine. Products of the half types
// are made and rounded as their sums are.
//
// All functions except Create and Connect are thread-safe. After fork the child must not use the
// engine (asserted).
class FFR_EXPORT CollectiveEngine {
 public:
  static constexpr std::uint16_t kStreamsMax = 16;
  struct Options {
    std::string listen_host = "127.0.0.1";       // Address by which lower ranks reach this one.
    std::chrono::milliseconds timeout{60'000};   // Without progress; also of Connect().
    std::uint64_t chunk_size_bytes = 512 << 10;  // Largest piece of a step; 64 B to 8 MiB.
    // None: Connect() measures latency and bandwidth, and each all-reduce uses the fastest
    // algorithm for its size by that model. Two groups may then choose, and round, differently.
    std::optional<Algorithm> algorithm = std::nullopt;
    WireType wire = WireType::kExact;  // The same on all ranks.
    // Network connections between each pair of ranks, 1 to kStreamsMax; the same on all ranks. Each
    // carries as much as it can, so a slow one costs only its share. If one is lost, events()
    // reports it, the others continue, and it is reconnected.
    std::uint16_t streams = 1;
    // Ranks with this option on the same boot of a machine, in the same network namespace, find
    // each other by their addresses and communicate through shared memory. Connect() fails with the
    // reason if shared memory is unavailable.
    bool shares_memory = true;
    // The same on all ranks. If the transport is unavailable, Create() or Connect() fails with the
    // reason. With kRdma a lost stream is not reconnected.
    GroupTransport transport = GroupTransport::kTcp;
    // With kRdma: the devices (rails), in the same order on all ranks. Stream i uses device number
    // i modulo their count. Empty: the first usable device.
    std::vector<std::string> rdma_devices = {};
    // With kRdma: QoS of sent packets, in the IP header (DSCP times 4; at most 255) and in a
    // VLAN tag (at most 15).
    std::uint32_t rdma_traffic_class = 0;
    std::uint32_t rdma_service_level = 0;
    // The group has two ranks and runs no collectives after Connect(), but messages; see Send().
    bool carries_messages = false;
  };

  // Opens the listener and the RDMA devices; fails with kUnavailable if no device is usable. The
  // caller then passes the listener's address and a secret of the group to Connect() on all ranks,
  // for example over the process group that launched them.
  static Result<CollectiveEngine> Create(std::uint32_t rank, std::uint32_t world_size,
                                         const Options& options);
  CollectiveEngine(CollectiveEngine&&) noexcept;
  CollectiveEngine& operator=(CollectiveEngine&&) noexcept;
  ~CollectiveEngine();  // Fails pending operations and joins the progress thread.

  // "host:port" of the listener, followed by the data by which ranks of the same machine find it.
  std::string address() const;

  // Connects to the peers that this rank exchanges data with: about 2 log2(world_size) + 6 ranks,
  // and all ranks of its machine. `addresses` are those of all ranks, in rank order; `secret` is
  // equal on all ranks. Fails with kUnavailable, kDeadlineExceeded, kDenied.
  Result<void> Connect(std::span<const std::string> addresses,
                       std::span<const std::byte, 16> secret);

  // Each function starts an operation in place over `count` elements at `data` and returns at once.
  // The caller must not touch `data` until Wait or WaitAny has returned the token. All ranks pass
  // the same `count`.
  using Token = std::uint64_t;
  Result<Token> AllReduce(void* data, std::uint64_t count, ReduceType type, ReduceOp op);
  // Leaves the result only in this rank's shard (ShardOf); the other elements are undefined.
  Result<Token> ReduceScatter(void* data, std::uint64_t count, ReduceType type, ReduceOp op);
  // Each rank provides its shard (ShardOf) and receives all others.
  Result<Token> AllGather(void* data, std::uint64_t count, ReduceType type);
  Result<Token> Broadcast(void* data, std::uint64_t count, ReduceType type, std::uint32_t root);
  // Ends when all ranks have submitted it.
  Result<Token> Barrier();

  // Messages from rank 0 to rank 1 of a group with Options::carries_messages, matched by their
  // tags; those with one tag arrive in the order in which they were sent. Each function returns at
  // once. Only Wait() returns the outcome of a token, until Announce().
  //
  // The caller must not change `data` until its token has ended. Fails with kInvalidArgument on the
  // other rank, or in another group.
  Result<Token> Send(const void* data, std::uint64_t size_bytes, std::int64_t tag);
  // Takes the next message with that tag that no other receive takes. A message of another size
  // fails with kInvalidArgument; it has been taken, and the group goes on.
  Result<Token> Receive(void* data, std::uint64_t size_bytes, std::int64_t tag);
  // The same for a message that has come, or begun to come; nothing if there is none.
  Result<std::optional<Token>> ReceiveKept(void* data, std::uint64_t size_bytes, std::int64_t tag);
  // Ends when ReceiveKept() has a message to take. It has no time limit, and fails as soon as the
  // other rank has left the group.
  Result<Token> Probe(std::int64_t tag);
  // Receives the message that the other rank has begun to send, if there is one, into memory of its
  // own, although nothing waits for it: for a rank that waits in a send of its own, so that two
  // ranks which both send first do not wait for each other. At most 1 GiB and one message.
  Result<void> KeepNext();
  // From now on WaitAny() returns the outcome of that message, too. Fails with kInvalidArgument if
  // it has been returned.
  Result<void> Announce(Token token);

  // A rank's shard of an array: elements [begin, end). Shards are in rank order; their sizes differ
  // by at most one.
  struct Shard {
    std::uint64_t begin;
    std::uint64_t end;
  };
  static Shard ShardOf(std::uint64_t count, std::uint32_t world_size, std::uint32_t rank) noexcept;

  // Waits for that operation. On success `data` holds the result; after an error its bytes are
  // undefined. Each outcome is returned once, by Wait or WaitAny; a second Wait fails with
  // kInvalidArgument.
  Result<void> Wait(Token token);
  // The same within a limit: whether the operation has ended.
  Result<bool> WaitFor(Token token, std::chrono::milliseconds limit);

  // Waits for any operation to end, and returns its token and outcome: for a thread that completes
  // futures. Fails with kDeadlineExceeded if no operation ends within `timeout`, with kUnavailable
  // after Shutdown, once all outcomes have been returned.
  struct Completion {
    Token token;
    Result<void> outcome;
    std::int64_t began_ns;  // CLOCK_MONOTONIC, when the operation became first in line.
    std::int64_t ended_ns;  // CLOCK_MONOTONIC.
  };
  Result<Completion> WaitAny(std::chrono::milliseconds timeout);

  void Shutdown() noexcept;  // Fails pending operations and wakes all waiting threads. Idempotent.

  // Counters since the start: bytes sent and received on the wire, bytes given to ranks of this
  // machine in shared memory, nanoseconds spent reducing.
  struct Stats {
    std::uint64_t bytes_sent;
    std::uint64_t bytes_received;
    std::uint64_t bytes_shared;
    std::uint64_t operations;
    std::uint64_t reduce_ns;
    std::uint32_t streams_lost;
  };
  Stats stats() const noexcept;

  // Events since the start that a person should know about, in order: lost streams, with the
  // reason. Keeps the newest 1,000.
  struct Event {
    std::int64_t at_ns;  // CLOCK_MONOTONIC.
    std::string text;
  };
  std::vector<Event> events() const;

  // Settings for operations that are submitted from now on. Chunk size and algorithm decide how
  // ranks split arrays, so all ranks must change them between the same two operations. Fails with
  // kInvalidArgument for a chunk above Options::chunk_size_bytes or below 64 B, or for an algorithm
  // that the group cannot use.
  struct Tuning {
    std::uint64_t chunk_size_bytes = 0;                 // 0: Options::chunk_size_bytes.
    std::optional<Algorithm> algorithm = std::nullopt;  // For all-reduces of 64 KiB and more.
    std::uint16_t streams = 0;                          // Uses at most this many; 0: all.
  };
  Result<void> Tune(const Tuning& tuning);

 private:
  struct Impl;
  Result<void> ChooseAlgorithms();
  explicit CollectiveEngine(std::unique_ptr<Impl> impl) noexcept;
  std::unique_ptr<Impl> impl_;
};

}  // namespace ffrecord::client
