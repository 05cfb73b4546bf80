// How a daemon's own names are published in the cluster.

#include <spdlog/spdlog.h>

#include <memory>
#include <set>
#include <utility>

#include "server/service/cluster/cluster_service.h"

namespace ffrecord::server {
namespace {

using std::chrono_literals::operator""ms;
using cluster::TimePoint;

constexpr auto kUploadPatience = 10'000ms;
constexpr auto kPublishPatience = 60'000ms;

}  // namespace

// A node's extents count once it is on the map.
bool ClusterService::MayAdopt() const {
  return adoption_ && enrolment_->is_done() &&
         node_.view().slots.map.Find(options_.node) != SlotMap::kNoNode;
}

void ClusterService::Adopt(TimePoint now) {
  while (const auto name = adoption_->Next(now)) BeginAdopting(*name);
}

// As a client would that has just uploaded all of it: to this node alone.
void ClusterService::BeginAdopting(const Adoption::Name& name) {
  // It is for people, and no upload is opened for it again and again.
  const cluster::NameTable::Name* const known = node_.view().names.Find(name.name);
  if (known != nullptr && known->record.attempt != name.attempt)
    return EndAdopting(name, Error{ErrorCode::kConflict,
                                   name.name + " is another dataset in the cluster; remove one of "
                                               "the two"});
  std::set<std::uint64_t> uploads;
  for (const ManifestFile& file : name.manifest->files)
    for (const ManifestExtent& extent : file.extents)
      if (node_.view().names.Find(extent.id) == nullptr) uploads.insert(UploadOf(extent.id));
  if (uploads.empty()) return PublishAdopted(name);
  struct Openings {
    std::size_t left = 0;
    Result<void> outcome;
  };
  const auto openings = std::make_shared<Openings>(Openings{uploads.size(), {}});
  for (const std::uint64_t upload : uploads) {
    extents_.NoteHeard(upload);
    requests_[node_.BeginUpload(upload, Now() + kUploadPatience)] =
        [this, name, openings](const Result<std::uint64_t>& opened) {
          if (!opened) openings->outcome = opened.error();
          if (--openings->left > 0) return;
          if (!openings->outcome) return EndAdopting(name, openings->outcome);
          PublishAdopted(name);
        };
  }
}

void ClusterService::PublishAdopted(const Adoption::Name& name) {
  auto manifest = EncodeDatasetManifest(*name.manifest);
  if (!manifest) return EndAdopting(name, std::move(manifest).error());
  cluster::Publication::Request request;
  request.name = name.name;
  request.attempt = name.attempt;
  request.replicas = options_.replicas;
  request.held_min = 1;
  request.grace = options_.delete_grace;
  request.manifest = std::move(manifest).value();
  request.deadline = Now() + kPublishPatience;
  Publish(std::move(request), [this, name](const Result<std::uint64_t>& revision) {
    EndAdopting(name, revision ? Result<void>() : revision.error());
  });
}

// It was published once, which this daemon has not written down, and was removed or replaced since:
// it does not come back.
bool ClusterService::WasAdopted(const Adoption::Name& name) const {
  return node_.view().tombstones.WasRemoved(cluster::BodyExtentOf(name.attempt));
}

// The record of it waits for the disk, so the keeper writes it.
void ClusterService::EndAdopting(const Adoption::Name& name, const Result<void>& outcome) {
  if (!outcome && !WasAdopted(name)) {
    spdlog::warn("event=not_adopted name={} error=\"{}\"", name.name, outcome.error().message);
    return adoption_->NoteFailed(name, outcome.error(), Now());
  }
  keeper_.Post([this, inbox = inbox_, name] {
    const auto taken = adoption_->NoteTaken(name);
    if (taken)
      spdlog::info("event=adopted name={} left={}", name.name, adoption_->left_count());
    else
      adoption_->NoteFailed(name, taken.error(), Now());
    inbox->Post([] {});  // The next one can begin.
  });
}

}  // namespace ffrecord::server
