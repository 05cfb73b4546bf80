#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <ffrecord/export.h>
#include <ffrecord/record_reader.h>
#include <ffrecord/result.h>

namespace ffrecord::client {

// How bytes come from a daemon. An address may say it too, and is followed then:
// ffrecord://host/name?transport=shm.
enum class Transport : std::uint8_t {
  kAuto,  // The first that can be had: shared memory, RDMA (never with TLS), TCP.
  kShm,   // Shared memory, or a failure that says why not.
  kTcp,
  kRdma,  // RDMA, or a failure that says why not.
};

// How to reach a daemon.
struct SessionOptions {
  std::chrono::milliseconds timeout{30'000};  // For each call, retries included.
  Transport transport = Transport::kAuto;
  // Another process has reached this daemon, such as the one that started this: that nobody answers
  // is then a restart, which the timeout waits for, and no mistake in the address.
  bool was_reached = false;
};

// The daemon's port when an ffrecord:// address names none.
inline constexpr std::uint16_t kDefaultPort = 9400;

// Opens files or a published dataset; the reader is the same class for both and returns the same
// bytes. Each of `locations` is a path, or one ffrecord://host[:port]/name and nothing else.
//
// Fails as RecordReader::Open; for an address with kInvalidArgument if it is malformed, kNotFound
// if the daemon knows no such name, kUnavailable if no daemon answers (the message says where and
// how to start one), kDeadlineExceeded. If the daemon goes away later, reads connect again until
// the timeout, then give kUnavailable for each record.
FFR_EXPORT Result<RecordReader> OpenDataset(std::span<const std::string> locations,
                                            const RecordReader::Options& reader_options,
                                            const SessionOptions& session_options);

// Uploads sealed FFRecord files, which are checked first, and makes them one dataset called by
// `address` (ffrecord://host[:port]/name). Nothing is visible until all of it is on the daemon's
// disk; then all of it is.
//
// `progress`, if given, is called on the calling thread with bytes done and bytes in all. Fails
// with kConflict if the name exists and `replace` is false, kCorruption if a file is damaged,
// kUnavailable, kDeadlineExceeded, kIo (ENOSPC: the daemon's disk is full), kInvalidArgument for a
// name that is not 1 to 255 characters of [A-Za-z0-9._-] in segments parted by '/'.
FFR_EXPORT Result<void> PublishDataset(
    std::span<const std::filesystem::path> files, std::string_view address, bool replace,
    const SessionOptions& options,
    const std::function<void(std::uint64_t, std::uint64_t)>& progress);

// One name that a daemon serves.
struct Published {
  std::string name;
  std::uint64_t size_bytes;
  std::uint64_t file_count;
};

// How this process talks to the daemon at an address.
struct DaemonLink {
  std::string transport;                 // "shm", "rdma", "tcp", or "tls": enciphered.
  std::string reason;                    // Why this one, and with which cipher.
  std::chrono::microseconds round_trip;  // Of a frame there and back, the best of a few.
};

// Connects to the daemon at `address` (ffrecord://host[:port], a name in it is not looked at).
// Fails with kUnavailable, kDeadlineExceeded, and with kInvalidArgument if the address is malformed
// or the transport that it demands cannot be had.
FFR_EXPORT Result<DaemonLink> ProbeDaemon(std::string_view address, const SessionOptions& options);

// The names under `address` (ffrecord://host[:port]/ or with a prefix of a name), sorted.
FFR_EXPORT Result<std::vector<Published>> ListPublished(std::string_view address,
                                                        const SessionOptions& options);

// Makes the name disappear; its bytes are freed later. Fails with kNotFound.
FFR_EXPORT Result<void> RemovePublished(std::string_view address, const SessionOptions& options);

}  // namespace ffrecord::client
