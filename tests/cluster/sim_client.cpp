#include "sim_client.h"

#include <algorithm>
#include <cerrno>
#include <memory>
#include <utility>

#include "libffrecord/base/checksum.h"
#include "libffrecord/base/hex.h"
#include "sim_node.h"

namespace ffrecord::test {

using namespace server::cluster;
using std::chrono::milliseconds;
using std::chrono::seconds;

namespace {

constexpr std::uint64_t kNames = 4;
constexpr int kTriesMax = 6;
constexpr int kRoomTriesMax = 4;
constexpr int kRacedTriesMax = 2;  // So that the last is within the grace of the first.
constexpr seconds kPatience{5};
constexpr std::string_view kProbe = "probe";
// By then an answer that was lost has had its effect, or will have none.
constexpr seconds kSettling{30};

}  // namespace

Simulation::Node* SimClient::AnyNode() {
  return world_.nodes_[world_.Random(world_.nodes_.size())].get();
}

void SimClient::Next() {
  if (!world_.is_healing_ && !world_.are_clients_over_)
    world_.At(world_.Between(50, 2'000), [this] { Begin(); });
}

void SimClient::End(const Operation& operation) {
  if (!operation.is_side) Next();
}

// --- What a name may be -------------------------------------------------------------------------

// One of its names of which it knows what it is.
std::optional<std::string> SimClient::SettledName() {
  std::string name = "c" + std::to_string(number_) + "/" + std::to_string(world_.Random(kNames));
  Expected& expected = expected_[name];
  if (expected.open_count > 0 || world_.now_ < expected.settled_at) return std::nullopt;
  const auto found = world_.published_.find(name);
  const std::uint64_t attempt = found == world_.published_.end() ? 0 : found->second.record.attempt;
  if (!expected.states.contains(attempt)) world_.Fail(name + " is what nobody made of it");
  // What came of it cannot change any more.
  expected = {{attempt}, {}, 0, false};
  return name;
}

void SimClient::Expect(Operation& operation, std::uint64_t state) {
  if (IsShared(operation)) return;
  Expected& expected = expected_[operation.name];
  if (!std::exchange(operation.is_announced, true)) ++expected.open_count;
  expected.is_contested |= expected.open_count > 1;
  expected.states.insert(state);
  expected.settled_at = world_.now_ + kSettling;
}

void SimClient::Settle(const Operation& operation, std::uint64_t state, bool is_acknowledged) {
  if (IsShared(operation)) return;
  Expected& expected = expected_[operation.name];
  --expected.open_count;
  if (is_acknowledged && !expected.is_contested) expected = {{state}, {}, 0, false};
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

void SimClient::Probe() {
  if (has_probed_) return;
  // Also this upload may dawdle until it is given up.
  world_.At(seconds(10), [this] { Probe(); });
  Operation operation;
  operation.name = kProbe;
  operation.mode = Mode::kReplace;
  operation.replicas = 2;
  operation.attempt = world_.random_();
  operation.upload = world_.random_();
  operation.is_side = operation.is_removed = true;
  AddExtents(operation, 1);
  OpenUpload(std::move(operation));
}

// --- Operations ---------------------------------------------------------------------------------

void SimClient::Begin() {
  if (world_.is_healing_) return;
  for (const auto& [name, truth] : world_.published_)
    if (world_.Chance(0.1)) world_.AskName(AnyNode()->id, name);
  Operation operation;
  operation.replicas = static_cast<std::uint8_t>(1 + world_.Random(3));
  operation.attempt = world_.random_();
  operation.upload = world_.random_();
  if (world_.Chance(0.1)) {
    operation.name = "shared/" + std::to_string(world_.Random(3));
    AddExtents(operation, 1 + world_.Random(2));
    return OpenUpload(std::move(operation));
  }
  const auto name = SettledName();
  if (!name) return Next();
  operation.name = *name;
  const auto found = world_.published_.find(*name);
  if (found != world_.published_.end()) {
    const std::uint64_t revision = found->second.revision;
    if (world_.Chance(0.35)) {
      operation.mode = Mode::kRemove;
      if (world_.Chance(0.3)) operation.expected_revision = revision;
      return Remove(std::move(operation));
    }
    operation.mode = world_.Chance(0.3) ? Mode::kSwap : Mode::kReplace;
    if (operation.mode == Mode::kSwap) operation.expected_revision = revision;
  }
  Choose(operation);
  if (operation.extents.size() == operation.extent_index) return Publish(std::move(operation));
  OpenUpload(std::move(operation));
}

// Its extents: new ones, some that the name has already, some of another name.
void SimClient::Choose(Operation& operation) {
  const auto& published = world_.published_;
  const auto own = published.find(operation.name);
  if (own != published.end() && world_.Chance(0.5)) {
    KeepExtents(operation, own->second);
  } else if (!published.empty() && world_.Chance(0.25)) {
    auto any = published.begin();
    std::advance(any, static_cast<std::ptrdiff_t>(world_.Random(published.size())));
    KeepExtents(operation, any->second);
  }
  operation.extent_index = operation.extents.size();
  AddExtents(operation, world_.Random(3) + (operation.extents.empty() ? 1 : 0));
  // Extents of other classes cannot become members of a stripe.
  if (operation.extent_index == 0 && world_.Chance(0.4)) AddParity(operation);
}

void SimClient::KeepExtents(Operation& operation, const Simulation::Truth& from) {
  if (from.manifest.has_code() && !world_.Chance(0.1)) return;  // They would be refused.
  for (const ManifestFile& file : from.manifest.files)
    if (world_.Chance(0.7)) operation.extents.push_back(file.extents.front());
  // More replicas than there are may be asked for, in vain.
  if (!operation.extents.empty() && world_.Chance(0.8))
    operation.replicas = std::min(operation.replicas, from.record.replicas);
}

void SimClient::AddExtents(Operation& operation, std::size_t count) {
  for (std::uint32_t i = 0; i < count; ++i)
    operation.extents.push_back(
        {MakeExtentId(operation.upload, 0, i), 1 + world_.Random(1000), world_.random_()});
}

// 2 + 1: a cluster of three nodes may be left.
void SimClient::AddParity(Operation& operation) {
  operation.code = {2, 1};
  operation.replicas = 2;  // Of the manifest itself.
  const std::size_t count = operation.extents.size();
  for (std::uint32_t i = 0; i * operation.code.data < count; ++i) {
    const auto begin = operation.extents.begin() + std::ptrdiff_t{i} * operation.code.data;
    const std::size_t data =
        std::min<std::size_t>(operation.code.data, count - std::size_t{i} * operation.code.data);
    const auto largest = std::max_element(
        begin, begin + static_cast<std::ptrdiff_t>(data),
        [](const auto& one, const auto& other) { return one.size_bytes < other.size_bytes; });
    operation.extents.push_back(
        {MakeExtentId(operation.upload, 1, i), largest->size_bytes, world_.random_()});
  }
}

// A file for each extent.
DatasetManifest SimClient::FilesOf(const Operation& operation) const {
  DatasetManifest manifest;
  manifest.code = operation.code;
  for (const ManifestExtent& extent : operation.extents) {
    const bool is_parity = !operation.code.is_none() && extent.id[11] != std::byte{0};
    if (is_parity)
      manifest.parity.push_back(extent);
    else
      manifest.files.push_back(
          {"f" + std::to_string(manifest.files.size()), extent.size_bytes, {extent}});
  }
  return manifest;
}

Body SimClient::ManifestOf(const Operation& operation) const {
  return EncodeDatasetManifest(FilesOf(operation)).value();
}

std::optional<StripePlace> SimClient::PlaceOf(const Operation& operation) const {
  std::optional<StripePlace> found;
  if (operation.code.is_none()) return found;
  ForEachMember(std::make_shared<const DatasetManifest>(FilesOf(operation)),
                [&](const ManifestExtent& member, const StripePlace& place) {
                  if (member.id == operation.extents[operation.extent_index].id) found = place;
                });
  return found;
}

// The nodes for it, in their order: none that has another member of its stripe.
std::vector<std::string> SimClient::TargetsOf(const Operation& operation) const {
  const auto& slots = world_.Slots();
  auto nodes = slots.CandidatesOf(operation.extents[operation.extent_index].id, {});
  const auto place = PlaceOf(operation);
  if (!place) return nodes;
  const auto owner = StripeTable().OwnerOf(slots.map, *place);
  if (owner != SlotMap::kNoNode) nodes.insert(nodes.begin(), slots.map.nodes[owner].id);
  if (const auto taken = operation.stripe_nodes.find(place->stripe);
      taken != operation.stripe_nodes.end())
    std::erase_if(nodes, [&](const std::string& node) { return taken->second.contains(node); });
  return nodes;
}

void SimClient::OpenUpload(Operation operation) {
  if (++operation.tries > kTriesMax) return End(operation);
  Simulation::Node* const node = AnyNode();
  world_.Ask<void>(
      nullptr, node->id, kPatience,
      [this, upload = operation.upload](Simulation::Node& other) {
        other.machine->BeginUpload(upload, world_.Local(other) + seconds(5));
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
  if (operation.extent_index == operation.extents.size()) return Publish(std::move(operation));
  const std::size_t copies = operation.code.is_none() ? operation.replicas : 1;
  if (operation.domains.size() == copies) {
    if (const auto place = PlaceOf(operation))
      operation.stripe_nodes[place->stripe].merge(operation.domains);
    ++operation.extent_index;
    operation.asked.clear();
    operation.domains.clear();
    const bool is_slow = world_.Chance(0.08);
    return world_.At(is_slow ? world_.Between(1'000, 7'000) : world_.Between(0, 1),
                     [this, operation = std::move(operation)] { WriteExtents(operation); });
  }
  const auto& slots = world_.Slots();
  for (const std::string& node : TargetsOf(operation)) {
    if (!operation.asked.insert(node).second) continue;
    const std::uint16_t ordinal = slots.map.Find(node);
    if (ordinal == SlotMap::kNoNode || slots.map.nodes[ordinal].weight == 0) continue;
    return WriteTo(node, std::move(operation));
  }
  operation.asked.clear();
  operation.domains.clear();
  // Nobody takes it: perhaps the upload is not known to them yet, or was given up.
  if (operation.tries < kTriesMax) return OpenUpload(std::move(operation));
  ++world_.counts_.refused;
  End(operation);
}

void SimClient::WriteTo(const std::string& node, Operation operation) {
  const ManifestExtent extent = operation.extents[operation.extent_index];
  if (world_.Chance(0.03)) {  // An earlier start of it wrote other bytes.
    const ManifestExtent draft{extent.id, extent.size_bytes, world_.random_()};
    world_.Ask<void>(
        nullptr, node, seconds(1),
        [this, draft](Simulation::Node& other) { return world_.Write(other, draft, {}); },
        [](const Result<void>&) {});
  }
  const UploadRoom room = RoomOf(operation);
  const auto has_asked = std::make_shared<bool>(false);
  world_.Ask<void>(
      nullptr, node, seconds(1),
      [this, extent, room, has_asked](Simulation::Node& other) {
        if (HasRoom(other.machine->view(), room)) return world_.Write(other, extent, {});
        *has_asked = true;
        const auto id =
            other.machine->BeginUpload(UploadOf(extent.id), world_.Local(other) + seconds(5), room);
        other.requests[id] = [this](const Result<std::uint64_t>& begun) {
          if (!begun && begun.error().system_errno == EDQUOT) ++world_.counts_.over_upload_quota;
        };
        world_.Step(other, nullptr);
        return Result<void>(Error{ErrorCode::kUnavailable, "it is not on record yet"});
      },
      [this, operation, node, has_asked](Result<void> written) mutable {
        if (written) operation.domains.insert(node);
        // Once it is on record it is sent again.
        if (!written && *has_asked && ++operation.room_tries <= kRoomTriesMax)
          return world_.At(world_.Between(10, 100),
                           [this, operation, node] { WriteTo(node, operation); });
        operation.room_tries = 0;
        WriteExtents(std::move(operation));
      });
}

// Its client may publish below the first part of the name.
UploadRoom SimClient::RoomOf(const Operation& operation) const {
  const ManifestExtent& extent = operation.extents[operation.extent_index];
  const std::string owner = operation.name.substr(0, operation.name.find('/') + 1);
  return server::cluster::RoomOf(extent.id, extent.size_bytes, owner, Simulation::UploadQuotas());
}

// Perhaps beside another request: of a second name with the same extents, or for the same name.
void SimClient::Publish(Operation operation) {
  operation.tries = 0;
  if (!IsShared(operation) && world_.Chance(0.2)) {
    Operation twin = operation;
    if (const auto name = SettledName(); name && *name != operation.name) {
      twin.name = *name;
      twin.mode = Mode::kReplace;
      twin.attempt = world_.random_();
      twin.replicas = static_cast<std::uint8_t>(1 + world_.Random(twin.replicas));
      twin.is_side = true;
      twin.is_removed = world_.Chance(0.6);
      world_.At(world_.Between(0, 30), [this, twin] { Commit(twin); });
    }
  }
  if (operation.mode != Mode::kCreate && world_.Chance(0.15)) {
    operation.is_raced = true;
    RemoveBeside(operation.name, world_.Between(0, 200));
  }
  Commit(std::move(operation));
}

void SimClient::RemoveBeside(const std::string& name, Simulation::Duration after) {
  Operation removal;
  removal.mode = Mode::kRemove;
  removal.name = name;
  removal.attempt = world_.random_();
  removal.is_side = true;
  const auto found = world_.published_.find(name);
  if (found != world_.published_.end() && world_.Chance(0.5))
    removal.expected_revision = found->second.revision;
  world_.At(after, [this, removal] { Remove(removal); });
}

void SimClient::Commit(Operation operation) {
  if (++operation.tries > (operation.is_raced ? kRacedTriesMax : kTriesMax)) {
    ++world_.counts_.unresolved;
    Settle(operation, operation.attempt, false);
    return End(operation);
  }
  Expect(operation, operation.attempt);
  world_.manifests_[operation.attempt] = ManifestOf(operation);
  world_.intents_[operation.attempt] = {operation.mode, operation.expected_revision};
  const Simulation::TimePoint asked_at = world_.now_;
  if (world_.Chance(0.1)) {  // The same request again, on another way.
    operation.is_raced = true;
    if (!IsShared(operation)) expected_[operation.name].is_contested = true;
    world_.At(world_.Between(0, 1'000), [this, operation] {
      world_.AskPublication(AnyNode()->id, RequestOf(operation), [](const auto&) {});
    });
  }
  world_.AskPublication(
      AnyNode()->id, RequestOf(operation),
      [this, operation, asked_at](Result<std::uint64_t> result) mutable {
        if (world_.now_ - asked_at > kPatience + seconds(3))
          world_.Fail(operation.name + ": a request did not end by its deadline");
        if (result) {
          ++world_.counts_.published;
          if (!world_.effective_.contains(operation.attempt))
            world_.Fail(operation.name + " was acknowledged and not published");
          if (IsShared(operation)) world_.NoteSharedWinner(operation.name, operation.attempt);
          Settle(operation, operation.attempt, true);
          if (operation.is_removed) RemoveBeside(operation.name, world_.Between(0, 5));
          return End(operation);
        }
        const ErrorCode code = result.error().code;
        world_.Trace(operation.name, ": ", result.error().message);
        if (code == ErrorCode::kUnavailable || code == ErrorCode::kDeadlineExceeded)
          return world_.At(world_.Between(100, 1'000),
                           [this, operation = std::move(operation)] { Commit(operation); });
        ++world_.counts_.refused;
        Settle(operation, operation.attempt, false);
        End(operation);
      });
}

Publication::Request SimClient::RequestOf(const Operation& operation) const {
  return {operation.mode,
          operation.name,
          operation.attempt,
          operation.expected_revision,
          operation.replicas,
          kGrace,
          world_.manifests_.at(operation.attempt),
          world_.now_ + kPatience,
          Simulation::Quotas()};
}

void SimClient::Remove(Operation operation) {
  if (++operation.tries > kTriesMax) {
    ++world_.counts_.unresolved;
    Settle(operation, 0, false);
    return End(operation);
  }
  Expect(operation, 0);
  world_.AskPublication(
      AnyNode()->id,
      {Mode::kRemove,
       operation.name,
       operation.attempt,
       operation.expected_revision,
       1,
       kGrace,
       {},
       world_.now_ + kPatience},
      [this, operation](Result<std::uint64_t> result) mutable {
        // Also if it was gone already: by an earlier try of ours.
        const bool is_gone = result || result.error().code == ErrorCode::kNotFound;
        if (is_gone || result.error().code == ErrorCode::kConflict) {
          ++(is_gone ? world_.counts_.removed : world_.counts_.refused);
          Settle(operation, 0, is_gone);
          has_probed_ |= is_gone && operation.name == kProbe;
          return End(operation);
        }
        world_.Trace(operation.name, ": ", result.error().message);
        world_.At(world_.Between(100, 1'000),
                  [this, operation = std::move(operation)] { Remove(operation); });
      });
}

}  // namespace ffrecord::test
