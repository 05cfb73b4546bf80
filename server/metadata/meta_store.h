#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include <ffrecord/result.h>

#include "libffrecord/base/clock.h"

namespace ffrecord::server {

// A small map of keys and values with compare-and-swap, leases and watches, for what is slow and
// rare: names, manifests, uploads, tombstones, members. Nothing per record or per read.
//
// There is one revision counter. Each commit that changes something takes the next number, and all
// that it puts carry it. Keys are ASCII and not empty; values are any bytes. Commits happen one
// after another. Every commit that was reported as committed is on stable storage, and every read
// that begins later sees it.
//
// Every call but StopWatch() only begins an operation. Its result comes once, as a plain value that
// can be put in a queue of events, to `done`. Callbacks run on one thread of the store, one after
// another, never inside the call that began the operation and with no lock held: they may begin
// other operations, and must not block or throw. Calls are thread-safe.
//
// Each operation completes by its deadline, with kDeadlineExceeded if there was no answer. It also
// fails with kUnavailable (no server answers, or the store was closed), kDenied (credentials), kIo
// (ENOSPC: the store is full; EIO) and kInvalidArgument (beyond the limits below). A commit that
// failed had no effect and will have none: where that is not sure, its fate is kUnknown. A request
// about a lease that failed may have had its effect; a lease of which nobody knows ends when its
// time is over.
//
// The destructor completes all operations that are under way before it returns, and ends all
// watches without a word; the store must not be called any more.
class MetaStore {
 public:
  using TimePoint = Clock::time_point;
  using LeaseId = std::uint64_t;  // 0: no lease.
  using WatchId = std::uint64_t;

  // Every form takes commits of this size: the sum of all keys and values, and the number of
  // compares, and of puts and deletes together.
  static constexpr std::size_t kCommitSizeMax = 1 << 20;
  static constexpr std::size_t kCommitOperationCountMax = 128;

  struct KeyValue {
    std::string key;
    std::vector<std::byte> value;
    std::uint64_t mod_revision = 0;  // Revision of the commit that put it last; at least 1.

    bool operator==(const KeyValue&) const = default;
  };
  struct ListRequest {
    std::string prefix;
    std::string after;           // Only keys that are greater.
    std::uint32_t limit = 1000;  // At least 1.
    std::uint64_t revision = 0;  // List the map as it was then; 0: as it is.
  };
  struct Page {
    std::vector<KeyValue> entries;  // In byte order of their keys.
    bool more = false;
    std::uint64_t revision = 0;  // At which the page was read.
  };
  // The key is absent (mod_revision 0), or was put last at mod_revision.
  struct Compare {
    std::string key;
    std::uint64_t mod_revision = 0;
  };
  struct Put {
    std::string key;
    std::vector<std::byte> value;
    LeaseId lease = 0;  // When it ends, the key is deleted.
  };
  struct Commit {
    std::vector<Compare> compares;
    std::vector<Put> puts;
    std::vector<std::string> deletes;  // Keys that are absent are no failure.
  };
  struct Outcome {
    enum class Fate {
      kCommitted,
      kLost,     // A compare did not hold; nothing was changed.
      kUnknown,  // Committed or not: read back, and look for what only this commit would have put.
    };
    Fate fate = Fate::kUnknown;
    // kCommitted: of this commit, or of the store if nothing changed; kLost: of the store.
    std::uint64_t revision = 0;
    std::optional<Error> why;  // kUnknown: what went wrong.
  };
  struct Lease {
    LeaseId id = 0;
    std::chrono::milliseconds ttl{};  // May be longer than asked for.
  };
  // One key was put or deleted.
  struct Event {
    std::string key;
    std::optional<std::vector<std::byte>> value;  // None: deleted.
    std::uint64_t revision = 0;                   // When committed, or its lease ended.

    bool operator==(const Event&) const = default;
  };
  // News of a watch.
  struct News {
    enum class Kind {
      kEvents,
      kCompacted,  // Changes that the watch has to tell are forgotten. List, then watch from there.
      kBroken,     // The connection was lost. Watch again from the last event's revision + 1.
    };
    Kind kind = Kind::kEvents;
    // In order of their revisions; all of one revision come together, in any order.
    std::vector<Event> events;
    std::optional<Error> why;  // kBroken.
  };

  template <class T>
  using Done = std::function<void(Result<T>)>;
  using OnNews = std::function<void(News)>;

  virtual ~MetaStore() = default;

  virtual void Get(std::string key, TimePoint deadline, Done<std::optional<KeyValue>> done) = 0;

  // The first `limit` keys that begin with the prefix and are greater than `after`. A list of many
  // pages asks for the first page's revision in all others. Fails with kConflict if the store has
  // forgotten that revision: list from the beginning.
  virtual void List(ListRequest request, TimePoint deadline, Done<Page> done) = 0;

  // All or nothing. Requires that no key is both put and deleted, put twice or deleted twice. Fails
  // with kNotFound if all compares hold and a lease of the puts has ended.
  virtual void TryCommit(Commit commit, TimePoint deadline, Done<Outcome> done) = 0;

  // A lease ends `ttl` after it was granted or kept last, at the soonest: the holder counts from
  // before it asked. All its keys are then deleted, at one revision.
  virtual void GrantLease(std::chrono::milliseconds ttl, TimePoint deadline, Done<Lease> done) = 0;
  // Begins the lease's time anew and tells how long that is; none: the lease has ended.
  virtual void KeepLease(LeaseId lease, TimePoint deadline,
                         Done<std::optional<std::chrono::milliseconds>> done) = 0;
  // Ends the lease now. One that has ended already is no failure.
  virtual void RevokeLease(LeaseId lease, TimePoint deadline, Done<void> done) = 0;

  // Tells every change of a key that begins with `prefix` from `from_revision` (at least 1) on,
  // until StopWatch() or until it has told of its end with kCompacted or kBroken.
  virtual WatchId Watch(std::string prefix, std::uint64_t from_revision, OnNews on_news) = 0;
  // On the thread of the callbacks no news come after this; on others, a callback that is running
  // ends. Nothing happens if the watch has ended.
  virtual void StopWatch(WatchId watch) = 0;
};

// In one SQLite file, made if it is missing, for one process; the map is in memory. Leases and
// their keys end with the process that granted them; watches cannot begin before its start. Takes
// commits of any size. Fails with kCorruption if the file is damaged or not ours, with kConflict if
// another process holds it, with kIo.
Result<std::unique_ptr<MetaStore>> OpenSqliteStore(const std::filesystem::path& path);

// The result of an operation that was sent and not answered.
template <class T>
Result<T> Unanswered(Error why) {
  if constexpr (std::is_same_v<T, MetaStore::Outcome>)
    return MetaStore::Outcome{MetaStore::Outcome::Fate::kUnknown, 0, std::move(why)};
  else
    return why;
}

// Fails with kInvalidArgument if the commit changes a key twice.
Result<void> CheckKeys(const MetaStore::Commit& commit);
// Fails with kInvalidArgument too if it is beyond the limits that every form takes.
Result<void> CheckCommit(const MetaStore::Commit& commit);

}  // namespace ffrecord::server
