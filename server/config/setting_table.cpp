#include "server/config/setting_table.h"

#include <algorithm>
#include <array>
#include <charconv>

#include "libffrecord/net/transport/rdma/rdma.h"

namespace ffrecord::server {
namespace {

constexpr std::array<std::string_view, 3> kEngines{"auto", "io_uring", "threads"};
constexpr std::array<std::string_view, 4> kTransports{"auto", "shm", "tcp", "rdma"};
constexpr std::array<std::string_view, 2> kApprovals{"operator", "automatic"};
constexpr std::array<std::string_view, 4> kLogLevels{"debug", "info", "warn", "error"};

constexpr std::array kTable{
    Setting{"data", &Settings::data, "DIR",
            "Folder that holds the data, one for each disk (given several times, or as a list); "
            "created if missing"},
    Setting{"metadata", &Settings::metadata, "DIR",
            "Folder for the metadata; empty: the first data folder"},
    Setting{"missing_disks",
            &Settings::missing_disks,
            "COUNT",
            "Start without up to so many of the disks; what is on them is unavailable meanwhile",
            {},
            0,
            1024},
    Setting{"listen", &Settings::listen, "HOST:PORT", "Address to serve on"},
    Setting{"admin", &Settings::admin, "HOST:PORT",
            "Address for metrics, health and the dashboard, over HTTP; empty: none"},
    Setting{"cores", &Settings::cores, "COUNT", "Event loops; 0 is one for each core", {}, 0, 1024},
    Setting{"io_engine", &Settings::io_engine, "ENGINE", "How the disk is read", kEngines},
    Setting{
        "transport", &Settings::transport, "TRANSPORT",
        "Transports beside TCP: all that work (auto), none (tcp), or one without which the daemon "
        "does not start: shared memory for clients of this machine (shm), RDMA (rdma)",
        kTransports},
    Setting{"rdma_devices", &Settings::rdma_devices, "DEVICE,...",
            "RDMA devices to serve on, such as mlx5_0,mlx5_1; empty: all usable ones"},
    Setting{"rdma_traffic_class",
            &Settings::rdma_traffic_class,
            "N",
            "Traffic class of RDMA packets: DSCP times 4",
            {},
            0,
            255},
    Setting{"rdma_service_level",
            &Settings::rdma_service_level,
            "N",
            "Service level of RDMA packets: the priority in a VLAN tag",
            {},
            0,
            net::RdmaQos::kServiceLevelMax},
    Setting{"dscp", &Settings::dscp, "CLASS=N,...",
            "DSCP of TCP packets by traffic class: \"urgent=46, prefetch=8\"; empty: none"},
    Setting{"socket_priority", &Settings::socket_priority, "CLASS=N,...",
            "SO_PRIORITY of TCP connections by traffic class, 0 to 6; empty: none"},
    Setting{"connections",
            &Settings::connections,
            "COUNT",
            "Maximum number of clients; others are answered BUSY",
            {},
            1,
            1'000'000},
    Setting{"inflight_mib",
            &Settings::inflight_mib,
            "MIB",
            "Memory for data read and not yet sent, per core",
            {},
            1,
            65'536},
    Setting{"read_ahead_mib",
            &Settings::read_ahead_mib,
            "MIB",
            "Page cache for records read ahead of the epochs that clients follow; 0: no read-ahead",
            {},
            0,
            1'048'576},
    Setting{"upload_grace_s",
            &Settings::upload_grace_s,
            "SECONDS",
            "Time after which a silent upload is removed",
            {},
            1,
            86'400},
    Setting{
        "token_keys", &Settings::token_keys, "FILE",
        "Serve only clients with a token signed by a key in this file, which only its owner may "
        "read; empty: all clients"},
    Setting{"tls_cert", &Settings::tls_cert, "FILE",
            "Certificate of this daemon, in PEM: serve TLS 1.3 only; empty: no TLS"},
    Setting{"tls_key", &Settings::tls_key, "FILE",
            "Key of the certificate, in PEM, which only its owner may read"},
    Setting{
        "tls_ca", &Settings::tls_ca, "FILE",
        "Serve only clients with a certificate from an authority in this file; empty: all clients"},
    Setting{"quotas", &Settings::quotas, "PREFIX=SIZE,...",
            "Maximum size of all names under a prefix: \"train/=500G, runs/=2T\""},
    Setting{"tenant_weights", &Settings::tenant_weights, "PREFIX=N,...",
            "Shares of a disk's time that tenants get, by the prefix of their tokens: "
            "\"train/=4, runs/=1\"; 1 for all others"},
    Setting{"scrub_days",
            &Settings::scrub_days,
            "DAYS",
            "Days in which all stored data is read and checked in the background; 0: never",
            {},
            0,
            3650},
    Setting{"cluster", &Settings::cluster, "NAME",
            "Cluster of which this daemon is a node; empty: it is in none"},
    Setting{"coordinator", &Settings::coordinator, "etcd:URL,...",
            "Members of the etcd that keeps the cluster's metadata: "
            "\"etcd:http://a:2379,http://b:2379\""},
    Setting{"coordinator_user", &Settings::coordinator_user, "NAME",
            "User of etcd; empty: it has no users"},
    Setting{"coordinator_password", &Settings::coordinator_password, "FILE",
            "File with the password of that user, which only its owner may read"},
    Setting{"coordinator_ca", &Settings::coordinator_ca, "FILE",
            "Authorities of etcd's certificates, in PEM; empty: those of the system"},
    Setting{"coordinator_cert", &Settings::coordinator_cert, "FILE",
            "Certificate to show to etcd, in PEM"},
    Setting{"coordinator_key", &Settings::coordinator_key, "FILE",
            "Key of that certificate, in PEM"},
    Setting{"node", &Settings::node, "ID",
            "Name of this node in the cluster, never changed; empty: the id of its data folder"},
    Setting{"advertise", &Settings::advertise, "HOST:PORT",
            "Address at which clients and other nodes reach this node; empty: that of listen"},
    Setting{
        "domain", &Settings::domain, "NAME",
        "Failure domain, such as a rack: replicas lie in different ones; empty: the node's own"},
    Setting{"weight",
            &Settings::weight,
            "N",
            "Share of the cluster's data that this node takes, relative to the other nodes",
            {},
            1,
            1'000'000},
    Setting{"replicas",
            &Settings::replicas,
            "COUNT",
            "Nodes that hold each published extent",
            {},
            1,
            8},
    Setting{"approval", &Settings::approval, "operator|automatic",
            "Whether new nodes join the cluster only after `ffrecord cluster approve`, or by "
            "themselves; that of the leader counts",
            kApprovals},
    Setting{"lease_s",
            &Settings::lease_s,
            "SECONDS",
            "Time after which a node that does not renew its lease counts as down",
            {},
            2,
            300},
    Setting{"repair_after_s",
            &Settings::repair_after_s,
            "SECONDS",
            "Time for which a node is down before others copy what it holds",
            {},
            0,
            604'800},
    Setting{"repair_mib_s",
            &Settings::repair_mib_s,
            "MIB",
            "MiB/s at which this node copies data that it lacks from others; 0: no limit",
            {},
            0,
            1'048'576},
    Setting{"delete_grace_s",
            &Settings::delete_grace_s,
            "SECONDS",
            "Time for which a cluster keeps the data of a removed name",
            {},
            0,
            2'592'000},
    Setting{"origins", &Settings::origins, "PLACE,...",
            "Buckets and shared folders that hold the files of names of class origin, which this "
            "node fetches and caches: \"s3://bucket/data, /mnt/shared\"; empty: none"},
    Setting{"origin_cache_mib",
            &Settings::origin_cache_mib,
            "MIB",
            "Room on the data disks for what was fetched from origins",
            {},
            1024,
            1'073'741'824},
    Setting{"admin_token_file", &Settings::admin_token_file, "FILE",
            "Show metrics and names on the admin port only to clients that send the token in this "
            "file; empty: to all"},
    Setting{"log_level", &Settings::log_level, "LEVEL", "Least severity that is logged to stderr",
            kLogLevels},
};

std::string Joined(std::span<const std::string_view> choices) {
  std::string text;
  for (const std::string_view choice : choices)
    text.append(text.empty() ? "" : ", ").append(choice);
  return text;
}

Error Bad(const Setting& setting, const std::string& wanted, const std::string& found) {
  return Error{ErrorCode::kInvalidArgument,
               std::string(setting.key) + ": must be " + wanted + ", not " + found};
}

// A TOML basic string.
std::string Quoted(std::string_view text) {
  constexpr std::string_view kHex = "0123456789ABCDEF";
  std::string quoted = "\"";
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == '"' || c == '\\') {
      quoted.append({'\\', c});
    } else if (byte < 0x20 || byte == 0x7F) {
      quoted.append("\\u00").append({kHex[byte >> 4], kHex[byte & 15]});
    } else {
      quoted.push_back(c);
    }
  }
  return quoted + '"';
}

template <class Texts>
std::string ListOf(const Texts& texts) {
  std::string list;
  for (const auto& text : texts)
    list.append(list.empty() ? "[" : ", ").append(Quoted(std::filesystem::path(text).string()));
  return list.empty() ? "[]" : list + "]";
}

std::string Shown(const SettingValue& value) {
  if (const auto* const text = std::get_if<std::string>(&value)) return Quoted(*text);
  if (const auto* const number = std::get_if<std::int64_t>(&value)) return std::to_string(*number);
  return ListOf(std::get<std::vector<std::string>>(value));
}

}  // namespace

std::span<const Setting> SettingTable() noexcept { return kTable; }

const Setting* FindSetting(std::string_view key) noexcept {
  const auto* const found = std::ranges::find(kTable, key, &Setting::key);
  return found == kTable.end() ? nullptr : found;
}

Result<void> Assign(Settings& settings, const Setting& setting, const SettingValue& value) {
  if (const auto* const number = std::get_if<Setting::Number>(&setting.member)) {
    const std::string wanted =
        "a whole number from " + std::to_string(setting.min) + " to " + std::to_string(setting.max);
    const auto* const given = std::get_if<std::int64_t>(&value);
    if (given == nullptr) return Bad(setting, wanted, Shown(value));
    if (*given < setting.min || *given > setting.max)
      return Bad(setting, wanted, std::to_string(*given));
    settings.*(*number) = static_cast<std::uint32_t>(*given);
    return {};
  }
  if (const auto* const paths = std::get_if<Setting::Paths>(&setting.member)) {
    const auto* const one = std::get_if<std::string>(&value);
    const auto* const many = std::get_if<std::vector<std::string>>(&value);
    if (one == nullptr && many == nullptr) return Bad(setting, "a text or a list", Shown(value));
    (settings.*(*paths)).clear();
    if (one != nullptr) (settings.*(*paths)).emplace_back(*one);
    if (many != nullptr) (settings.*(*paths)).assign(many->begin(), many->end());
    return {};
  }
  const auto* const given = std::get_if<std::string>(&value);
  if (given == nullptr) return Bad(setting, "a text", Shown(value));
  if (!setting.choices.empty() &&
      std::ranges::find(setting.choices, *given) == setting.choices.end())
    return Bad(setting, "one of " + Joined(setting.choices), Quoted(*given));
  if (const auto* const path = std::get_if<Setting::Path>(&setting.member))
    settings.*(*path) = *given;
  else
    settings.*std::get<Setting::Text>(setting.member) = *given;
  return {};
}

Result<void> AssignTexts(Settings& settings, const Setting& setting,
                         const std::vector<std::string>& texts) {
  if (setting.has_many()) return Assign(settings, setting, texts);
  if (texts.size() > 1) return Bad(setting, "given once", std::to_string(texts.size()) + " times");
  const std::string& text = texts.front();
  if (!std::holds_alternative<Setting::Number>(setting.member))
    return Assign(settings, setting, text);
  std::int64_t number = 0;
  const char* const end = text.data() + text.size();
  const auto parsed = std::from_chars(text.data(), end, number);
  if (parsed.ec != std::errc() || parsed.ptr != end) return Assign(settings, setting, text);
  return Assign(settings, setting, number);
}

std::string PrintValue(const Settings& settings, const Setting& setting) {
  if (const auto* const number = std::get_if<Setting::Number>(&setting.member))
    return std::to_string(settings.*(*number));
  if (const auto* const path = std::get_if<Setting::Path>(&setting.member))
    return Quoted((settings.*(*path)).string());
  if (const auto* const paths = std::get_if<Setting::Paths>(&setting.member)) {
    const auto& given = settings.*(*paths);
    return given.size() == 1 ? Quoted(given[0].string()) : given.empty() ? "\"\"" : ListOf(given);
  }
  return Quoted(settings.*std::get<Setting::Text>(setting.member));
}

}  // namespace ffrecord::server
