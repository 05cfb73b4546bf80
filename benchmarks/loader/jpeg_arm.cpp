// The limit of the benchmark `jpeg` (jpeg.py says what is compared and how): a bare loop of
// libjpeg-turbo.
//
//   jpeg-arm FOLDER THREADS SECONDS
//
// Decodes the JPEGs of a folder from memory to RGB, again and again; each thread has one decoder
// and one buffer of its own, whatever was in it is overwritten. Prints one JSON object; `digest` is
// the sum over all pictures of the CRC-32 of the pixels, begun with the picture's number.

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <thread>
#include <vector>

#include <jpeglib.h>
#include <zlib.h>

#include "benchmarks/support/arm.h"

namespace {

using ffrecord::bench::Fail;
using Clock = std::chrono::steady_clock;

constexpr auto kWarmUp = std::chrono::milliseconds(300);

std::vector<std::vector<char>> Pictures(const std::filesystem::path& folder) {
  std::vector<std::filesystem::path> paths;
  for (const auto& entry : std::filesystem::directory_iterator(folder))
    if (entry.path().extension() == ".jpg") paths.push_back(entry.path());
  std::ranges::sort(paths);
  std::vector<std::vector<char>> pictures;
  for (const auto& path : paths) {
    std::ifstream file(path, std::ios::binary);
    pictures.emplace_back(std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>());
  }
  if (pictures.empty()) Fail(folder.string() + ": no *.jpg");
  return pictures;
}

class Decoder {
 public:
  Decoder() {
    jpeg_.err = jpeg_std_error(&errors_);  // An error ends the program.
    jpeg_create_decompress(&jpeg_);
  }
  ~Decoder() { jpeg_destroy_decompress(&jpeg_); }
  Decoder(const Decoder&) = delete;
  Decoder& operator=(const Decoder&) = delete;

  void Decode(const std::vector<char>& picture) {
    jpeg_mem_src(&jpeg_, reinterpret_cast<const unsigned char*>(picture.data()), picture.size());
    jpeg_read_header(&jpeg_, TRUE);
    jpeg_.out_color_space = JCS_RGB;
    jpeg_start_decompress(&jpeg_);
    const std::size_t stride = std::size_t{jpeg_.output_width} * 3;
    if (const std::size_t size = stride * jpeg_.output_height; pixels.size() != size)
      pixels.resize(size);
    rows_.resize(jpeg_.output_height);
    for (std::size_t y = 0; y < rows_.size(); ++y) rows_[y] = pixels.data() + y * stride;
    while (jpeg_.output_scanline < jpeg_.output_height)
      jpeg_read_scanlines(&jpeg_, rows_.data() + jpeg_.output_scanline,
                          jpeg_.output_height - jpeg_.output_scanline);
    jpeg_finish_decompress(&jpeg_);
  }

  std::vector<unsigned char> pixels;

 private:
  jpeg_decompress_struct jpeg_{};
  jpeg_error_mgr errors_{};
  std::vector<unsigned char*> rows_;
};

unsigned long long Digest(const std::vector<std::vector<char>>& pictures) {
  Decoder decoder;
  unsigned long long sum = 0;
  for (std::size_t i = 0; i < pictures.size(); ++i) {
    decoder.Decode(pictures[i]);
    sum += crc32(static_cast<uLong>(i), decoder.pixels.data(),
                 static_cast<uInt>(decoder.pixels.size()));
  }
  return sum;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 4) Fail("jpeg-arm FOLDER THREADS SECONDS");
  const auto pictures = Pictures(argv[1]);
  const auto begin = Clock::now() + kWarmUp;
  const auto end = begin + std::chrono::duration_cast<Clock::duration>(
                               std::chrono::duration<double>(std::atof(argv[3])));
  std::atomic<std::size_t> next{0}, done{0};
  std::vector<std::jthread> threads;
  for (int i = 0; i < std::atoi(argv[2]); ++i)
    threads.emplace_back([&] {
      Decoder decoder;
      for (auto now = Clock::now(); now < end; now = Clock::now()) {
        decoder.Decode(pictures[next++ % pictures.size()]);
        if (now >= begin) ++done;
      }
    });
  threads.clear();
  const std::chrono::duration<double> taken = Clock::now() - begin;
  std::printf("{\"pictures\": %zu, \"seconds\": %.6f, \"digest\": %llu}\n", done.load(),
              taken.count(), Digest(pictures));
}
