#include "server/service/cluster/cluster_names.h"

#include <algorithm>
#include <future>
#include <utility>

#include "libffrecord/base/clock.h"
#include "libffrecord/base/hex.h"
#include "server/metadata/name_quotas.h"
#include "server/service/cluster/adopted_histories.h"

namespace ffrecord::server {
namespace {

using std::chrono_literals::operator""ms;

constexpr auto kCatchUpPatience = 3'000ms;
// However long a client says that it waits.
constexpr auto kPublishPatience = 25'000ms;
// How long clients wait that do not say it.
constexpr auto kUntoldPatience = 10'000ms;
// A part of the time that a client waits: for the answer's way to it, and for the reason of a
// refusal to be of use, as it then asks another node.
constexpr auto kAnswerTime = 2'000ms;

Error NotFound(const ClusterState& state, const std::string& name) {
  Error error{ErrorCode::kNotFound, "nothing is published under the name " + name};
  if (state.may_lack_names)
    error.message +=
        "; but the metadata was put back to an older state, which may lack it: run `ffrecord "
        "cluster rebuild`";
  return error;
}

// It may have been published, replaced or removed since, and what the older state says of it would
// be taken for what is so now.
Error MayBeOld(const std::string& name) {
  return {
      ErrorCode::kUnavailable,
      name +
          ": the metadata was put back to an older state, and this name may have been "
          "published, replaced or removed since: run `ffrecord cluster rebuild`, or `confirm` if a "
          "node is lost for good"};
}

// A list that lacks names would be taken for all that there are: data, or the newest checkpoint.
Error MayLackNames() {
  return {ErrorCode::kUnavailable,
          "the metadata was put back to an older state, which may lack names, so they cannot be "
          "listed: run `ffrecord cluster rebuild`, or `confirm` if a node is lost for good"};
}

// By when a client is to be answered that waits so long from now on; 0: it does not say.
cluster::TimePoint AnswerBy(std::uint32_t patience_ms) {
  const std::chrono::milliseconds told(patience_ms);
  const auto patience = patience_ms == 0 ? kUntoldPatience : told;
  return Clock::now() + std::min(kPublishPatience, patience - std::min(kAnswerTime, patience / 4));
}

// Clients see the daemon's own name beside those of the cluster if nothing is in its way. A client
// that changes a list of versions would otherwise go on from another list than the cluster's, and
// publish there.
using Histories = AdoptedHistories<ClusterState::NameMap>;

// As `--durability` spells it. Empty: the name's list of files is not known yet.
std::string DurabilityOf(const ClusterState::Name& name) {
  if (name.manifest == nullptr) return "";
  if (name.manifest->has_origins()) return "origin";
  const ErasureCode code = name.manifest->code;
  if (!code.is_none()) return "ec:" + std::to_string(code.data) + "+" + std::to_string(code.parity);
  return "r" + std::to_string(name.record.replicas);
}

}  // namespace

// --- Putting ------------------------------------------------------------------------------------

void ClusterNames::BeginPut(const net::PutBegin& begin, std::string owner_prefix,
                            Done<std::optional<NewExtent>> done) {
  service_.clients().BeginPut(begin, owner_prefix, quotas_, std::move(done));
}

void ClusterNames::NoteHeard(const ExtentId& id) { service_.extents().NoteHeard(UploadOf(id)); }

Result<void> ClusterNames::Seal(ExtentWriter& writer, const net::PutSeal& seal) {
  NoteHeard(seal.id);
  FFR_TRY(service_.clients().CheckSeal(seal));
  FFR_TRY(writer.Seal(seal.xxh3));
  NoteHeard(seal.id);
  return {};
}

// --- Looking ------------------------------------------------------------------------------------

std::optional<Adoption::Name> ClusterNames::OwnName(const std::string& name) const {
  const Adoption* const adoption = service_.adoption();
  auto own = adoption == nullptr ? std::nullopt : adoption->Find(name);
  if (!own) return std::nullopt;
  const ClusterStatePtr state = service_.state();
  return Histories(*adoption, *state->names).InTheWay(*own).empty() ? std::move(own) : std::nullopt;
}

Result<ClusterNames::Resolved> ClusterNames::Known(const std::string& name,
                                                   bool accepts_old) const {
  const ClusterStatePtr state = service_.state();
  const ClusterState::Name* const found = state->Find(name);
  if (const auto own = found == nullptr ? OwnName(name) : std::nullopt)
    return Resolved{FFR_TRY(EncodeDatasetManifest(*own->manifest)), own->revision};
  if (state->may_lack_names && !accepts_old) return MayBeOld(name);
  if (found == nullptr) return NotFound(*state, name);
  if (!found->manifest)
    return Error{ErrorCode::kUnavailable,
                 name + ": this daemon is still fetching its list of files; try again"};
  return Resolved{FFR_TRY(EncodeDatasetManifest(*found->manifest)), found->revision};
}

// That what this node knows of the name, or of all names, is the newest; or need not be. A daemon
// that has not joined yet speaks for its own names.
void ClusterNames::Confirm(const std::string& name, bool accepts_old, Done<void> done) {
  if (service_.is_alone()) return done({});
  service_.clients().CatchUp(
      name, kCatchUpPatience, [accepts_old, done](const Result<void>& caught_up) {
        if (caught_up || accepts_old) return done({});
        done(Error{ErrorCode::kUnavailable,
                   "this node cannot tell what is published now: " + caught_up.error().message});
      });
}

void ClusterNames::Resolve(const net::Resolve& request, Done<Resolved> done) {
  Confirm(request.name, request.accepts_old, [this, request, done](const Result<void>& confirmed) {
    if (!confirmed) return done(confirmed.error());
    done(Known(request.name, request.accepts_old));
  });
}

// The cluster's, and this daemon's own that it does not have yet: otherwise the newest checkpoint
// of a run would seem to be an older one until all are adopted.
Result<net::ListReply> ClusterNames::Listed(const net::List& list) const {
  // First: a name that is adopted meanwhile is in one of the two.
  std::vector<Adoption::Name> own;
  const Adoption* const adoption = service_.adoption();
  if (adoption != nullptr)
    own = adoption->List(list.prefix, list.after, std::size_t{list.limit} + 1);
  const ClusterStatePtr state = service_.state();
  if (state->may_lack_names && !list.accepts_old) return MayLackNames();
  net::ListReply reply = ListedBy(*state, list);
  if (own.empty()) return reply;
  auto& entries = reply.entries;
  // Behind the page there may be more of the cluster's before the next one of its own.
  const std::string last = reply.more && !entries.empty() ? entries.back().name : "";
  Histories histories(*adoption, *state->names);
  for (const Adoption::Name& name : own) {
    if (state->Find(name.name) != nullptr || !histories.InTheWay(name).empty()) continue;
    if (!last.empty() && name.name > last) {
      reply.more = true;
      break;
    }
    entries.push_back(
        {name.name, name.revision, name.manifest->size_bytes(), name.manifest->files.size(), ""});
  }
  std::ranges::sort(entries, {}, &net::ListReply::Entry::name);
  if (entries.size() > list.limit) {
    entries.resize(list.limit);
    reply.more = true;
  }
  return reply;
}

net::ListReply ClusterNames::ListedBy(const ClusterState& state, const net::List& list) {
  const auto& names = *state.names;
  net::ListReply reply;
  // Behind `after`, but not before the prefix.
  auto at =
      list.after < list.prefix ? names.lower_bound(list.prefix) : names.upper_bound(list.after);
  if (list.after.empty()) at = names.lower_bound(list.prefix);
  for (; at != names.end() && at->first.starts_with(list.prefix); ++at) {
    if (reply.entries.size() == list.limit) {
      reply.more = true;
      break;
    }
    const ClusterState::Name& name = at->second;
    reply.entries.push_back({at->first, name.revision, name.record.size_bytes,
                             name.record.file_count, DurabilityOf(name)});
  }
  return reply;
}

void ClusterNames::List(const net::List& list, Done<net::ListReply> done) {
  Confirm("", list.accepts_old, [this, list, done](const Result<void>& confirmed) {
    if (!confirmed) return done(confirmed.error());
    done(Listed(list));
  });
}

std::vector<bool> ClusterNames::AreReferenced(std::string_view prefix,
                                              std::span<const ExtentId> ids) const {
  auto are = service_.references().AreReferenced(prefix, ids);
  if (service_.adoption() == nullptr) return are;
  const auto own = service_.adoption()->AreReferenced(prefix, ids);
  for (std::size_t i = 0; i < are.size(); ++i) are[i] = are[i] || own[i];
  return are;
}

// --- Changing -----------------------------------------------------------------------------------

// A client with a prefix may publish an extent again only if a name under its prefix has it.
Result<void> ClusterNames::CheckOwn(const DatasetManifest& manifest,
                                    const std::string& own_prefix) const {
  if (own_prefix.empty()) return {};
  const ExtentReferences& references = service_.references();
  const auto is_others = [&](const ManifestExtent& extent) {
    return references.Contains(extent.id) &&
           !references.AreReferenced(own_prefix, {&extent.id, 1}).front();
  };
  const auto refusal = [](const std::string& of, const ManifestExtent& extent) {
    return Error{ErrorCode::kConflict,
                 of + ": extent " + Hex(extent.id) +
                     " is not here; its upload did not end or was given up: upload again"};
  };
  for (const ManifestFile& file : manifest.files)
    for (const ManifestExtent& extent : file.extents)
      if (is_others(extent)) return refusal(file.name, extent);
  for (const ManifestExtent& extent : manifest.parity)
    if (is_others(extent)) return refusal("parity", extent);
  return {};
}

Result<void> ClusterNames::CheckLevel(std::uint32_t needed, const std::string& what) const {
  const auto level = service_.state()->level;
  if (level >= needed) return {};
  return Error{ErrorCode::kConflict,
               what + " need feature level " + std::to_string(needed) +
                   ", and the cluster is at level " + std::to_string(level) +
                   "; run `ffrecord cluster upgrade` once all of its nodes have this version"};
}

// That nodes can fetch the files, and that all of them understand such a name.
Result<void> ClusterNames::CheckOrigins(const DatasetManifest& manifest) const {
  if (!manifest.has_origins()) return {};
  const auto& check = service_.options().check_origin;
  if (!check)
    return Error{ErrorCode::kDenied, manifest.files.front().origin.address +
                                         ": the daemon may not read it; it has no setting origins"};
  for (const ManifestFile& file : manifest.files) FFR_TRY(check(file.origin.address));
  return CheckLevel(cluster::kOriginLevel, "names of class origin");
}

// The number of replicas of what is not in stripes, the list of files among it.
std::uint8_t ClusterNames::ReplicasOf(const DatasetManifest& manifest) const {
  if (manifest.has_origins()) return 1;  // One node caches an extent of an origin.
  if (manifest.has_code())
    return std::min<std::uint8_t>(manifest.code.parity + 1, DatasetManifest::kReplicasMax);
  return manifest.replicas != 0 ? manifest.replicas : service_.options().replicas;
}

void ClusterNames::Publish(const net::Publish& publish, std::span<const std::byte> bytes,
                           std::string own_prefix, Done<net::RevisionReply> done) {
  const auto manifest = DecodeDatasetManifest(bytes);
  if (!manifest) return done(Error{ErrorCode::kInvalidArgument, manifest.error().message});
  if (auto own = CheckOwn(manifest.value(), own_prefix); !own) return done(std::move(own).error());
  if (auto can = CheckOrigins(manifest.value()); !can) return done(std::move(can).error());
  if (manifest.value().has_code() || manifest.value().replicas != 0)
    if (auto can =
            CheckLevel(cluster::kDurabilityLevel, "names with a durability class of their own");
        !can)
      return done(std::move(can).error());
  cluster::Publication::Request request;
  request.mode = ChangeOf(publish.mode);
  request.name = publish.name;
  request.attempt = publish.attempt;
  request.expected_revision = publish.expected_revision;
  request.replicas = ReplicasOf(manifest.value());
  request.grace = service_.options().delete_grace;
  request.manifest.assign(bytes.begin(), bytes.end());
  request.deadline = AnswerBy(publish.patience_ms);
  request.quotas = quotas_;
  service_.clients().Publish(std::move(request), [done](const Result<std::uint64_t>& revision) {
    if (!revision) return done(revision.error());
    done(net::RevisionReply{revision.value()});
  });
}

void ClusterNames::Remove(const net::Delete& removal, Done<void> done) {
  cluster::Publication::Request request;
  request.mode = NameChange::kRemove;
  request.name = removal.name;
  request.expected_revision = removal.expected_revision;
  request.grace = service_.options().delete_grace;
  request.deadline = AnswerBy(removal.patience_ms);
  service_.clients().Publish(
      std::move(request), [this, name = removal.name, done](const Result<std::uint64_t>& removed) {
        if (removed) return done({});
        Error error = removed.error();
        if (error.code == ErrorCode::kNotFound && service_.state()->may_lack_names)
          return done(MayBeOld(name));
        if (error.code == ErrorCode::kNotFound && OwnName(name))
          error.message += " in the cluster yet; this daemon is adopting it: see its `status`";
        done(std::move(error));
      });
}

// --- Room ---------------------------------------------------------------------------------------

std::uint64_t ClusterNames::SizeBelow(std::string_view prefix, std::string_view but_not) const {
  const ClusterStatePtr state = service_.state();
  std::uint64_t size_bytes = 0;
  for (auto at = state->names->lower_bound(prefix);
       at != state->names->end() && at->first.starts_with(prefix); ++at)
    if (at->first != but_not) size_bytes += at->second.record.size_bytes;
  return size_bytes;
}

Result<void> ClusterNames::CheckQuotas(std::string_view name, std::uint64_t size_bytes) const {
  const ClusterStatePtr state = service_.state();
  const ClusterState::Name* const own = state->Find(name);
  return CheckNameQuotas(quotas_, name, own == nullptr ? 0 : own->record.size_bytes, size_bytes,
                         [&](const std::string& prefix) { return SizeBelow(prefix, name); });
}

// How much room all nodes have together nobody counts: each refuses what it cannot take.
Result<void> ClusterNames::CheckRoom(std::string_view name, std::uint64_t size_bytes) {
  auto room = CheckQuotas(name, size_bytes);
  if (!room) {  // That is final for the client: not by what was so once.
    std::promise<Result<void>> promise;
    Confirm("", /*accepts_old=*/false,
            [&](Result<void> confirmed) { promise.set_value(std::move(confirmed)); });
    FFR_TRY(promise.get_future().get());
    room = CheckQuotas(name, size_bytes);
  }
  FFR_TRY(std::move(room));
  FFR_TRY(service_.extents().store().FreeBytes());
  return {};
}

std::vector<Names::Usage> ClusterNames::Usages() const {
  std::vector<Usage> usages;
  for (const auto& [prefix, quota_bytes] : quotas_)
    usages.push_back({prefix, SizeBelow(prefix, ""), quota_bytes});
  return usages;
}

}  // namespace ffrecord::server
