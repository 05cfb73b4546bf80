#include "server/service/catalog/upload_records.h"

#include <algorithm>
#include <utility>

#include "libffrecord/base/cursor.h"
#include "server/service/catalog/disk_members.h"

namespace ffrecord::server {

std::vector<std::byte> EncodeIds(std::span<const ExtentId> ids) {
  ByteWriter writer;
  for (const ExtentId& id : ids) writer.PutBytes(id);
  return std::move(writer).Take();
}

std::vector<ExtentId> DecodeIds(std::span<const std::byte> bytes) {
  std::vector<ExtentId> ids(bytes.size() / sizeof(ExtentId));
  ByteReader reader(bytes);
  for (ExtentId& id : ids) std::ranges::copy(reader.TakeBytes(id.size()), id.begin());
  return ids;
}

bool MakesRoom(std::span<const MetaStore::Put> puts) {
  return std::ranges::all_of(puts, [](const MetaStore::Put& put) {
    return put.key == kGenerationKey || put.key.starts_with(kTombstoneKeys) ||
           put.key == kDaemonKey || put.key.starts_with(kDiskKeys);
  });
}

}  // namespace ffrecord::server
