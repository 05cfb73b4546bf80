#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>

#include <chrono>
#include <csignal>
#include <cstdlib>
#include <thread>

#include "libffrecord/net/transport/endpoint.h"
#include "server/config/notify.h"
#include "server/config/settings.h"
#include "server/service/server.h"

namespace {

using namespace ffrecord;          // NOLINT: this file is the program.
using namespace ffrecord::server;  // NOLINT

constexpr int kExitUsage = 2;
constexpr int kExitEnvironment = 4;
constexpr std::uint16_t kDefaultPort = 9400;
// Together with the way out well below the two seconds that a supervisor may rely on.
constexpr auto kDrainTime = std::chrono::milliseconds(1200);

int Refuse(int exit_code, const std::string& why) {
  spdlog::error("event=refused error=\"{}\"", why);
  return exit_code;
}

void SetUpLog(const Settings& settings) {
  auto logger = spdlog::stderr_logger_mt("ffrecordd");
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
  std::signal(SIGPIPE, SIG_IGN);
  return signals;
}

DiskReader::MakeEngine EngineMaker(Settings::Engine engine) {
  switch (engine) {
    case Settings::Engine::kUring:
      return MakeUringEngine;
    case Settings::Engine::kThreads:
      return MakeThreadsEngine;
    case Settings::Engine::kAuto:
      break;
  }
  return MakeIoEngine;
}

Server::Options::Transport TransportOf(Settings::Transport transport) {
  switch (transport) {
    case Settings::Transport::kShm:
      return Server::Options::Transport::kShm;
    case Settings::Transport::kTcp:
      return Server::Options::Transport::kTcp;
    case Settings::Transport::kAuto:
      break;
  }
  return Server::Options::Transport::kAuto;
}

}  // namespace

int main(int argc, char** argv) {
  Settings settings;
  int exit_code = 0;
  if (!ParseCommandLine(argc, argv, settings, exit_code)) return exit_code;
  SetUpLog(settings);
  const sigset_t signals = BlockSignals();

  auto listen = net::Address::Parse(settings.listen, kDefaultPort);
  if (!listen) return Refuse(kExitUsage, listen.error().message);
  if (!IsLoopback(listen.value().host) && settings.token_keys.empty()) {
    if (!settings.insecure)
      return Refuse(kExitUsage, settings.listen +
                                    " can be reached from other machines, and there is no "
                                    "authentication: listen on 127.0.0.1, give --token-keys, or "
                                    "accept the risk with --insecure");
    spdlog::warn("event=insecure listen={}", settings.listen);
  }

  Server::Options options;
  options.data = settings.data;
  options.listen = listen.value();
  options.core_count = settings.cores;
  options.transport = TransportOf(settings.transport);
  options.token_keys = settings.token_keys;
  options.make_engine = EngineMaker(settings.io_engine);
  auto server = Server::Start(options);
  if (!server) return Refuse(kExitEnvironment, server.error().message);
  spdlog::info("event=ready listen={} data={} transports={} auth={} engine={} version={}",
               server.value()->address().ToString(), settings.data.string(),
               server.value()->transports(), settings.token_keys.empty() ? "none" : "tokens",
               server.value()->engine_name(), FFRECORD_VERSION);

  NotifyServiceManager("READY=1");
  int signal = 0;
  sigwait(&signals, &signal);
  spdlog::info("event=stopping signal={}", signal);
  NotifyServiceManager("STOPPING=1");
  const bool is_done = server.value()->Stop(std::chrono::steady_clock::now() + kDrainTime);
  spdlog::info("event=stopped drained={}", is_done);
  // What hangs on a disk cannot be waited for; to end now is as safe as SIGKILL.
  if (!is_done) std::_Exit(0);
  return 0;
}
