#include "server/service/read_ahead/read_ahead_port.h"

namespace ffrecord::server {

void ReadAheadPort::Take(std::span<const ReadAhead::Wanted> wanted) {
  wanted_.insert(wanted_.end(), wanted.begin(), wanted.end());
  Say();
}

void ReadAheadPort::Finish(const ReadAhead::Finished& finished) {
  finished_.push_back(finished);
  Say();
}

std::vector<ReadAhead::Run> ReadAheadPort::Next(std::uint64_t bytes_max, std::size_t count_max,
                                                std::span<const Disk* const> full) {
  const std::unique_lock lock(read_ahead_.mutex_, std::try_to_lock);
  if (!lock) return {};
  SayAll();
  return read_ahead_.HandOut(bytes_max, count_max, full);
}

void ReadAheadPort::Say() {
  if (wanted_.empty() && finished_.empty()) return;
  std::unique_lock lock(read_ahead_.mutex_, std::try_to_lock);
  if (!lock && wanted_.size() + finished_.size() < kUnsaidMax) return;
  if (!lock) lock.lock();
  SayAll();
}

void ReadAheadPort::SayAll() {
  for (const ReadAhead::Finished& one : finished_) read_ahead_.NoteFinished(one);
  if (!wanted_.empty()) read_ahead_.TakeAll(wanted_);
  finished_.clear();
  wanted_.clear();
}

}  // namespace ffrecord::server
