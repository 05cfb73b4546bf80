#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <set>
#include <string>

#include "server/cluster/machine.h"

namespace ffrecord::server::cluster {

// All keys of the cluster as this node knows them: listed once, then watched. After a break it goes
// on behind the last change that it has seen; where changes were forgotten it lists anew and tells
// what differs.
class KeyMirror {
 public:
  struct Options {
    std::chrono::milliseconds retry{500};
    std::chrono::milliseconds patience{10'000};  // With one call.
  };
  // After the entries have changed: by one revision, or by a listing. The keys that changed.
  using OnChange = std::function<void(const std::set<std::string>& keys)>;
  using Entries = std::map<std::string, MetaStore::KeyValue, std::less<>>;

  KeyMirror(const Options& options, OnChange on_change)
      : options_(options), on_change_(std::move(on_change)) {}

  // Everything has been listed since this node started, or since Restart(). Before, the entries are
  // empty.
  bool was_listed() const { return was_listed_; }
  // All changes up to this revision are in the entries.
  std::uint64_t revision() const { return revision_; }
  const Entries& entries() const { return entries_; }
  const MetaStore::KeyValue* Find(std::string_view key) const;

  void Step(TimePoint now, Outbox& out);
  bool Take(TimePoint now, const Answer& answer, Outbox& out);
  // The store does not go on from where this knew it: forgets all, and lists anew. All keys of the
  // listing count as changed, for revisions of two histories say nothing of each other.
  void Restart(Outbox& out);
  bool is_watching() const { return watch_ != 0; }
  TimePoint wake() const { return call_ == 0 && watch_ == 0 ? next_ : TimePoint::max(); }

 private:
  void TakePage(TimePoint now, const Result<MetaStore::Page>& page);
  void TakeNews(TimePoint now, const MetaStore::News& news);
  void TakeListed();

  const Options options_;
  const OnChange on_change_;
  Entries entries_;
  std::uint64_t revision_ = 0;
  bool was_listed_ = false;
  bool must_list_ = true;
  Entries listed_;                     // Entries of the listing that is under way,
  std::uint64_t listed_revision_ = 0;  // which is of this revision.
  std::set<std::string> forgotten_;    // Keys of a history that has ended.
  CallId call_ = 0;
  CallId watch_ = 0;
  TimePoint next_{};
};

}  // namespace ffrecord::server::cluster
