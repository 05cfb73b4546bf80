#include "server/config/settings.h"

#include <arpa/inet.h>
#include <netinet/in.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <optional>
#include <utility>

#include "libffrecord/base/hex.h"
#include "libffrecord/net/transport/endpoint.h"
#include "libffrecord/net/transport/rdma/rdma.h"
#include "server/config/prefix_lists.h"
#include "server/config/setting_table.h"
#include "server/config/settings_file.h"

namespace ffrecord::server {
namespace {

constexpr int kExitUsage = 2;
constexpr int kExitEnvironment = 4;
// A commit of a cluster may have to deal out all quotas of a name anew, each with 16 of its 128
// operations (server/cluster/quota_shares.h), and has to have some left for all else.
constexpr std::size_t kNestedQuotasMax = 6;

std::string FlagOf(std::string_view key) {
  std::string flag = "--" + std::string(key);
  std::ranges::replace(flag, '_', '-');
  return flag;
}

std::string ShapeOf(const Setting& setting) {
  std::string shape;
  for (const std::string_view choice : setting.choices)
    shape.append(shape.empty() ? "" : "|").append(choice);
  return shape.empty() ? std::string(setting.shape) : shape;
}

// The settings on the command line, as they stand there; the file comes first.
using Given = std::map<const Setting*, std::vector<std::string>>;

void AddSettings(CLI::App& app, Given& given) {
  static const Settings kDefaults;
  for (const Setting& setting : SettingTable()) {
    const auto keep = [&given, &setting](const std::vector<std::string>& texts) {
      given[&setting] = texts;
    };
    auto* const option = app.add_option_function<std::vector<std::string>>(
                                FlagOf(setting.key), keep, std::string(setting.help))
                             ->expected(1)
                             ->type_name(ShapeOf(setting));
    if (setting.has_many()) option->take_all()->allow_extra_args(false);
    const std::string value = PrintValue(kDefaults, setting);
    if (value != "\"\"") option->default_str(value)->run_callback_for_default(false);
  }
}

constexpr const char* kFileVariable = "FFRECORD_CONFIG";

// The settings file, if one is named. An empty name usually comes from an unset variable of a
// script: ignoring it would start the daemon with the defaults.
Result<std::optional<std::string>> FileOf(const CLI::Option& flag) {
  const bool is_given = flag.count() > 0;  // Or the variable is there, and not empty.
  const char* const variable = std::getenv(kFileVariable);
  if (!is_given && variable == nullptr) return std::optional<std::string>();
  const auto file = is_given ? flag.as<std::string>() : std::string();
  if (!file.empty()) return std::optional(file);
  return Error{ErrorCode::kInvalidArgument, std::string(is_given ? "--config" : kFileVariable) +
                                                " is empty: name a settings file, or leave it out"};
}

Result<Settings> Assemble(const CLI::Option& flag, const Given& given) {
  Settings settings;
  if (const auto file = FFR_TRY(FileOf(flag))) FFR_TRY(ReadSettingsFile(*file, settings));
  for (const auto& [setting, texts] : given) {
    auto assigned = AssignTexts(settings, *setting, texts);
    if (assigned) continue;
    Error error = std::move(assigned).error();
    error.message.replace(0, setting->key.size(), FlagOf(setting->key));
    return error;
  }
  return settings;
}

Result<void> CheckAddress(const std::string& key, const std::string& text) {
  constexpr std::uint16_t kNoPort = 0;
  auto address = net::Address::Parse(text, kNoPort);
  if (!address) return Error{ErrorCode::kInvalidArgument, key + ": " + address.error().message};
  return {};
}

Result<void> CheckTls(const Settings& settings) {
  if (settings.tls_cert.empty() != settings.tls_key.empty())
    return Error{ErrorCode::kInvalidArgument, "tls_cert and tls_key belong together: give both"};
  if (settings.tls_cert.empty() && !settings.tls_ca.empty())
    return Error{ErrorCode::kInvalidArgument,
                 "tls_ca requires client certificates, which need TLS: give tls_cert and "
                 "tls_key too"};
  return {};
}

Result<void> CheckTenantWeights(const Settings& settings) {
  const auto weights = FFR_TRY(ParseTenantWeights(settings.tenant_weights));
  if (!weights.empty() && settings.token_keys.empty())
    return Error{ErrorCode::kInvalidArgument,
                 "tenant_weights tell tenants apart by their tokens, and without token_keys all "
                 "clients are one tenant: give token_keys too"};
  return {};
}

bool IsToken(const std::string& text) {
  return text.size() <= 64 && std::ranges::all_of(text, [](char c) {
           return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
                  c == '.' || c == '_' || c == '-';
         });
}

Result<void> CheckCluster(const Settings& settings) {
  const auto bad = [](std::string what) {
    return Error{ErrorCode::kInvalidArgument, std::move(what)};
  };
  if (settings.cluster.empty() != settings.coordinator.empty())
    return bad("cluster and coordinator belong together: give both");
  const auto origins = FFR_TRY(ParseOrigins(settings.origins));
  if (settings.cluster.empty() && !origins.empty())
    return bad(
        "only the nodes of a cluster fetch files from origins: give cluster and coordinator "
        "too");
  if (settings.cluster.empty()) return {};
  for (const auto& [key, text] : {std::pair{"cluster", settings.cluster},
                                  {"node", settings.node},
                                  {"domain", settings.domain}})
    if (!IsToken(text))
      return bad(std::string(key) + ": must be up to 64 characters of A-Z a-z 0-9 . _ -, not \"" +
                 text + "\"");
  FFR_TRY(ParseCoordinator(settings.coordinator));
  if (const auto count = NestedQuotaCount(FFR_TRY(ParseQuotas(settings.quotas)));
      count > kNestedQuotasMax)
    return bad("quotas: " + std::to_string(count) +
               " of them hold for one name, and in a cluster at most " +
               std::to_string(kNestedQuotasMax) + " may; leave out some prefixes of others");
  const std::string host = net::Address::Parse(settings.listen, 0).value().host;
  if (settings.advertise.empty() && (host == "0.0.0.0" || host == "::"))
    return bad("nobody can connect to " + settings.listen +
               ": give advertise, the address at which clients and other nodes reach this daemon");
  if (!settings.advertise.empty()) FFR_TRY(CheckAddress("advertise", settings.advertise));
  if (settings.coordinator_user.empty() != settings.coordinator_password.empty())
    return bad("coordinator_user and coordinator_password belong together: give both");
  if (settings.coordinator_cert.empty() != settings.coordinator_key.empty())
    return bad("coordinator_cert and coordinator_key belong together: give both");
  if (!settings.tls_cert.empty() && settings.tls_ca.empty())
    return bad("the nodes of a cluster with TLS check each other's certificates: give tls_ca too");
  return {};
}

std::string HostOf(const std::string& text) { return net::Address::Parse(text, 0).value().host; }

}  // namespace

Result<void> CheckSettings(const Settings& settings) {
  if (settings.data.empty() || std::ranges::any_of(settings.data, &std::filesystem::path::empty))
    return Error{ErrorCode::kInvalidArgument,
                 "no folder for the data: give --data DIR, or data = \"DIR\" in the file"};
  FFR_TRY(ParseDiskIds("--forget-disk", settings.forget_disks));
  FFR_TRY(ParseDiskIds("--drain-disk", settings.drain_disks));
  FFR_TRY(CheckAddress("listen", settings.listen));
  if (!settings.admin.empty()) FFR_TRY(CheckAddress("admin", settings.admin));
  FFR_TRY(CheckTls(settings));
  FFR_TRY(ParseQuotas(settings.quotas));
  FFR_TRY(CheckTenantWeights(settings));
  FFR_TRY(ParseTrafficMarks(settings.dscp, settings.socket_priority));
  FFR_TRY(CheckCluster(settings));
  if (settings.adopt && settings.cluster.empty())
    return Error{ErrorCode::kInvalidArgument,
                 "--adopt takes names into a cluster: give --cluster and --coordinator too"};
  FFR_TRY(net::RdmaOptions::ParseDevices(settings.rdma_devices));
  if (settings.insecure) return {};
  if (!IsLoopback(HostOf(settings.listen)) && settings.token_keys.empty() &&
      settings.tls_ca.empty())
    return Error{ErrorCode::kInvalidArgument,
                 settings.listen +
                     " can be reached from other machines, and there is no authentication: listen "
                     "on 127.0.0.1, give --token-keys, or --tls-cert and --tls-ca, or accept the "
                     "risk with --insecure"};
  if (!settings.admin.empty() && !IsLoopback(HostOf(settings.admin)) &&
      settings.admin_token_file.empty())
    return Error{ErrorCode::kInvalidArgument,
                 settings.admin +
                     " can be reached from other machines, and the admin port requires no "
                     "token: put it on 127.0.0.1, give --admin-token-file, or accept the risk with "
                     "--insecure"};
  return {};
}

std::vector<std::string> PlaintextWarnings(const Settings& settings) {
  std::vector<std::string> warnings;
  if (!IsLoopback(HostOf(settings.listen)) && !settings.token_keys.empty() &&
      settings.tls_cert.empty())
    warnings.push_back(
        "clients send their tokens to " + settings.listen +
        " without TLS, and anyone who sees one can use it: set tls_cert and tls_key");
  if (!settings.admin.empty() && !IsLoopback(HostOf(settings.admin)) &&
      !settings.admin_token_file.empty())
    warnings.push_back(
        "the admin token is sent to " + settings.admin +
        " without TLS, and anyone who sees it can use it: listen on 127.0.0.1 and reach it "
        "through a tunnel");
  return warnings;
}

Command ParseCommandLine(int argc, char** argv) {
  CLI::App app(
      "The storage daemon of FFRecord: keeps published datasets and checkpoints in one "
      "folder for each disk and serves them.");
  app.name("ffrecordd");
  Given given;
  Command command;
  bool wants_check = false;
  bool wants_print = false;
  const auto* const file = app.add_option("--config", "File with settings; flags override it")
                               ->type_name("FILE")
                               ->envname(kFileVariable);
  AddSettings(app, given);
  bool insecure = false;
  bool adopt = false;
  std::vector<std::string> forget_disks;
  std::vector<std::string> drain_disks;
  const auto add_disks = [&app](const char* flag, std::vector<std::string>& ids, const char* what) {
    app.add_option(flag, ids, what)->take_all()->allow_extra_args(false)->type_name("ID");
  };
  add_disks("--forget-disk", forget_disks,
            "Give up this disk, and what is stored only there, for good");
  add_disks("--drain-disk", drain_disks,
            "Move what is stored on this disk to the others, so that it can be taken out");
  app.add_flag("--adopt", adopt,
               "Take the names into the cluster that this daemon published before it was a node of "
               "one");
  app.add_flag("--insecure", insecure,
               "Serve without authentication on an address that other machines can reach");
  app.add_flag("--check-config", wants_check, "Validate the settings and exit");
  app.add_flag("--print-config", wants_print, "Print the settings as a file and exit");
  app.set_version_flag("--version", std::string("ffrecordd ") + FFRECORD_VERSION);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    command.exit_code = app.exit(error) == 0 ? 0 : kExitUsage;
    return command;
  }
  auto settings = Assemble(*file, given);
  if (settings) settings.value().adopt = adopt;
  if (settings) settings.value().insecure = insecure;
  if (settings) settings.value().forget_disks = forget_disks;
  if (settings) settings.value().drain_disks = drain_disks;
  // Settings are printed to be looked at, also when they would not do.
  Result<void> checked;
  if (settings && !wants_print) checked = CheckSettings(settings.value());
  if (!settings || !checked) {
    const Error& error = settings ? checked.error() : settings.error();
    (void)std::fprintf(stderr, "ffrecordd: %s\n", error.message.c_str());
    command.exit_code = error.code == ErrorCode::kInvalidArgument ? kExitUsage : kExitEnvironment;
    return command;
  }
  command.settings = std::move(settings).value();
  command.kind = wants_print   ? Command::Kind::kPrintConfig
                 : wants_check ? Command::Kind::kCheckConfig
                               : Command::Kind::kServe;
  return command;
}

Result<std::vector<DiskIdBytes>> ParseDiskIds(const std::string& flag,
                                              std::span<const std::string> texts) {
  std::vector<DiskIdBytes> ids(texts.size());
  for (std::size_t i = 0; i < texts.size(); ++i)
    if (!FromHex(texts[i], ids[i]))
      return Error{ErrorCode::kInvalidArgument,
                   flag + ": must be the id of a disk, 32 hex digits, not '" + texts[i] + "'"};
  return ids;
}

Result<std::vector<std::string>> ParseCoordinator(const std::string& text) {
  constexpr std::string_view kEtcd = "etcd:";
  const Error bad{ErrorCode::kInvalidArgument,
                  "coordinator: must be \"etcd:\" and the addresses of etcd's members, such as "
                  "\"etcd:http://a:2379,http://b:2379\", not \"" +
                      text + "\""};
  if (!text.starts_with(kEtcd)) return bad;
  std::vector<std::string> members;
  std::string scheme;
  for (std::string_view rest = std::string_view(text).substr(kEtcd.size()); !rest.empty();) {
    const std::size_t end = rest.find(',');
    std::string_view member = rest.substr(0, end);
    rest = end == std::string_view::npos ? "" : rest.substr(end + 1);
    if (const std::size_t at = member.find("://"); at != std::string_view::npos) {
      scheme = member.substr(0, at);
      member.remove_prefix(at + 3);
    }
    // The scheme of a member holds for those behind it.
    if ((scheme != "http" && scheme != "https") || member.empty() ||
        !net::Address::Parse(member, 2379))
      return bad;
    members.push_back(scheme + "://" + net::Address::Parse(member, 2379).value().ToString());
  }
  if (members.empty()) return bad;
  return members;
}

// Names other than localhost may lead anywhere, whatever they look like.
bool IsLoopback(const std::string& host) {
  in_addr v4{};
  in6_addr v6{};
  if (::inet_pton(AF_INET, host.c_str(), &v4) == 1) return ntohl(v4.s_addr) >> 24 == 127;
  if (::inet_pton(AF_INET6, host.c_str(), &v6) == 1) return IN6_IS_ADDR_LOOPBACK(&v6);
  return host == "localhost";
}

}  // namespace ffrecord::server
