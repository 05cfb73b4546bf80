#include "server/metadata/name_change.h"

namespace ffrecord::server {

Result<void> CheckNameChange(NameChange change, const std::string& name, std::uint64_t revision,
                             std::uint64_t expected_revision) {
  const bool is_there = revision != 0;
  switch (change) {
    case NameChange::kReplace:
      return {};
    case NameChange::kCreate:
      if (!is_there) return {};
      return Error{ErrorCode::kConflict,
                   name + " exists already; choose another name, or replace it"};
    case NameChange::kSwap:
      if (is_there && revision == expected_revision) return {};
      return Error{ErrorCode::kConflict, name +
                                             (is_there ? " was published again" : " was removed") +
                                             " since it was looked at; look again, then decide"};
    case NameChange::kRemove:
      if (!is_there)
        return Error{ErrorCode::kNotFound, "nothing is published under the name " + name};
      if (expected_revision == 0 || revision == expected_revision) return {};
      return Error{ErrorCode::kConflict, name + " was published again since it was looked up"};
  }
  return Error{ErrorCode::kInvalidArgument, "unknown mode"};
}

}  // namespace ffrecord::server
