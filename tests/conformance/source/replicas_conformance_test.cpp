// Files that three daemons hold, all of them well or one in trouble: range_reader_conformance.h
// and range_queue_conformance.h say what of them is tested.

#include <gtest/gtest.h>

#include <array>
#include <map>
#include <memory>
#include <optional>
#include <utility>

#include "fake_daemon.h"
#include "range_queue_conformance.h"
#include "range_reader_conformance.h"
#include "replicated_daemons.h"
#include "whole_replicas.h"

namespace ffrecord::test {
namespace {

using namespace std::chrono_literals;
using Made = Result<std::shared_ptr<const RangeReader>>;

constexpr std::size_t kDaemons = 3;
constexpr std::uint64_t kUpload = 77;

// What is wrong with the first daemon.
enum class Trouble : std::uint8_t { kNone, kKilled, kStopped, kDamaged, kSlow, kEmpty };

// Three daemons that hold the same files, but for the trouble of the first one.
struct Daemons {
  std::array<std::unique_ptr<Daemon>, kDaemons> daemons;
  std::optional<FakeDaemon> stopped;
  std::array<net::Address, kDaemons> addresses;
  DatasetManifest manifest;
};

Result<std::unique_ptr<Daemons>> StartDaemons(const Contents& contents, Trouble trouble) {
  auto started = std::make_unique<Daemons>();
  for (std::size_t i = 0; i < kDaemons; ++i) {
    const bool is_slow = i == 0 && trouble == Trouble::kSlow;
    started->daemons[i] =
        std::make_unique<Daemon>(is_slow ? SlowDaemon(20ms) : server::Server::Options{});
    started->addresses[i] = started->daemons[i]->address();
    if (i > 0 || trouble != Trouble::kEmpty)
      started->manifest = FFR_TRY(PutFiles(started->addresses[i], contents, kUpload));
  }
  if (trouble == Trouble::kKilled) started->daemons[0]->Kill();
  if (trouble == Trouble::kDamaged) Truncate(*started->daemons[0]);
  if (trouble == Trouble::kStopped) {
    started->stopped.emplace([](FakeDaemon::Request&) { return true; });
    started->addresses[0] = started->stopped->address();
  }
  return started;
}

// They are started once for each kind of trouble: most tests take less time than that.
std::map<std::pair<Contents, Trouble>, std::unique_ptr<Daemons>>& RunningDaemons() {
  static std::map<std::pair<Contents, Trouble>, std::unique_ptr<Daemons>> running;
  return running;
}
class StopDaemons final : public testing::Environment {
 public:
  void TearDown() override { RunningDaemons().clear(); }
};
const testing::Environment* const kStopDaemons = testing::AddGlobalTestEnvironment(new StopDaemons);

auto Replicated(std::array<Transport, kDaemons> transports, Trouble trouble) {
  return [=](const Contents& contents) -> Made {
    auto& running = RunningDaemons()[{contents, trouble}];
    if (running == nullptr) running = FFR_TRY(StartDaemons(contents, trouble));
    std::vector<std::shared_ptr<const net::RemoteFiles>> replicas;
    for (std::size_t i = 0; i < kDaemons; ++i)
      replicas.push_back(FilesAt(running->addresses[i], running->manifest, {60s, transports[i]}));
    return Made(net::HeldByAll(std::move(replicas), SessionOptions{60s}));
  };
}

constexpr std::array kTcp{Transport::kTcp, Transport::kTcp, Transport::kTcp};
constexpr std::array kShm{Transport::kShm, Transport::kShm, Transport::kShm};
constexpr std::array kMixed{Transport::kShm, Transport::kTcp, Transport::kShm};

RangeReaderForm Form(const std::string& name, std::array<Transport, kDaemons> transports,
                     Trouble trouble) {
  RangeReaderForm form{name, Replicated(transports, trouble)};
  form.range_count = 500;
  return form;
}

const std::vector<RangeReaderForm> kForms = {
    Form("tcp", kTcp, Trouble::kNone),        Form("shm", kShm, Trouble::kNone),
    Form("mixed", kMixed, Trouble::kNone),    Form("killed", kTcp, Trouble::kKilled),
    Form("stopped", kTcp, Trouble::kStopped), Form("damaged", kMixed, Trouble::kDamaged),
    Form("slow_tcp", kTcp, Trouble::kSlow),   Form("slow_shm", kShm, Trouble::kSlow),
    Form("empty", kTcp, Trouble::kEmpty),
};

INSTANTIATE_TEST_SUITE_P(Replicas, RangeReaderConformance,
                         testing::ValuesIn(AndTheirQueues(kForms)), NameOfForm);
INSTANTIATE_TEST_SUITE_P(Replicas, RangeQueueConformance, testing::ValuesIn(kForms), NameOfForm);

}  // namespace
}  // namespace ffrecord::test
