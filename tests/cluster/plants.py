"""Bugs for the simulated cluster to find: each is one replacement in the code of the machines.

A simulator is evidence only if it finds what is known to be wrong.
`tests/cluster/campaign --plants` puts each of these into a copy of the tree, builds it and runs
seeds until one fails.
"""

import dataclasses


@dataclasses.dataclass(frozen=True)
class Plant:
    """One bug: the text that stands in the file exactly once, and what replaces it."""

    name: str
    file: str
    old: str
    new: str


def _in(file: str, *plants: tuple[str, str, str]) -> list[Plant]:
    return [Plant(name, f"server/cluster/{file}", old, new) for name, old, new in plants]


PLANTS = [
    *_in(
        "lease_keeper.cpp",
        (
            "a lease is believed in three times too long",
            "asked_at_ + ttl_ - ttl_ / 16",
            "asked_at_ + 3 * ttl_",
        ),
        (
            "clocks that differ are not allowed for",
            "asked_at_ + ttl_ - ttl_ / 16",
            "asked_at_ + ttl_",
        ),
        (
            "a lease that has ended is taken for renewed",
            "if (!kept.value()) return Forget(now);",
            "if (!kept.value()) return Renewed(ttl_);",
        ),
        (
            "the key of another start is taken for one's own",
            "outcome.value().fate == MetaStore::Outcome::Fate::kCommitted",
            "outcome.value().fate != MetaStore::Outcome::Fate::kUnknown",
        ),
    ),
    *_in(
        "lease_keeper.h",
        (
            "uploads are taken until the lease ends",
            "valid_until_ - now >= ttl_ / 2",
            "valid_until_ > now",
        ),
    ),
    *_in(
        "key_mirror.cpp",
        (
            "a watch leaves out a revision",
            'WatchKeys{"", revision_ + 1}',
            'WatchKeys{"", revision_ + 2}',
        ),
        (
            "keys that a listing lacks are not told",
            "if (!listed_.contains(key)) changed.insert(key);",
            "if (!listed_.contains(key)) changed.erase(key);",
        ),
        (
            "after a compaction nothing is listed",
            "must_list_ = must_list_ || news.kind == MetaStore::News::Kind::kCompacted;",
            "(void)news;",
        ),
    ),
    *_in(
        "name_table.cpp",
        (
            "the first name that goes takes shared extents along",
            "if (--found->second.name_count == 0)",
            "if (found->second.name_count-- > 0)",
        ),
        (
            "the replicas of a name that is gone are still wanted",
            "      uncounted_.insert(extent.id);",
            "      uncounted_.erase(extent.id);",
        ),
        (
            "the manifest of an older publication is taken",
            "found->second.revision != revision ||",
            "found->second.revision < revision ||",
        ),
    ),
    *_in(
        "name_table.h",
        (
            "names without their manifests are complete",
            "return missing_.empty(); }",
            "return missing_.size() < 1'000; }",
        ),
    ),
    *_in(
        "tombstone_table.h",
        (
            "what was removed may be published again",
            "return Contains(tombstone.second.record.runs, id);",
            "return tombstone.first.empty() && Contains({}, id);",
        ),
        (
            "a grace begins long ago",
            "entry->mod_revision, now}",
            "entry->mod_revision, now - std::chrono::hours(1)}",
        ),
    ),
    *_in(
        "quota_shares.cpp",
        (
            "a share is taken from without comparing it",
            "  commit.compares.push_back({share.key, share.revision});\n",
            "",
        ),
        (
            "shares are dealt out as if the name did not grow",
            "DealAnew(view, keys, left_bytes - growth_bytes, commit)",
            "DealAnew(view, keys, left_bytes, commit)",
        ),
        (
            "what is taken stays in the share",
            "chosen->size_bytes - growth_bytes",
            "chosen->size_bytes",
        ),
        (
            "a name's own bytes count against it",
            "if (at->first != name) size_bytes",
            "size_bytes",
        ),
    ),
    *_in(
        "upload_quotas.cpp",
        (
            "what is uploaded is not taken off its quota",
            "TakeShare(view, keys, quota_bytes, growth_bytes,",
            "TakeShare(view, keys, quota_bytes, growth_bytes / 2,",
        ),
        (
            "shares of uploads are dealt out as if nothing were pending",
            "quota_bytes - others_bytes - room.size_bytes",
            "quota_bytes - room.size_bytes",
        ),
        (
            "what was published stays on record as pending",
            "if (!id || !Counts(view, *id)) over.push_back",
            "if (!id) over.push_back",
        ),
    ),
    *_in(
        "cluster_node.cpp",
        (
            "names are told before the store has said what there is to know",
            "if (newest.revision && Shows(*newest.revision, look.name)) return *newest.revision;",
            "if (Shows(0, look.name)) return std::uint64_t{0};",
        ),
        (
            "names are told by what the mirror does not show yet",
            "!mirror_.was_listed() || mirror_.revision() < revision",
            "!mirror_.was_listed() || mirror_.revision() + 100 < revision",
        ),
    ),
    *_in(
        "replication.cpp",
        (
            "a promise is given by any version of the map",
            "question.promise_version == view.map_version() &&",
            "",
        ),
        (
            "a node that is no owner promises",
            "may_promise && wanted && view.IsOwner(*wanted)",
            "may_promise && wanted",
        ),
        (
            "a promise is given without a lease",
            "view.lease.IsLeased(now) && view.mirror",
            "now > TimePoint{} && view.mirror",
        ),
        (
            "one promise is enough to drop",
            "surplus.promises != surplus.owners",
            "surplus.promises.empty()",
        ),
        (
            "a holding with another checksum counts",
            "if (!found || *found != extent) {",
            "if (!found || found->size_bytes != extent.size_bytes) {",
        ),
        (
            "a drop does not look whether the map has changed",
            "view.MayConclude(now) && view.map_version() == surplus_version_",
            "view.MayConclude(now)",
        ),
        (
            "a drop does not look at the lease",
            "view.MayConclude(now) && view.map_version() == surplus_version_",
            "now > TimePoint{} && view.map_version() == surplus_version_",
        ),
        ("the owners of a short row suffice", "owners.are_all &&", ""),
        (
            "other bytes than published stay",
            "if (held == wanted.extent) continue;",
            "if (held) continue;",
        ),
        (
            "a node without some extents is filled",
            "view.extents.Find(entry.first) == entry.second.extent",
            "view.extents.Find(entry.first) != entry.second.extent",
        ),
    ),
    *_in(
        "burial.cpp",
        ("a grace is not waited for", "now - tombstone.seen < tombstone.record.grace ||", ""),
        (
            "a tombstone takes what names refer to",
            "if (!view.names.Find(extent.id)) unnamed",
            "unnamed",
        ),
        (
            "a given-up upload takes what was published and removed",
            "return tombstone.record.upload != 0 &&",
            "return tombstone.record.upload == 0 &&",
        ),
        ("what is on its way does not count as left", " && !IsInMotion(moving, *found)", ""),
        (
            "a tombstone is done while something is left",
            "Left(view, *found, unnamed).empty()",
            "true",
        ),
    ),
    *_in(
        "leader.cpp",
        (
            "a leader commits without its fence",
            "  commit.compares.push_back({std::string(kLeaderKey), fence_});",
            "",
        ),
        (
            "uploads are given up unless all have heard of them",
            "const bool any = asked_ == Asked::kHeard;",
            "const bool any = false;",
        ),
        (
            "one node that is done is enough",
            "const bool any = asked_ == Asked::kHeard;",
            "const bool any = true;",
        ),
        (
            "silence means that nothing is left",
            ": Flags(subjects_.size(), false);",
            ": Flags(subjects_.size(), !any);",
        ),
        (
            "the slot map is not compared",
            "commit.compares.push_back({std::string(kSlotsKey), key",
            "if (false) commit.compares.push_back({std::string(kSlotsKey), key",
        ),
    ),
    *_in(
        "publication.cpp",
        (
            "a removal does not compare the generation",
            "compares_[std::string(kGenerationKey)] = generation",
            "[[maybe_unused]] const auto unused = generation",
        ),
        (
            "a tombstone lists what other names share",
            "view.names.Find(id)->name_count == count && ",
            "",
        ),
        ("a tombstone lists what the name keeps", " && !sought_.contains(id)", " && (count > 0)"),
        ("the attempt's key stays", "    commit.deletes.push_back(own);", ""),
        (
            "an upload that the mirror does not show is refused at once",
            "if (found && !found.value()) return Fail(ErrorCode::kConflict, doubt_);",
            "if (found) return Fail(ErrorCode::kConflict, doubt_);",
        ),
        (
            "the silence of a holder is ignored",
            "if (!holdings) silent_[node] = holdings.error().message;",
            "",
        ),
        (
            "the name that extents are taken from is not compared",
            "compares_[Key(kDatasetKeys, base->second)] = view.names.Find(base->second)->revision;",
            "(void)view;",
        ),
        (
            "the upload is not compared",
            "    compares_[key] = upload->mod_revision;\n    uploads_.insert(key);",
            "    uploads_.insert(key);",
        ),
        (
            "uploads are not put anew",
            "if (upload != own) commit.puts",
            "if (upload == own) commit.puts",
        ),
        (
            "the name is not compared",
            "  compares_[Key(kDatasetKeys, request_.name)] = base_revision_;",
            "",
        ),
        (
            "a node that does not hold an extent counts",
            "if (holdings.value()[i] != Holding::kAbsent)",
            "if (holdings.value()[i] != Holding::kPromised)",
        ),
        (
            "one replica of a manifest is enough",
            "if (body_.domains.size() >= replicas) {",
            "if (!body_.domains.empty()) {",
        ),
        (
            "replicas in excess of a name's count for another",
            "view.names.NamesWith(published, request_.replicas, manifest_->code)",
            "view.names.NamesWith(published, 0, manifest_->code)",
        ),
        (
            "an attempt whose name was removed publishes again",
            "if (view.tombstones.WasRemoved(id))",
            "if (view.tombstones.WasRemoved(id) && request_.attempt == 0)",
        ),
        ("the generation stays", "  commit.puts.push_back({std::string(kGenerationKey), {}});", ""),
        (
            "a refusal comes from the mirror's name",
            "base_revision_ = found.value() ? found.value()->mod_revision : 0;",
            "base_revision_ = found.value() ? 1 : 0;",
        ),
    ),
    *_in(
        "cluster_node.cpp",
        (
            "uploads are taken that are not open",
            "lease_.MayWrite(now) && mirror_.Find(UploadKey(upload)) != nullptr",
            "lease_.MayWrite(now) && upload != 0",
        ),
        (
            "a node has never heard of an upload",
            "heard && now - *heard < options_.leader.upload_grace",
            "heard && now < *heard",
        ),
        (
            "the first slot map stays",
            "slots.value().map.version >= slots_.map.version",
            "slots_.map.version == 0",
        ),
    ),
    *_in(
        "records.cpp",
        (
            "a run reaches one extent too far",
            "one.first - run.first < run.count",
            "one.first - run.first <= run.count",
        ),
        ("a run is one extent", "      ++runs.back().count;", "      (void)one;"),
        (
            "the whole row owns",
            "row.first(std::min(row.size(), replicas))",
            "row.first(std::min(row.size(), replicas + 1))",
        ),
    ),
    # Of names with an erasure code.
    *_in(
        "owners.cpp",
        (
            "stripes have no owners",
            "  for (const StripePlace& place : wanted.stripes) {",
            "  for (const StripePlace& place : std::vector<StripePlace>()) {",
        ),
        (
            "a member without an owner is dropped",
            "      owners.are_all = false;\n      continue;",
            "      continue;",
        ),
        (
            "a node owns what its neighbour does",
            "return stripes.OwnerOf(slots.map, place) == ordinal;",
            "return stripes.OwnerOf(slots.map, place) + 1 == ordinal;",
        ),
    ),
    *_in(
        "stripe_table.h",
        (
            "stripes stay where the first slot map has them",
            "if (map.version != version_) owners_.clear();",
            "",
        ),
    ),
    *_in(
        "name_table.cpp",
        (
            "members have replicas too",
            "    ReferTo(extent, 0, &place, is_new);",
            "    ReferTo(extent, 1, &place, is_new);",
        ),
    ),
    *_in(
        "replication.cpp",
        (
            "nothing is computed",
            "if (!missing.holders.empty() || wanted == nullptr || wanted->stripes.empty())",
            "if (wanted != nullptr || wanted == nullptr)",
        ),
        (
            "the wrong member is computed",
            "                    place->member};",
            "                    0};",
        ),
    ),
    *_in(
        "publication_holders.cpp",
        (
            "members of a stripe may be on one node",
            "  if (!CheckStripes(now, view, out)) return;\n",
            "",
        ),
        (
            "nobody has to hold a member",
            "if (sought.domains.size() >= FilesHeldMin()) continue;",
            "if (sought.domains.size() >= FilesHeldMin() || manifest_->has_code()) continue;",
        ),
    ),
    *_in(
        "publication_stripes.cpp",
        (
            "the first node that has a member is the only one",
            "AddQuestions(view, sought_.at(id), SIZE_MAX, questions);",
            "AddQuestions(view, sought_.at(id), 0, questions);",
        ),
    ),
    *_in(
        "publication.cpp",
        (
            "parity is left behind",
            "{ ++own[extent.id]; });",
            "{ if (manifest_ || extent.id[11] == std::byte{0}) ++own[extent.id]; });",
        ),
    ),
]
