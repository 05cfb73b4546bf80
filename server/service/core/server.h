#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <ffrecord/result.h>

#include "libffrecord/base/clock.h"
#include "libffrecord/net/transport/endpoint.h"
#include "libffrecord/net/transport/rdma/rdma.h"
#include "libffrecord/net/transport/tls/tls.h"
#include "server/service/catalog/catalog.h"
#include "server/service/cluster/cluster_service.h"
#include "server/service/origin/origin_cache.h"
#include "server/service/read/disk_reader.h"
#include "server/storage/disk_set.h"
#include "server/storage/scrubber.h"

namespace ffrecord::server {

// The cluster of which a daemon is a node: `connect` makes its coordinator. In `service`, node,
// advertise and domain are filled in where they are empty; grace, tokens and TLS are the daemon's.
struct ServerCluster {
  std::function<Result<std::shared_ptr<MetaStore>>()> connect;
  ClusterService::Options service = {};
  // Where names of class origin may have their bytes; nowhere: this node fetches none. Folders are
  // filled in, and the grace is the service's.
  OriginCache::Options origins = {};
};

// One storage daemon: the extents and names of its disks, served on one address.
//
// Owns its threads: one that accepts, one for each core, a few for what blocks. Start, Stop and the
// destructor belong to one thread.
class Server {
 public:
  struct Options {
    std::vector<std::filesystem::path> data = {};  // One folder for each disk; made if missing.
    std::filesystem::path metadata = {};           // Made if missing. Empty: in the first of them.
    DiskPermissions disks = {};
    net::Address listen{"127.0.0.1", 0};  // Port 0 lets the kernel choose.
    std::uint32_t core_count = 0;         // Event loops; 0: one for each core of the machine.
    std::uint32_t connection_count_max = 10'000;  // BUSY beyond.
    // Read and not yet sent, for each event loop.
    std::uint64_t held_bytes_max = DiskReader::Bounds{}.held_bytes_max;
    // Read because of prefetch hints and not yet asked for: in the page cache. 0: nothing is.
    std::uint64_t read_ahead_bytes_max = std::uint64_t{256} << 20;
    // Extents that are mapped at a time, so that what of them is in memory is sent from there: half
    // of what Linux allows a process by default. 0: everything is read through the engine.
    std::size_t mapped_count_max = 32'768;
    // The transports beside TCP: shared memory for clients of this machine, over a local socket,
    // and RDMA. kAuto: whichever can be had. kShm and kRdma: that alone, and no start without it.
    // Never RDMA beside TLS, for it enciphers nothing.
    enum class Transport : std::uint8_t { kAuto, kShm, kTcp, kRdma };
    Transport transport = Transport::kAuto;
    net::RdmaOptions rdma = {};
    // The file with the keys that clients' tokens are made with; empty: everybody may do
    // everything.
    std::filesystem::path token_keys = {};
    // TLS on the TCP port; without a certificate there is none.
    net::TlsFiles tls = {};
    std::chrono::milliseconds greeting_timeout{5'000};  // Without HELLO: closed then.
    // A connection of which a frame stands still for so long is closed.
    std::chrono::milliseconds stall_timeout{30'000};
    DiskReader::MakeEngine make_engine = MakeIoEngine;
    // Where to serve metrics, health and the dashboard over HTTP; none: nowhere. Any client that
    // can connect is answered.
    std::optional<net::Address> admin = {};
    std::string version = {};                     // For the metrics.
    std::filesystem::path admin_token_file = {};  // Holds what is to be sent there; empty: nothing.
    std::chrono::milliseconds upload_grace = Catalog::Options{}.upload_grace;
    // How long requests wait for the disk of the metadata before they are refused.
    std::chrono::milliseconds answer_time_max = std::chrono::seconds(10);
    // How long a client of a node of a cluster may still read what it has bound and the node has
    // deleted since, because others have it or the grace of its name is over.
    std::chrono::milliseconds deleted_hold = std::chrono::minutes(10);
    std::map<std::string, std::uint64_t> quotas = {};
    std::map<std::string, std::uint32_t> tenant_weights = {};  // By prefix, see TenantShares.
    // Room on the disk which only deletions may use: enough for the records of removing the largest
    // dataset, and less on a small disk.
    std::uint64_t reserve_bytes = std::uint64_t{32} << 20;
    Scrubber::Options scrub = {};
    std::optional<ServerCluster> cluster = {};  // None: the daemon is in no cluster.
    // Which node it says that it is, in place of `cluster`: for one that plays a part.
    std::optional<net::NodeIdentity> identity = {};
    // Called once, from any thread, when no event loop is left that could serve anybody: restart
    // the process.
    std::function<void()> on_failure = {};
  };

  // Serves when it returns. Fails with kConflict if a port is in use, another daemon holds a
  // folder, or a folder is not the disk that it should be; kNotFound, kDenied or kIo if the folder
  // cannot be used, kCorruption if its metadata is damaged. The message names the remedy.
  static Result<std::unique_ptr<Server>> Start(const Options& options);
  ~Server();  // Stop() with no time to finish.
  Server(const Server&) = delete;
  Server& operator=(const Server&) = delete;

  const net::Address& address() const noexcept;
  std::optional<net::Address> admin_address() const;
  std::string_view engine_name() const noexcept;
  const std::string& transports() const noexcept;  // "tcp" or "tls", then ",shm" and ",rdma".
  // "none", or who is let in: "tokens", "certificates", "certificates,tokens".
  std::string_view authentication() const noexcept;
  const Catalog::Report& catalog_report() const noexcept;  // Not of a node of a cluster.
  const ExtentStore::ScanReport& scan_report() const noexcept;

  // Takes no more connections, says GOAWAY, finishes what has been taken, closes. True if all was
  // done by the deadline. False if a job still hangs on the disk: to wait for it is the
  // destructor's part, and to end the process instead is as safe. Idempotent.
  bool Stop(Clock::time_point deadline);

 private:
  struct Impl;
  explicit Server(std::unique_ptr<Impl> impl) noexcept;
  std::unique_ptr<Impl> impl_;
};

}  // namespace ffrecord::server
