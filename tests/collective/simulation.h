#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "sim_config.h"
#include "sim_rank.h"
#include "sim_wire.h"

namespace ffrecord::test {

// A group of ranks in one thread: the machines of client/collective over a virtual clock and
// network, all driven by one seed. The same seed gives the same run, event by event.
//
// Faults are either such that nothing may fail (streams that break, fall silent or are slow while
// others to the same rank work; ranks that pause, or come late), or one rank fails too.
class Simulation {
 public:
  // How that rank fails.
  enum class Failure : std::uint8_t {
    kNone,
    kKilled,   // Its connections close.
    kCutOff,   // Its machine is silent.
    kStopped,  // Its machine answers, its process does nothing.
    kAbsent,   // It does not submit an operation.
    kDiffers,  // It submits another one.
    kDamages,  // One of its payloads changes in flight.
    kCount,
  };
  struct Options {
    std::uint64_t seed = 1;
    bool is_reference = false;          // Without faults, over another network.
    std::optional<SimConfig> config{};  // Instead of what the seed makes.
    bool is_scripted = false;           // Nothing is submitted and nothing fails by itself.
    bool is_traced = false;             // Prints each event.
  };
  struct Counts {
    std::uint64_t events = 0, operations = 0, failed = 0, streams_lost = 0, faults = 0,
                  failures = 0;
  };

  explicit Simulation(const Options& options);
  // The first violation, or none.
  std::optional<std::string> Run();
  const Counts& counts() const { return counts_; }

  // --- For scripts ---
  // All that happens in so much time; ranks are there from the beginning.
  void RunFor(SimDuration time);
  SimRank& rank(std::uint32_t rank) { return *ranks_[rank]; }
  // Nothing passes in either direction on connections of that stream between two ranks. What was
  // sent meanwhile comes afterwards.
  void Silence(std::uint16_t stream, SimDuration time);
  // Connections of that stream break, and no new ones can be made any more.
  void Lose(std::uint16_t stream);
  // What does not hold, if all ranks have ended; else who has not.
  std::optional<std::string> Check();

  // --- For ranks ---
  const SimConfig& config() const { return config_; }
  SimClock& clock() { return clock_; }
  SimRandom& random() { return random_; }
  SimRing& RingOf(std::uint32_t from, std::uint32_t to) { return rings_[{from, to}]; }
  void WakeRank(std::uint32_t rank);
  // Lets what is queued leave, as far as there is room.
  void Pump(SimConnection& connection, bool is_forward);
  void CloseSender(SimConnection& connection);
  void CloseReceiver(SimConnection& connection);
  // How long the other end has owed an acknowledgement.
  SimDuration SilenceOf(const SimConnection& connection) const;
  // Makes a new connection, sooner or later.
  void Ask(std::uint32_t from, std::uint32_t to, std::uint16_t stream);
  // The receiver has taken it.
  void Welcome(SimConnection* connection);
  void Trace(std::uint32_t rank, const std::string& text) const;
  void TraceConnections() const;

 private:
  SimConnection* Make(std::uint32_t from, std::uint32_t to, std::uint16_t stream);
  void Connect();
  void SubmitAll();
  void PlanFaults();
  void Fault();
  void FailRank();
  void CutStream();
  void SilenceStream();
  void Cut(SimConnection& connection);
  void LeavePart(SimConnection& connection, bool is_forward);
  void Arrive(SimConnection& connection, bool is_forward, std::uint64_t bytes);
  static void Flip(SimConnection& connection);
  bool HasEnded() const;
  std::string WhoIsOpen() const;
  bool IsTroubled() const { return !options_.is_reference && !options_.is_scripted; }
  std::optional<std::string> CheckResults(const SimRank& rank);
  std::optional<std::string> CheckError(const SimRank& rank) const;
  const std::vector<std::vector<std::byte>>& ExpectedOf(std::size_t operation);

  const Options options_;
  const SimConfig config_;
  SimRandom random_;
  SimClock clock_;
  std::deque<SimConnection> connections_;
  std::map<std::pair<std::uint32_t, std::uint32_t>, SimRing> rings_;
  std::vector<std::unique_ptr<SimRank>> ranks_;
  Failure failure_ = Failure::kNone;
  std::uint32_t failing_ = 0;
  bool replaces_ = true;     // Streams that are lost.
  bool is_cut_off_ = false;  // The failing rank's machine is.
  bool was_silent_ = false;  // A connection was.
  bool has_failed_ = false;
  std::map<std::size_t, std::vector<std::vector<std::byte>>> expected_;
  Counts counts_;
};

}  // namespace ffrecord::test
