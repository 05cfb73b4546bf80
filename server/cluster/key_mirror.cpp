#include "server/cluster/key_mirror.h"

#include <algorithm>
#include <utility>

namespace ffrecord::server::cluster {
namespace {

// A page of names that hold their manifests has about a megabyte.
constexpr std::uint32_t kPageSize = 256;

}  // namespace

const MetaStore::KeyValue* KeyMirror::Find(std::string_view key) const {
  const auto found = entries_.find(key);
  return found == entries_.end() ? nullptr : &found->second;
}

void KeyMirror::Step(TimePoint now, Outbox& out) {
  if (call_ != 0 || watch_ != 0 || now < next_) return;
  if (!must_list_) {
    watch_ = out.Ask(WatchKeys{"", revision_ + 1});
    return;
  }
  MetaStore::ListRequest request;
  request.limit = kPageSize;
  request.revision = listed_revision_;
  if (!listed_.empty()) request.after = listed_.rbegin()->first;
  call_ = out.Ask(std::move(request), now + options_.patience);
}

bool KeyMirror::Take(TimePoint now, const Answer& answer, Outbox& out) {
  if (call_ != 0 && answer.id == call_) {
    call_ = 0;
    TakePage(now, std::get<Result<MetaStore::Page>>(answer.reply));
  } else if (watch_ != 0 && answer.id == watch_) {
    TakeNews(now, std::get<MetaStore::News>(answer.reply));
  } else {
    return false;
  }
  Step(now, out);
  return true;
}

void KeyMirror::TakePage(TimePoint now, const Result<MetaStore::Page>& page) {
  if (!page) {  // Also where the revision of the first page has been forgotten meanwhile.
    listed_.clear();
    listed_revision_ = 0;
    next_ = now + options_.retry;
    return;
  }
  listed_revision_ = page.value().revision;
  for (const auto& entry : page.value().entries) listed_.insert_or_assign(entry.key, entry);
  if (!page.value().more) TakeListed();
}

void KeyMirror::Restart(Outbox& out) {
  if (watch_ != 0) out.Ask(EndWatch{watch_});
  call_ = watch_ = 0;
  for (const auto& [key, entry] : entries_) forgotten_.insert(key);
  entries_.clear();
  listed_.clear();
  revision_ = listed_revision_ = 0;
  was_listed_ = false;
  must_list_ = true;
  next_ = {};
}

void KeyMirror::TakeListed() {
  std::set<std::string> changed = std::exchange(forgotten_, {});
  for (const auto& [key, entry] : entries_)
    if (!listed_.contains(key)) changed.insert(key);
  for (const auto& [key, entry] : listed_) {
    const auto* const old = Find(key);
    if (old == nullptr || old->mod_revision != entry.mod_revision) changed.insert(key);
  }
  entries_ = std::exchange(listed_, {});
  revision_ = std::exchange(listed_revision_, 0);
  was_listed_ = true;
  must_list_ = false;
  on_change_(changed);
}

void KeyMirror::TakeNews(TimePoint now, const MetaStore::News& news) {
  if (news.kind != MetaStore::News::Kind::kEvents) {
    watch_ = 0;
    must_list_ = must_list_ || news.kind == MetaStore::News::Kind::kCompacted;
    next_ = now + options_.retry;
    return;
  }
  std::set<std::string> changed;
  for (const MetaStore::Event& event : news.events) {
    changed.insert(event.key);
    revision_ = std::max(revision_, event.revision);
    if (event.value)
      entries_.insert_or_assign(event.key,
                                MetaStore::KeyValue{event.key, *event.value, event.revision});
    else
      entries_.erase(event.key);
  }
  on_change_(changed);
}

}  // namespace ffrecord::server::cluster
