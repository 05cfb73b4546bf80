#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "simulation.h"

namespace ffrecord::test {

// One client of the simulated cluster: publishes, replaces and removes names of its own, and now
// and then a name that all clients want. Its names share extents with each other and with those of
// other clients. Some of its requests race each other, some of its uploads are slow. It keeps what
// the cluster has acknowledged, and what it may expect.
class SimClient {
 public:
  // How long what was replaced or removed stays readable. An attempt is not repeated for longer.
  static constexpr std::chrono::milliseconds kGrace{12'000};

  SimClient(Simulation& world, int number) : world_(world), number_(number) {}

  void Begin();  // Its next operation, again and again until the trouble ends.
  // After the trouble: publishes a name and removes it, until both have succeeded.
  void Probe();
  bool has_probed() const { return has_probed_; }
  // Whether the names are what was acknowledged. `published`: what the store has.
  void Check(const std::map<std::string, Simulation::Truth>& published);

 private:
  using Mode = server::cluster::Publication::Mode;
  struct Operation {
    Mode mode = Mode::kCreate;
    std::string name;
    std::uint64_t upload = 0;
    std::uint64_t attempt = 0;
    std::uint64_t expected_revision = 0;
    std::uint8_t replicas = 1;
    std::vector<ManifestExtent> extents;  // Those of parity last.
    ErasureCode code = {};
    std::map<std::uint32_t, std::set<std::string>> stripe_nodes = {};  // That have members of it.
    std::size_t extent_index = 0;                                      // Which is being written,
    std::set<std::string> asked;                                       // to whom,
    std::set<std::string> domains;                                     // and where it is already.
    int tries = 0;
    int room_tries = 0;         // At the node that is asked to take the extent.
    bool is_side = false;       // Beside the client's next operation.
    bool is_removed = false;    // As soon as it is published.
    bool is_announced = false;  // Its name may be what it makes of it.
    bool is_raced = false;      // Others are under way for the same name.
  };
  // Of one name: what it may be, as attempts; 0: absent.
  struct Expected {
    std::set<std::uint64_t> states{0};
    Simulation::TimePoint settled_at{};  // Until then an unanswered request may take effect.
    int open_count = 0;                  // Operations that go on,
    bool is_contested = false;           // and have met others.
  };

  bool IsShared(const Operation& operation) const { return operation.name.starts_with("shared/"); }
  std::optional<std::string> SettledName();
  void Choose(Operation& operation);
  void KeepExtents(Operation& operation, const Simulation::Truth& from);
  void AddExtents(Operation& operation, std::size_t count);
  void AddParity(Operation& operation);
  // Of the extent that is being written.
  std::optional<server::cluster::StripePlace> PlaceOf(const Operation& operation) const;
  std::vector<std::string> TargetsOf(const Operation& operation) const;
  void OpenUpload(Operation operation);
  void WriteExtents(Operation operation);
  void WriteTo(const std::string& node, Operation operation);
  server::cluster::UploadRoom RoomOf(const Operation& operation) const;
  void Publish(Operation operation);
  void Commit(Operation operation);
  server::cluster::Publication::Request RequestOf(const Operation& operation) const;
  void Remove(Operation operation);
  void RemoveBeside(const std::string& name, Simulation::Duration after);
  void Expect(Operation& operation, std::uint64_t state);
  void Settle(const Operation& operation, std::uint64_t state, bool is_acknowledged);
  void End(const Operation& operation);
  void Next();
  Simulation::Node* AnyNode();
  DatasetManifest FilesOf(const Operation& operation) const;
  server::cluster::Body ManifestOf(const Operation& operation) const;

  Simulation& world_;
  const int number_;
  std::map<std::string, Expected> expected_;
  bool has_probed_ = false;
};

}  // namespace ffrecord::test
