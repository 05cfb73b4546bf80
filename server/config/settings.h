#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

namespace ffrecord::server {

// What a daemon is told at start.
struct Settings {
  std::filesystem::path data;
  std::string listen = "127.0.0.1:9400";
  std::uint32_t cores = 0;  // 0: one event loop for each core.
  enum class Engine : std::uint8_t { kAuto, kUring, kThreads };
  Engine io_engine = Engine::kAuto;
  // How clients of this machine may get at bytes; auto: shared memory too, if it can be offered.
  enum class Transport : std::uint8_t { kAuto, kShm, kTcp };
  Transport transport = Transport::kAuto;
  std::filesystem::path token_keys;  // Empty: everybody may do everything.
  std::string log_level = "info";
  bool insecure = false;  // May listen on an address that others reach, without authentication.
};

// Reads the command line. Returns true to go on; false if the process is to end with `exit_code`,
// after help, the version or an error has been printed: 0, or 2 for a usage error.
bool ParseCommandLine(int argc, char** argv, Settings& settings, int& exit_code);

// Whether `host` can be reached from this machine only.
bool IsLoopback(const std::string& host);

}  // namespace ffrecord::server
