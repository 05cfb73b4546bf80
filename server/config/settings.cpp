#include "server/config/settings.h"

#include <arpa/inet.h>
#include <netinet/in.h>

#include <CLI/CLI.hpp>
#include <map>

namespace ffrecord::server {

bool ParseCommandLine(int argc, char** argv, Settings& settings, int& exit_code) {
  CLI::App app(
      "The storage daemon of FFRecord: keeps published datasets and checkpoints in one "
      "folder and serves them.");
  app.name("ffrecordd");
  app.add_option("--data", settings.data, "Folder that holds all data; made if it is missing")
      ->required()
      ->type_name("DIR");
  app.add_option("--listen", settings.listen, "Address to serve on")
      ->capture_default_str()
      ->type_name("HOST:PORT");
  app.add_option("--cores", settings.cores, "Event loops; 0 is one for each core")
      ->check(CLI::Range(0, 1024))
      ->capture_default_str();
  const std::map<std::string, Settings::Engine> engines{{"auto", Settings::Engine::kAuto},
                                                        {"io_uring", Settings::Engine::kUring},
                                                        {"threads", Settings::Engine::kThreads}};
  app.add_option("--io-engine", settings.io_engine, "How the disk is read (auto)")
      ->transform(CLI::CheckedTransformer(engines))
      ->type_name("auto|io_uring|threads");
  const std::map<std::string, Settings::Transport> transports{{"auto", Settings::Transport::kAuto},
                                                              {"shm", Settings::Transport::kShm},
                                                              {"tcp", Settings::Transport::kTcp}};
  app.add_option("--transport", settings.transport,
                 "tcp alone, or shared memory for clients of this machine too: if it can be had "
                 "(auto), or not at all without it (shm)")
      ->transform(CLI::CheckedTransformer(transports))
      ->type_name("auto|shm|tcp");
  app.add_option("--token-keys", settings.token_keys,
                 "Serve only who has a token made with a key in this file, which only its owner "
                 "may read (default: whoever connects)")
      ->type_name("FILE");
  app.add_option("--log-level", settings.log_level, "What is logged to stderr")
      ->check(CLI::IsMember({"debug", "info", "warn", "error"}))
      ->capture_default_str();
  app.add_flag("--insecure", settings.insecure,
               "Serve without authentication on an address that other machines reach");
  app.set_version_flag("--version", std::string("ffrecordd ") + FFRECORD_VERSION);
  try {
    app.parse(argc, argv);
    return true;
  } catch (const CLI::ParseError& error) {
    exit_code = app.exit(error) == 0 ? 0 : 2;
    return false;
  }
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
