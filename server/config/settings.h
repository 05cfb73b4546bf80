#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include <ffrecord/result.h>

namespace ffrecord::server {

// The settings of a daemon at start: from a file, and from flags, which override it. Each member
// but the last four is one key of the file and one flag of the same name; setting_table.h describes
// them.
struct Settings {
  std::vector<std::filesystem::path> data;  // Required: one folder for each disk.
  std::filesystem::path metadata;           // Empty: in the first of them.
  std::uint32_t missing_disks = 0;          // Starts without so many of its disks.
  std::string listen = "127.0.0.1:9400";
  std::string admin;        // Where to serve metrics and the dashboard; empty: nowhere.
  std::uint32_t cores = 0;  // 0: one event loop for each core.
  std::string io_engine = "auto";
  // The transports beside TCP; auto: shared memory and RDMA, as far as they can be had.
  std::string transport = "auto";
  std::string rdma_devices;  // Empty: all that can be used.
  std::uint32_t rdma_traffic_class = 0;
  std::uint32_t rdma_service_level = 0;
  std::string dscp;                    // As ParseTrafficMarks reads it; empty: packets have none.
  std::string socket_priority;         // The same.
  std::uint32_t connections = 10'000;  // BUSY beyond.
  std::uint32_t inflight_mib = 64;     // Read and not yet sent, for each core.
  std::uint32_t read_ahead_mib = 256;  // Read ahead of plans and not yet asked for; 0: nothing is.
  std::uint32_t upload_grace_s = 600;  // After which a silent upload is collected.
  std::filesystem::path token_keys;    // Empty: everybody may do everything.
  // TLS: the daemon's certificate and its key; whom clients' certificates must come from.
  std::filesystem::path tls_cert, tls_key, tls_ca;
  std::string quotas;            // As ParseQuotas reads it.
  std::string tenant_weights;    // As ParseTenantWeights reads it.
  std::uint32_t scrub_days = 7;  // In which all that is stored is checked; 0: never.
  std::string cluster;           // The daemon's cluster; empty: it is in none.
  std::string coordinator;       // As ParseCoordinator reads it.
  std::string coordinator_user;
  std::filesystem::path coordinator_password, coordinator_ca, coordinator_cert, coordinator_key;
  std::string node;                       // Id in the cluster; empty: that of the data folder.
  std::string advertise;                  // Where others reach it; empty: as `listen` says.
  std::string domain;                     // Nodes of one may fail together; empty: each is its own.
  std::uint32_t weight = 100;             // Its part of the data, beside those of the others.
  std::uint32_t replicas = 2;             // Replicas of each published extent.
  std::string approval = "operator";      // Or "automatic": who lets new nodes join.
  std::uint32_t lease_s = 10;             // After which a silent node counts as down.
  std::uint32_t repair_after_s = 600;     // That others take over what a node holds that is down.
  std::uint32_t repair_mib_s = 128;       // For data that this node lacks; 0: no limit.
  std::uint32_t delete_grace_s = 86'400;  // That removed data stays.
  std::string origins;                    // As ParseOrigins reads it.
  std::uint32_t origin_cache_mib = 65'536;  // Room for data that was fetched from there.
  std::filesystem::path admin_token_file;   // Empty: the admin port asks nobody.
  std::string log_level = "info";

  // Takes the daemon's own names into its cluster. A flag only: it is for the time of the change.
  bool adopt = false;
  // May listen where others reach it, without authentication. A flag only: no file hides it.
  bool insecure = false;
  // Ids of disks that are given up. A flag only: it is for one start.
  std::vector<std::string> forget_disks;
  // Ids of disks that are emptied, so that they can be taken out. A flag only: it is for one start.
  std::vector<std::string> drain_disks;
};

// The action that the command line wants done.
struct Command {
  enum class Kind : std::uint8_t {
    kServe,
    kCheckConfig,  // Nothing more: the settings are good.
    kPrintConfig,  // The settings, as a file that would make them.
    kEnd,          // Help, the version or an error has been printed.
  };
  Kind kind = Kind::kEnd;
  int exit_code = 0;  // With kEnd: 0, 2 for a usage error, 4 for a file that cannot be read.
  Settings settings;
};

// Reads the command line and the file that --config or $FFRECORD_CONFIG names. Checks everything
// that can be checked without touching data or network, see CheckSettings.
Command ParseCommandLine(int argc, char** argv);

// Fails with kInvalidArgument, naming the remedy, if there is no data folder, an address cannot be
// read, or one can be reached by others who need no token there.
Result<void> CheckSettings(const Settings& settings);

// The ids that `flag` names. Fails with kInvalidArgument.
using DiskIdBytes = std::array<std::byte, 16>;
Result<std::vector<DiskIdBytes>> ParseDiskIds(const std::string& flag,
                                              std::span<const std::string> texts);

// The members of etcd in "etcd:http://a:2379,b:2379": their addresses, each with its scheme. Fails
// with kInvalidArgument.
Result<std::vector<std::string>> ParseCoordinator(const std::string& text);

// Secrets that go over a network unencrypted: tokens without TLS on an address that other machines
// reach. One line each, with the remedy.
std::vector<std::string> PlaintextWarnings(const Settings& settings);

// Whether `host` can be reached from this machine only.
bool IsLoopback(const std::string& host);

}  // namespace ffrecord::server
