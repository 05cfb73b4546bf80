#include "server/config/notify.h"

#include <sys/socket.h>
#include <sys/un.h>

#include <cstddef>
#include <cstdlib>
#include <cstring>

#include "libffrecord/base/unique_fd.h"

namespace ffrecord::server {

void NotifyServiceManager(std::string_view state) noexcept {
  const char* const path = std::getenv("NOTIFY_SOCKET");
  if (path == nullptr || (path[0] != '/' && path[0] != '@')) return;
  sockaddr_un to{};
  to.sun_family = AF_UNIX;
  const std::size_t size = std::strlen(path);
  if (size >= sizeof(to.sun_path)) return;
  std::memcpy(to.sun_path, path, size);
  if (to.sun_path[0] == '@') to.sun_path[0] = '\0';  // An abstract name.
  const UniqueFd fd(::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  if (!fd) return;
  const auto to_size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + size);
  (void)::sendto(fd.get(), state.data(), state.size(), MSG_NOSIGNAL,
                 reinterpret_cast<const sockaddr*>(&to), to_size);
}

}  // namespace ffrecord::server
