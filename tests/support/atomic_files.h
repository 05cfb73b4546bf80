#pragma once

#include <sys/syscall.h>

#include <cerrno>
#include <cstddef>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <utility>

#include "libffrecord/io/atomic_file.h"
#include "refused_calls.h"

namespace ffrecord::test {

inline std::span<const std::byte> Bytes(std::string_view text) {
  return std::as_bytes(std::span(text.data(), text.size()));
}

// Writes `text` over `path` in pieces, small enough for several writes in flight.
inline Result<void> Replace(const std::filesystem::path& path, std::string_view text, bool direct,
                            std::unique_ptr<IoEngine> engine, std::optional<AtomicFile>& file) {
  AtomicFile::Options options;
  options.replace = true;
  options.direct = direct;
  options.buffer_size_bytes = 4096;
  options.buffers_in_flight = 2;
  file.emplace(FFR_TRY(AtomicFile::Create(path, options, std::move(engine))));
  for (std::size_t at = 0; at < text.size(); at += 1000) {
    if (auto appended = file->Append(Bytes(text.substr(at, 1000))); !appended) return appended;
  }
  if (auto written = file->WriteAt(10, Bytes(text.substr(10, 20))); !written) return written;
  return file->Publish();
}

// From here on, this process cannot make files without a name. False: no seccomp here.
inline bool RefuseUnnamedFiles() {
  constexpr int kTmpfileBit = 020000000;  // O_TMPFILE, without O_DIRECTORY.
  return RefuseCalls({{SYS_openat, EOPNOTSUPP, 2, kTmpfileBit}});
}

}  // namespace ffrecord::test
