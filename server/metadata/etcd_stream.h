#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "server/metadata/etcd_messages.h"
#include "server/metadata/meta_store.h"

namespace ffrecord::server {

// Makes news of the bytes of a watch's stream. Pure: no I/O, no clock. Distinct objects in distinct
// threads.
class EtcdStream {
 public:
  // The stream of a watch from `from_revision` on, at `member`, whose address errors begin with.
  EtcdStream(std::string prefix, std::uint64_t from_revision, std::string member)
      : prefix_(std::move(prefix)), next_revision_(from_revision), member_(std::move(member)) {}

  // Takes the whole lines off `bytes`, which came after those of the call before. The news of them;
  // news of the end are the last, and nothing may come after them.
  std::vector<MetaStore::News> Take(std::string& bytes);

  bool is_created() const { return is_created_; }
  // All changes before it have been reported.
  std::uint64_t next_revision() const { return next_revision_; }
  // It ended for want of a good token.
  bool wants_token() const { return wants_token_; }

 private:
  std::optional<MetaStore::News> TakeLine(std::string_view line);
  std::optional<MetaStore::News> TakeEvents(EtcdWatchLine line);
  MetaStore::News Ended(const EtcdRefusal& refusal);

  const std::string prefix_;
  std::uint64_t next_revision_;
  const std::string member_;
  bool is_created_ = false;
  bool wants_token_ = false;
  std::vector<MetaStore::Event> held_;  // Events of a revision of which more may come.
};

}  // namespace ffrecord::server
