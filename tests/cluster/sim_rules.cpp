// What each step of a node of a simulated cluster has to obey, whatever comes of it.

#include <algorithm>
#include <cerrno>
#include <functional>
#include <map>
#include <set>

#include "libffrecord/base/hex.h"
#include "sim_client.h"
#include "sim_node.h"
#include "simulation.h"

namespace ffrecord::test {

using namespace server::cluster;
using server::MetaStore;
using std::chrono::seconds;

namespace {

// Two clocks differ by so much at most.
constexpr Simulation::Duration WithDrift(Simulation::Duration time) { return time + time / 16; }
// How long a node has been there when nobody can think that it is not.
constexpr seconds kKnown{10};

}  // namespace

// --- Leases -------------------------------------------------------------------------------------

// Who believes in its lease has it. A lease that the store has ended early, as after a jump of its
// clock, is believed in until it would have ended.
void Simulation::CheckLease(const Node& node) {
  const auto& lease = node.machine->view().lease;
  if (!lease.IsLeased(Local(node))) return;
  const auto found = leases_.find(node.id);
  if (found != leases_.end() && found->second.lease == lease.lease()) return;
  const auto ended = ended_by_force_.find(lease.lease());
  if (ended == ended_by_force_.end() || now_ - ended->second > WithDrift(kLeaseTime))
    Fail(node.id + " believes in lease " + std::to_string(lease.lease()) + ", which has ended");
}

// It takes an upload: half of its lease's time is left, as far as it can know.
void Simulation::CheckWriter(const Node& node) {
  const auto& lease = node.machine->view().lease;
  const auto found = leases_.find(node.id);
  if (found != leases_.end() && found->second.lease == lease.lease()) return;
  const auto ended = ended_by_force_.find(lease.lease());
  if (ended == ended_by_force_.end() || now_ - ended->second > WithDrift(kLeaseTime / 2))
    Fail(node.id + " takes an upload and its lease has ended");
}

// --- Promises and drops -------------------------------------------------------------------------

void Simulation::CheckAnswer(const Node& node, const AskHoldings& question,
                             const Holdings& holdings) {
  const View& view = node.machine->view();
  for (std::size_t i = 0; i < holdings.size(); ++i) {
    const ManifestExtent& extent = question.extents[i];
    const std::string what = node.id + " answers that it holds " + Hex(extent.id);
    if (holdings[i] == Holding::kAbsent) continue;
    if (node.disk.Find(extent.id) != extent) Fail(what + ", and does not");
    if (holdings[i] == Holding::kHeld) continue;
    const auto* const wanted = view.names.Find(extent.id);
    const auto slots = slot_history_.find(question.promise_version);
    if (view.slots.map.version != question.promise_version || slots == slot_history_.end())
      return Fail(what + " and promises it by another slot map");
    if (!wanted || !IsOwner(slots->second, StripeTable(), node.id, *wanted))
      Fail(what + " and promises it, and is no owner");
    if (!view.lease.IsLeased(Local(node))) Fail(what + " and promises it without a lease");
  }
}

void Simulation::NotePromises(const Node& node, const AskHoldings& question,
                              const Holdings& holdings) {
  for (std::size_t i = 0; i < holdings.size(); ++i)
    if (holdings[i] == Holding::kPromised)
      promises_[{node.owner, question.extents[i].id}][question.node] = {question.promise_version,
                                                                        now_};
}

// The node has decided to drop it.
void Simulation::CheckDecision(const Node& node, const ExtentId& id) {
  const View& view = node.machine->view();
  const std::string what = node.id + " drops " + Hex(id);
  const auto replica = node.disk.replicas.find(id);
  if (replica == node.disk.replicas.end()) return;
  if (!view.lease.IsLeased(Local(node))) Fail(what + " without a lease");
  if (put_back_at_) {  // A node that has not heard of it yet has a lease for so long.
    if (now_ - *put_back_at_ > WithDrift(kLeaseTime))
      Fail(what + " while nobody has confirmed the metadata");
    return;
  }
  const auto* const wanted = view.names.Find(id);
  if (wanted && wanted->extent != replica->second.extent) return;  // Other bytes than published.
  if (!wanted) {
    if (!IsNamedByTombstone(id)) Fail(what + " and no tombstone names it");
    const auto gone = unreferenced_.find(id);
    if (gone != unreferenced_.end() && WithDrift(now_ - gone->second) < SimClient::kGrace)
      Fail(what + " before its grace is over");
    return;
  }
  const std::uint32_t version = view.slots.map.version;
  const auto& promises = promises_[{node.owner, id}];
  const auto [owners, are_all] =
      server::cluster::OwnersOf(slot_history_.at(version), StripeTable(), *wanted);
  if (!are_all) Fail(what + ", and it has too few owners");
  for (const std::string& owner : owners) {
    const auto promise = promises.find(owner);
    if (promise == promises.end() || promise->second.version != version ||
        now_ - promise->second.at > kPromiseAge)
      Fail(what + " and has no promise of " + owner);
  }
}

void Simulation::CheckDrop(const Node& node, const ExtentId& id) {
  const auto found = referenced_.find(id);
  if (found == referenced_.end()) return;
  if (!IsHad(found->second.extent)) SpareLast(id);
  if (!IsHad(found->second.extent))
    Fail("LOST: " + node.id + " drops the last replica of " + Hex(id));
}

// --- Uploads ------------------------------------------------------------------------------------

void Simulation::CheckAnswer(const Node& node, const AskHeard& question, const Flags& flags) {
  for (std::size_t i = 0; i < flags.size(); ++i) {
    const auto heard = node.disk.LastHeard(question.uploads[i]);
    if (flags[i] != (heard && Local(node) - *heard < kUploadGrace))
      Fail(node.id + " does not say when it has heard of upload " + Hex(question.uploads[i]));
  }
}

void Simulation::NoteAnswer(const Node& node, const AskHeard& question, const Flags& flags) {
  for (std::size_t i = 0; i < flags.size(); ++i)
    if (flags[i]) heard_[{node.owner, question.uploads[i]}] = now_;
}

// A leader that was told of an upload's progress does not give it up soon.
void Simulation::CheckGivenUp(const Node& node, const MetaStore::Commit& commit) {
  for (const auto& put : commit.puts) {
    if (!put.key.starts_with(kTombstoneKeys)) continue;
    const auto record = TombstoneRecord::Decode(put.value);
    if (!record || record.value().upload == 0) continue;
    const auto heard = heard_.find({node.owner, record.value().upload});
    if (heard != heard_.end() && WithDrift(now_ - heard->second) < kUploadGrace)
      Fail(node.id + " gives up upload " + Hex(record.value().upload) + ", which goes on");
  }
}

// `other` has been there, as `node` sees it, and has held the extent, since that time.
bool Simulation::HoldsSince(const Node& node, const Node& other, const ManifestExtent& extent,
                            TimePoint since) const {
  const View& view = node.machine->view();
  const auto lease = leases_.find(other.id);
  const auto replica = other.disk.replicas.find(extent.id);
  const std::uint16_t ordinal = view.slots.map.Find(other.id);
  return other.is_up && lease != leases_.end() && lease->second.since + kKnown < since &&
         view.IsLive(other.id) && ordinal != SlotMap::kNoNode &&
         view.slots.map.nodes[ordinal].weight > 0 && other.disk.Find(extent.id) == extent &&
         replica->second.since < since;
}

// A client is sent to upload again only if too few hold an extent. Nodes that have been there, and
// have held it, all the time would have said so.
void Simulation::CheckRefusal(const Node& node, const Publication::Request& request,
                              TimePoint asked_at, const Error& error) {
  if (error.system_errno == EDQUOT) return CheckQuotaRefusal(request, asked_at, error);
  if (error.code != ErrorCode::kConflict) return;
  if (error.message.find("its upload did not begin") != std::string::npos)
    return CheckUploadRefusal(request, asked_at, error);
  if (error.message.find("of one stripe are held in") != std::string::npos)
    return CheckStripeRefusal(node, request, asked_at, error);
  if (error.message.find("is held in") == std::string::npos) return;
  if (now_ - last_map_change_ < kKnown) return;
  const auto manifest = DecodeDatasetManifest(request.manifest).value();
  const std::ptrdiff_t held_min = manifest.has_code() ? 1 : request.replicas;
  bool are_held = true;
  ForEachHeldExtent(manifest, [&](const ManifestExtent& extent) {
    are_held &= std::ranges::count_if(nodes_, [&](const auto& one) {
                  return HoldsSince(node, *one, extent, asked_at);
                }) >= held_min;
  });
  if (!are_held) return;
  Fail(request.name + " was refused though enough nodes hold it: " + error.message);
}

// Likewise if members of a stripe are on one node: they are not if each has a node to itself.
void Simulation::CheckStripeRefusal(const Node& node, const Publication::Request& request,
                                    TimePoint asked_at, const Error& error) {
  if (now_ - last_map_change_ < kKnown) return;
  for (const Stripe& stripe : StripesOf(DecodeDatasetManifest(request.manifest).value())) {
    std::map<const Node*, std::size_t> seats;
    std::set<const Node*> tried;
    const std::function<bool(std::size_t)> seat = [&](std::size_t member) {
      return std::ranges::any_of(nodes_, [&](const auto& other) {
        if (!HoldsSince(node, *other, stripe.members[member], asked_at) ||
            !tried.insert(other.get()).second)
          return false;
        const auto taken = seats.find(other.get());
        if (taken != seats.end() && !seat(taken->second)) return false;
        seats[other.get()] = member;
        return true;
      });
    };
    for (std::size_t member = 0; member < stripe.members.size(); ++member) {
      tried.clear();
      if (!seat(member)) return;
    }
  }
  Fail(request.name + " was refused though each member has a node to itself: " + error.message);
}

// Likewise for want of room, if names are what they were when it was asked.
void Simulation::CheckQuotaRefusal(const Publication::Request& request, TimePoint asked_at,
                                   const Error& error) {
  if (last_name_change_ >= asked_at) return;
  const std::uint64_t size_bytes = DecodeDatasetManifest(request.manifest).value().size_bytes();
  const auto own = published_.find(request.name);
  const std::uint64_t own_bytes = own == published_.end() ? 0 : own->second.record.size_bytes;
  for (const auto& [prefix, quota_bytes] : Quotas())
    if (request.name.starts_with(prefix) && size_bytes > own_bytes &&
        SizeBelow(prefix) - own_bytes + size_bytes > quota_bytes)
      return;
  Fail(request.name + " was refused though there is room: " + error.message);
}

// Likewise if an upload did not begin: the mirror of a node may be late.
void Simulation::CheckUploadRefusal(const Publication::Request& request, TimePoint asked_at,
                                    const Error& error) {
  bool are_explained = true;
  ForEachHeldExtent(
      DecodeDatasetManifest(request.manifest).value(), [&](const ManifestExtent& extent) {
        const auto upload = open_uploads_.find(UploadOf(extent.id));
        const bool is_open = upload != open_uploads_.end() && upload->second < asked_at;
        are_explained &= referenced_.contains(extent.id) || is_open;
      });
  if (!are_explained) return;
  Fail(request.name + " was refused though its uploads are open: " + error.message);
}

}  // namespace ffrecord::test
