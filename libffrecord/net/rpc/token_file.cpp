#include "libffrecord/net/rpc/token_file.h"

#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <utility>

#include "libffrecord/base/hex.h"
#include "libffrecord/io/file.h"

namespace ffrecord::net {
namespace {

constexpr std::size_t kTokenSizeBytesMax = 3072;
// A file that was changed this short a time before it was read may have been changed again since
// with the same times: those are only as fine as the kernel's ticks, or as a server's clock.
constexpr auto kYoung = std::chrono::seconds(2);

// The token in a file: hexadecimal digits, with white space around them. No message quotes it.
Result<std::vector<std::byte>> ReadToken(const std::string& path, struct stat& status) {
  const ReadOnlyFile file = FFR_TRY(OpenReadOnly(path, /*want_direct=*/false));
  const auto bad = [&](const char* why) {
    return Error{ErrorCode::kInvalidArgument, path + ": " + why +
                                                  "; it holds the one token that ffrecord token "
                                                  "makes"};
  };
  std::string text(2 * kTokenSizeBytesMax + 2, '\0');
  if (::fstat(file.fd.get(), &status) != 0) return ErrnoError("examine", path, errno);
  const ssize_t got = ::pread(file.fd.get(), text.data(), text.size(), 0);
  if (got < 0) return ErrnoError("read", path, errno);
  text.resize(static_cast<std::size_t>(got));
  while (!text.empty() && (text.back() == '\n' || text.back() == ' ')) text.pop_back();
  std::vector<std::byte> token(text.size() / 2);
  if (token.empty() || token.size() > kTokenSizeBytesMax || !FromHex(text, token))
    return bad("it holds no token");
  return token;
}

bool AreSame(const timespec& one, const timespec& other) {
  return one.tv_sec == other.tv_sec && one.tv_nsec == other.tv_nsec;
}

}  // namespace

Result<TokenFile::Token> TokenFile::Read(const std::string& path) {
  const std::lock_guard lock(mutex_);
  if (path.empty()) return last_;
  struct stat status {};
  const auto now = WallClock::now();
  auto bytes = FFR_TRY(ReadToken(path, status));
  if (bytes != last_.bytes) last_ = {std::move(bytes), last_.number + 1};
  status_ = status;
  read_at_ = now;
  return last_;
}

std::uint64_t TokenFile::Number(const std::string& path) {
  {
    const std::lock_guard lock(mutex_);
    if (path.empty() || IsUnchanged(path)) return last_.number;
  }
  const auto token = Read(path);
  if (token) return token.value().number;
  const std::lock_guard lock(mutex_);
  return last_.number;
}

bool TokenFile::IsUnchanged(const std::string& path) const {
  struct stat now {};
  if (::stat(path.c_str(), &now) != 0) return true;
  if (!status_) return false;
  const auto changed = WallClock::from_time_t(status_->st_ctim.tv_sec);
  return now.st_dev == status_->st_dev && now.st_ino == status_->st_ino &&
         now.st_size == status_->st_size && AreSame(now.st_mtim, status_->st_mtim) &&
         AreSame(now.st_ctim, status_->st_ctim) && read_at_ > changed + kYoung;
}

}  // namespace ffrecord::net
