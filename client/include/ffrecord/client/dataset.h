#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <ffrecord/delegated_reads.h>
#include <ffrecord/export.h>
#include <ffrecord/record_reader.h>
#include <ffrecord/result.h>
#include <ffrecord/session_options.h>

namespace ffrecord::client {

// A cache of store reads in a folder on a local disk, for all processes of the machine. The least
// recently used blocks are removed first. If the folder is damaged, full or removed, reads only get
// slower.
struct CacheOptions {
  std::filesystem::path folder;                            // Empty: no cache.
  std::uint64_t size_bytes_max = std::uint64_t{64} << 30;  // At least 64 MiB.
};

// Opens files, a published dataset or objects of a store; the reader is the same class for all and
// returns the same bytes. `locations` are paths, or a single ffrecord://host[:port]/name, or a
// single ffrecord://host[:port],host[:port]/name of nodes of one cluster, or addresses
// of objects: s3://bucket/key, a folder s3://bucket/folder/ (its own *.ffr, sorted), a pattern
// s3://bucket/a*.ffr, and http(s)://host/path.
//
// `cache` is for objects of a store. An object that is replaced while it is open is an error of its
// records (kConflict).
//
// Fails as RecordReader::Open; for an address with kInvalidArgument if it is malformed, kNotFound
// if there is no such name or object, kDenied if a store refuses or there are no credentials,
// kUnavailable if no daemon answers (the message says where and how to start one),
// kDeadlineExceeded. If the daemon goes away later, reads try to reconnect until the
// timeout, then return kUnavailable for each record. An address of several daemons that are of no
// cluster is kInvalidArgument, here and for all functions below.
//
// `give_up` as for RecordReader::ReadBatch: kDeadlineExceeded once it returns true.
FFR_EXPORT Result<RecordReader> OpenDataset(std::span<const std::string> locations,
                                            const RecordReader::Options& reader_options,
                                            const SessionOptions& session_options,
                                            const CacheOptions& cache = {},
                                            const RecordReader::GiveUp& give_up = {});

// Opens files that threads of the program read. These threads must serve `reads` before the call.
// Each `reads` has one reader, which closes it when it is destroyed; a call that fails leaves it
// open. Fails as OpenDataset, and with kInvalidArgument if there are no files, or if a cache is
// given and the version of a file is unknown.
FFR_EXPORT Result<RecordReader> OpenDelegated(std::shared_ptr<DelegatedReads> reads,
                                              const RecordReader::Options& options,
                                              const CacheOptions& cache = {},
                                              const RecordReader::GiveUp& give_up = {});

// Checks sealed FFRecord files, uploads them, and publishes them as one dataset under `address`
// (ffrecord://host[:port]/name, or ffrecord://host[:port],host[:port]/name of nodes of a cluster).
// The dataset becomes visible as a whole, once all of it is on the daemons' disks.
//
// `progress`, if given, is called on the calling thread with bytes done and total bytes. Fails with
// kConflict if the name exists and `replace` is false, kCorruption if a file is damaged,
// kUnavailable, kDeadlineExceeded, kIo (ENOSPC: the daemon's disk is full), kInvalidArgument for a
// name that is not 1 to 255 characters of [A-Za-z0-9._-] in segments separated by '/'.
//
// `durability`, for a cluster: "r1", "r2" or "r3" replicas of all extents, or an erasure code such
// as "ec:4+2", by which any 2 of 4 consecutive extents and their 2 parity extents may be lost.
// Empty: as many replicas as the cluster's setting says. Fails with kInvalidArgument if it is none
// of these, or the cluster has too few failure domains.
//
// With `dry_run`, returns before the first byte is sent: it fails as far as can be known by then.
FFR_EXPORT Result<void> PublishDataset(
    std::span<const std::filesystem::path> files, std::string_view address, bool replace,
    const SessionOptions& options,
    const std::function<void(std::uint64_t, std::uint64_t)>& progress,
    std::string_view durability = {}, bool dry_run = false);

// Checks sealed FFRecord files, and publishes them as one dataset of class `origin` under `address`
// of a cluster, without uploading them: when a client reads a file, the nodes fetch it from its
// place, and cache it. `files` are objects, s3://bucket/key, or files of a folder that all nodes
// have at the same path; the setting `origins` of the daemons must list them. Each file is read
// twice.
//
// `progress` as for PublishDataset, in the second pass. Fails as that, with kDenied if the daemons
// may not read a file, kConflict if an object is replaced meanwhile, or if the cluster has nodes of
// an earlier version. `dry_run` as for PublishDataset.
FFR_EXPORT Result<void> PublishFromOrigin(
    std::span<const std::string> files, std::string_view address, bool replace,
    const SessionOptions& options,
    const std::function<void(std::uint64_t, std::uint64_t)>& progress, bool dry_run = false);

// As PublishFromOrigin, for local files, which it first copies to `place`: s3://bucket/prefix, or a
// folder that exists. Files keep their names. It replaces no file there; a file with the same bytes
// counts as copied. If publishing fails, the copies stay; to resume, make the same call
// again.
//
// `progress` counts each byte twice, once it is copied and once it is read for its checksum. Fails
// as both, with kConflict if a file of that name with other bytes is there. `dry_run` as for
// PublishDataset; does not look at `place`.
FFR_EXPORT Result<void> PublishThroughOrigin(
    std::span<const std::filesystem::path> files, std::string_view place, std::string_view address,
    bool replace, const SessionOptions& options,
    const std::function<void(std::uint64_t, std::uint64_t)>& progress, bool dry_run = false);

// One name that a daemon serves.
struct Published {
  std::string name;
  std::uint64_t size_bytes;
  std::uint64_t file_count;
  // How a cluster keeps the files: "origin", "r1" to "r3", "ec:4+2" and the like. Empty: the daemon
  // is of no cluster, is of an earlier version, or does not know the name's files yet.
  std::string durability;
};

// How this process talks to the daemon at an address.
struct DaemonLink {
  std::string transport;                 // "shm", "rdma", "tcp", or "tls" (TCP with encryption).
  std::string reason;                    // Why this transport was chosen; with TLS, the cipher.
  std::chrono::microseconds round_trip;  // Time for one frame; the best of a few.
};

// Connects to the daemon at `address` (ffrecord://host[:port]; a dataset name is ignored). Fails
// with kUnavailable, kDeadlineExceeded, and with kInvalidArgument if the address is malformed or
// the transport that it requests is unavailable.
FFR_EXPORT Result<DaemonLink> ProbeDaemon(std::string_view address, const SessionOptions& options);

// Lists the names under `address` (ffrecord://host[:port]/, or with a prefix of names), sorted.
// `give_up` as for OpenDataset.
FFR_EXPORT Result<std::vector<Published>> ListPublished(std::string_view address,
                                                        const SessionOptions& options,
                                                        const RecordReader::GiveUp& give_up = {});

// Removes the name at once; its bytes are freed later. Fails with kNotFound.
FFR_EXPORT Result<void> RemovePublished(std::string_view address, const SessionOptions& options);

}  // namespace ffrecord::client
