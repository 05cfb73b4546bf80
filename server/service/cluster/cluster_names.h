#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "server/metadata/name_quotas.h"
#include "server/service/catalog/names.h"
#include "server/service/cluster/cluster_service.h"

namespace ffrecord::server {

// The names of a cluster, as one of its nodes serves them: out of memory where they are known, and
// through the coordinator where something changes. Thread-safe; borrows the service, whose thread
// calls most of what is to be called when done.
//
// It answers with the newest names: it has asked the coordinator, after the request came, how far
// there is something to know, and knows that much. Where it cannot ask, as without a lease, it does
// not speak for the cluster, and says so; it tells what it knew last only to those who accept that.
// A name of its own that the daemon is to take into the cluster (Adoption) is served until it is
// there, and not listed. Quotas hold for the whole cluster. Nothing is refused for one but by what
// all nodes have published.
class ClusterNames final : public Names {
 public:
  ClusterNames(ClusterService& service, NameQuotas quotas)
      : service_(service), quotas_(std::move(quotas)) {}

  void BeginPut(const net::PutBegin& begin, std::string owner_prefix,
                Done<std::optional<NewExtent>> done) override;
  void NoteHeard(const ExtentId& id) override;
  Result<void> Seal(ExtentWriter& writer, const net::PutSeal& seal) override;
  void Resolve(const net::Resolve& request, Done<Resolved> done) override;
  void Publish(const net::Publish& publish, std::span<const std::byte> manifest,
               std::string own_prefix, Done<net::RevisionReply> done) override;
  Result<void> CheckRoom(std::string_view name, std::uint64_t size_bytes) override;
  void List(const net::List& list, Done<net::ListReply> done) override;
  void Remove(const net::Delete& request, Done<void> done) override;
  std::vector<bool> AreReferenced(std::string_view prefix,
                                  std::span<const ExtentId> ids) const override;
  Result<void> CheckAnswers() const override { return {}; }  // Calls that change something wait.
  std::uint64_t name_count() const override { return service_.state()->names->size(); }
  std::vector<Usage> Usages() const override;

 private:
  void Confirm(const std::string& name, bool accepts_old, Done<void> done);
  std::optional<Adoption::Name> OwnName(const std::string& name) const;
  Result<Resolved> Known(const std::string& name, bool accepts_old) const;
  Result<net::ListReply> Listed(const net::List& list) const;
  static net::ListReply ListedBy(const ClusterState& state, const net::List& list);
  Result<void> CheckQuotas(std::string_view name, std::uint64_t size_bytes) const;
  Result<void> CheckOwn(const DatasetManifest& manifest, const std::string& own_prefix) const;
  Result<void> CheckLevel(std::uint32_t needed, const std::string& what) const;
  Result<void> CheckOrigins(const DatasetManifest& manifest) const;
  std::uint8_t ReplicasOf(const DatasetManifest& manifest) const;
  std::uint64_t SizeBelow(std::string_view prefix, std::string_view but_not) const;

  ClusterService& service_;
  const NameQuotas quotas_;
};

}  // namespace ffrecord::server
