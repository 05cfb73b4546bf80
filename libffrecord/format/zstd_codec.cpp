#include "libffrecord/format/zstd_codec.h"

#include <zstd.h>

#include <cerrno>
#include <new>
#include <optional>
#include <string>

#include "libffrecord/base/assert.h"
#include "libffrecord/base/endian.h"

namespace ffrecord {
namespace {

Error Corrupt(const std::string& found) { return {ErrorCode::kCorruption, "zstd frame: " + found}; }

// The window that the frame's header states (RFC 8878, 3.1.1.1); none if it is no such frame. The
// public API of libzstd does not tell.
std::optional<std::uint64_t> WindowSize(std::span<const std::byte> frame,
                                        std::uint64_t content_size_bytes) {
  constexpr std::size_t kDescriptorOffset = 4;
  if (frame.size() < kDescriptorOffset + 2) return std::nullopt;
  // Skippable frames, too, have a size and no content.
  if (LoadLittleEndian<std::uint32_t>(frame, 0) != ZSTD_MAGICNUMBER) return std::nullopt;
  const bool single_segment =
      (LoadLittleEndian<std::uint8_t>(frame, kDescriptorOffset) & 0x20) != 0;
  if (single_segment) return content_size_bytes;
  const auto window = LoadLittleEndian<std::uint8_t>(frame, kDescriptorOffset + 1);
  const std::uint64_t base = std::uint64_t{1} << (10 + (window >> 3));
  return base + base / 8 * (window & 7U);
}

ZSTD_DCtx* ThreadContext() {
  thread_local const std::unique_ptr<ZSTD_DCtx, decltype(&ZSTD_freeDCtx)> context(ZSTD_createDCtx(),
                                                                                  &ZSTD_freeDCtx);
  return context.get();
}

}  // namespace

void ZstdCompressor::ContextDeleter::operator()(void* context) const noexcept {
  ZSTD_freeCCtx(static_cast<ZSTD_CCtx*>(context));
}

ZstdCompressor::ZstdCompressor(int level) : context_(ZSTD_createCCtx()) {
  FFR_ASSERT(level >= kZstdLevelMin && level <= kZstdLevelMax);
  if (context_ == nullptr) throw std::bad_alloc();  // No room for a small object ends the process.
  const std::size_t set = ZSTD_CCtx_setParameter(static_cast<ZSTD_CCtx*>(context_.get()),
                                                 ZSTD_c_compressionLevel, level);
  FFR_ASSERT(ZSTD_isError(set) == 0);
}
ZstdCompressor::ZstdCompressor(ZstdCompressor&&) noexcept = default;
ZstdCompressor& ZstdCompressor::operator=(ZstdCompressor&&) noexcept = default;
ZstdCompressor::~ZstdCompressor() = default;

std::span<const std::byte> ZstdCompressor::Compress(std::span<const std::byte> raw) {
  const std::size_t frame_size_max = raw.size() - (raw.size() / 20 + (raw.size() % 20 != 0));
  if (frame_.size() < frame_size_max) frame_.resize(frame_size_max);
  // With no room for more, zstd gives up early on what does not compress.
  const std::size_t size = ZSTD_compress2(static_cast<ZSTD_CCtx*>(context_.get()), frame_.data(),
                                          frame_size_max, raw.data(), raw.size());
  if (ZSTD_isError(size) != 0) return {};
  return std::span(frame_).first(size);
}

Result<void> ExpandZstd(std::span<const std::byte> frame, std::span<std::byte> raw) {
  if (ZSTD_getFrameContentSize(frame.data(), frame.size()) != raw.size())
    return Corrupt("its content size is not the raw size of the record");
  const auto window = WindowSize(frame, raw.size());
  if (!window || *window > kZstdWindowBytesMax)
    return Corrupt("its window is not one of up to 128 MiB");
  if (ZSTD_findFrameCompressedSize(frame.data(), frame.size()) != frame.size())
    return Corrupt("it does not fill the record");
  ZSTD_DCtx* context = ThreadContext();
  if (context == nullptr) return Error{ErrorCode::kIo, "zstd: no memory for a context", ENOMEM};
  const std::size_t size =
      ZSTD_decompressDCtx(context, raw.data(), raw.size(), frame.data(), frame.size());
  if (ZSTD_isError(size) != 0) return Corrupt(ZSTD_getErrorName(size));
  if (size != raw.size()) return Corrupt("it expands to fewer bytes than it states");
  return {};
}

}  // namespace ffrecord
