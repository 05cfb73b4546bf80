#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include <ffrecord/export.h>
#include <ffrecord/result.h>
#include <ffrecord/session_options.h>

namespace ffrecord::client {

// One version of a file of any kind at an object store, or at a server of HTTP, as plain bytes.
//
// Thread-safe; copies share connections, and a forked child may go on using them.
class FFR_EXPORT StoredFile {
 public:
  // Asked about ten times per second during a long call: whether to give it up.
  using GiveUp = std::function<bool()>;

  // s3://BUCKET/KEY or http(s)://HOST/PATH. Without query and user, which may be secrets.
  const std::string& name() const noexcept;
  std::uint64_t size_bytes() const noexcept;
  // Text that other versions of the file do not have; empty if the store names no version.
  const std::string& version() const noexcept;

  // Reads the bytes from there on; a large range is read as several at a time. After an error, the
  // destination may be partly written.
  //
  // Fails with kInvalidArgument for a range that passes the end, and for a server that knows no
  // ranges; kConflict if there is another version now; kNotFound, kDenied, kUnavailable,
  // kDeadlineExceeded, which is also said once `give_up` returns true.
  Result<void> Read(std::uint64_t offset_bytes, std::span<std::byte> destination,
                    const GiveUp& give_up = {}) const;

 private:
  friend struct StoredFileMaker;
  struct Impl;
  explicit StoredFile(std::shared_ptr<const Impl> impl) noexcept;
  std::shared_ptr<const Impl> impl_;
};

// The file of each address, in its version of this moment; nothing where there is none. Names are
// taken as they are: *?[ are characters of a key, and a folder is no file. Fails as
// StoredFile::Read, with kInvalidArgument for a malformed address or without object stores.
FFR_EXPORT Result<std::vector<std::optional<StoredFile>>> LookForStoredFiles(
    std::span<const std::string> addresses, const SessionOptions& options,
    const StoredFile::GiveUp& give_up = {});

// The files that match the pattern s3://BUCKET/a*/b?[cd].tar (** also matches slashes), sorted.
// Fails as LookForStoredFiles(), and with kNotFound if nothing matches.
FFR_EXPORT Result<std::vector<StoredFile>> MatchStoredFiles(const std::string& pattern,
                                                            const SessionOptions& options,
                                                            const StoredFile::GiveUp& give_up = {});

// All files in the folder s3://BUCKET/FOLDER and in folders in it, sorted by key; none if there is
// no such folder. Fails as LookForStoredFiles.
FFR_EXPORT Result<std::vector<StoredFile>> ListStoredFiles(const std::string& folder,
                                                           const SessionOptions& options,
                                                           const StoredFile::GiveUp& give_up = {});

}  // namespace ffrecord::client
