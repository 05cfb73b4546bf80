#include "client/dataset/upload.h"

#include <algorithm>
#include <utility>

#include "libffrecord/base/checksum.h"
#include "libffrecord/base/random.h"
#include "libffrecord/io/file.h"
#include "libffrecord/io/io_engine.h"
#include "libffrecord/net/rpc/extent_sender.h"

namespace ffrecord::client {

Upload::Upload(std::shared_ptr<net::Session> session, const SessionOptions& options,
               std::optional<std::uint64_t> id)
    : session_(std::move(session)),
      options_(options),
      id_(id ? *id : std::max<std::uint64_t>(RandomNumber(), 1)) {}

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
    file.extents.push_back(FFR_TRY(PutExtent(id, offset, extent_size, source, progress)));
  }
  return file;
}

Result<ManifestExtent> Upload::PutExtent(const ExtentId& id, std::uint64_t offset_bytes,
                                         std::uint64_t size_bytes, const Source& source,
                                         const Progress& progress) {
  const auto deadline = net::Clock::now() + options_.timeout;
  ManifestExtent extent{id, size_bytes, 0};
  std::uint64_t reported = 0;  // Of this extent; a second try begins below it.
  const auto attempt = [&](net::Connection& connection) -> Result<void> {
    FFR_TRY(session_->PrepareUploads(connection, deadline));
    const auto begun =
        FFR_TRY(connection.Call(net::FrameType::kPutBegin, net::PutBegin{id, size_bytes}.Encode(),
                                {}, deadline, "room for an extent"));
    // Sealed already: the reply to PUT_SEAL was lost. The bytes are read once more for their sum.
    const bool sealed = FFR_TRY(net::PutBeginReply::Decode(begun.body)).already_sealed;
    Xxh3Stream sum;
    net::ExtentSender sender(connection, id, deadline);
    for (std::uint64_t done = 0; done < size_bytes;) {
      const auto room = FFR_TRY(sender.Room());
      const std::uint64_t size = std::min<std::uint64_t>(size_bytes - done, room.size());
      const auto bytes = FFR_TRY(source(offset_bytes + done, room.first(size)));
      sum.Update(bytes);
      if (!sealed) FFR_TRY(sender.Send(bytes));
      done += bytes.size();
      if (progress && done > reported) progress(offset_bytes + (reported = done));
    }
    FFR_TRY(sender.Finish());
    extent.xxh3 = sum.Finish64();
    FFR_TRY(connection.Call(net::FrameType::kPutSeal, net::PutSeal{id, extent.xxh3}.Encode(), {},
                            deadline, "the seal of an extent"));
    return {};
  };
  FFR_TRY(session_->Run(attempt, deadline));
  return extent;
}

}  // namespace ffrecord::client
