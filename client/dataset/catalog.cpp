#include "client/dataset/catalog.h"

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <set>
#include <span>
#include <string>

#include "client/dataset/change_tries.h"
#include "libffrecord/base/random.h"
#include "libffrecord/net/protocol/messages.h"

namespace ffrecord::client {
namespace {

using std::chrono_literals::operator""ms;

// How long a node of a cluster may take to answer before another one is asked, which knows the
// same.
constexpr auto kLookUpTime = 5'000ms;

// When a node is asked for the names that it knew last: once all have been asked for the newest,
// and none of them could tell, as it is asked for the second time; and only if the user accepts
// that.
class OldNames {
 public:
  explicit OldNames(const Cluster& cluster) : are_accepted_(cluster.accepts_old_names()) {}

  bool MayAsk(const net::Connection& connection) const {
    const net::HelloReply& hello = connection.hello();
    return are_accepted_ && (hello.capabilities & net::kCapabilityKnownNames) != 0 &&
           hello.identity && refusing_.contains(hello.identity->node);
  }
  void Note(const net::Connection& connection, const Error& error) {
    const auto& node = connection.hello().identity;
    if (node && error.code == ErrorCode::kUnavailable) refusing_.insert(node->node);
  }

 private:
  const bool are_accepted_;
  std::set<std::string> refusing_;
};

// Whether a page is what was asked for, so that asking behind its last name leads to an end.
bool GoesOn(const net::ListReply& page, const net::List& asked) {
  std::string_view last = asked.after;
  for (const auto& entry : page.entries) {
    if (entry.name <= last || !entry.name.starts_with(asked.prefix)) return false;
    last = entry.name;
  }
  return !page.more || !page.entries.empty();
}

}  // namespace

Result<Catalog::Resolved> Catalog::Resolve(std::string_view name, net::Deadline deadline) const {
  FFR_TRY(net::CheckName(name));
  net::Resolve resolve{std::string(name)};
  OldNames old_names(*cluster_);
  Resolved resolved;
  const Cluster::Attempt attempt = [&](net::Connection& connection,
                                       net::Deadline until) -> Result<void> {
    resolve.accepts_old = old_names.MayAsk(connection);
    const auto reply =
        connection.Call(net::FrameType::kResolve, resolve.Encode(), {}, until, "a manifest");
    if (!reply) {
      old_names.Note(connection, reply.error());
      return reply.error();
    }
    resolved.revision = FFR_TRY(net::RevisionReply::Decode(reply.value().body)).revision;
    auto manifest = DecodeDatasetManifest(reply.value().payload);
    if (!manifest)
      return Error{ErrorCode::kCorruption,
                   cluster_->peer() + "/" + std::string(name) + ": " + manifest.error().message};
    resolved.manifest = std::move(manifest).value();
    return {};
  };
  FFR_TRY(cluster_->Run(attempt, deadline, kLookUpTime, Cluster::Absence::kAsksAll));
  return resolved;
}

Result<bool> Catalog::IsTaken(std::string_view name, net::Deadline deadline) const {
  FFR_TRY(net::CheckName(name));
  const auto base =
      FFR_TRY(FindBase(name, "whether the name is taken", deadline, Cluster::Absence::kIsOfAll));
  if (base && *base == 0) return false;
  const auto found = Resolve(name, deadline);
  const auto code = found ? ErrorCode::kOk : found.error().code;
  if (code != ErrorCode::kOk && code != ErrorCode::kNotFound && code != ErrorCode::kDenied)
    return found.error();
  return bool(found);
}

// --- Changes -------------------------------------------------------------------------------------
//
// When a daemon carries out a change, the client that asked for it may be gone, or may have asked
// elsewhere. So each request says on which revision of the name it rests, and only a client that is
// there decides anew.

Result<Catalog::Base> Catalog::FindBase(std::string_view name, const char* what,
                                        net::Deadline deadline, Cluster::Absence absence) const {
  net::List list;
  list.limit = 1;
  list.prefix = name;  // No other name that begins with it comes before it.
  net::ListReply page;
  const Cluster::Attempt attempt = [&](net::Connection& connection,
                                       net::Deadline until) -> Result<void> {
    // The names that a node knew last are good enough here.
    list.accepts_old = (connection.hello().capabilities & net::kCapabilityKnownNames) != 0;
    const auto reply =
        FFR_TRY(connection.Call(net::FrameType::kList, list.Encode(), {}, until, what));
    page = FFR_TRY(net::ListReply::Decode(reply.body));
    return {};
  };
  const auto found = cluster_->Run(attempt, deadline, kLookUpTime, absence);
  if (!found && found.error().code == ErrorCode::kDenied) return Base();
  FFR_TRY(found);
  const bool is_there = !page.entries.empty() && page.entries.front().name == name;
  return Base(is_there ? page.entries.front().revision : 0);
}

Result<std::uint64_t> Catalog::Publish(std::string_view name, const DatasetManifest& manifest,
                                       net::Publish::Mode mode, std::uint64_t expected_revision,
                                       net::Deadline deadline) const {
  FFR_TRY(net::CheckName(name));
  const auto payload = FFR_TRY(EncodeDatasetManifest(manifest));
  net::Publish publish;
  publish.mode = mode;
  publish.expected_revision = expected_revision;
  publish.name = name;
  if (mode == net::Publish::Mode::kReplace) return Replace(std::move(publish), payload, deadline);
  ChangeTries tries;
  return PublishOnce(publish, payload, tries, deadline);
}

Result<std::uint64_t> Catalog::PublishOnce(const net::Publish& publish,
                                           std::span<const std::byte> manifest, ChangeTries& tries,
                                           net::Deadline deadline) const {
  net::Publish request = publish;
  request.attempt = std::max<std::uint64_t>(RandomNumber(), 1);
  std::uint64_t revision = 0;
  const Cluster::Attempt attempt = [&](net::Connection& connection,
                                       net::Deadline until) -> Result<void> {
    request.patience_ms = ChangeTries::PatienceFor(connection, until);
    const auto reply = connection.Call(net::FrameType::kPublish, request.Encode(), {&manifest, 1},
                                       until, "a publication");
    if (!reply) {
      tries.Note(connection, reply.error());
      return reply.error();
    }
    revision = FFR_TRY(net::RevisionReply::Decode(reply.value().body)).revision;
    return {};
  };
  auto done = cluster_->Run(attempt, deadline, ChangeTries::kAnswerTime);
  if (!done) return tries.Explain(std::move(done).error());
  return revision;
}

// Whatever the name stands for; again, if that is something else by now.
Result<std::uint64_t> Catalog::Replace(net::Publish publish, std::span<const std::byte> manifest,
                                       net::Deadline deadline) const {
  using Mode = net::Publish::Mode;
  Base base = FFR_TRY(FindBase(publish.name, "a publication", deadline));
  for (;;) {
    publish.mode = !base ? Mode::kReplace : *base == 0 ? Mode::kCreate : Mode::kSwap;
    publish.expected_revision = base.value_or(0);
    ChangeTries tries;
    auto published = PublishOnce(publish, manifest, tries, deadline);
    const bool is_over = published || published.error().code != ErrorCode::kConflict || !base ||
                         tries.may_be_done() || net::Clock::now() >= deadline;
    if (is_over) return published;
    const Base now = FFR_TRY(FindBase(publish.name, "a publication", deadline));
    // It was refused for something else; or the revision is that of a daemon whose names the
    // cluster does not have yet.
    base = now == base ? Base() : now;
  }
}

Result<void> Catalog::Remove(std::string_view name, net::Deadline deadline,
                             std::uint64_t expected_revision) const {
  // No name is at it: what is published after it was looked for is looked at first.
  constexpr std::uint64_t kNone = UINT64_MAX;
  FFR_TRY(net::CheckName(name));
  for (;;) {
    net::Delete request{expected_revision, std::string(name)};
    Base base = expected_revision;
    if (expected_revision == 0) base = FFR_TRY(FindBase(name, "a removal", deadline));
    if (base) request.expected_revision = *base == 0 ? kNone : *base;
    ChangeTries tries;
    auto removed = RemoveOnce(request, tries, deadline);
    const bool is_over = removed || removed.error().code != ErrorCode::kConflict ||
                         expected_revision != 0 || !base || tries.may_be_done() ||
                         net::Clock::now() >= deadline;
    if (is_over) return removed;
  }
}

Result<void> Catalog::RemoveOnce(const net::Delete& request, ChangeTries& tries,
                                 net::Deadline deadline) const {
  net::Delete removal = request;
  const Cluster::Attempt attempt = [&](net::Connection& connection,
                                       net::Deadline until) -> Result<void> {
    removal.patience_ms = ChangeTries::PatienceFor(connection, until);
    auto reply = connection.Call(net::FrameType::kDelete, removal.Encode(), {}, until, "a removal");
    if (reply) return {};
    // A repeated request that finds nothing: the first one did it, and its reply was lost.
    if (tries.may_be_done() && reply.error().code == ErrorCode::kNotFound) return {};
    tries.Note(connection, reply.error());
    return std::move(reply).error();
  };
  auto done = cluster_->Run(attempt, deadline, ChangeTries::kAnswerTime);
  if (!done) return tries.Explain(std::move(done).error());
  return {};
}

Result<void> Catalog::CheckRoom(std::string_view name, std::uint64_t size_bytes,
                                net::Deadline deadline) const {
  FFR_TRY(net::CheckName(name));
  const auto body = net::CheckRoom{size_bytes, std::string(name)}.Encode();
  return cluster_->Run(
      [&](net::Connection& connection, net::Deadline until) -> Result<void> {
        auto reply = connection.Call(net::FrameType::kCheckRoom, body, {}, until, "an answer");
        // The name is good, so it can only be the question that is not.
        if (!reply && reply.error().code != ErrorCode::kInvalidArgument)
          return std::move(reply).error();
        return {};
      },
      deadline, kLookUpTime);
}

Result<std::vector<net::ListReply::Entry>> Catalog::List(std::string_view prefix,
                                                         net::Deadline deadline) const {
  if (prefix.size() > net::kNameSizeMax)
    return Error{ErrorCode::kInvalidArgument, "a prefix has at most 255 characters"};
  std::vector<net::ListReply::Entry> entries;
  net::List list;
  list.prefix = prefix;
  OldNames old_names(*cluster_);
  net::ListReply page;
  const Cluster::Attempt attempt = [&](net::Connection& connection,
                                       net::Deadline until) -> Result<void> {
    list.accepts_old = old_names.MayAsk(connection);
    const auto reply =
        connection.Call(net::FrameType::kList, list.Encode(), {}, until, "a list of names");
    if (!reply) {
      old_names.Note(connection, reply.error());
      return reply.error();
    }
    page = FFR_TRY(net::ListReply::Decode(reply.value().body));
    if (GoesOn(page, list)) return {};
    return Error{ErrorCode::kCorruption,
                 cluster_->peer() + ": a list of names that is not the one asked for"};
  };
  do {
    FFR_TRY(cluster_->Run(attempt, deadline, kLookUpTime, Cluster::Absence::kIsOfAll));
    std::ranges::move(page.entries, std::back_inserter(entries));
    if (!entries.empty()) list.after = entries.back().name;
  } while (page.more);
  return entries;
}

}  // namespace ffrecord::client
