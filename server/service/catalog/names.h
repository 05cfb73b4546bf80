#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <ffrecord/result.h>

#include "libffrecord/net/protocol/storage_messages.h"
#include "server/metadata/name_change.h"
#include "server/storage/extent_store.h"

namespace ffrecord::server {

// The change of its name that a request to publish asks for.
constexpr NameChange ChangeOf(net::Publish::Mode mode) noexcept {
  switch (mode) {
    case net::Publish::Mode::kCreate:
      return NameChange::kCreate;
    case net::Publish::Mode::kReplace:
      return NameChange::kReplace;
    case net::Publish::Mode::kSwap:
      break;
  }
  return NameChange::kSwap;
}

// The answers to connections about names and uploads: from one daemon (CatalogNames), or from a
// cluster (ClusterNames).
//
// Calls with `done` give their result to it once, on any thread, perhaps before they return; what
// the call waits for holds no thread of the caller's. Thread-safe. Errors are those to be sent to
// clients.
class Names {
 public:
  template <class T>
  using Done = std::function<void(Result<T>)>;
  struct Resolved {
    std::vector<std::byte> manifest;
    std::uint64_t revision = 0;
  };

  virtual ~Names() = default;

  // A place for the extent, its upload on record; none if it is sealed already. `owner_prefix`:
  // below which the client may publish it. Fails with kConflict if an extent of that id has another
  // size, or is published and lost, with kIo: EDQUOT if what clients of a quota's prefix have not
  // published passes the quota; with kUnavailable if nothing can be recorded now.
  virtual void BeginPut(const net::PutBegin& begin, std::string owner_prefix,
                        Done<std::optional<NewExtent>> done) = 0;
  // Bytes of it have come: its upload is not silent. Waits for no disk.
  virtual void NoteHeard(const ExtentId& id) = 0;
  // Blocks on the extent's disk. Fails as ExtentWriter::Seal, and with kConflict if the upload was
  // given up meanwhile.
  virtual Result<void> Seal(ExtentWriter& writer, const net::PutSeal& seal) = 0;

  // This and List say what is published now, or fail: with kUnavailable where it is not known,
  // unless the request accepts what was published once.
  virtual void Resolve(const net::Resolve& request, Done<Resolved> done) = 0;
  // `own_prefix`: extents that are published already must be so under a name that begins with it.
  virtual void Publish(const net::Publish& publish, std::span<const std::byte> manifest,
                       std::string own_prefix, Done<net::RevisionReply> done) = 0;
  // Whether `size_bytes` could be published as `name` now: what a publication would be refused for
  // before any byte is sent. Fails with kIo: ENOSPC, EDQUOT past a quota, or as the disk has.
  virtual Result<void> CheckRoom(std::string_view name, std::uint64_t size_bytes) = 0;
  virtual void List(const net::List& list, Done<net::ListReply> done) = 0;
  virtual void Remove(const net::Delete& request, Done<void> done) = 0;

  // For each of `ids`, whether a name that begins with `prefix` refers to it. Waits for nobody.
  virtual std::vector<bool> AreReferenced(std::string_view prefix,
                                          std::span<const ExtentId> ids) const = 0;

  // That what records names and uploads answers. Fails with kUnavailable, naming it; what would
  // change something now would wait. As Catalog::CheckAnswers. Waits for nobody.
  virtual Result<void> CheckAnswers() const = 0;

  // For the metrics; these wait for nobody either.
  virtual std::uint64_t name_count() const = 0;
  struct Usage {
    std::string prefix;
    std::uint64_t used_bytes = 0;
    std::uint64_t quota_bytes = 0;
  };
  virtual std::vector<Usage> Usages() const = 0;
};

}  // namespace ffrecord::server
