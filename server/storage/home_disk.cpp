#include "server/storage/home_disk.h"

#include <sys/statvfs.h>

#include <cerrno>
#include <string>
#include <system_error>

#include "libffrecord/format/dataset_manifest.h"

namespace ffrecord::server {

HomeDisk::Waiting::Waiting(HomeDisk& home) : home_(home), running_(*home.reads_) {
  home_.waiting_since_ = Clock::now();
}

HomeDisk::Waiting::~Waiting() { home_.waiting_since_ = kNever; }

Result<void> HomeDisk::CheckReserve() {
  if (!options_.yields_to_deletions || reserve_.is_whole()) return {};
  // A limit on the sizes of files, say: making room would not help. For clients and for the health
  // it is the same as a full disk: nothing fits until somebody has changed that.
  if (const int why = reserve_.missing_errno(); why != 0 && why != ENOSPC && why != EDQUOT)
    return writes().Noted(Result<void>(
        Error{ErrorCode::kIo,
              "the daemon cannot reserve the room that deletions need, in " +
                  reserve_.path().string() + ": " + std::generic_category().message(why),
              ENOSPC}));
  return writes().Noted(Result<void>(
      Error{ErrorCode::kIo,
            "the daemon's disk is full, and what is left of it is kept for deletions; remove "
            "something, or make room at " +
                options_.folder.string(),
            ENOSPC}));
}

bool HomeDisk::MakeRoom(const Error& error) {
  const bool is_full = error.system_errno == ENOSPC || error.system_errno == EDQUOT;
  return is_full && options_.yields_to_deletions && reserve_.Release();
}

void HomeDisk::Look() {
  struct statvfs disk {};
  const bool is_known = ::statvfs(options_.folder.c_str(), &disk) == 0;
  const std::uint64_t free_bytes =
      is_known ? std::uint64_t{disk.f_bavail} * disk.f_frsize : UINT64_MAX;
  reserve_.Restore(free_bytes);
  if (reserve_.is_whole() && free_bytes >= kExtentSizeMax) writes().NoteSuccess();
}

Clock::duration HomeDisk::waiting_time() const {
  const Clock::time_point since = waiting_since_;
  return since == kNever ? Clock::duration(0) : Clock::now() - since;
}

Result<void> HomeDisk::CheckAnswers() const {
  const auto waited = waiting_time();
  if (waited < options_.answer_time_max) return {};
  return Error{ErrorCode::kUnavailable,
               "the disk of the daemon's metadata, " + options_.folder.string() +
                   ", has not answered for " +
                   std::to_string(std::chrono::ceil<std::chrono::seconds>(waited).count()) +
                   " s; what is published can be read meanwhile: look at that disk"};
}

}  // namespace ffrecord::server
