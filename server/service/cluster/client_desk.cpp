#include "server/service/cluster/client_desk.h"

#include <algorithm>
#include <utility>

#include "libffrecord/base/clock.h"
#include "libffrecord/base/hex.h"
#include "server/cluster/upload_quotas.h"
#include "server/service/cluster/await_answer.h"

namespace ffrecord::server {
namespace {

using std::chrono_literals::operator""ms;
using cluster::TimePoint;

constexpr auto kUploadPatience = 10'000ms;
// How long the one who published is kept waiting until this node shows what it published.
constexpr auto kShowPatience = 2'000ms;
// And how long beyond the deadline of the request.
constexpr auto kLateAnswerTime = 500ms;

}  // namespace

// --- Names --------------------------------------------------------------------------------------

void ClientDesk::Publish(cluster::Publication::Request request, Done<std::uint64_t> done) {
  const bool is_posted = machines_.Post([this, request, done] {
    if (!machines_.is_enrolled()) return done(machines_.NotTakingPart());
    // The one who waits hears of it in any case, and of success before it has given up.
    const TimePoint answer_by = request.deadline + kLateAnswerTime;
    machines_.OnFinished(
        machines_.node().Begin(request),
        [this, name = request.name, answer_by, done](const Result<std::uint64_t>& revision) {
          if (!revision) return done(revision);
          const auto shown_by = [answer_by] {
            return std::min(Clock::now() + kShowPatience, answer_by);
          };
          AwaitName(revision.value(), name, shown_by(),
                    [this, done, shown_by, revision](const Result<void>&) {
                      AwaitSaved(revision.value(), shown_by(),
                                 [done, revision](const Result<void>&) { done(revision); });
                    });
        });
  });
  if (!is_posted) done(NodeMachines::Stopped());
}

// So that this node knows of it also if the metadata is lost before another node has heard.
void ClientDesk::AwaitSaved(std::uint64_t revision, TimePoint deadline, Done<void> done) {
  machines_.waiters().Add(
      [this, revision] {
        return keeper_.saved_revision() >= revision || machines_.view().continuity.is_frozen();
      },
      deadline, std::move(done));
}

void ClientDesk::AwaitName(std::uint64_t revision, std::string name, TimePoint deadline,
                           Done<void> done) {
  machines_.waiters().Add(
      [this, revision, name = std::move(name)] {
        return machines_.node().Shows(revision, name) &&
               machines_.view().mirror.revision() == shown_.revision();
      },
      deadline, std::move(done));
}

void ClientDesk::CatchUp(std::string name, std::chrono::milliseconds patience, Done<void> done) {
  const TimePoint deadline = Clock::now() + patience;
  const bool is_posted = machines_.Post([this, name = std::move(name), deadline, done] {
    if (!machines_.is_enrolled()) return done(machines_.NotTakingPart());
    machines_.OnFinished(
        machines_.node().BeginLook(name, deadline),
        [this, done](const Result<std::uint64_t>& found) {
          if (found) return done({});
          done(machines_.Trouble().empty() ? found.error() : machines_.NotTakingPart());
        });
  });
  if (!is_posted) done(NodeMachines::Stopped());
}

// --- Uploads ------------------------------------------------------------------------------------

void ClientDesk::BeginPut(const net::PutBegin& begin, const std::string& owner,
                          const NameQuotas& quotas, Done<std::optional<NewExtent>> done) {
  const auto room = cluster::RoomOf(begin.id, begin.size_bytes, owner, quotas);
  const bool is_posted =
      machines_.Post([this, begin, room, done] { BeginPutNow(begin, room, done); });
  if (!is_posted) done(NodeMachines::Stopped());
}

void ClientDesk::BeginPutNow(const net::PutBegin& begin, const cluster::UploadRoom& room,
                             const Done<std::optional<NewExtent>>& done) {
  const std::uint64_t upload = UploadOf(begin.id);
  if (auto may = CheckPut(begin); !may) return done(std::move(may).error());
  // Before anything is decided: so nobody gives it up meanwhile.
  extents_.NoteHeard(upload);
  const bool is_wanted = machines_.view().names.Find(begin.id) != nullptr;
  const bool is_taken =
      machines_.node().TakesUpload(Clock::now(), upload) && HasRoom(machines_.view(), room);
  if (is_wanted || is_taken) return done(Place(begin));
  if (!machines_.is_enrolled()) return done(machines_.NotTakingPart());
  machines_.OnFinished(machines_.node().BeginUpload(upload, Clock::now() + kUploadPatience, room),
                       [this, begin, upload, done](const Result<std::uint64_t>& opened) {
                         if (!opened) return done(opened.error());
                         if (auto may = MayTake(upload); !may) return done(std::move(may).error());
                         done(Place(begin));
                       });
}

// Fails with kConflict if a name has that extent, and with other bytes or from an origin.
Result<void> ClientDesk::CheckPut(const net::PutBegin& begin) const {
  const cluster::NameTable& names = machines_.view().names;
  const auto* const wanted = names.Find(begin.id);
  if (wanted != nullptr && wanted->extent.size_bytes != begin.size_bytes)
    return Error{ErrorCode::kConflict, "extent " + Hex(begin.id) +
                                           " is published with another size; upload its "
                                           "bytes under a new id"};
  // Every name's extents are known, and this one is none that nodes hold.
  if (wanted == nullptr && names.IsComplete() && shown_.references().Contains(begin.id))
    return Error{ErrorCode::kConflict, "extent " + Hex(begin.id) +
                                           " is published, and is fetched from its origin; "
                                           "upload the bytes under a new id"};
  return {};
}

Result<std::optional<NewExtent>> ClientDesk::Place(const net::PutBegin& begin) const {
  ExtentStore& store = extents_.store();
  const ExtentPtr extent = store.Find(begin.id);
  if (extent && extent->size_bytes != begin.size_bytes)
    return Error{ErrorCode::kConflict, "extent " + Hex(begin.id) + " exists with another size"};
  // "Sealed already" would make the client count this node as a holder. It tries another one.
  if (extent && !extents_.Find(begin.id))
    return Error{ErrorCode::kUnavailable,
                 "extent " + Hex(begin.id) + " is damaged or missing on this node's disks"};
  if (extent) return std::optional<NewExtent>();
  return std::optional(FFR_TRY(store.Place(begin.id, begin.size_bytes)));
}

Result<void> ClientDesk::MayTake(std::uint64_t upload) const {
  if (machines_.node().TakesUpload(Clock::now(), upload)) return {};
  if (machines_.view().mirror.Find(cluster::UploadKey(upload)) == nullptr)
    return Error{ErrorCode::kConflict,
                 "the upload was silent for too long and was given up; start again"};
  return Error{ErrorCode::kUnavailable,
               "this daemon takes no uploads now, as its lease in the cluster is not renewed; see "
               "the coordinator"};
}

Result<void> ClientDesk::CheckSeal(const net::PutSeal& seal) {
  return AwaitAnswer<void>([&](Done<void> done) {
    const bool is_posted = machines_.Post([this, seal, done] { done(CheckSealNow(seal)); });
    if (!is_posted) done(NodeMachines::Stopped());
  });
}

Result<void> ClientDesk::CheckSealNow(const net::PutSeal& seal) const {
  const auto* const wanted = machines_.view().names.Find(seal.id);
  if (wanted == nullptr) return MayTake(UploadOf(seal.id));
  if (wanted->extent.xxh3 == seal.xxh3) return {};
  return Error{ErrorCode::kConflict, "extent " + Hex(seal.id) +
                                         " is published with other bytes; upload them under a "
                                         "new id"};
}

}  // namespace ffrecord::server
