#include "server/storage/extent_damage.h"

#include <algorithm>
#include <cerrno>
#include <vector>

#include "libffrecord/base/checksum.h"
#include "libffrecord/base/patience.h"
#include "libffrecord/io/file.h"

namespace ffrecord::server {
namespace {

constexpr std::uint64_t kVerifyPieceBytes = std::uint64_t{1} << 20;

Result<std::uint64_t> SumOf(const Extent& extent) {
  const auto path = extent.disk->PathOf(extent.id);
  const UniqueFd file = FFR_TRY(extent.disk->OpenFile(extent.id));
  Xxh3Stream sum;
  std::vector<std::byte> piece;
  for (std::uint64_t at = 0; at < extent.size_bytes; at += piece.size()) {
    if (Patience::OfThread().IsOver())
      return Error{ErrorCode::kDeadlineExceeded, "the daemon stops"};
    piece.resize(std::min(kVerifyPieceBytes, extent.size_bytes - at));
    FFR_TRY(ReadExactly(file.get(), path, at, piece));
    sum.Update(piece);
  }
  return sum.Finish64();
}

}  // namespace

std::string WhyDamaged(const Extent& extent) {
  const auto sum = SumOf(extent);
  if (!sum) {
    const Error& error = sum.error();
    const bool is_of_process = error.system_errno == EMFILE || error.system_errno == ENFILE ||
                               error.system_errno == ENOMEM ||
                               error.code == ErrorCode::kDeadlineExceeded;
    return is_of_process ? "" : error.message;
  }
  if (sum.value() == extent.xxh3) return "";
  return extent.disk->PathOf(extent.id).string() + ": the bytes are not those of the checksum";
}

}  // namespace ffrecord::server
