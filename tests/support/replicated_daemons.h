#pragma once

#include <chrono>
#include <cstddef>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "client/dataset/upload.h"
#include "daemon.h"
#include "libffrecord/io/io_engine.h"
#include "libffrecord/net/replicas/replicated_files.h"
#include "libffrecord/net/rpc/remote_files.h"
#include "one_daemon.h"

namespace ffrecord::test {

// Reads of a daemon with it take so much longer each.
class SlowEngine final : public IoEngine {
 public:
  SlowEngine(std::unique_ptr<IoEngine> real, std::chrono::milliseconds delay)
      : real_(std::move(real)), delay_(delay) {}
  std::string_view name() const noexcept override { return "slow"; }
  std::uint32_t in_flight() const noexcept override { return real_->in_flight(); }
  Result<int> EventDescriptor() override { return real_->EventDescriptor(); }
  Result<std::uint32_t> Submit(std::span<IoRequest* const> requests) override {
    std::this_thread::sleep_for(delay_);
    return real_->Submit(requests);
  }
  Result<std::uint32_t> Wait(std::span<IoRequest*> done, std::uint32_t count_min,
                             std::chrono::milliseconds timeout) override {
    return real_->Wait(done, count_min, timeout);
  }

 private:
  const std::unique_ptr<IoEngine> real_;
  const std::chrono::milliseconds delay_;
};

inline server::Server::Options SlowDaemon(std::chrono::milliseconds delay) {
  server::Server::Options options;
  options.mapped_count_max = 0;  // All is read through the engine.
  options.make_engine = [delay](const auto&... arguments) -> Result<std::unique_ptr<IoEngine>> {
    return std::unique_ptr<IoEngine>(
        std::make_unique<SlowEngine>(FFR_TRY(MakeIoEngine(arguments...)), delay));
  };
  return options;
}

// Uploads `contents` to the daemon at `address` as the files of one manifest.
inline Result<DatasetManifest> PutFiles(const net::Address& address,
                                        std::span<const std::string> contents,
                                        std::uint64_t upload_id) {
  client::Upload upload(OneDaemon(address, {.transport = Transport::kTcp}), upload_id);
  DatasetManifest manifest;
  for (std::size_t i = 0; i < contents.size(); ++i) {
    const auto bytes = std::as_bytes(std::span(contents[i]));
    manifest.files.push_back(FFR_TRY(upload.PutBytes("file-" + std::to_string(i), {&bytes, 1})));
  }
  return manifest;
}

inline std::shared_ptr<const net::RemoteFiles> FilesAt(const net::Address& address,
                                                       const DatasetManifest& manifest,
                                                       const SessionOptions& options) {
  return std::make_shared<const net::RemoteFiles>(net::Session::Get(address, options.transport),
                                                  manifest, "ffrecord://" + address.ToString(),
                                                  options);
}

// Makes every extent of the daemon shorter than it was sealed: reads of the rest are kCorruption.
inline void Truncate(const Daemon& daemon) {
  for (const auto& path : daemon.Extents()) std::filesystem::resize_file(path, 0);
}

}  // namespace ffrecord::test
