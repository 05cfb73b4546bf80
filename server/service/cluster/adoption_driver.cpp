#include "server/service/cluster/adoption_driver.h"

#include <spdlog/spdlog.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <set>
#include <string>
#include <utility>

#include "libffrecord/base/clock.h"
#include "server/service/cluster/adopted_histories.h"

namespace ffrecord::server {
namespace {

using std::chrono_literals::operator""ms;
using cluster::TimePoint;

constexpr auto kUploadPatience = 10'000ms;
constexpr auto kPublishPatience = 60'000ms;

std::string InTheWay(const std::string& other) {
  const std::string history = HistoryOf(other);
  if (history.empty()) return other + " is another dataset in the cluster; remove one of the two";
  return other +
         " is another one in the cluster, and two histories are not joined; remove all of " +
         history + " here or there";
}

}  // namespace

// A node's extents count once it is on the map.
bool AdoptionDriver::MayAdopt() const {
  return machines_.is_enrolled() &&
         machines_.view().slots.map.Find(options_.node) != SlotMap::kNoNode;
}

void AdoptionDriver::Step(TimePoint now) {
  if (!MayAdopt()) return;
  while (const auto name = adoption_.Next(now)) Begin(*name);
}

TimePoint AdoptionDriver::wake() const { return MayAdopt() ? adoption_.wake() : TimePoint::max(); }

void AdoptionDriver::Begin(const Adoption::Name& name) {
  const cluster::NameTable& names = machines_.view().names;
  // It is for people, and no upload is opened for it again and again.
  AdoptedHistories histories(adoption_, names.names());
  if (const std::string other = histories.InTheWay(name); !other.empty())
    return End(name, Error{ErrorCode::kConflict, InTheWay(other)});
  std::set<std::uint64_t> uploads;
  for (const ManifestFile& file : name.manifest->files)
    for (const ManifestExtent& extent : file.extents)
      if (names.Find(extent.id) == nullptr) uploads.insert(UploadOf(extent.id));
  if (uploads.empty()) return Publish(name);
  struct Openings {
    std::size_t left = 0;
    Result<void> outcome;
  };
  const auto openings = std::make_shared<Openings>(Openings{uploads.size(), {}});
  for (const std::uint64_t upload : uploads) {
    extents_.NoteHeard(upload);
    machines_.OnFinished(machines_.node().BeginUpload(upload, Clock::now() + kUploadPatience),
                         [this, name, openings](const Result<std::uint64_t>& opened) {
                           if (!opened) openings->outcome = opened.error();
                           if (--openings->left > 0) return;
                           if (!openings->outcome) return End(name, openings->outcome);
                           Publish(name);
                         });
  }
}

void AdoptionDriver::Publish(const Adoption::Name& name) {
  auto manifest = EncodeDatasetManifest(*name.manifest);
  if (!manifest) return End(name, std::move(manifest).error());
  cluster::Publication::Request request;
  request.name = name.name;
  request.attempt = name.attempt;
  request.replicas = options_.replicas;
  request.held_min = 1;
  request.grace = options_.delete_grace;
  request.manifest = std::move(manifest).value();
  request.deadline = Clock::now() + kPublishPatience;
  clients_.Publish(std::move(request), [this, name](const Result<std::uint64_t>& revision) {
    End(name, revision ? Result<void>() : revision.error());
  });
}

// It was published once, which this daemon has not written down, and was removed or replaced since:
// it does not come back.
bool AdoptionDriver::WasAdopted(const Adoption::Name& name) const {
  return machines_.view().tombstones.WasRemoved(cluster::BodyExtentOf(name.attempt));
}

// The record of it waits for the disk, so the keeper writes it.
void AdoptionDriver::End(const Adoption::Name& name, const Result<void>& outcome) {
  if (!outcome && !WasAdopted(name)) {
    spdlog::warn("event=not_adopted name={} error=\"{}\"", name.name, outcome.error().message);
    return adoption_.NoteFailed(name, outcome.error(), Clock::now());
  }
  keeper_.Post([&adoption = adoption_, inbox = machines_.inbox(), name] {
    const auto taken = adoption.NoteTaken(name);
    if (taken)
      spdlog::info("event=adopted name={} left={}", name.name, adoption.left_count());
    else
      adoption.NoteFailed(name, taken.error(), Clock::now());
    inbox->Post([] {});  // The next one can begin.
  });
}

}  // namespace ffrecord::server
