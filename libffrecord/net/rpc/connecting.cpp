#include "libffrecord/net/rpc/connecting.h"

#include <utility>

#include "libffrecord/base/patience.h"
#include "libffrecord/base/process_threads.h"

namespace ffrecord::net {

void Connecting::Start(Deadline deadline) {
  deadline_ = deadline;
  is_done_ = is_given_up_ = false;
  if (event_.fd() < 0) {
    if (auto event = EventFd::Make()) event_ = std::move(event).value();
  }
  event_.Clear();
  pthread_t thread{};
  if (event_.fd() >= 0 && StartQuietThread(thread, &Connecting::Run, this))
    thread_ = thread;
  else
    Run(this);
}

void* Connecting::Run(void* self) {
  auto& connecting = *static_cast<Connecting*>(self);
  const Patience::GiveUp give_up = [&] { return connecting.is_given_up_.load(); };
  const Patience patience(give_up);
  connecting.result_ = connecting.tries_.Begin(*connecting.deadline_);
  // The owner may be away for long, and other callers wait for what comes of a try alone.
  if (connecting.result_) connecting.tries_.NoteConnected();
  connecting.is_done_ = true;
  if (connecting.event_.fd() >= 0) connecting.event_.Ring();
  return nullptr;
}

std::optional<Result<void>> Connecting::Take() {
  if (!deadline_ || !is_done_) return std::nullopt;
  if (thread_) ::pthread_join(*std::exchange(thread_, std::nullopt), nullptr);
  deadline_.reset();
  event_.Clear();
  return std::move(result_);
}

void Connecting::Stop() {
  is_given_up_ = true;
  if (thread_) ::pthread_join(*std::exchange(thread_, std::nullopt), nullptr);
  deadline_.reset();
}

}  // namespace ffrecord::net
