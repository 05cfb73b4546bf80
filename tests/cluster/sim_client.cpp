#include "sim_client.h"

#include <algorithm>
#include <utility>

#include "libffrecord/base/checksum.h"
#include "libffrecord/base/hex.h"
#include "sim_node.h"

namespace ffrecord::test {

using namespace server::cluster;
using std::chrono::milliseconds;
using std::chrono::seconds;

namespace {

constexpr int kNames = 3;
constexpr int kTriesMax = 6;
constexpr seconds kPatience{8};
// By then an answer that was lost has had its effect, or will have none.
constexpr seconds kSettling{25};

}  // namespace

Simulation::Node* SimClient::AnyNode() {
  return world_.nodes_[world_.Random(world_.nodes_.size())].get();
}

void SimClient::Next() {
  if (!world_.is_healing_) world_.At(world_.Between(50, 2'500), [this] { Begin(); });
}

void SimClient::Begin() {
  if (world_.is_healing_) return;
  Operation operation;
  operation.replicas = static_cast<std::uint8_t>(1 + world_.Random(3));
  operation.attempt = world_.random_();
  if (world_.Chance(0.1)) {
    operation.name = "shared/" + std::to_string(world_.Random(3));
    operation.mode = Mode::kCreate;
    return OpenUpload(std::move(operation));
  }
  operation.name = "c" + std::to_string(number_) + "/" + std::to_string(world_.Random(kNames));
  Expected& expected = expected_[operation.name];
  if (world_.now_ < expected.settled_at) return Next();
  if (expected.states.size() > 1) {
    // What came of it cannot change any more.
    const auto found = world_.published_.find(operation.name);
    const std::uint64_t attempt =
        found == world_.published_.end() ? 0 : found->second.record.attempt;
    if (!expected.states.contains(attempt))
      world_.Fail(operation.name + " is what nobody made of it");
    expected.states = {attempt};
  }
  const bool is_there = !expected.states.contains(0);
  if (is_there && world_.Chance(0.4)) {
    operation.mode = Mode::kRemove;
    return Remove(std::move(operation));
  }
  operation.mode = is_there ? Mode::kReplace : Mode::kCreate;
  OpenUpload(std::move(operation));
}

void SimClient::OpenUpload(Operation operation) {
  if (operation.upload == 0) {
    operation.upload = world_.random_();
    const std::size_t count = 1 + world_.Random(3);
    for (std::uint32_t i = 0; i < count; ++i)
      operation.extents.push_back({MakeExtentId(operation.upload, 0, i),
                                   i + 1 == count ? 1 + world_.Random(1000) : kExtentSizeMax,
                                   world_.random_()});
    world_.manifests_[operation.attempt] = ManifestOf(operation);
  }
  if (++operation.tries > kTriesMax) return Next();
  Simulation::Node* const node = AnyNode();
  world_.Ask<void>(
      nullptr, node->id, kPatience,
      [this, upload = operation.upload](Simulation::Node& other) {
        other.machine->BeginUpload(upload, world_.now_ + seconds(5));
        world_.Step(other, nullptr);
        return Result<void>();
      },
      [this, operation](Result<void>) mutable {
        world_.At(world_.Between(20, 400),
                  [this, operation = std::move(operation)] { WriteExtents(operation); });
      });
}

// Each extent to as many nodes as there are to be replicas, in the order that the slot map gives; a
// node that does not take it is passed over.
void SimClient::WriteExtents(Operation operation) {
  if (operation.extent_index == operation.extents.size()) {
    operation.tries = 0;
    return Commit(std::move(operation));
  }
  if (operation.domains.size() == operation.replicas) {
    ++operation.extent_index;
    operation.asked.clear();
    operation.domains.clear();
    return WriteExtents(std::move(operation));
  }
  const ManifestExtent extent = operation.extents[operation.extent_index];
  const auto& slots = world_.Slots();
  for (const std::string& node : slots.CandidatesOf(extent.id)) {
    if (!operation.asked.insert(node).second) continue;
    const std::uint16_t ordinal = slots.map.Find(node);
    if (ordinal == SlotMap::kNoNode || slots.map.nodes[ordinal].weight == 0) continue;
    world_.Ask<void>(
        nullptr, node, seconds(1),
        [this, extent](Simulation::Node& other) { return world_.Write(other, extent, {}); },
        [this, operation, node](Result<void> written) mutable {
          if (written) operation.domains.insert(node);
          WriteExtents(std::move(operation));
        });
    return;
  }
  operation.asked.clear();
  operation.domains.clear();
  // Nobody takes it: perhaps the upload is not known to them yet, or was given up.
  if (operation.tries < kTriesMax) return OpenUpload(std::move(operation));
  ++world_.counts_.refused;
  Next();
}

Body SimClient::ManifestOf(const Operation& operation) const {
  DatasetManifest manifest;
  ManifestFile file;
  file.name = "file";
  for (const ManifestExtent& extent : operation.extents) file.size_bytes += extent.size_bytes;
  file.extents = operation.extents;
  manifest.files.push_back(std::move(file));
  return EncodeDatasetManifest(manifest).value();
}

void SimClient::Commit(Operation operation) {
  const bool is_shared = operation.name.starts_with("shared/");
  if (++operation.tries > kTriesMax) {
    ++world_.counts_.unresolved;
    return Next();
  }
  if (!is_shared) {
    Expected& expected = expected_[operation.name];
    expected.states.insert(operation.attempt);
    expected.settled_at = world_.now_ + kSettling;
  }
  const Simulation::TimePoint asked_at = world_.now_;
  world_.AskPublication(
      AnyNode()->id,
      {operation.mode, operation.name, operation.attempt, 0, operation.replicas, kGrace,
       world_.manifests_.at(operation.attempt), world_.now_ + kPatience},
      [this, operation, asked_at, is_shared](Result<std::uint64_t> result) mutable {
        if (world_.now_ - asked_at > kPatience + seconds(3))
          world_.Fail(operation.name + ": a request did not end by its deadline");
        if (result) {
          ++world_.counts_.published;
          if (is_shared) {
            world_.NoteSharedWinner(operation.name, operation.attempt);
          } else {
            expected_[operation.name] = {{operation.attempt}, {}};
          }
          return Next();
        }
        const ErrorCode code = result.error().code;
        world_.Trace(operation.name, ": ", result.error().message);
        if (code == ErrorCode::kUnavailable || code == ErrorCode::kDeadlineExceeded)
          return world_.At(world_.Between(100, 1'000),
                           [this, operation = std::move(operation)] { Commit(operation); });
        ++world_.counts_.refused;
        Next();
      });
}

void SimClient::Remove(Operation operation) {
  if (++operation.tries > kTriesMax) {
    ++world_.counts_.unresolved;
    return Next();
  }
  Expected& expected = expected_[operation.name];
  expected.states.insert(0);
  expected.settled_at = world_.now_ + kSettling;
  world_.AskPublication(AnyNode()->id,
                        {operation.mode,
                         operation.name,
                         operation.attempt,
                         0,
                         1,
                         kGrace,
                         {},
                         world_.now_ + kPatience},
                        [this, operation](Result<std::uint64_t> result) mutable {
                          // Also if it was gone already: by an earlier try of ours.
                          if (result || result.error().code == ErrorCode::kNotFound) {
                            ++world_.counts_.removed;
                            expected_[operation.name] = {{0}, {}};
                            return Next();
                          }
                          world_.Trace(operation.name, ": ", result.error().message);
                          world_.At(
                              world_.Between(100, 1'000),
                              [this, operation = std::move(operation)] { Remove(operation); });
                        });
}

void SimClient::Check(const std::map<std::string, Simulation::Truth>& published) {
  for (const auto& [name, expected] : expected_) {
    const auto found = published.find(name);
    const std::uint64_t attempt = found == published.end() ? 0 : found->second.record.attempt;
    if (!expected.states.contains(attempt))
      world_.Fail(name + " is not what was acknowledged: it is " + Hex(attempt) +
                  ", and could be one of " + std::to_string(expected.states.size()) +
                  " others, as " + Hex(*expected.states.begin()));
  }
}

}  // namespace ffrecord::test
