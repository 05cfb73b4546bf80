#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "simulation.h"

namespace ffrecord::test {

// One client of the simulated cluster: publishes, replaces and removes names of its own, and now
// and then a name that all clients want. It keeps what the cluster has acknowledged, and what it
// may expect.
class SimClient {
 public:
  // How long what was replaced or removed stays readable.
  static constexpr std::chrono::milliseconds kGrace{4'000};

  SimClient(Simulation& world, int number) : world_(world), number_(number) {}

  void Begin();  // Its next operation, again and again until the trouble ends.
  // Whether the names are what was acknowledged. `published`: what the store has.
  void Check(const std::map<std::string, Simulation::Truth>& published);

 private:
  using Mode = server::cluster::Publication::Mode;
  struct Operation {
    Mode mode = Mode::kCreate;
    std::string name;
    std::uint64_t upload = 0;
    std::uint64_t attempt = 0;
    std::uint8_t replicas = 1;
    std::vector<ManifestExtent> extents;
    std::size_t extent_index = 0;   // Which is being written,
    std::set<std::string> asked;    // to whom,
    std::set<std::string> domains;  // and where it is already.
    int tries = 0;
  };
  // Of one name: what it may be, as attempts; 0: absent.
  struct Expected {
    std::set<std::uint64_t> states{0};
    Simulation::TimePoint settled_at{};  // Until then an unanswered request may take effect.
  };

  void OpenUpload(Operation operation);
  void WriteExtents(Operation operation);
  void Commit(Operation operation);
  void Remove(Operation operation);
  void Next();
  Simulation::Node* AnyNode();
  server::cluster::Body ManifestOf(const Operation& operation) const;

  Simulation& world_;
  const int number_;
  std::map<std::string, Expected> expected_;
};

}  // namespace ffrecord::test
