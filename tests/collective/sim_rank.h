#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "client/collective/exchange_machine.h"
#include "client/collective/exchange_steps.h"
#include "sim_config.h"
#include "sim_wire.h"

namespace ffrecord::test {

class Simulation;

// A rank: does what its ExchangeMachine wants over simulated connections, as Exchange does over
// real ones, and is its program, too, which reuses each array as soon as its operation has ended.
class SimRank {
 public:
  SimRank(Simulation& simulation, std::uint32_t rank);

  void Connect(std::vector<SimConnection*> to, std::vector<SimConnection*> from);
  // The program submits its next operation; `differs`: another one than the other ranks.
  void Submit(bool differs = false);
  // Something has happened that it may want to see.
  void Wake();

  // Its process does nothing until then. max(): never more.
  void Stop(SimTime until);
  // SIGKILL: the kernel closes its connections.
  void Kill();
  // Ends in good order when its operations have ended.
  void LeaveWhenDone() { leaves_ = true; }

  // A peer writes into memory of this rank, over RDMA.
  void Write(const SimConnection& connection, std::uint64_t offset_bytes,
             std::span<const std::byte> bytes);
  // A connection of the other end, in the place of a lost one; the answer to what this one asked.
  void TakeCome(SimConnection* connection);
  void TakeMade(SimConnection* connection);

  std::uint32_t rank() const { return rank_; }
  bool is_running() const { return state_ == State::kRunning || state_ == State::kLeaving; }
  bool has_ended() const { return open_ == 0; }
  bool IsWhole(std::uint32_t peer) const;  // All its streams to that rank work.
  const std::optional<Error>& error() const { return error_; }
  // The results of operations, in their order; none of those that failed.
  const std::vector<std::optional<std::vector<std::byte>>>& results() const { return results_; }
  // The first of its invariants that did not hold.
  const std::optional<std::string>& violation() const { return violation_; }
  // Whether no array was touched since its operation ended.
  void CheckArrays();
  std::string Describe() const;
  const client::ExchangeCounters& counters() const { return counters_; }

 private:
  enum class State : std::uint8_t { kRunning, kLeaving, kFailing, kClosed };
  struct Peer {
    std::vector<SimConnection*> streams;
    SimRing* ring = nullptr;
  };
  struct Incoming {
    SimConnection* connection;
    SimRing* ring = nullptr;
    std::span<std::byte> place{};      // Where the payload of the first frame goes.
    std::vector<std::byte> written{};  // Over RDMA.
  };

  void Turn();
  Result<void> Advance();
  template <class Event>
  Result<void> Tell(const Event& event);
  Result<void> TellRoom(std::size_t peer);
  Result<void> PollStream(std::size_t peer, std::size_t stream);
  Result<void> Receive(std::size_t link);
  Result<void> TakeFrame(std::size_t link);
  bool Land(std::size_t link);
  void TakeReplacements();
  void Fail(const Error& error);
  void Leave();
  bool IsDelivering() const;
  void CloseAll();
  void End(std::size_t operation, bool is_well);

  void Do(const client::exchange::SendPiece& send);
  void Do(const client::exchange::Publish& publish);
  void Do(const client::exchange::SendWaiting& send);
  void Do(const client::exchange::SendTaken& send);
  void Do(const client::exchange::Receive& receive);
  void Do(const client::exchange::Pop& pop);
  void Do(const client::exchange::CloseStream& close);
  void Do(const client::exchange::CloseLink& close);
  void Do(const client::exchange::AskStream& ask);
  void Do(const client::exchange::LookWhetherSilent& look);
  void Do(const client::exchange::Tell& tell);
  void Do(const client::exchange::Complete& complete);

  Simulation& sim_;
  const std::uint32_t rank_;
  client::ExchangeCounters counters_;
  std::unique_ptr<client::ExchangeMachine> machine_;
  client::exchange::Actions actions_;
  bool is_doing_ = false;
  bool moved_ = false;
  std::vector<Peer> to_;
  std::vector<Incoming> from_;
  std::vector<SimConnection*> come_;
  std::vector<SimConnection*> made_;

  State state_ = State::kRunning;
  bool leaves_ = false;
  SimTime leaves_until_{};
  bool will_turn_ = false;
  SimTime stopped_until_{};
  SimTime tick_at_{};
  std::vector<std::vector<std::byte>> arrays_;
  std::vector<std::optional<std::vector<std::byte>>> results_;
  std::vector<bool> has_ended_;
  std::size_t submitted_ = 0;
  std::size_t open_ = 0;
  std::optional<Error> error_;
  std::optional<std::string> violation_;
};

}  // namespace ffrecord::test
