#include <spdlog/spdlog.h>

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <memory>

#include "libffrecord/net/transport/endpoint.h"
#include "server/config/notify.h"
#include "server/config/prefix_lists.h"
#include "server/config/settings.h"
#include "server/config/settings_file.h"
#include "server/metadata/etcd_store.h"
#include "server/monitoring/log_sink.h"
#include "server/service/access/secret_file.h"
#include "server/service/core/server.h"

namespace {

using namespace ffrecord;          // NOLINT: this file is the program.
using namespace ffrecord::server;  // NOLINT

constexpr int kExitEnvironment = 4;
constexpr std::uint16_t kDefaultPort = 9400;
constexpr std::uint16_t kDefaultAdminPort = 9401;
// Together with the way out well below the two seconds that a supervisor may rely on.
constexpr auto kDrainTime = std::chrono::milliseconds(1200);

int Refuse(int exit_code, const std::string& why) {
  spdlog::error("event=refused error=\"{}\"", why);
  return exit_code;
}

void SetUpLog(const Settings& settings) {
  auto logger = std::make_shared<spdlog::logger>("ffrecordd", MakeLogSink(STDERR_FILENO));
  logger->set_pattern("time=%Y-%m-%dT%H:%M:%S.%e%z level=%l %v");
  logger->set_level(spdlog::level::from_str(settings.log_level));
  logger->flush_on(spdlog::level::info);
  spdlog::set_default_logger(std::move(logger));
}

// Blocked in all threads, so that they are taken by sigwait and interrupt nothing.
sigset_t BlockSignals() {
  sigset_t signals;
  sigemptyset(&signals);
  for (const int signal : {SIGTERM, SIGINT}) sigaddset(&signals, signal);
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  // The call that fails returns an error for both, from which the daemon makes a message.
  std::signal(SIGPIPE, SIG_IGN);
  std::signal(SIGXFSZ, SIG_IGN);
  return signals;
}

DiskReader::MakeEngine EngineMaker(const std::string& engine) {
  if (engine == "io_uring") return MakeUringEngine;
  if (engine == "threads") return MakeThreadsEngine;
  return MakeIoEngine;
}

Server::Options::Transport TransportOf(const std::string& transport) {
  if (transport == "shm") return Server::Options::Transport::kShm;
  if (transport == "rdma") return Server::Options::Transport::kRdma;
  if (transport == "tcp") return Server::Options::Transport::kTcp;
  return Server::Options::Transport::kAuto;
}

std::string FirstLine(std::string text) {
  text.resize(std::min(text.size(), text.find_first_of("\r\n")));
  return text;
}

// The etcd that the settings name. The password is read from its file at each start.
Result<std::shared_ptr<MetaStore>> ConnectCoordinator(const Settings& settings) {
  EtcdOptions options;
  options.endpoints = ParseCoordinator(settings.coordinator).value();
  options.cluster = settings.cluster;
  options.user = settings.coordinator_user;
  if (!settings.coordinator_password.empty())
    options.password = FirstLine(FFR_TRY(ReadSecret(settings.coordinator_password)));
  options.ca_file = settings.coordinator_ca;
  options.certificate_file = settings.coordinator_cert;
  options.key_file = settings.coordinator_key;
  // A second member is tried while a call for the lease still has time.
  options.try_timeout = std::min<std::chrono::milliseconds>(
      options.try_timeout, std::chrono::milliseconds(std::chrono::seconds(settings.lease_s)) / 5);
  return std::shared_ptr<MetaStore>(FFR_TRY(OpenEtcdStore(std::move(options))));
}

ServerCluster ClusterOf(const Settings& settings) {
  ServerCluster cluster;
  cluster.connect = [settings] { return ConnectCoordinator(settings); };
  cluster.service.node = settings.node;
  cluster.service.advertise = settings.advertise;
  cluster.service.domain = settings.domain;
  cluster.service.weight = settings.weight;
  cluster.service.replicas = static_cast<std::uint8_t>(settings.replicas);
  cluster.service.adopt = settings.adopt;
  cluster.service.approves_members = settings.approval == "automatic";
  cluster.service.lease = std::chrono::seconds(settings.lease_s);
  cluster.service.down_grace = std::chrono::seconds(settings.repair_after_s);
  cluster.service.pull_bytes_per_s = std::uint64_t{settings.repair_mib_s} << 20;
  cluster.service.delete_grace = std::chrono::seconds(settings.delete_grace_s);
  cluster.origins.reader.allowed = ParseOrigins(settings.origins).value();
  cluster.origins.size_bytes_max = std::uint64_t{settings.origin_cache_mib} << 20;
  return cluster;
}

// Requires that CheckSettings has found nothing.
Server::Options OptionsOf(const Settings& settings) {
  Server::Options options;
  options.data = settings.data;
  options.metadata = settings.metadata;
  options.disks = {settings.missing_disks,
                   ParseDiskIds("--forget-disk", settings.forget_disks).value(),
                   ParseDiskIds("--drain-disk", settings.drain_disks).value()};
  options.listen = net::Address::Parse(settings.listen, kDefaultPort).value();
  if (!settings.admin.empty())
    options.admin = net::Address::Parse(settings.admin, kDefaultAdminPort).value();
  options.version = FFRECORD_VERSION;
  options.core_count = settings.cores;
  options.connection_count_max = settings.connections;
  options.held_bytes_max = std::uint64_t{settings.inflight_mib} << 20;
  options.read_ahead_bytes_max = std::uint64_t{settings.read_ahead_mib} << 20;
  options.transport = TransportOf(settings.transport);
  options.rdma = {.devices = net::RdmaOptions::ParseDevices(settings.rdma_devices).value(),
                  .qos = {.traffic_class = static_cast<std::uint8_t>(settings.rdma_traffic_class),
                          .service_level = static_cast<std::uint8_t>(settings.rdma_service_level)}};
  options.token_keys = settings.token_keys;
  options.tls = {settings.tls_cert, settings.tls_key, settings.tls_ca};
  options.make_engine = EngineMaker(settings.io_engine);
  options.admin_token_file = settings.admin_token_file;
  options.quotas = ParseQuotas(settings.quotas).value();
  options.tenant_weights = ParseTenantWeights(settings.tenant_weights).value();
  options.scrub.period = std::chrono::days(settings.scrub_days);
  options.upload_grace = std::chrono::seconds(settings.upload_grace_s);
  if (!settings.cluster.empty()) options.cluster = ClusterOf(settings);
  return options;
}

std::string DataOf(const Settings& settings) {
  std::string text;
  for (const auto& folder : settings.data) text += (text.empty() ? "" : ",") + folder.string();
  return text;
}

int Serve(const Settings& settings) {
  SetUpLog(settings);
  const sigset_t signals = BlockSignals();
  Server::Options options = OptionsOf(settings);
  std::atomic<bool> has_failed{false};
  options.on_failure = [&has_failed] {
    has_failed = true;
    (void)::kill(::getpid(), SIGTERM);
  };
  // CheckSettings has found nothing.
  (void)SetTrafficMarks(ParseTrafficMarks(settings.dscp, settings.socket_priority).value());
  if (settings.insecure) spdlog::warn("event=insecure listen={}", settings.listen);
  for (const std::string& warning : PlaintextWarnings(settings))
    spdlog::warn("event=secrets_in_plaintext warning=\"{}\"", warning);
  auto server = Server::Start(options);
  if (!server) return Refuse(kExitEnvironment, server.error().message);
  const auto admin = server.value()->admin_address();
  spdlog::info("event=ready listen={} data={} transports={} auth={} admin={} engine={} version={}",
               server.value()->address().ToString(), DataOf(settings), server.value()->transports(),
               server.value()->authentication(), admin ? admin->ToString() : "none",
               server.value()->engine_name(), FFRECORD_VERSION);

  NotifyServiceManager("READY=1");
  int signal = 0;
  sigwait(&signals, &signal);
  spdlog::info("event=stopping signal={}", signal);
  NotifyServiceManager("STOPPING=1");
  const bool is_done = server.value()->Stop(Clock::now() + kDrainTime);
  spdlog::info("event=stopped drained={}", is_done);
  const int exit_code = has_failed ? kExitEnvironment : 0;
  // A thread that hangs on a disk cannot be waited for; to end now is as safe as SIGKILL.
  if (!is_done) std::_Exit(exit_code);
  return exit_code;
}

}  // namespace

int main(int argc, char** argv) {
  const Command command = ParseCommandLine(argc, argv);
  switch (command.kind) {
    case Command::Kind::kServe:
      return Serve(command.settings);
    case Command::Kind::kCheckConfig:
      std::puts("the settings are good");
      return 0;
    case Command::Kind::kPrintConfig:
      (void)std::fputs(PrintSettings(command.settings).c_str(), stdout);
      return 0;
    case Command::Kind::kEnd:
      break;
  }
  return command.exit_code;
}
