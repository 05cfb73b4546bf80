#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <ffrecord/result.h>
#include <ffrecord/session_options.h>

#include "libffrecord/source/range_reader.h"

namespace ffrecord::client {

// Is told how many bytes of all have been copied.
using TellCopied = std::function<void(std::uint64_t)>;

// Copies local files to `place`, s3://BUCKET, s3://BUCKET/PREFIX or a folder that exists, each
// under the name that it has. Returns their addresses there, in their order. A copy appears whole
// and durable, or not at all.
//
// Nothing is ever replaced: a file of that name that is there already with the same bytes counts as
// copied, so that a call that has failed can be made again; with other bytes it is kConflict. Fails
// with kInvalidArgument if two files have one name, or for a place of another kind; as
// OpenLocalFiles and AtomicFile; and as the store does.
Result<std::vector<std::string>> CopyToOrigin(std::span<const std::filesystem::path> files,
                                              std::string_view place, const SessionOptions& options,
                                              const TellCopied& tell);

// Makes the object of the one file of `file`. False if there is another object of that name, or
// this one, from an earlier try. Fails with kInvalidArgument if this build has no object stores.
Result<bool> PutOriginObject(const std::string& address, const RangeReader& file,
                             const SessionOptions& options, const TellCopied& tell);

}  // namespace ffrecord::client
