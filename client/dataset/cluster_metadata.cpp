#include <algorithm>
#include <memory>
#include <span>
#include <utility>

#include <ffrecord/client/cluster.h>

#include "libffrecord/base/hex.h"
#include "libffrecord/net/protocol/metadata_messages.h"
#include "libffrecord/net/rpc/location.h"
#include "libffrecord/net/rpc/session.h"

namespace ffrecord::client {
namespace {

using net::FrameType;

std::string WhoIs(const net::Location& location, const net::Connection& connection) {
  const auto& identity = connection.hello().identity;
  if (!identity) return location.address.ToString() + " is a daemon of no cluster";
  return location.address.ToString() + " is node " + identity->node + " of cluster " +
         Hex(identity->cluster);
}

// Whether two daemons may be of the same cluster: one that has not found its own yet may be.
bool MayBeOne(const net::Connection& one, const net::Connection& other) {
  const auto& first = one.hello().identity;
  const auto& second = other.hello().identity;
  if (!first || !second) return !first && !second;
  const net::ClusterId none{};
  return first->cluster == second->cluster || first->cluster == none || second->cluster == none;
}

// To the first of the daemons that can be reached, which is asked for all that follows: also one
// that takes no part in its cluster, because the metadata of that is lost. Fails with kConflict if
// they are not of one cluster: the backup of one would overwrite the other. So does the silence of
// one end it, with kUnavailable: it may be of another cluster.
Result<std::unique_ptr<net::Connection>> ConnectToOne(std::string_view address,
                                                      net::Deadline deadline,
                                                      const SessionOptions& options) {
  Error last{ErrorCode::kUnavailable, "no daemon"};
  std::unique_ptr<net::Connection> first;
  std::string who;
  const auto locations = FFR_TRY(net::Location::ParseAll(address));
  auto left = static_cast<int>(locations.size());
  for (const net::Location& location : locations) {
    const auto share = (deadline - net::Clock::now()) / left--;
    auto connection = net::Session::Get(location, options)->ConnectApart(net::Clock::now() + share);
    if (!connection) {
      last = std::move(connection).error();
      if (last.code == ErrorCode::kDeadlineExceeded && locations.size() > 1)
        return Error{ErrorCode::kUnavailable,
                     last.message +
                         "; it may be of another cluster than the others of the address:"
                         " start it, or leave it out of the address"};
    } else if (first == nullptr) {
      first = std::move(connection).value();
      who = WhoIs(location, *first);
    } else if (!MayBeOne(*first, *connection.value())) {
      return Error{ErrorCode::kConflict, who + ", and " + WhoIs(location, *connection.value()) +
                                             ": name daemons of one cluster"};
    }
  }
  if (first == nullptr) return last;
  return first;
}

bool IsLeased(const std::string& key) { return key == "leader" || key.starts_with("nodes/"); }
// They make a cluster of what is there: so they are the last.
bool FoundsCluster(const MetadataKey& key) { return key.key == "cluster" || key.key == "history"; }

std::vector<std::byte> Bytes(const std::string& text) {
  const auto bytes = std::as_bytes(std::span(text));
  return {bytes.begin(), bytes.end()};
}

// A commit has at most 128 operations, and 1 MiB.
constexpr std::size_t kPutCountMax = 100;

Result<void> PutPage(net::Connection& connection, net::MetadataPut& request,
                     net::Deadline deadline) {
  FFR_TRY(connection.Call(FrameType::kMetadataPut, request.Encode(), {}, deadline,
                          "a part of the metadata"));
  request.page = {};
  return {};
}

Result<std::string> Work(std::string_view address, const net::MetadataHistory& request,
                         const SessionOptions& options) {
  const auto deadline = net::Clock::now() + options.timeout;
  const auto connection = FFR_TRY(ConnectToOne(address, deadline, options));
  const auto reply = FFR_TRY(connection->Call(FrameType::kMetadataHistory, request.Encode(), {},
                                              deadline, "work on the metadata"));
  return std::string(reinterpret_cast<const char*>(reply.payload.data()), reply.payload.size());
}

}  // namespace

Result<Metadata> ReadMetadata(std::string_view address, const SessionOptions& options) {
  const auto deadline = net::Clock::now() + options.timeout;
  const auto connection = FFR_TRY(ConnectToOne(address, deadline, options));
  Metadata metadata;
  net::MetadataList request;
  for (bool more = true; more;) {
    const auto answer = FFR_TRY(
        connection->Call(FrameType::kMetadataList, request.Encode(), {}, deadline, "the metadata"));
    auto reply = FFR_TRY(net::MetadataListReply::Decode(answer.body));
    request.revision = metadata.revision = reply.revision;
    more = reply.more && !reply.page.entries.empty();
    if (more) request.after = reply.page.entries.back().key;
    for (net::MetadataEntry& entry : reply.page.entries) {
      if (IsLeased(entry.key)) continue;  // They end with their nodes.
      const auto* const text = reinterpret_cast<const char*>(entry.value.data());
      metadata.keys.push_back(
          {std::move(entry.key), entry.revision, std::string(text, entry.value.size())});
    }
  }
  return metadata;
}

Result<void> RestoreMetadata(std::string_view address, std::uint64_t backup,
                             const std::vector<MetadataKey>& keys, const SessionOptions& options) {
  const auto deadline = net::Clock::now() + options.timeout;
  if (backup == 0 || std::ranges::count(keys, "cluster", &MetadataKey::key) != 1)
    return Error{ErrorCode::kInvalidArgument, "the backup does not say of which cluster it is"};
  const auto connection = FFR_TRY(ConnectToOne(address, deadline, options));
  std::vector<const MetadataKey*> sorted;
  for (const MetadataKey& key : keys) sorted.push_back(&key);
  std::ranges::sort(sorted, {}, [](const MetadataKey* key) { return key->key; });
  net::MetadataPut request{backup, false, {}}, last{backup, true, {}};
  for (const MetadataKey* const key : sorted) {
    net::MetadataEntry entry{key->key, key->revision, Bytes(key->value)};
    if (FoundsCluster(*key)) {
      if (!last.page.Add(std::move(entry)))
        return Error{ErrorCode::kInvalidArgument, "the backup's key " + key->key + " is too large"};
      continue;
    }
    if (request.page.entries.size() == kPutCountMax)
      FFR_TRY(PutPage(*connection, request, deadline));
    if (request.page.Add(entry)) continue;
    FFR_TRY(PutPage(*connection, request, deadline));
    (void)request.page.Add(std::move(entry));
  }
  if (!request.page.entries.empty()) FFR_TRY(PutPage(*connection, request, deadline));
  return PutPage(*connection, last, deadline);
}

Result<std::string> WorkOnMetadata(std::string_view address, MetadataWork work,
                                   const SessionOptions& options) {
  net::MetadataHistory request;
  if (work != MetadataWork::kCompare) request.action = net::MetadataHistory::Action::kRebuild;
  request.removes_returned = work == MetadataWork::kRebuildAndRemove;
  return Work(address, request, options);
}

Result<void> ConfirmMetadata(std::string_view address, std::uint64_t incarnation,
                             const SessionOptions& options) {
  net::MetadataHistory request;
  request.action = net::MetadataHistory::Action::kConfirm;
  request.incarnation = incarnation;
  FFR_TRY(Work(address, request, options));
  return {};
}

}  // namespace ffrecord::client
