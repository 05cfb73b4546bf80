#include "server/cluster/name_table.h"

#include <algorithm>
#include <utility>

#include "libffrecord/base/checksum.h"

namespace ffrecord::server::cluster {
namespace {

constexpr std::chrono::seconds kPatience{10};
constexpr std::size_t kFetchesMax = 8;  // Each may bring 8 MiB.

void Ask(NameTable::Wanted& wanted, std::uint8_t replicas, const StripePlace* stripe) {
  wanted.replicas = std::max(wanted.replicas, replicas);
  const auto is_like = [stripe](const StripePlace& known) { return known.IsLike(*stripe); };
  if (stripe != nullptr && std::ranges::none_of(wanted.stripes, is_like))
    wanted.stripes.push_back(*stripe);
}

}  // namespace

std::size_t HashId::operator()(const ExtentId& id) const noexcept {
  return static_cast<std::size_t>(Xxh3(id));
}

std::uint8_t BodyReplicas(std::uint8_t replicas) { return std::max<std::uint8_t>(replicas, 2); }

const NameTable::Name* NameTable::Find(std::string_view name) const {
  const auto found = names_.find(name);
  return found == names_.end() ? nullptr : &found->second;
}

const NameTable::Wanted* NameTable::Find(const ExtentId& id) const {
  const auto found = wanted_.find(id);
  return found == wanted_.end() ? nullptr : &found->second;
}

std::map<ExtentId, std::string> NameTable::NamesWith(std::span<const ExtentId> ids,
                                                     std::uint8_t replicas,
                                                     const ErasureCode& code) const {
  std::set<ExtentId> sought(ids.begin(), ids.end());
  std::map<ExtentId, std::string> found;
  for (const auto& [text, name] : names_) {
    if (!name.manifest || name.manifest->code != code) continue;
    if (code.is_none() && name.record.replicas < replicas) continue;
    ForEachHeldExtent(*name.manifest, [&, at = &text](const ManifestExtent& extent) {
      if (sought.erase(extent.id) > 0) found.emplace(extent.id, *at);
    });
    if (sought.empty()) break;
  }
  return found;
}

std::string NameTable::MissingNames() const {
  constexpr std::size_t kShownMax = 3;
  std::string text;
  std::size_t count = 0;
  for (const std::string& name : missing_) {
    if (++count > kShownMax) break;
    text += (text.empty() ? "" : ", ") + name;
  }
  const std::size_t more = missing_.size() - std::min(missing_.size(), kShownMax);
  return more > 0 ? text + " and " + std::to_string(more) + " more" : text;
}

void NameTable::Update(const std::set<std::string>& keys, const KeyMirror& mirror) {
  for (const std::string& key : keys) {
    const auto text = NameIn(kDatasetKeys, key);
    if (!text) continue;
    ++change_count_;
    changed_.insert(*text);
    Remove(*text);
    const MetaStore::KeyValue* const entry = mirror.Find(key);
    if (entry == nullptr) continue;
    Name name;
    name.revision = entry->mod_revision;
    auto record = DatasetRecord::Decode(entry->value);
    if (!record) name.lost_since = TimePoint{};  // Before all times.
    if (record) name.record = std::move(record).value();
    TakeOwnManifest(name);
    // A record that cannot be read stays missing: nothing is dropped while it is there.
    if (!name.manifest) missing_.insert(*text);
    Refer(name, true);
    names_.emplace(*text, std::move(name));
  }
  CountReplicas();
  if (!missing_.empty()) next_ = {};
}

// One that its record holds. Damaged, it is lost at once: no node has another.
void NameTable::TakeOwnManifest(Name& name) {
  if (!name.record.manifest) return;
  auto manifest = DecodeDatasetManifest(*name.record.manifest);
  if (manifest)
    name.manifest = std::make_shared<const DatasetManifest>(std::move(manifest).value());
  else
    name.lost_since = TimePoint{};
}

void NameTable::Remove(const std::string& name) {
  missing_.erase(name);
  fetched_.erase(name);
  const auto found = names_.find(name);
  if (found == names_.end()) return;
  Refer(found->second, false);
  names_.erase(found);
}

// The manifest's own extents from the first, the others once it is known.
void NameTable::Refer(const Name& name, bool is_new) {
  for (const ManifestExtent& extent : name.record.body)
    ReferTo(extent, BodyReplicas(name.record.replicas), nullptr, is_new);
  if (name.manifest) ReferToFiles(name, is_new);
}

void NameTable::ReferToFiles(const Name& name, bool is_new) {
  if (!name.manifest->has_code()) {
    ForEachHeldExtent(*name.manifest, [&](const ManifestExtent& extent) {
      ReferTo(extent, name.record.replicas, nullptr, is_new);
    });
    return;
  }
  ForEachMember(name.manifest, [&](const ManifestExtent& extent, const StripePlace& place) {
    ReferTo(extent, 0, &place, is_new);
  });
}

void NameTable::ReferTo(const ManifestExtent& extent, std::uint8_t replicas,
                        const StripePlace* stripe, bool is_new) {
  if (is_new) {
    Wanted& wanted = wanted_[extent.id];
    wanted.extent = extent;
    ++wanted.name_count;
    Ask(wanted, replicas, stripe);
  } else if (const auto found = wanted_.find(extent.id); found != wanted_.end()) {
    if (--found->second.name_count == 0)
      wanted_.erase(found);
    else if (stripe != nullptr || found->second.replicas == replicas)
      uncounted_.insert(extent.id);
  }
}

// All nodes have to come to the same number, whatever they have seen before: one walk for all.
void NameTable::CountReplicas() {
  if (uncounted_.empty()) return;
  for (const ExtentId& id : std::exchange(uncounted_, {}))
    if (const auto found = wanted_.find(id); found != wanted_.end()) {
      found->second.replicas = 0;
      found->second.stripes.clear();
      uncounted_.insert(id);
    }
  const auto count = [&](const ManifestExtent& extent, std::uint8_t replicas,
                         const StripePlace* stripe) {
    if (uncounted_.contains(extent.id)) Ask(wanted_.at(extent.id), replicas, stripe);
  };
  for (const auto& [text, name] : names_) {
    for (const ManifestExtent& extent : name.record.body)
      count(extent, BodyReplicas(name.record.replicas), nullptr);
    if (!name.manifest) continue;
    const std::uint8_t replicas = name.record.replicas;
    if (name.manifest->has_code())
      ForEachMember(name.manifest, [&](const ManifestExtent& extent, const StripePlace& place) {
        count(extent, 0, &place);
      });
    else
      ForEachHeldExtent(*name.manifest,
                        [&](const ManifestExtent& extent) { count(extent, replicas, nullptr); });
  }
  uncounted_.clear();
}

void NameTable::Step(TimePoint now, const SlotsRecord& slots, const std::set<std::string>& live,
                     Outbox& out) {
  if (now < next_) return;
  next_ = now + retry_;
  // By turns: those that no node has must not keep the others waiting.
  auto at = missing_.upper_bound(last_fetched_);
  for (std::size_t left = missing_.size(); left > 0 && fetches_.size() < kFetchesMax; --left) {
    if (at == missing_.end()) at = missing_.begin();
    const std::string& text = *at++;
    const Name& name = names_.at(text);
    if (name.record.body.empty() || fetched_.contains(text)) continue;
    FetchBody fetch{name.record.body, slots.CandidatesOf(name.record.body.front().id, live)};
    fetches_.emplace(out.Ask(std::move(fetch), now + kPatience),
                     Fetch{text, name.revision, name.record.attempt});
    fetched_.insert(text);
    last_fetched_ = text;
  }
}

bool NameTable::Take(TimePoint now, const Answer& answer) {
  const auto fetch = fetches_.find(answer.id);
  if (fetch == fetches_.end()) return false;
  const auto [text, revision, attempt] = fetch->second;
  fetches_.erase(fetch);
  const auto found = names_.find(text);
  // Published anew meanwhile: its manifest has a fetch of its own. Or it was asked for twice.
  if (found == names_.end() || found->second.revision != revision ||
      found->second.record.attempt != attempt || found->second.manifest) {
    next_ = now;
    return true;
  }
  fetched_.erase(text);
  const auto& body = std::get<Result<Body>>(answer.reply);
  auto manifest =
      body ? DecodeDatasetManifest(body.value()) : Result<DatasetManifest>(Error(body.error()));
  Name& name = found->second;
  if (!manifest) {
    if (!name.lost_since) name.lost_since = now;
    next_ = now + retry_;
    return true;
  }
  ++change_count_;
  changed_.insert(text);
  name.manifest = std::make_shared<const DatasetManifest>(std::move(manifest).value());
  ReferToFiles(name, true);
  missing_.erase(text);
  if (!missing_.empty()) next_ = now;
  return true;
}

}  // namespace ffrecord::server::cluster
