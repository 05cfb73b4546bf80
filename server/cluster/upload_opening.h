#pragma once

#include <cstdint>
#include <optional>

#include "server/cluster/newest_names.h"
#include "server/cluster/upload_quotas.h"
#include "server/cluster/view.h"

namespace ffrecord::server::cluster {

// One request of a client that begins an extent: makes the key of its upload, and puts the extent
// on record against the quotas that hold for it.
//
// A refusal is final for the client. So it waits until this node shows all that has been published
// by the time of the request: the extents of that count no more. While the manifest of a name is on
// no node that answers, this node does not know that, and the client hears of both.
class UploadOpening {
 public:
  UploadOpening(std::uint64_t upload, TimePoint deadline, UploadRoom room);

  // The revision of the upload's key, or why it is not open; none: it goes on. Fails with kConflict
  // if the upload was given up, with kIo (EDQUOT) if it passes a quota.
  std::optional<Result<std::uint64_t>> Step(TimePoint now, const View& view, Outbox& out);
  bool Take(TimePoint now, const Answer& answer);
  TimePoint wake() const { return next_; }
  NewestNames& newest() { return newest_; }

 private:
  std::optional<Result<std::uint64_t>> Refuse(TimePoint now, const View& view, Error refusal);
  bool ShowsAll(const View& view);

  std::uint64_t upload_;
  TimePoint deadline_;
  UploadRoom room_;
  TimePoint next_{};
  CallId call_ = 0;
  std::uint64_t lost_count_ = 0;  // Commits that lost to others.
  NewestNames newest_;
  std::optional<Error> refusal_;             // By a view that may lack what is published.
  std::optional<TimePoint> hindered_since_;  // Since then some name's manifest has been missing.
};

}  // namespace ffrecord::server::cluster
