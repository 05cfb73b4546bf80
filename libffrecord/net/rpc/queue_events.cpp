#include "libffrecord/net/rpc/queue_events.h"

#include <fcntl.h>
#include <sys/epoll.h>

#include <cerrno>
#include <cstring>
#include <string>
#include <utility>

namespace ffrecord::net {

Result<std::unique_ptr<QueueEvents>> QueueEvents::Make() {
  const auto failure = [](const char* what) {
    return Error{ErrorCode::kIo, std::string("cannot make ") + what + ": " + std::strerror(errno),
                 errno};
  };
  auto made = std::make_unique<QueueEvents>();
  made->set_ = UniqueFd(::epoll_create1(EPOLL_CLOEXEC));
  if (!made->set_) return failure("a set of descriptors");
  made->timer_ = FFR_TRY(ClockTimer::Make());
  made->more_ = FFR_TRY(EventFd::Make());
  for (const int fd : {made->timer_.fd(), made->more_.fd()}) {
    epoll_event wanted{};
    wanted.events = EPOLLIN;
    if (::epoll_ctl(made->set_.get(), EPOLL_CTL_ADD, fd, &wanted) != 0)
      return failure("a descriptor to wait for");
  }
  return made;
}

void QueueEvents::Wait(const Endpoint* endpoint, std::uint64_t number, int other, Deadline next,
                       bool has_more) {
  const bool wants_room = endpoint != nullptr && endpoint->wants_room();
  Watch(endpoint_, endpoint == nullptr ? -1 : endpoint->fd(), number,
        wants_room ? EPOLLIN | EPOLLOUT : EPOLLIN);
  Watch(other_, other, 0, EPOLLIN);
  // One that is gone, or could not be watched, is looked at at once.
  const auto is_lost = [](const Watched& watched) {
    return watched.original >= 0 && !watched.duplicate;
  };
  const bool is_closed = endpoint != nullptr && endpoint->fd() < 0;
  if (has_more || is_closed || is_lost(endpoint_) || is_lost(other_))
    more_.Ring();
  else
    more_.Clear();
  if (next == armed_) return;
  armed_ = next;
  timer_.Set(next);
}

void QueueEvents::Watch(Watched& watched, int fd, std::uint64_t number, std::uint32_t events) {
  const bool is_same = watched.original == fd && watched.number == number;
  if (is_same && watched.events == events) return;
  epoll_event wanted{};
  wanted.events = events;
  if (is_same && watched.duplicate) {
    watched.events = events;
    (void)::epoll_ctl(set_.get(), EPOLL_CTL_MOD, watched.duplicate.get(), &wanted);
    return;
  }
  if (watched.duplicate)
    (void)::epoll_ctl(set_.get(), EPOLL_CTL_DEL, watched.duplicate.get(), nullptr);
  watched = {fd, number, events, {}};
  if (fd < 0) return;
  watched.duplicate = UniqueFd(::fcntl(fd, F_DUPFD_CLOEXEC, 0));
  if (watched.duplicate &&
      ::epoll_ctl(set_.get(), EPOLL_CTL_ADD, watched.duplicate.get(), &wanted) != 0)
    watched.duplicate = {};
}

}  // namespace ffrecord::net
