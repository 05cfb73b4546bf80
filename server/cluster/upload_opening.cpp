#include "server/cluster/upload_opening.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "libffrecord/base/checksum.h"
#include "server/cluster/publication.h"

namespace ffrecord::server::cluster {
namespace {

constexpr std::chrono::seconds kPatience{5};
constexpr std::chrono::milliseconds kRetry{500};
constexpr std::chrono::milliseconds kLostRetry{20};

}  // namespace

UploadOpening::UploadOpening(std::uint64_t upload, TimePoint deadline, UploadRoom room)
    : upload_(upload), deadline_(deadline), room_(std::move(room)) {}

std::optional<Result<std::uint64_t>> UploadOpening::Step(TimePoint now, const View& view,
                                                         Outbox& out) {
  const std::string name = UploadKey(upload_);
  const MetaStore::KeyValue* const key = view.mirror.Find(name);
  // Room on record for an upload that was closed meanwhile does not count.
  const bool has_room = room_.quotas.empty() || (key && HasRoom(view, room_));
  if (key != nullptr && has_room) return key->mod_revision;
  if (view.mirror.Find(UploadTombstoneKey(upload_)) != nullptr)
    return Error{ErrorCode::kConflict,
                 "the upload was silent for long and was given up; begin another"};
  if (now >= deadline_)
    return Error{ErrorCode::kDeadlineExceeded,
                 "the upload could not be recorded in time; try again" +
                     (refusal_ ? ": " + refusal_->message : "")};
  if (call_ != 0 || now < next_ || !view.mirror.was_listed() || !view.continuity.is_checked())
    return std::nullopt;
  MetaStore::Commit commit;
  if (key == nullptr) {
    commit.compares.push_back({name, 0});
    commit.puts.push_back({name, {}});
  }
  commit.compares.push_back({UploadTombstoneKey(upload_), 0});
  if (!has_room)
    if (auto room = TakeRoom(view, room_, Xxh3(room_.id) + lost_count_, commit); !room)
      return Refuse(now, view, std::move(room).error());
  call_ = out.Ask(std::move(commit), now + kPatience);
  next_ = deadline_;
  return std::nullopt;
}

std::optional<Result<std::uint64_t>> UploadOpening::Refuse(TimePoint now, const View& view,
                                                           Error refusal) {
  if (ShowsAll(view)) return refusal;
  refusal_ = std::move(refusal);
  next_ = std::min(deadline_, now + kLostRetry);
  const std::string hindrance = Publication::Hindrance(view);
  if (hindrance.empty()) {
    hindered_since_.reset();
    return std::nullopt;
  }
  if (!hindered_since_) hindered_since_ = now;
  if (now - *hindered_since_ < Publication::kManifestsPatience) return std::nullopt;
  return Error{ErrorCode::kUnavailable,
               refusal_->message + "; this node does not know whether some of these are published" +
                   hindrance};
}

bool UploadOpening::ShowsAll(const View& view) {
  newest_.is_wanted = true;
  return newest_.revision && view.mirror.revision() >= *newest_.revision && view.names.IsComplete();
}

// Whatever came of it, the mirror will show the key, or it is tried again: soon if another one was
// first.
bool UploadOpening::Take(TimePoint now, const Answer& answer) {
  if (call_ == 0 || answer.id != call_) return false;
  call_ = 0;
  const auto& outcome = std::get<Result<MetaStore::Outcome>>(answer.reply);
  const bool is_lost = outcome && outcome.value().fate == MetaStore::Outcome::Fate::kLost;
  if (is_lost) ++lost_count_;
  next_ = std::min(deadline_, now + (is_lost ? kLostRetry : kRetry));
  return true;
}

}  // namespace ffrecord::server::cluster
