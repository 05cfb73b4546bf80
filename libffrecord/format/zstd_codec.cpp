#include "libffrecord/format/zstd_codec.h"

#include <zdict.h>
#include <zstd.h>

#include <algorithm>
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

// The id of a dictionary of zstd's format; none if it is no such dictionary.
std::optional<std::uint32_t> DictionaryId(std::span<const std::byte> bytes) {
  const std::uint32_t id = ZDICT_getDictID(bytes.data(), bytes.size());
  if (id == 0) return std::nullopt;
  return id;
}

Error NoDictionary(const char* found) {
  return {ErrorCode::kCorruption, std::string("zstd dictionary: ") + found};
}

}  // namespace

void ZstdDictionary::PreparedDeleter::operator()(void* prepared) const noexcept {
  ZSTD_freeDDict(static_cast<ZSTD_DDict*>(prepared));
}

Result<ZstdDictionary> ZstdDictionary::Make(std::span<const std::byte> bytes) {
  const auto id = DictionaryId(bytes);
  if (!id) return NoDictionary("it has no magic, or no id");
  ZstdDictionary dictionary;
  dictionary.id_ = *id;
  dictionary.prepared_.reset(ZSTD_createDDict(bytes.data(), bytes.size()));
  if (dictionary.prepared_ == nullptr)
    return NoDictionary("its tables are damaged, or there is no memory for it");
  return dictionary;
}

ZstdDictionary::ZstdDictionary(ZstdDictionary&&) noexcept = default;
ZstdDictionary& ZstdDictionary::operator=(ZstdDictionary&&) noexcept = default;
ZstdDictionary::~ZstdDictionary() = default;

std::vector<std::byte> TrainZstdDictionary(std::span<const std::byte> samples,
                                           std::span<const std::size_t> sizes_bytes,
                                           std::size_t size_bytes_max) {
  FFR_ASSERT(size_bytes_max >= kZstdDictionaryBytesMin);
  std::vector<std::byte> dictionary(size_bytes_max);
  const std::size_t size =
      ZDICT_trainFromBuffer(dictionary.data(), dictionary.size(), samples.data(),
                            sizes_bytes.data(), static_cast<unsigned>(sizes_bytes.size()));
  dictionary.resize(ZDICT_isError(size) != 0 ? 0 : size);
  return dictionary;
}

void ZstdCompressor::ContextDeleter::operator()(void* context) const noexcept {
  ZSTD_freeCCtx(static_cast<ZSTD_CCtx*>(context));
}
void ZstdCompressor::PreparedDeleter::operator()(void* prepared) const noexcept {
  ZSTD_freeCDict(static_cast<ZSTD_CDict*>(prepared));
}

ZstdCompressor::ZstdCompressor(int level) : context_(ZSTD_createCCtx()) {
  FFR_ASSERT(level >= kZstdLevelMin && level <= kZstdLevelMax);
  if (context_ == nullptr) throw std::bad_alloc();  // No room for a small object ends the process.
  const std::size_t set = ZSTD_CCtx_setParameter(static_cast<ZSTD_CCtx*>(context_.get()),
                                                 ZSTD_c_compressionLevel, level);
  FFR_ASSERT(ZSTD_isError(set) == 0);
}

Result<ZstdCompressor> ZstdCompressor::Make(int level, std::span<const std::byte> dictionary) {
  if (!DictionaryId(dictionary)) return NoDictionary("it has no magic, or no id");
  ZstdCompressor compressor(level);
  compressor.prepared_.reset(ZSTD_createCDict(dictionary.data(), dictionary.size(), level));
  if (compressor.prepared_ == nullptr)
    return NoDictionary("its tables are damaged, or there is no memory for it");
  const std::size_t set =
      ZSTD_CCtx_refCDict(static_cast<ZSTD_CCtx*>(compressor.context_.get()),
                         static_cast<const ZSTD_CDict*>(compressor.prepared_.get()));
  FFR_ASSERT(ZSTD_isError(set) == 0);
  return compressor;
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

Result<void> DecompressZstd(std::span<const std::byte> frame, std::span<std::byte> raw,
                            std::span<const ZstdDictionary> dictionaries) {
  if (ZSTD_getFrameContentSize(frame.data(), frame.size()) != raw.size())
    return Corrupt("its content size is not the raw size of the record");
  const auto window = WindowSize(frame, raw.size());
  if (!window || *window > kZstdWindowBytesMax)
    return Corrupt("its window is not one of up to 128 MiB");
  if (ZSTD_findFrameCompressedSize(frame.data(), frame.size()) != frame.size())
    return Corrupt("it does not fill the record");
  const ZSTD_DDict* prepared = nullptr;
  if (const std::uint32_t id = ZSTD_getDictID_fromFrame(frame.data(), frame.size()); id != 0) {
    const auto named = std::find_if(dictionaries.begin(), dictionaries.end(),
                                    [id](const auto& dictionary) { return dictionary.id() == id; });
    if (named == dictionaries.end())
      return Corrupt("its dictionary, " + std::to_string(id) + ", is missing or damaged");
    prepared = static_cast<const ZSTD_DDict*>(named->prepared());
  }
  ZSTD_DCtx* context = ThreadContext();
  if (context == nullptr) return Error{ErrorCode::kIo, "zstd: no memory for a context", ENOMEM};
  const std::size_t size = ZSTD_decompress_usingDDict(context, raw.data(), raw.size(), frame.data(),
                                                      frame.size(), prepared);
  if (ZSTD_isError(size) != 0) return Corrupt(ZSTD_getErrorName(size));
  if (size != raw.size()) return Corrupt("it decompresses to fewer bytes than it declares");
  return {};
}

}  // namespace ffrecord
