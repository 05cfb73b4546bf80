#include "server/service/access/secret_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>

#include "libffrecord/base/unique_fd.h"
#include "libffrecord/io/file.h"

namespace ffrecord::server {

Result<std::string> ReadSecret(const std::filesystem::path& path) {
  const UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK));
  if (!fd) return ErrnoError("open", path, errno);
  struct stat status {};
  if (::fstat(fd.get(), &status) != 0) return ErrnoError("look at", path, errno);
  if (!S_ISREG(status.st_mode))
    return Error{ErrorCode::kInvalidArgument, path.string() + " is not a regular file"};
  if ((status.st_mode & (S_IRWXG | S_IRWXO)) != 0)
    return Error{ErrorCode::kDenied, path.string() +
                                         " holds a secret and is accessible to other users; "
                                         "chmod 600 it"};
  std::string text(kSecretSizeBytesMax, '\0');
  const ssize_t got = ::read(fd.get(), text.data(), text.size());
  if (got < 0) return ErrnoError("read", path, errno);
  text.resize(static_cast<std::size_t>(got));
  return text;
}

}  // namespace ffrecord::server
