#include "server/cluster/publication.h"

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <memory>
#include <optional>
#include <unordered_map>
#include <utility>

#include "libffrecord/base/checksum.h"
#include "libffrecord/base/hex.h"
#include "server/cluster/quota_shares.h"
#include "server/cluster/rebuild.h"
#include "server/cluster/removals.h"
#include "server/metadata/version_list.h"

namespace ffrecord::server::cluster {
namespace {

constexpr std::chrono::seconds kFullPatience{5};  // Room may be made, and nodes come up.
// How long a manifest is sought in vain until its name may be removed without it.
constexpr std::chrono::seconds kLostPatience{60};
constexpr std::size_t kTombstoneSizeMax = 256 << 10;
constexpr std::size_t kRunsMax = kTombstoneSizeMax / sizeof(ExtentRun);

// An extent that nodes fetch: the extent of that number of that file.
struct Source {
  const ManifestFile* file;
  std::size_t number;

  bool IsSame(const Source& other) const {
    return number == other.number && file->origin == other.file->origin &&
           file->size_bytes == other.file->size_bytes &&
           file->extents[number] == other.file->extents[number];
  }
};
using Sources = std::unordered_map<ExtentId, Source, HashId>;

// Adds those of the manifest, or looks whether they are there. None: all agree; else one that does
// not.
std::optional<Source> FindOther(const DatasetManifest& manifest, Sources& sources, bool adds) {
  for (const ManifestFile& file : manifest.files)
    for (std::size_t i = 0; i < file.extents.size(); ++i) {
      const Source source{&file, i};
      const auto found = adds ? sources.try_emplace(file.extents[i].id, source).first
                              : sources.find(file.extents[i].id);
      if (found != sources.end() && !found->second.IsSame(source)) return found->second;
    }
  return std::nullopt;
}

// So that nothing is published or removed between what the view shows and the commit.
void CompareGeneration(const View& view, std::map<std::string, std::uint64_t>& compares) {
  const MetaStore::KeyValue* const generation = view.mirror.Find(kGenerationKey);
  compares[std::string(kGenerationKey)] = generation == nullptr ? 0 : generation->mod_revision;
}

}  // namespace

void Publication::Fail(Error refusal) { result_ = unanswered_.Explain(std::move(refusal)); }

void Publication::NoteUnanswered() {
  has_tried_ = true;
  unanswered_.Note();
  // If it was carried out, what the name stands for since then is another's.
  if (request_.mode == Mode::kRemove) removed_revision_ = base_revision_;
}

void Publication::NoteUnderWay() {
  if (call_ != 0 && phase_ == Phase::kCommit) NoteUnanswered();
}

void Publication::GiveUp(Error why) {
  if (result_) return;
  NoteUnderWay();
  Fail(std::move(why));
}

void Publication::Again(TimePoint at) {
  phase_ = Phase::kLook;
  next_ = at;
}

void Publication::Restart(TimePoint now) {
  NoteUnderWay();
  call_ = 0;
  questions_.clear();
  stores_.clear();
  Again(now);
}

void Publication::Step(TimePoint now, const View& view, Outbox& out) {
  if (result_) return;
  if (now >= request_.deadline) return FailLate(view);
  if (now < next_ || call_ != 0 || !questions_.empty() || !stores_.empty()) return;
  next_ = request_.deadline;
  switch (phase_) {
    case Phase::kLook:
      call_ = out.Ask(GetKey{Key(kDatasetKeys, request_.name)}, now + kPatience);
      return;
    case Phase::kGeneration:
      call_ = out.Ask(GetKey{std::string(kGenerationKey)}, now + kPatience);
      return;
    case Phase::kPrepare:
      return Prepare(now, view, out);
    case Phase::kDoubt:
      call_ = out.Ask(GetKey{doubted_}, now + kPatience);
      return;
    case Phase::kRecord:
      return RecordUpload(now, view, out);
    case Phase::kHolders:
      return AskHolders(now, view, out);
    case Phase::kBody:
      return StoreBodies(now, view, out);
    case Phase::kCommit:
      return Commit(now, view, out);
  }
}

// --- Before the commit --------------------------------------------------------------------------

// The store itself says what the name is: the mirror may be late, and a refusal is final.
void Publication::Looked(TimePoint now, const Result<std::optional<MetaStore::KeyValue>>& found) {
  if (!found) return WaitForStore(now + kRetry, found.error());
  base_revision_ = found.value() ? found.value()->mod_revision : 0;
  if (removed_revision_ != 0 && base_revision_ != 0 && base_revision_ != removed_revision_)
    return Fail(ErrorCode::kConflict,
                request_.name +
                    " was published again while it was removed; look again, then "
                    "decide");
  if (found.value() && request_.mode != Mode::kRemove) {
    const auto record = DatasetRecord::Decode(found.value()->value);
    if (record && record.value().attempt == request_.attempt) {
      result_ = base_revision_;  // Our own commit, whose answer was lost.
      return;
    }
  }
  // All else, also that a name is gone, is concluded from the mirror as well.
  if (found.value() && request_.mode == Mode::kRemove) CheckMode();
  phase_ = Phase::kGeneration;
  next_ = now;
}

// Asked for after the name: so whatever made the name what it is, or took it away, is in it.
void Publication::TookGeneration(TimePoint now,
                                 const Result<std::optional<MetaStore::KeyValue>>& found) {
  if (!found) return WaitForStore(now + kRetry, found.error());
  generation_needed_ = found.value() ? found.value()->mod_revision : 0;
  phase_ = Phase::kPrepare;
  next_ = now;
}

void Publication::CheckMode() {
  auto may =
      CheckNameChange(request_.mode, request_.name, base_revision_, request_.expected_revision);
  if (!may) Fail(std::move(may).error());
}

// Neither the store nor the mirror has the name. The store alone may have been put back to an older
// state a moment ago, in which it had not been published yet; a rebuild would bring it back.
void Publication::ConcludeGone(const View& view) {
  // Our own removal, whose answer was lost: the name is gone, as was asked.
  if (has_tried_ && !MayLackNames(view))
    result_ = std::uint64_t{0};
  else
    CheckMode();
}

void Publication::Prepare(TimePoint now, const View& view, Outbox& out) {
  // The mirror gives everything else that the commit rests on: it must show the same name.
  const NameTable::Name* const shown = view.names.Find(request_.name);
  const MetaStore::KeyValue* const generation = view.mirror.Find(kGenerationKey);
  if ((generation ? generation->mod_revision : 0) < generation_needed_ ||
      !view.mirror.was_listed() || (shown ? shown->revision : 0) != base_revision_)
    return Wait(now + kRetry / 5, "the coordinator has not told this daemon of the last changes");
  if (request_.mode != Mode::kRemove) {
    // Our own commit, by way of this node or of another one, and others have been there since.
    if (const auto revision = RevisionBefore(view, request_.attempt)) {
      result_ = *revision;
      return;
    }
    // All commits of the attempt compare the name with a revision that it will never have again.
    if (request_.mode == Mode::kSwap && base_revision_ > request_.expected_revision &&
        !MayLackNames(view))
      unanswered_.Settle();
    CheckMode();
    if (!result_ && HasVersions(view.names.names(), request_.name))
      Fail(RefusalForVersions(request_.name));
    if (result_) return;
  }
  if (!view.lease.MayWrite(now))
    return Wait(now + kRetry / 5, "the lease of this daemon in the cluster is not renewed");
  if (request_.mode == Mode::kRemove && base_revision_ == 0) return ConcludeGone(view);
  if (request_.mode != Mode::kRemove) {
    if (!manifest_) {
      auto manifest = DecodeDatasetManifest(request_.manifest);
      if (!manifest) return Fail(ErrorCode::kInvalidArgument, manifest.error().message);
      manifest_ = std::move(manifest).value();
    }
    // Before anything is waited for, or stored for it; once more with the commit.
    if (auto room = CheckQuotas(request_.quotas, view, request_.name, manifest_->size_bytes());
        !room)
      return Fail(std::move(room).error());
  }
  // Only a name whose own manifest is lost is removed without knowing what all others refer to.
  // A node that is away for a while may have it.
  const bool removes_lost = request_.mode == Mode::kRemove && shown && !shown->manifest &&
                            shown->lost_since && now - *shown->lost_since >= kLostPatience;
  if (!view.names.IsComplete() && !removes_lost) {
    if (!hindered_since_) hindered_since_ = now;
    if (now - *hindered_since_ < kManifestsPatience) return Again(now + kRetry / 5);
    return Fail(ErrorCode::kUnavailable,
                request_.name + " cannot be changed now" + Hindrance(view));
  }
  hindered_since_.reset();
  compares_.clear();
  uploads_.clear();
  sought_.clear();
  silent_.clear();
  compares_[Key(kDatasetKeys, request_.name)] = base_revision_;
  next_ = now;
  if (request_.mode == Mode::kRemove) {
    phase_ = Phase::kCommit;
    return Step(now, view, out);
  }
  const ExtentId id = BodyExtentOf(request_.attempt);
  if (view.tombstones.WasRemoved(id)) {
    unanswered_.Settle();
    return Fail(ErrorCode::kConflict, request_.name + " was published by this attempt, and was " +
                                          "replaced or removed since");
  }
  if (!CheckDomains(view)) return;
  if (!CheckExtents(view)) return Step(now, view, out);
  body_ = {{id, request_.manifest.size(), Xxh3(request_.manifest)}, {}, {}};
  unstored_.clear();
  // One that began as a large one, below the level, may have stored its manifest: it ends as such.
  is_small_ = request_.manifest.size() <= DatasetRecord::kOwnManifestSizeMax &&
              LevelIn(view.mirror.Find(kLevelKey)) >= kOwnManifestLevel &&
              view.mirror.Find(UploadKey(request_.attempt)) == nullptr;
  phase_ = is_small_ ? Phase::kHolders : Phase::kRecord;
  Step(now, view, out);
}

std::set<std::string> Publication::Domains(const View& view, bool live_only) {
  std::set<std::string> domains;
  for (const PlacedNode& node : view.slots.map.nodes)
    if (node.weight > 0 && (!live_only || view.IsLive(node.id))) domains.insert(node.domain);
  return domains;
}

bool Publication::CheckDomains(const View& view) {
  const std::size_t live = Domains(view, true).size();
  const std::size_t members = IsRepaired() ? 0 : StripeSizeMax(*manifest_);
  if (live >= std::max(HeldMin(), members)) return true;
  const std::string wanted = members > HeldMin() ? std::to_string(members) + " members of a stripe"
                                                 : std::to_string(HeldMin()) + " replicas";
  Fail(ErrorCode::kUnavailable,
       request_.name + ": " + wanted + " are asked for and " + std::to_string(live) +
           " failure domains are up; start the nodes that are down, or publish with " +
           (members > HeldMin() ? "a smaller erasure code" : "fewer replicas"));
  return false;
}

// Each must be explained until the commit: by a name that stands, or by its upload.
bool Publication::CheckExtents(const View& view) {
  if (manifest_->has_origins()) return CheckFetched(view);
  std::vector<ExtentId> published;
  ForEachHeldExtent(*manifest_, [&](const ManifestExtent& extent) {
    sought_.try_emplace(extent.id, Sought{extent, {}, {}});
    if (view.names.Find(extent.id) != nullptr) published.push_back(extent.id);
  });
  places_.clear();
  ForEachMember(std::make_shared<const DatasetManifest>(*manifest_),
                [this](const ManifestExtent& extent, const StripePlace& place) {
                  places_.insert_or_assign(extent.id, place);
                });
  if (!CheckWholeStripes(view)) return false;
  const auto bases = view.names.NamesWith(published, request_.replicas, manifest_->code);
  const auto check = [&](const std::string& of, const ManifestExtent& extent) {
    const std::string what = of + ": extent " + Hex(extent.id);
    const NameTable::Wanted* const wanted = view.names.Find(extent.id);
    return wanted ? CheckPublished(view, what, extent, *wanted, bases)
                  : CheckUploaded(view, what, extent);
  };
  for (const ManifestFile& file : manifest_->files)
    for (const ManifestExtent& extent : file.extents)
      if (!check(file.name, extent)) return false;
  return std::ranges::all_of(manifest_->parity,
                             [&](const ManifestExtent& extent) { return check("parity", extent); });
}

bool Publication::CheckPublished(const View& view, const std::string& what,
                                 const ManifestExtent& extent, const NameTable::Wanted& wanted,
                                 const std::map<ExtentId, std::string>& bases) {
  // While the base stands, so many replicas of it do. Others may be dropped at any time.
  const auto base = bases.find(extent.id);
  const auto place = places_.find(extent.id);
  const bool is_in_place =
      place == places_.end() || std::ranges::any_of(wanted.stripes, [&](const StripePlace& known) {
        return known.IsLike(place->second);
      });
  if (wanted.extent != extent) {
    Fail(ErrorCode::kInvalidArgument,
         what + " is published with another size or checksum than the manifest says");
  } else if (base == bases.end() || !is_in_place) {
    const std::string has = wanted.stripes.empty() ? std::to_string(+wanted.replicas) + " replicas"
                                                   : std::string("an erasure code");
    const std::string asked = manifest_->has_code()
                                  ? std::string("its place in a stripe")
                                  : std::to_string(+request_.replicas) + " replicas";
    Fail(ErrorCode::kConflict, what + " is published with " + has + " and " + asked +
                                   (manifest_->has_code() ? " is" : " are") +
                                   " asked for; upload it again");
  } else {
    compares_[Key(kDatasetKeys, base->second)] = view.names.Find(base->second)->revision;
    return true;
  }
  return false;
}

// Extents that nodes fetch must not have the ids of any that nodes hold.
bool Publication::CheckFetched(const View& view) {
  for (const ManifestFile& file : manifest_->files)
    for (const ManifestExtent& extent : file.extents) {
      const bool is_held = view.names.Find(extent.id) != nullptr ||
                           view.mirror.Find(UploadKey(UploadOf(extent.id))) != nullptr ||
                           view.tombstones.WasRemoved(extent.id);
      if (!is_held) continue;
      Fail(ErrorCode::kInvalidArgument, file.name + ": extent " + Hex(extent.id) +
                                            " has the id of an upload, and its bytes are to be "
                                            "fetched from " +
                                            file.origin.address +
                                            "; publish it again under new ids");
      return false;
    }
  return CheckSources(view);
}

// A publisher could otherwise have the readers of another name read from a place of their choice.
bool Publication::CheckSources(const View& view) {
  Sources sources;
  auto other = FindOther(*manifest_, sources, /*adds=*/true);
  for (const auto& [text, name] : view.names.names())
    if (!other && name.manifest && name.manifest->has_origins())
      other = FindOther(*name.manifest, sources, /*adds=*/false);
  if (!other) return true;
  Fail(ErrorCode::kInvalidArgument,
       other->file->name + ": extent " + Hex(other->file->extents[other->number].id) +
           " is published with another origin than " + other->file->origin.address +
           "; publish it again under new ids");
  return false;
}

bool Publication::CheckUploaded(const View& view, const std::string& what,
                                const ManifestExtent& extent) {
  const std::string key = UploadKey(UploadOf(extent.id));
  const MetaStore::KeyValue* const upload = view.mirror.Find(key);
  if (view.tombstones.WasRemoved(extent.id)) {
    Fail(ErrorCode::kConflict, what + " was removed; upload it again");
  } else if (upload == nullptr) {
    doubted_ = key;
    doubt_ = what + ": its upload did not begin or was given up; upload again";
    phase_ = Phase::kDoubt;
  } else {
    compares_[key] = upload->mod_revision;
    uploads_.insert(key);
    return true;
  }
  return false;
}

// Another node may have opened the upload just now.
void Publication::TookDoubted(TimePoint now,
                              const Result<std::optional<MetaStore::KeyValue>>& found) {
  if (found && !found.value()) return Fail(ErrorCode::kConflict, doubt_);
  if (!found) return WaitForStore(now + kRetry / 5, found.error());
  Wait(now + kRetry / 5, "the coordinator has not told this daemon of the upload");
}

// The manifest's own extent belongs to an upload called like the attempt.
void Publication::RecordUpload(TimePoint now, const View& view, Outbox& out) {
  const std::string key = UploadKey(request_.attempt);
  if (const MetaStore::KeyValue* const upload = view.mirror.Find(key)) {
    compares_[key] = upload->mod_revision;
    phase_ = Phase::kHolders;
    next_ = now;
    return Step(now, view, out);
  }
  if (view.mirror.Find(UploadTombstoneKey(request_.attempt)) != nullptr) {
    unanswered_.Settle();  // A commit of ours would have lost.
    return Fail(
        ErrorCode::kConflict,
        request_.name + ": the attempt was silent for long and was given up; begin another");
  }
  MetaStore::Commit commit;
  commit.compares.push_back({key, 0});
  commit.compares.push_back({UploadTombstoneKey(request_.attempt), 0});
  commit.puts.push_back({key, {}});
  call_ = out.Ask(std::move(commit), now + kPatience);
}

void Publication::StoreBodies(TimePoint now, const View& view, Outbox& out) {
  // A cluster of one node has no second place for a manifest; one that is down is waited for. A
  // commit waits for the replicas that the request asks for in any case: nodes may have begun to
  // drain since.
  const std::size_t replicas = std::max<std::size_t>(
      HeldMin(),
      std::min<std::size_t>(BodyReplicas(request_.replicas), Domains(view, false).size()));
  if (body_.domains.size() >= replicas) {
    phase_ = Phase::kCommit;
    next_ = now;
    return Step(now, view, out);
  }
  std::set<std::string> domains = body_.domains;
  for (const std::string& node : view.CandidatesOf(body_.extent.id)) {
    if (domains.size() >= replicas) break;
    const std::string domain = DomainOf(view, node);
    if (!view.IsLive(node) || domain.empty() || body_.asked.contains(node) ||
        !domains.insert(domain).second)
      continue;
    body_.asked.insert(node);
    const CallId call = out.Ask(StoreBody{node, body_.extent, request_.manifest}, now + kPatience);
    stores_.emplace(call, node);
  }
  if (!stores_.empty()) return;
  body_.asked.clear();  // All that could be asked have failed: once more, later.
  next_ = now + kRetry;
  NoteUnstored(replicas);
  if (!full_ || has_tried_) return;
  if (!full_since_) full_since_ = now;
  if (now - *full_since_ < kFullPatience) return;
  Fail({ErrorCode::kIo,
        request_.name + ": its list of files could be stored in " +
            std::to_string(body_.domains.size()) + " of " + std::to_string(replicas) +
            " failure domains; make room, or start nodes that are down; " + *full_,
        ENOSPC});
}

// --- The commit ---------------------------------------------------------------------------------

bool Publication::AddRemoval(const View& view, MetaStore::Commit& commit) {
  const NameTable::Name* const old = view.names.Find(request_.name);
  if (old == nullptr) return true;
  std::vector<ExtentId> last;
  // So that it is known what has come of the attempt (RevisionBefore).
  if (old->record.manifest) last.push_back(BodyExtentOf(old->record.attempt));
  // Without its manifest nobody knows what it refers to: its extents stay, and are reported. But it
  // is on record that it was removed, for those who have known it.
  if (!old->manifest && request_.mode == Mode::kRemove) {
    for (const ManifestExtent& extent : old->record.body) last.push_back(extent.id);
    AddTombstones(old->revision, std::move(last), commit);
    return true;
  }
  // The extents that only this name refers to are those of now: no publication may come between.
  if (!old->manifest || !view.names.IsComplete()) return false;
  CompareGeneration(view, compares_);

  std::map<ExtentId, std::uint32_t> own;
  ForEachHeldExtent(*old->manifest, [&](const ManifestExtent& extent) { ++own[extent.id]; });
  for (const ManifestExtent& extent : old->record.body) ++own[extent.id];
  for (const auto& [id, count] : own)
    if (view.names.Find(id)->name_count == count && !sought_.contains(id)) last.push_back(id);
  AddTombstones(old->revision, std::move(last), commit);
  return true;
}

void Publication::AddTombstones(std::uint64_t revision, std::vector<ExtentId> last,
                                MetaStore::Commit& commit) const {
  TombstoneRecord tombstone;
  tombstone.grace = request_.grace;
  const auto runs = RunsOf(std::move(last));
  for (std::size_t begin = 0; begin < runs.size(); begin += kRunsMax) {
    const auto behind =
        runs.begin() + static_cast<std::ptrdiff_t>(std::min(runs.size(), begin + kRunsMax));
    tombstone.runs.assign(runs.begin() + static_cast<std::ptrdiff_t>(begin), behind);
    commit.puts.push_back(
        {NameTombstonePrefix(revision) + std::to_string(begin / kRunsMax), tombstone.Encode()});
  }
}

void Publication::Commit(TimePoint now, const View& view, Outbox& out) {
  const std::string key = Key(kDatasetKeys, request_.name);
  MetaStore::Commit commit;
  if (!AddRemoval(view, commit)) return Again(now + kRetry);
  if (request_.mode == Mode::kRemove) {
    commit.deletes.push_back(key);
    NoteRemoval(view, request_.name, commit);
  } else {
    DatasetRecord record;
    record.attempt = request_.attempt;
    record.replicas = request_.replicas;
    record.size_bytes = manifest_->size_bytes();
    record.file_count = manifest_->files.size();
    const std::string own = UploadKey(request_.attempt);
    if (is_small_) {
      record.manifest = std::make_shared<const Body>(request_.manifest);
      compares_[own] = 0;
    } else {
      record.body = {body_.extent};
      commit.deletes.push_back(own);
    }
    commit.puts.push_back({key, record.Encode()});
    // An attempt has its effect once: later ones find an upload put anew; or, if they rest on none,
    // another generation.
    if (uploads_.empty()) CompareGeneration(view, compares_);
    // Whatever else rests on the same uploads has to look again: it may share extents with this.
    for (const std::string& upload : uploads_)
      if (upload != own) commit.puts.push_back({upload, {}});
    // By turns: another share than the one for which it has lost to another publication.
    if (auto room = TakeQuotas(request_.quotas, view, request_.name, record.size_bytes,
                               request_.attempt + lost_count_, commit);
        !room)
      return Fail(std::move(room).error());
  }
  commit.puts.push_back({std::string(kGenerationKey), {}});
  for (const auto& [name, revision] : compares_) commit.compares.push_back({name, revision});
  if (auto checked = CheckCommit(commit); !checked)
    return Fail(ErrorCode::kInvalidArgument,
                request_.name +
                    " has too many files to be changed in one commit: " + checked.error().message);
  call_ = out.Ask(std::move(commit), now + kPatience);
}

// Committed or not, the name is looked at again: it alone says whether it was ours.
void Publication::Committed(TimePoint now, const Result<MetaStore::Outcome>& outcome) {
  const bool is_committed = outcome && outcome.value().fate == MetaStore::Outcome::Fate::kCommitted;
  if (phase_ == Phase::kCommit && is_committed) {
    result_ = outcome.value().revision;
    return;
  }
  has_tried_ = has_tried_ || (phase_ == Phase::kCommit && outcome);
  if (phase_ == Phase::kCommit && outcome &&
      outcome.value().fate == MetaStore::Outcome::Fate::kUnknown)
    NoteUnanswered();
  ++lost_count_;
  if (!outcome) return WaitForStore(now + kRetry, outcome.error());
  if (outcome.value().why) return WaitForStore(now + kRetry / 10, *outcome.value().why);
  Wait(now + kRetry / 10, "other publications came first");
}

// A node that has begun to drain since it was asked counts no more.
void Publication::Note(Sought& sought, std::string domain) {
  if (!domain.empty()) sought.domains.insert(std::move(domain));
}

bool Publication::Take(TimePoint now, const View& view, const Answer& answer, Outbox& out) {
  if (const auto question = questions_.find(answer.id); question != questions_.end()) {
    const auto& [node, ids] = question->second;
    const auto& holdings = std::get<Result<Holdings>>(answer.reply);
    if (holdings && holdings.value().size() == ids.size())
      for (std::size_t i = 0; i < ids.size(); ++i)
        if (holdings.value()[i] != Holding::kAbsent) Note(sought_.at(ids[i]), DomainOf(view, node));
    if (!holdings) silent_[node] = holdings.error().message;
    questions_.erase(question);
    if (questions_.empty()) next_ = now;
  } else if (const auto store = stores_.find(answer.id); store != stores_.end()) {
    const auto& stored = std::get<Result<void>>(answer.reply);
    if (stored)
      Note(body_, DomainOf(view, store->second));
    else
      unstored_[store->second] = stored.error().message;
    if (!stored && stored.error().system_errno == ENOSPC)
      full_ = store->second + ": " + stored.error().message;
    stores_.erase(store);
    if (stores_.empty()) next_ = now;
  } else if (call_ != 0 && answer.id == call_) {
    call_ = 0;
    next_ = now;
    if (phase_ == Phase::kLook)
      Looked(now, std::get<Result<std::optional<MetaStore::KeyValue>>>(answer.reply));
    else if (phase_ == Phase::kGeneration)
      TookGeneration(now, std::get<Result<std::optional<MetaStore::KeyValue>>>(answer.reply));
    else if (phase_ == Phase::kDoubt)
      TookDoubted(now, std::get<Result<std::optional<MetaStore::KeyValue>>>(answer.reply));
    else
      Committed(now, std::get<Result<MetaStore::Outcome>>(answer.reply));
  } else {
    return false;
  }
  Step(now, view, out);
  return true;
}

}  // namespace ffrecord::server::cluster
