#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include <ffrecord/result.h>

#include "libffrecord/format/dataset_manifest.h"
#include "libffrecord/format/stripes.h"
#include "server/cluster/records.h"
#include "server/metadata/meta_store.h"

namespace ffrecord::server::cluster {

// The words between the machines of a cluster and the daemon around them.
//
// A machine is an object of one thread, without system calls, locks and clocks. It is stepped with
// the time and with answers; it puts what it wants done into an Outbox. The owner of the machine
// carries the calls out and answers each once, until its deadline; so a whole cluster can run in
// one thread, in virtual time, and the same code in a daemon.

using TimePoint = MetaStore::TimePoint;
using CallId = std::uint64_t;  // 0: none.

// --- Calls of the metadata store: MetaStore's, by the same names --------------------------------

struct GetKey {
  std::string key;
};
struct GrantLease {
  std::chrono::milliseconds ttl{};
};
struct KeepLease {
  MetaStore::LeaseId lease = 0;
};
struct RevokeLease {
  MetaStore::LeaseId lease = 0;
};
// Answered with News, any number of times, until it has ended. Has no deadline.
struct WatchKeys {
  std::string prefix;
  std::uint64_t from_revision = 0;
};
// Ends the watch that was asked for by that call. Has no answer.
struct EndWatch {
  CallId watch = 0;
};

// --- Questions to other nodes -------------------------------------------------------------------

// Which of these extents the node holds: sealed, with that size and checksum, and not going away.
struct AskHoldings {
  std::string node;
  // 0, or the version of the slot map by which the caller decides whether to drop its own replicas:
  // the node promises to keep those of which it is an owner by that very version.
  std::uint32_t promise_version = 0;
  std::vector<ManifestExtent> extents;
};
enum class Holding : std::uint8_t { kAbsent = 0, kHeld = 1, kPromised = 2 };
using Holdings = std::vector<Holding>;  // In the order of the extents asked for.

// For each upload, whether the node has heard of it within the grace of silent uploads.
struct AskHeard {
  std::string node;
  std::vector<std::uint64_t> uploads;
};
// For each tombstone, by its key, whether the node knows it, has waited for its grace, and has
// nothing left of it.
struct AskBuried {
  std::string node;
  std::vector<std::string> keys;
};
// Whether the node holds all that it should by that version of the slot map. One flag.
struct AskFilled {
  std::string node;
  std::uint32_t version = 0;
};
using Flags = std::vector<bool>;
// Asks a node for the metadata that it has seen and trusted last, and for the names by then if they
// are wanted.
struct AskKnown {
  std::string node;
  bool with_names = false;
};
struct Known {
  HistoryMark mark;
  KnownNames names;
};

// --- Work with extents --------------------------------------------------------------------------

// The bytes of small extents, one after another, verified; from this node's disk or from the first
// of `nodes` that has them.
struct FetchBody {
  std::vector<ManifestExtent> extents;
  std::vector<std::string> nodes;
};
using Body = std::vector<std::byte>;
// Writes the bytes as one extent to that node, sealed and durable.
struct StoreBody {
  std::string node;
  ManifestExtent extent;
  Body bytes;
};
// A member of a stripe.
struct StripePart {
  ErasureCode code;
  Stripe stripe;
  std::size_t member = 0;
};
// Copies an extent to this node's disk from the first of `nodes` that has it: verified, sealed.
// Without nodes it is computed from other members of `part`, wherever they are; without `part` it
// is the list of files of a name that this node knows, and is written out anew. Fails with
// kNotFound if the nodes that answer have too few of the members, or the name is gone, and with
// kCorruption if what comes of it is not the extent.
struct PullExtent {
  ManifestExtent extent;
  std::vector<std::string> nodes;
  std::optional<StripePart> part = {};
};
// Removes this node's replica, once nobody reads it. From now on it is not held, and until it is
// gone no other of that id is written.
struct DropExtent {
  ExtentId id{};
};

using Call = std::variant<GetKey, MetaStore::ListRequest, MetaStore::Commit, GrantLease, KeepLease,
                          RevokeLease, WatchKeys, EndWatch, AskHoldings, AskHeard, AskBuried,
                          AskFilled, AskKnown, FetchBody, StoreBody, PullExtent, DropExtent>;
struct Action {
  CallId id = 0;
  Call call;
  TimePoint deadline;
};
using Reply =
    std::variant<Result<std::optional<MetaStore::KeyValue>>, Result<MetaStore::Page>,
                 Result<MetaStore::Outcome>, Result<MetaStore::Lease>,
                 Result<std::optional<std::chrono::milliseconds>>, MetaStore::News,
                 Result<Holdings>, Result<Flags>, Result<Known>, Result<Body>, Result<void>>;
struct Answer {
  CallId id = 0;
  Reply reply;
};

// The actions that the machines of one node want done, numbered for all of them together.
class Outbox {
 public:
  // Outboxes whose answers come together have different numbers.
  explicit Outbox(CallId before_first = 0) : last_(before_first) {}

  CallId Ask(Call call, TimePoint deadline = TimePoint::max()) {
    actions_.push_back({++last_, std::move(call), deadline});
    return last_;
  }
  std::vector<Action> Take() { return std::exchange(actions_, {}); }

 private:
  CallId last_;
  std::vector<Action> actions_;
};

// The extents on this node's disks, as machines see them: a look into memory.
class LocalExtents {
 public:
  virtual ~LocalExtents() = default;
  // The sealed extent, if it is here, good and not being dropped.
  virtual std::optional<ManifestExtent> Find(const ExtentId& id) const = 0;
  // All sealed ones that are not being dropped, damaged ones too.
  virtual std::vector<ManifestExtent> All() const = 0;
  // Those that would be on the disk after a crash, or after an end of what is under way now: being
  // dropped, copied or written.
  virtual std::vector<ExtentId> InMotion() const = 0;
  // Another number after each change of what Find() and All() tell, and not before they tell it.
  virtual std::uint64_t ChangeCount() const = 0;
  virtual bool HasRoomFor(std::uint64_t size_bytes) const = 0;
  // When bytes of the upload came last; none: never.
  virtual std::optional<TimePoint> LastHeard(std::uint64_t upload) const = 0;
};

}  // namespace ffrecord::server::cluster
