#include "libffrecord/format/dataset_manifest.h"

#include <algorithm>
#include <unordered_set>
#include <utility>

#include "libffrecord/base/checksum.h"
#include "libffrecord/base/cursor.h"

namespace ffrecord {
namespace {

constexpr std::array<std::byte, 8> kMagic{std::byte{0xE5}, std::byte{'F'}, std::byte{'M'},
                                          std::byte{'A'},  std::byte{'N'}, std::byte{'I'},
                                          std::byte{'0'},  std::byte{'1'}};
// Begins a manifest whose files have origins: version 2.
constexpr std::array<std::byte, 8> kOriginMagic{std::byte{0xE5}, std::byte{'F'}, std::byte{'M'},
                                                std::byte{'A'},  std::byte{'N'}, std::byte{'I'},
                                                std::byte{'0'},  std::byte{'2'}};
// Begins one that says how many replicas there are, or has an erasure code: version 3.
constexpr std::array<std::byte, 8> kDurableMagic{std::byte{0xE5}, std::byte{'F'}, std::byte{'M'},
                                                 std::byte{'A'},  std::byte{'N'}, std::byte{'I'},
                                                 std::byte{'0'},  std::byte{'3'}};
constexpr std::size_t kHeaderSizeBytes = 24;
constexpr std::size_t kCheckSizeBytes = 8;
constexpr std::size_t kFileSizeBytesMin = 2 + 4 + 8;  // Without name and extents.
constexpr std::size_t kExtentEncodedSizeBytes = 32;
constexpr std::size_t kOriginSizeBytesMin = 2 + 2;  // Without its texts. Version 2 alone.

void StoreBigEndian(std::span<std::byte, 4> bytes, std::uint32_t value) noexcept {
  for (std::size_t i = 0; i < 4; ++i) bytes[i] = static_cast<std::byte>(value >> (24 - 8 * i));
}

bool HasControl(std::string_view text) {
  return std::ranges::any_of(
      text, [](char c) { return static_cast<unsigned char>(c) < 0x20 || c == 0x7F; });
}

// Empty if `origin` keeps the rules; else what is wrong with it.
std::string_view FaultOf(const FileOrigin& origin) {
  if (origin.address.size() > DatasetManifest::kOriginSizeMax ||
      origin.version.size() > DatasetManifest::kOriginSizeMax)
    return "an origin has more than 4,096 bytes";
  if (origin.address.empty() && !origin.version.empty()) return "an origin has no address";
  if (HasControl(origin.address) || HasControl(origin.version))
    return "an origin holds a control character";
  return "";
}

// Empty if `file` keeps the rules; else what is wrong with it.
std::string_view FaultOf(const ManifestFile& file) {
  if (file.name.empty() || file.name.size() > DatasetManifest::kNameSizeMax)
    return "a name is not 1 to 1,024 bytes";
  if (HasControl(file.name)) return "a name holds a control character";
  if (const auto fault = FaultOf(file.origin); !fault.empty()) return fault;
  std::uint64_t rest = file.size_bytes;
  for (const ManifestExtent& extent : file.extents) {
    if (extent.id == ExtentId{}) return "an extent has no id";
    if (extent.size_bytes != std::min(rest, kExtentSizeMax) || rest == 0)
      return "the sizes of the extents are not those of the file cut at 64 MiB";
    rest -= extent.size_bytes;
  }
  return rest == 0 ? "" : "the extents do not add up to the file";
}

// Empty if the durability class and the parity of a manifest with right files keep the rules; else
// what is wrong with them.
std::string_view FaultOfDurability(const DatasetManifest& manifest) {
  if (manifest.replicas > DatasetManifest::kReplicasMax) return "more than 3 replicas";
  if (manifest.has_origins() && (manifest.replicas != 0 || manifest.has_code()))
    return "files with an origin have replicas or an erasure code";
  if (!manifest.has_code())
    return manifest.parity.empty() ? "" : "there is parity without an erasure code";
  if (!manifest.code.is_valid()) return "the erasure code is not 2 to 16 + 1 to 4";
  if (manifest.replicas != 0) return "there are replicas and an erasure code";
  std::size_t count = 0;
  std::uint64_t largest = 0;
  auto parity = manifest.parity.begin();
  const auto ends_well = [&] {
    for (std::size_t i = 0; i < manifest.code.parity; ++i, ++parity)
      if (parity == manifest.parity.end() || parity->size_bytes != largest ||
          parity->id == ExtentId{})
        return false;
    largest = 0;
    return true;
  };
  for (const ManifestFile& file : manifest.files)
    for (const ManifestExtent& extent : file.extents) {
      largest = std::max(largest, extent.size_bytes);
      if (++count % manifest.code.data == 0 && !ends_well())
        return "the parity does not fit the extents";
    }
  if (count % manifest.code.data != 0 && !ends_well()) return "the parity does not fit the extents";
  return parity == manifest.parity.end() ? "" : "there is more parity than there are stripes";
}

std::string_view FaultOf(const DatasetManifest& manifest) {
  std::unordered_set<std::string_view> names;
  std::uint64_t total = 0;
  for (const ManifestFile& file : manifest.files) {
    if (const auto fault = FaultOf(file); !fault.empty()) return fault;
    if (file.has_origin() != manifest.has_origins()) return "some files have an origin, some none";
    if (!names.insert(file.name).second) return "two files have the same name";
    if (file.size_bytes > ~std::uint64_t{0} - total) return "the sizes of the files overflow";
    total += file.size_bytes;
  }
  return FaultOfDurability(manifest);
}

Error Corrupt(std::string_view what) {
  return Error{ErrorCode::kCorruption, "dataset manifest: " + std::string(what)};
}

void PutExtent(ByteWriter& writer, const ManifestExtent& extent) {
  writer.PutBytes(extent.id);
  writer.Put(extent.size_bytes);
  writer.Put(extent.xxh3);
}

// False: so many do not fit.
bool TakeExtents(ByteReader& reader, std::size_t count, std::vector<ManifestExtent>& extents) {
  if (!reader.ok() || count > reader.remaining() / kExtentEncodedSizeBytes) return false;
  extents.resize(count);
  for (ManifestExtent& extent : extents) {
    std::ranges::copy(reader.TakeBytes(extent.id.size()), extent.id.begin());
    extent.size_bytes = reader.Take<std::uint64_t>();
    extent.xxh3 = reader.Take<std::uint64_t>();
  }
  return true;
}

FileOrigin TakeOrigin(ByteReader& reader) {
  const auto address_size = reader.Take<std::uint16_t>();
  const auto version_size = reader.Take<std::uint16_t>();
  FileOrigin origin;
  origin.address = reader.TakeText(address_size);
  origin.version = reader.TakeText(version_size);
  return origin;
}

}  // namespace

ExtentId MakeExtentId(std::uint64_t upload, std::uint32_t file, std::uint32_t extent) noexcept {
  ExtentId id;
  StoreLittleEndian(std::span<std::byte>(id), 0, upload);
  StoreBigEndian(std::span(id).subspan<8, 4>(), file);
  StoreBigEndian(std::span(id).subspan<12, 4>(), extent);
  return id;
}

std::uint64_t UploadOf(const ExtentId& id) noexcept {
  return LoadLittleEndian<std::uint64_t>(id, 0);
}

std::uint64_t DatasetManifest::size_bytes() const noexcept {
  std::uint64_t total = 0;
  for (const ManifestFile& file : files) total += file.size_bytes;
  return total;
}

std::size_t DatasetManifest::extent_count() const noexcept {
  std::size_t count = 0;
  for (const ManifestFile& file : files) count += file.extents.size();
  return count;
}

const ManifestFile* DatasetManifest::Find(std::string_view name) const noexcept {
  const auto found = std::ranges::find(files, name, &ManifestFile::name);
  return found == files.end() ? nullptr : &*found;
}

Result<std::vector<std::byte>> EncodeDatasetManifest(const DatasetManifest& manifest) {
  if (const auto fault = FaultOf(manifest); !fault.empty())
    return Error{ErrorCode::kInvalidArgument, "dataset manifest: " + std::string(fault)};
  std::size_t size =
      kHeaderSizeBytes + kCheckSizeBytes + manifest.parity.size() * kExtentEncodedSizeBytes;
  for (const ManifestFile& file : manifest.files) {
    size += kFileSizeBytesMin + file.name.size() + file.extents.size() * kExtentEncodedSizeBytes;
    if (manifest.has_origins())
      size += kOriginSizeBytesMin + file.origin.address.size() + file.origin.version.size();
    if (size > DatasetManifest::kEncodedSizeMax)
      return Error{ErrorCode::kInvalidArgument,
                   "dataset manifest: larger than 8 MiB, about 16 TiB of data; publish the files "
                   "under several names"};
  }
  ByteWriter writer;
  writer.Reserve(size);
  const bool is_durable = manifest.has_code() || manifest.replicas != 0;
  writer.PutBytes(manifest.has_origins() ? kOriginMagic : is_durable ? kDurableMagic : kMagic);
  writer.Put(static_cast<std::uint32_t>(manifest.files.size()));
  writer.Put(manifest.code.data);
  writer.Put(manifest.code.parity);
  writer.Put(manifest.replicas);
  writer.Put(std::uint8_t{0});
  writer.Put(static_cast<std::uint64_t>(size));
  for (const ManifestFile& file : manifest.files) {
    writer.Put(static_cast<std::uint16_t>(file.name.size()));
    writer.Put(static_cast<std::uint32_t>(file.extents.size()));
    writer.Put(file.size_bytes);
    writer.PutText(file.name);
    if (manifest.has_origins()) {
      writer.Put(static_cast<std::uint16_t>(file.origin.address.size()));
      writer.Put(static_cast<std::uint16_t>(file.origin.version.size()));
      writer.PutText(file.origin.address);
      writer.PutText(file.origin.version);
    }
    for (const ManifestExtent& extent : file.extents) PutExtent(writer, extent);
  }
  for (const ManifestExtent& extent : manifest.parity) PutExtent(writer, extent);
  writer.Put(Xxh3(writer.bytes()));
  FFR_ASSERT(writer.bytes().size() == size);
  return std::move(writer).Take();
}

Result<DatasetManifest> DecodeDatasetManifest(std::span<const std::byte> bytes) {
  if (bytes.size() < kHeaderSizeBytes + kCheckSizeBytes) return Corrupt("shorter than 32 bytes");
  if (bytes.size() > DatasetManifest::kEncodedSizeMax) return Corrupt("larger than 8 MiB");
  const auto checked = bytes.first(bytes.size() - kCheckSizeBytes);
  const bool has_origins = std::ranges::equal(bytes.first(kOriginMagic.size()), kOriginMagic);
  const bool is_durable = std::ranges::equal(bytes.first(kDurableMagic.size()), kDurableMagic);
  if (!has_origins && !is_durable && !std::ranges::equal(bytes.first(kMagic.size()), kMagic))
    return Corrupt("no magic of version 1, 2 or 3");
  if (LoadLittleEndian<std::uint64_t>(bytes, checked.size()) != Xxh3(checked))
    return Corrupt("the check does not fit the bytes");

  ByteReader reader(checked.subspan(kMagic.size()));
  const auto file_count = reader.Take<std::uint32_t>();
  DatasetManifest manifest;
  manifest.code.data = reader.Take<std::uint8_t>();
  manifest.code.parity = reader.Take<std::uint8_t>();
  manifest.replicas = reader.Take<std::uint8_t>();
  if (reader.Take<std::uint8_t>() != 0 || is_durable != (manifest.has_code() || manifest.replicas))
    return Corrupt("reserved bytes are not zero, or there is no durability class");
  if (manifest.has_code() && !manifest.code.is_valid()) return Corrupt("no valid erasure code");
  if (reader.Take<std::uint64_t>() != bytes.size()) return Corrupt("the size is not as stated");
  if (file_count > reader.remaining() / kFileSizeBytesMin)
    return Corrupt("the count of files does not fit");
  manifest.files.reserve(file_count);
  for (std::uint32_t i = 0; i < file_count; ++i) {
    ManifestFile& file = manifest.files.emplace_back();
    const auto name_size = reader.Take<std::uint16_t>();
    const auto extent_count = reader.Take<std::uint32_t>();
    file.size_bytes = reader.Take<std::uint64_t>();
    file.name = reader.TakeText(name_size);
    if (has_origins) file.origin = TakeOrigin(reader);
    if (!TakeExtents(reader, extent_count, file.extents)) return Corrupt("a file does not fit");
  }
  if (manifest.has_code()) {
    const std::size_t stripes =
        (manifest.extent_count() + manifest.code.data - 1) / manifest.code.data;
    if (!TakeExtents(reader, stripes * manifest.code.parity, manifest.parity))
      return Corrupt("the parity does not fit");
  }
  if (!reader.AtEnd()) return Corrupt("bytes behind the last file");
  if (manifest.has_origins() != has_origins) return Corrupt("an origin is missing");
  if (const auto fault = FaultOf(manifest); !fault.empty()) return Corrupt(fault);
  return manifest;
}

}  // namespace ffrecord
