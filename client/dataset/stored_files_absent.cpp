#include <ffrecord/client/features.h>
#include <ffrecord/client/stored_files.h>

#include <utility>

namespace ffrecord::client {
namespace {

Error NoObjectStores(const std::string& address) {
  return {ErrorCode::kInvalidArgument, address + ": " + WhyNoObjectStores()};
}

}  // namespace

// None is ever made.
struct StoredFile::Impl {
  std::string text;
};

StoredFile::StoredFile(std::shared_ptr<const Impl> impl) noexcept : impl_(std::move(impl)) {}

const std::string& StoredFile::name() const noexcept { return impl_->text; }
std::uint64_t StoredFile::size_bytes() const noexcept { return 0; }
const std::string& StoredFile::version() const noexcept { return impl_->text; }

Result<void> StoredFile::Read(std::uint64_t /*offset_bytes*/, std::span<std::byte> /*destination*/,
                              const GiveUp& /*give_up*/) const {
  return NoObjectStores(name());
}

Result<std::vector<std::optional<StoredFile>>> LookForStoredFiles(
    std::span<const std::string> addresses, const SessionOptions& /*options*/,
    const StoredFile::GiveUp& /*give_up*/) {
  return NoObjectStores(addresses.empty() ? std::string() : addresses.front());
}

Result<std::vector<StoredFile>> MatchStoredFiles(const std::string& pattern,
                                                 const SessionOptions& /*options*/,
                                                 const StoredFile::GiveUp& /*give_up*/) {
  return NoObjectStores(pattern);
}

Result<std::vector<StoredFile>> ListStoredFiles(const std::string& folder,
                                                const SessionOptions& /*options*/,
                                                const StoredFile::GiveUp& /*give_up*/) {
  return NoObjectStores(folder);
}

}  // namespace ffrecord::client
