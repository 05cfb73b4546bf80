#include "client/dataset/upload.h"

#include <algorithm>
#include <utility>

#include "libffrecord/base/random.h"
#include "libffrecord/io/file.h"
#include "libffrecord/io/io_engine.h"

namespace ffrecord::client {

Upload::Upload(Daemons daemons, const SessionOptions& options, std::optional<std::uint64_t> id)
    : daemons_(std::move(daemons)),
      options_(options),
      id_(id ? *id : std::max<std::uint64_t>(RandomNumber(), 1)) {
  if (daemons_.cluster != nullptr) replicas_.emplace(daemons_.cluster);
}

Result<ManifestFile> Upload::PutBytes(std::string name,
                                      std::span<const std::span<const std::byte>> pieces,
                                      const Progress& progress) {
  std::vector<std::uint64_t> ends;  // Where each piece ends in the file.
  std::uint64_t size_bytes = 0;
  for (const auto& piece : pieces) ends.push_back(size_bytes += piece.size());
  const Source source = [&](std::uint64_t offset,
                            std::span<std::byte> room) -> Result<std::span<const std::byte>> {
    const auto end = std::ranges::upper_bound(ends, offset);
    const auto& piece = pieces[static_cast<std::size_t>(end - ends.begin())];
    const std::uint64_t left = *end - offset;
    return piece.subspan(piece.size() - left, std::min<std::uint64_t>(room.size(), left));
  };
  return PutFrom(std::move(name), size_bytes, source, progress);
}

Result<ManifestFile> Upload::PutFile(std::string name, const std::filesystem::path& path,
                                     const Progress& progress) {
  const ReadOnlyFile file = FFR_TRY(OpenReadOnly(path, /*want_direct=*/false));
  const Source source = [&](std::uint64_t offset,
                            std::span<std::byte> room) -> Result<std::span<const std::byte>> {
    IoRequest read;
    read.fd = file.fd.get();
    read.offset_bytes = offset;
    read.buffer = room;
    IoEngine* const engine = FFR_TRY(ThreadIoEngine());
    FFR_TRY(RunAll(*engine, {&read, 1}, 1));
    if (read.result < 0) return ErrnoError("read", path, static_cast<int>(-read.result));
    if (static_cast<std::size_t>(read.result) != read.buffer.size())
      return Error{ErrorCode::kCorruption, path.string() + " became shorter while it was uploaded"};
    return std::span<const std::byte>(read.buffer);
  };
  return PutFrom(std::move(name), file.size_bytes, source, progress);
}

Result<ManifestFile> Upload::PutFrom(std::string name, std::uint64_t size_bytes,
                                     const Source& source, const Progress& progress) {
  if (size_bytes / kExtentSizeMax >= UINT32_MAX)
    return Error{ErrorCode::kInvalidArgument, name + ": too large to be one file of a manifest"};
  const std::uint32_t number = next_file_.fetch_add(1, std::memory_order_relaxed);
  ManifestFile file{std::move(name), size_bytes, {}};
  for (std::uint64_t offset = 0; offset < size_bytes; offset += kExtentSizeMax) {
    const auto id = MakeExtentId(id_, number, static_cast<std::uint32_t>(file.extents.size()));
    const std::uint64_t extent_size = std::min(size_bytes - offset, kExtentSizeMax);
    file.extents.push_back(FFR_TRY(PutExtent({id, offset, extent_size}, source, progress)));
  }
  return file;
}

Result<ManifestExtent> Upload::PutExtent(const SourcedExtent& extent, const Source& source,
                                         const Progress& progress) {
  std::uint64_t reported = 0;  // Of this extent; a second try begins below it.
  const Sent sent = [&](std::uint64_t done) {
    if (progress && done > reported) progress(extent.offset_bytes + (reported = done));
  };
  const std::uint64_t xxh3 =
      FFR_TRY(replicas_ ? replicas_->Put(extent, source, sent) : PutAtDaemon(extent, source, sent));
  return ManifestExtent{extent.id, extent.size_bytes, xxh3};
}

Result<std::uint64_t> Upload::PutAtDaemon(const SourcedExtent& extent, const Source& source,
                                          const Sent& sent) {
  const auto deadline = net::Clock::now() + options_.timeout;
  net::Session& session = *daemons_.session;
  std::uint64_t xxh3 = 0;
  const auto attempt = [&](net::Connection& connection) -> Result<void> {
    ExtentLegs legs(extent, deadline);
    legs.Add(session, connection);
    xxh3 = FFR_TRY(legs.Send(source, sent));
    return {};
  };
  FFR_TRY(session.Run(attempt, deadline));
  return xxh3;
}

}  // namespace ffrecord::client
