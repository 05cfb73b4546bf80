#include "libffrecord/base/event_log.h"

#include <unistd.h>

namespace ffrecord {
namespace {

constinit thread_local std::uint32_t thread_id = 0;

}  // namespace

std::uint32_t EventLog::ThreadId() noexcept {
  if (thread_id == 0) thread_id = static_cast<std::uint32_t>(::gettid());
  return thread_id;
}

void EventLog::ForgetThreadId() noexcept { thread_id = 0; }

}  // namespace ffrecord
