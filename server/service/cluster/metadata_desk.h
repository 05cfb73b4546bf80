#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <string_view>

#include <ffrecord/result.h>

#include "libffrecord/net/protocol/metadata_messages.h"
#include "server/cluster/records.h"
#include "server/metadata/meta_store.h"
#include "server/service/cluster/cluster_options.h"
#include "server/service/cluster/node_machines.h"
#include "server/service/cluster/shown_state.h"

namespace ffrecord::server {

// Operators' work with the metadata of a cluster: save it, put it back, compare it with what nodes
// have known, and confirm it.
//
// Threads: ListMetadata(), PutMetadata() and WorkOnHistory() may be called from any thread; all
// else belongs to the node's thread. A `done` is called once, on the node's thread or the store's,
// or when the service stops. Ownership: ClusterService owns it; it borrows the options, the
// store, the machines and the state.
class MetadataDesk {
 public:
  using TimePoint = cluster::TimePoint;
  template <class T>
  using Done = std::function<void(Result<T>)>;

  MetadataDesk(const ClusterOptions& options, MetaStore& store, NodeMachines& machines,
               const ShownState& shown)
      : options_(options), store_(store), machines_(machines), shown_(shown) {}

  // The keys as they are in the store.
  void ListMetadata(const net::MetadataList& request, Done<net::MetadataListReply> done);
  // Fails with kConflict if the store has metadata of the cluster already, or parts of another
  // backup.
  void PutMetadata(const net::MetadataPut& request, Done<void> done);
  // A JSON object. A rebuild also founds the cluster again if the store has nothing of it.
  void WorkOnHistory(const net::MetadataHistory& request, Done<std::string> done);

  // --- The node's thread ---

  // Before the enrolment is stepped: founds the cluster again if an operator wants it.
  void Step(TimePoint now);
  void AnswerRebuilt();
  // Ends all rebuilds.
  void GiveUp();

 private:
  // One incarnation is to be confirmed.
  struct Confirmation {
    std::uint64_t incarnation = 0;
    std::uint64_t compared = 0;  // Revision of a record that was there, and has changed since.
    TimePoint deadline;
  };

  void PutInto(const MetaStore::Page& first, const net::MetadataPut& request, Done<void> done);
  void CommitPage(std::uint64_t restore_revision, std::uint64_t revision,
                  const net::MetadataPut& request, Done<void> done);
  static bool HasKey(const MetaStore::Commit& commit, std::string_view key);
  cluster::HistoryRecord RestoredHistory(const cluster::HistoryRecord& older,
                                         std::uint64_t base_revision) const;
  void BeginAnew();
  MetaStore::Commit FoundingKeys(std::uint64_t restored, std::uint64_t revision) const;
  void BeginHistory(const net::MetadataHistory& request, Done<std::string> done);
  bool ShowsMetadata() const;
  bool AllMembersLive() const;
  void BeginRebuild(const net::MetadataHistory& request, TimePoint deadline,
                    Done<std::string> done);
  // Once this node shows a record of the history that is not of revision `compared`.
  void ConfirmOnceShown(const Confirmation& confirmation, Done<std::string> done);
  void ConfirmHistory(const Confirmation& confirmation, Done<std::string> done);
  void AwaitConfirmed(std::uint64_t revision, TimePoint deadline, Done<std::string> done);
  const cluster::View& view() const { return machines_.view(); }

  const ClusterOptions& options_;
  MetaStore& store_;
  NodeMachines& machines_;
  const ShownState& shown_;
  // An operator wants a rebuild: also of a store that has nothing.
  TimePoint may_found_until_{};
  std::map<NodeMachines::RequestId, Done<std::string>> rebuilds_;
};

}  // namespace ffrecord::server
