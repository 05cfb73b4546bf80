// Built where libjpeg-turbo is not.
#include "libffrecord/decode/jpeg.h"

namespace ffrecord {

struct JpegDecoder::State {};

bool JpegDecoder::IsThere() noexcept { return false; }
JpegDecoder::JpegDecoder() = default;
JpegDecoder::~JpegDecoder() = default;

Result<JpegDecoder::Header> JpegDecoder::ReadHeader(std::span<const std::byte>, bool) {
  return Error{
      ErrorCode::kInvalidArgument,
      "a JPEG, but this build of ffrecord has no decoder for them: install libjpeg-turbo's "
      "headers (Debian: libjpeg62-turbo-dev) and build ffrecord again with -Djpeg=enabled"};
}

Result<void> JpegDecoder::Decode(const Region&, std::uint32_t, std::byte*, std::size_t) {
  return Error{ErrorCode::kInvalidArgument, "no JPEG decoder in this build"};
}

}  // namespace ffrecord
