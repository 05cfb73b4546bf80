#include <algorithm>
#include <csetjmp>
#include <cstdio>
#include <cstring>
#include <string>
#include <vector>

#include <jpeglib.h>

#include <jerror.h>

#include "libffrecord/decode/jpeg.h"

namespace ffrecord {
namespace {

// A progressive JPEG says how many scans it has, each of which goes over all of the picture: few
// bytes can cost hours. Real ones have about ten.
constexpr int kScansMax = 500;
// Columns and rows around a region, so that the filter that blows up colours sees its neighbours.
constexpr std::uint32_t kColourMargin = 2;
constexpr std::uint32_t kRowsAtOnce = 16;

// Damage that the library would paint over, and that we refuse.
bool IsHarmless(int warning) noexcept {
  return warning == JWRN_EXTRANEOUS_DATA || warning == JWRN_JFIF_MAJOR ||
         warning == JWRN_ADOBE_XFORM;
}

std::uint8_t Product(std::uint32_t a, std::uint32_t b) noexcept {
  return static_cast<std::uint8_t>((a * b + 127) / 255);
}

// Adobe stores inks inverted, as all who write CMYK do since.
void FromCmyk(const JSAMPLE* row, std::uint32_t width, std::uint32_t channels,
              JSAMPLE* out) noexcept {
  for (std::uint32_t i = 0; i < width; ++i, row += 4) {
    const std::uint8_t red = Product(row[0], row[3]), green = Product(row[1], row[3]),
                       blue = Product(row[2], row[3]);
    if (channels == 1) {
      *out++ =
          static_cast<JSAMPLE>((19'595U * red + 38'470U * green + 7'471U * blue + 32'768U) >> 16);
    } else {
      *out++ = red;
      *out++ = green;
      *out++ = blue;
    }
  }
}

}  // namespace

// libjpeg leaves an error by longjmp: all that it may jump over is trivial, and what must outlive
// the jump is here.
struct JpegDecoder::State {
  jpeg_decompress_struct jpeg{};
  jpeg_error_mgr errors{};
  jpeg_progress_mgr progress{};
  std::jmp_buf jump{};
  char message[JMSG_LENGTH_MAX] = {};
  std::vector<JSAMPLE> row;  // One row around a region, or of inks.
  bool usable = false;

  State() {
    jpeg.err = jpeg_std_error(&errors);
    errors.error_exit = &Fail;
    errors.emit_message = &Warn;
    errors.output_message = [](j_common_ptr) {};
    jpeg.client_data = this;
    usable = Guarded([&] { jpeg_create_decompress(&jpeg); });
    progress.progress_monitor = &CountScans;
    jpeg.progress = &progress;
  }
  ~State() {
    if (usable) jpeg_destroy_decompress(&jpeg);
  }
  State(const State&) = delete;
  State& operator=(const State&) = delete;

  // False if `step` was left by an error. `step` and what it calls must hold nothing that needs a
  // destructor.
  template <class Step>
  bool Guarded(const Step& step) {
    if (setjmp(jump) != 0) return false;
    step();
    return true;
  }

  Error Damaged() {
    if (usable) jpeg_abort_decompress(&jpeg);
    return {ErrorCode::kCorruption, std::string("JPEG: ") + message};
  }

  static void Fail(j_common_ptr common) {
    auto* state = static_cast<State*>(common->client_data);
    common->err->format_message(common, state->message);
    std::longjmp(state->jump, 1);
  }
  static void Warn(j_common_ptr common, int level) {
    if (level < 0 && !IsHarmless(common->err->msg_code)) Fail(common);
  }
  static void CountScans(j_common_ptr common) {
    if (!common->is_decompressor) return;
    if (reinterpret_cast<j_decompress_ptr>(common)->input_scan_number <= kScansMax) return;
    auto* state = static_cast<State*>(common->client_data);
    std::snprintf(state->message, sizeof(state->message), "more than %d scans", kScansMax);
    std::longjmp(state->jump, 1);
  }

  bool IsCmyk() const noexcept {
    return jpeg.jpeg_color_space == JCS_CMYK || jpeg.jpeg_color_space == JCS_YCCK;
  }
  void Start(const Region& region, std::uint32_t channels);
  void ReadWhole(const Region& region, std::byte* out, std::size_t stride);
  void ReadPart(const Region& region, std::uint32_t channels, std::uint32_t skip, std::byte* out,
                std::size_t stride);
};

void JpegDecoder::State::Start(const Region& region, std::uint32_t channels) {
  jpeg.scale_num = 1;
  jpeg.scale_denom = region.denominator;
  jpeg.out_color_space = IsCmyk() ? JCS_CMYK : channels == 1 ? JCS_GRAYSCALE : JCS_RGB;
  jpeg_start_decompress(&jpeg);
}

void JpegDecoder::State::ReadWhole(const Region& region, std::byte* out, std::size_t stride) {
  JSAMPROW rows[kRowsAtOnce];
  while (jpeg.output_scanline < region.height) {
    const std::uint32_t count = std::min(kRowsAtOnce, region.height - jpeg.output_scanline);
    for (std::uint32_t i = 0; i < count; ++i)
      rows[i] = reinterpret_cast<JSAMPROW>(out + stride * (jpeg.output_scanline + i));
    jpeg_read_scanlines(&jpeg, rows, count);
  }
}

void JpegDecoder::State::ReadPart(const Region& region, std::uint32_t channels, std::uint32_t skip,
                                  std::byte* out, std::size_t stride) {
  if (region.y > 0) jpeg_skip_scanlines(&jpeg, region.y);
  for (std::uint32_t y = 0; y < region.height; ++y) {
    JSAMPROW rows[1] = {row.data()};
    jpeg_read_scanlines(&jpeg, rows, 1);
    auto* to = reinterpret_cast<JSAMPLE*>(out + stride * y);
    const JSAMPLE* from =
        row.data() + std::size_t{skip} * static_cast<std::uint32_t>(jpeg.output_components);
    if (IsCmyk())
      FromCmyk(from, region.width, channels, to);
    else
      std::memcpy(to, from, std::size_t{region.width} * channels);
  }
}

bool JpegDecoder::IsThere() noexcept { return true; }
JpegDecoder::JpegDecoder() : state_(std::make_unique<State>()) {}
JpegDecoder::~JpegDecoder() = default;

Result<JpegDecoder::Header> JpegDecoder::ReadHeader(std::span<const std::byte> bytes,
                                                    bool with_orientation) {
  State& state = *state_;
  if (!state.usable) return Error{ErrorCode::kIo, "JPEG: the library cannot be used"};
  jpeg_abort_decompress(&state.jpeg);
  const bool good = state.Guarded([&] {
    jpeg_mem_src(&state.jpeg, reinterpret_cast<const unsigned char*>(bytes.data()), bytes.size());
    jpeg_save_markers(&state.jpeg, JPEG_APP0 + 1, with_orientation ? 0xFFFF : 0);
    jpeg_read_header(&state.jpeg, TRUE);
  });
  if (!good) return state.Damaged();
  Header header{state.jpeg.image_width, state.jpeg.image_height, 1};
  for (const jpeg_marker_struct* marker = state.jpeg.marker_list; marker != nullptr;
       marker = marker->next) {
    header.orientation =
        ExifOrientation(std::as_bytes(std::span(marker->data, std::size_t{marker->data_length})));
    if (header.orientation != 1) break;
  }
  return header;
}

Result<void> JpegDecoder::Decode(const Region& region, std::uint32_t channels, std::byte* out,
                                 std::size_t stride) {
  State& state = *state_;
  if (!state.Guarded([&] { state.Start(region, channels); })) return state.Damaged();
  const JDIMENSION full_width = state.jpeg.output_width, full_height = state.jpeg.output_height;
  if (region.width > full_width || region.x > full_width - region.width ||
      region.height > full_height || region.y > full_height - region.height) {
    jpeg_abort_decompress(&state.jpeg);
    return Error{ErrorCode::kInvalidArgument, "JPEG: a region beyond the picture"};
  }
  JDIMENSION first = region.x - std::min(region.x, kColourMargin);
  JDIMENSION width = std::min(full_width, region.x + region.width + kColourMargin) - first;
  bool good = true;
  if (region.width == full_width && !state.IsCmyk() && region.y == 0) {
    good = state.Guarded([&] { state.ReadWhole(region, out, stride); });
  } else {
    if (width < full_width)
      good = state.Guarded([&] { jpeg_crop_scanline(&state.jpeg, &first, &width); });
    if (good) {
      state.row.resize(std::size_t{state.jpeg.output_width} *
                       static_cast<std::uint32_t>(state.jpeg.output_components));
      good =
          state.Guarded([&] { state.ReadPart(region, channels, region.x - first, out, stride); });
    }
  }
  if (!good) return state.Damaged();
  jpeg_abort_decompress(&state.jpeg);
  return {};
}

}  // namespace ffrecord
