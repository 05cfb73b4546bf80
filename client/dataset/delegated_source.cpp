#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <ffrecord/client/dataset.h>

#include "libffrecord/base/patience.h"
#include "libffrecord/record/read/open_records.h"
#include "libffrecord/source/block_cache.h"
#include "libffrecord/source/cached_files.h"
#include "libffrecord/source/delegated_files.h"

namespace ffrecord::client {

Result<RecordReader> OpenDelegated(std::shared_ptr<DelegatedReads> reads,
                                   const RecordReader::Options& options, const CacheOptions& cache,
                                   const RecordReader::GiveUp& give_up) {
  const Patience patience(give_up);
  std::vector<std::string> identities;
  for (const DelegatedReads::File& file : reads->files()) {
    if (file.version.empty() && !cache.folder.empty())
      return Error{ErrorCode::kInvalidArgument,
                   file.name +
                       ": a cache needs a store that tells the version of a file, such as an ETag "
                       "or the time of its last change: nothing else tells what was replaced"};
    identities.push_back(file.name + "\n" + std::to_string(file.size_bytes) + "\n" + file.version);
  }
  const auto was_opened = std::make_shared<bool>(false);
  const auto end = [was_opened, reads](const RangeReader* ended) {
    delete ended;
    if (*was_opened) reads->Close();
  };
  std::shared_ptr<const RangeReader> files(OpenDelegatedFiles(reads).release(), end);
  if (!cache.folder.empty()) {
    auto blocks = FFR_TRY(BlockCache::Open(cache.folder, cache.size_bytes_max));
    files = OpenCachedFiles(std::move(files), std::move(blocks), identities);
  }
  auto opened = OpenRecords(std::move(files), options);
  *was_opened = static_cast<bool>(opened);
  return opened;
}

}  // namespace ffrecord::client
