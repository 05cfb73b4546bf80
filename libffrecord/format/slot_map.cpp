#include "libffrecord/format/slot_map.h"

#include <algorithm>
#include <array>
#include <bit>
#include <numeric>
#include <set>
#include <string>
#include <utility>

#include "libffrecord/base/checksum.h"
#include "libffrecord/base/cursor.h"

namespace ffrecord {
namespace {

constexpr std::array<std::byte, 8> kMagic{std::byte{0xE5}, std::byte{'F'}, std::byte{'S'},
                                          std::byte{'L'},  std::byte{'O'}, std::byte{'T'},
                                          std::byte{'0'},  std::byte{'1'}};
constexpr std::size_t kCheckSizeBytes = 8;
constexpr std::size_t kNodeSizeBytesMin = 1 + 1 + 1 + 1 + 4;
constexpr std::size_t kTextSizeMax = 64;
// Rows, which are thousands of ordinals, are copied as they lie in memory.
static_assert(std::endian::native == std::endian::little);

Error Corrupt(std::string_view what) {
  return Error{ErrorCode::kCorruption, "slot map: " + std::string(what)};
}

bool IsToken(std::string_view text) noexcept {
  const auto allowed = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '.' ||
           c == '_' || c == '-';
  };
  return !text.empty() && text.size() <= kTextSizeMax && std::ranges::all_of(text, allowed);
}

struct RowFaults {
  bool is_out_of_range = false, has_gap = false, has_double = false;
};

// Without branches on the content, for a whole map is some ten thousand ordinals. kSize is the size
// of a row where the compiler is to know it, or 0.
template <std::size_t kSize>
RowFaults LookAtRows(const SlotMap& map) {
  RowFaults faults;
  const std::size_t size = kSize != 0 ? kSize : map.row_size;
  const std::size_t node_count = map.nodes.size();
  for (std::size_t begin = 0; begin < map.rows.size(); begin += size) {
    const std::uint16_t* const row = map.rows.data() + begin;
    for (std::size_t i = 0; i < size; ++i) {
      const bool is_node = row[i] != SlotMap::kNoNode;
      faults.is_out_of_range |= is_node & (row[i] >= node_count);
      for (std::size_t j = 0; j < i; ++j) {
        faults.has_gap |= is_node & (row[j] == SlotMap::kNoNode);
        faults.has_double |= is_node & (row[j] == row[i]);
      }
    }
  }
  return faults;
}

Result<void> CheckRows(const SlotMap& map) {
  const RowFaults faults = map.row_size == 2   ? LookAtRows<2>(map)
                           : map.row_size == 3 ? LookAtRows<3>(map)
                                               : LookAtRows<0>(map);
  if (faults.is_out_of_range) return Corrupt("a row names a node that is not there");
  if (faults.has_gap) return Corrupt("a row has a gap");
  if (faults.has_double) return Corrupt("a row names a node twice");
  return {};
}

}  // namespace

std::uint32_t SlotOf(const ExtentId& id) noexcept {
  return static_cast<std::uint32_t>(Xxh3(id) % kSlotCount);
}

std::uint64_t SlotAffinity(std::uint32_t slot, std::string_view node_id) {
  std::array<std::byte, sizeof(slot) + kTextSizeMax> key{};
  StoreLittleEndian(std::span<std::byte>(key), 0, slot);
  const auto id = std::as_bytes(std::span(node_id)).first(std::min(node_id.size(), kTextSizeMax));
  std::ranges::copy(id, key.begin() + sizeof(slot));
  return Xxh3(std::span(key).first(sizeof(slot) + id.size()));
}

Result<void> CheckSlotMapNodes(const SlotMap& map) {
  const auto bad = [](std::string what) {
    return Error{ErrorCode::kInvalidArgument, "slot map: " + std::move(what)};
  };
  if (map.row_size > SlotMap::kRowSizeMax)
    return bad("rows of " + std::to_string(map.row_size) + " nodes, 32 at most");
  if (map.nodes.size() > SlotMap::kNodeCountMax)
    return bad(std::to_string(map.nodes.size()) + " nodes, 4,096 at most");
  for (std::size_t i = 0; i < map.nodes.size(); ++i) {
    const PlacedNode& node = map.nodes[i];
    if (!IsToken(node.id) || !IsToken(node.domain))
      return bad("an id or a domain is not 1 to 64 characters of A-Z a-z 0-9 . _ -");
    if (node.weight > PlacedNode::kWeightMax)
      return bad("the weight of node " + node.id + " is above 1,000,000");
    if (i > 0 && node.id <= map.nodes[i - 1].id)
      return bad("node ids are not in order, or node " + node.id + " stands there twice");
  }
  return {};
}

std::span<const std::uint16_t> SlotMap::NodesOf(std::uint32_t slot) const noexcept {
  if (row_size == 0) return {};
  const auto row = std::span(rows).subspan(std::size_t{slot} * row_size, row_size);
  const auto end = std::ranges::find(row, kNoNode);
  return row.first(static_cast<std::size_t>(end - row.begin()));
}

std::uint16_t SlotMap::Find(std::string_view node_id) const noexcept {
  const auto found = std::ranges::lower_bound(nodes, node_id, {}, &PlacedNode::id);
  if (found == nodes.end() || found->id != node_id) return kNoNode;
  return static_cast<std::uint16_t>(found - nodes.begin());
}

namespace {

// Among equal ones the first in the map comes first.
std::vector<std::uint16_t> ByAffinity(const SlotMap& map, std::uint32_t slot,
                                      std::span<const std::uint16_t> of) {
  std::vector<std::pair<std::uint64_t, std::uint16_t>> nodes;
  for (const std::uint16_t node : of)
    nodes.emplace_back(~SlotAffinity(slot, map.nodes[node].id), node);
  std::ranges::sort(nodes);
  std::vector<std::uint16_t> order;
  for (const auto& [affinity, node] : nodes) order.push_back(node);
  return order;
}

std::vector<std::uint16_t> AllByAffinity(const SlotMap& map, std::uint32_t slot) {
  std::vector<std::uint16_t> all(map.nodes.size());
  std::iota(all.begin(), all.end(), std::uint16_t{0});
  return ByAffinity(map, slot, all);
}

}  // namespace

std::vector<std::uint16_t> SlotMap::OrderOf(std::uint32_t slot) const {
  const auto row = NodesOf(slot);
  std::vector<std::uint16_t> order(row.begin(), row.end());
  std::set<std::string_view> domains;
  for (const std::uint16_t node : row) domains.insert(nodes[node].domain);

  std::vector<std::uint16_t> rest;
  for (const std::uint16_t node : AllByAffinity(*this, slot))
    if (std::ranges::find(row, node) == row.end())
      (domains.insert(nodes[node].domain).second ? order : rest).push_back(node);
  order.insert(order.end(), rest.begin(), rest.end());
  return order;
}

std::vector<std::uint16_t> SlotMap::OwnersByAffinity(std::uint32_t slot, std::size_t count) const {
  const auto row = NodesOf(slot);
  return ByAffinity(*this, slot, row.first(std::min(row.size(), count)));
}

std::vector<std::uint16_t> SlotMap::FetchOrderOf(std::uint32_t slot) const {
  auto order = AllByAffinity(*this, slot);
  std::stable_partition(order.begin(), order.end(),
                        [&](std::uint16_t node) { return nodes[node].weight > 0; });
  return order;
}

std::vector<std::uint16_t> SlotMap::StripeOwners(std::uint32_t slot,
                                                 std::size_t member_count) const {
  auto left = OrderOf(slot);
  std::erase_if(left, [&](std::uint16_t node) { return nodes[node].weight == 0; });
  if (left.size() > member_count) left.resize(member_count);
  std::vector<std::uint16_t> owners(member_count, kNoNode);
  // The affinity of a member. Its number stands above those of slots.
  const auto affinity = [&](std::size_t member, std::uint16_t node) {
    const auto key = static_cast<std::uint32_t>((member + 1) * kSlotCount) + slot;
    return SlotAffinity(key, nodes[node].id);
  };
  for (std::size_t member = 0; member < member_count && !left.empty(); ++member) {
    const auto best = std::ranges::max_element(
        left, {}, [&](std::uint16_t node) { return affinity(member, node); });
    owners[member] = *best;
    left.erase(best);
  }
  return owners;
}

std::vector<std::byte> EncodeSlotMap(const SlotMap& map) {
  ByteWriter writer;
  writer.PutBytes(kMagic);
  writer.Put(map.version);
  writer.Put(map.row_size);
  writer.Put(static_cast<std::uint32_t>(map.nodes.size()));
  for (const PlacedNode& node : map.nodes) {
    writer.Put(static_cast<std::uint8_t>(node.id.size()));
    writer.PutText(node.id);
    writer.Put(static_cast<std::uint8_t>(node.domain.size()));
    writer.PutText(node.domain);
    writer.Put(node.weight);
  }
  writer.PutBytes(std::as_bytes(std::span(map.rows)));
  writer.Put(Xxh3(writer.bytes()));
  return std::move(writer).Take();
}

Result<SlotMap> DecodeSlotMap(std::span<const std::byte> bytes) {
  if (bytes.size() < kMagic.size() + kCheckSizeBytes) return Corrupt("too short");
  const auto body = bytes.first(bytes.size() - kCheckSizeBytes);
  if (LoadLittleEndian<std::uint64_t>(bytes, body.size()) != Xxh3(body))
    return Corrupt("the checksum does not hold");
  ByteReader reader(body);
  if (!std::ranges::equal(reader.TakeBytes(kMagic.size()), kMagic)) return Corrupt("wrong magic");

  SlotMap map;
  map.version = reader.Take<std::uint32_t>();
  map.row_size = reader.Take<std::uint32_t>();
  const auto node_count = reader.Take<std::uint32_t>();
  if (!reader.ok() || map.row_size > SlotMap::kRowSizeMax || node_count > SlotMap::kNodeCountMax ||
      node_count > reader.remaining() / kNodeSizeBytesMin)
    return Corrupt("a count is out of its range");
  for (std::uint32_t i = 0; i < node_count; ++i) {
    PlacedNode node;
    node.id = reader.TakeText(reader.Take<std::uint8_t>());
    node.domain = reader.TakeText(reader.Take<std::uint8_t>());
    node.weight = reader.Take<std::uint32_t>();
    map.nodes.push_back(std::move(node));
  }
  if (reader.remaining() != std::size_t{kSlotCount} * map.row_size * sizeof(std::uint16_t))
    return Corrupt("the size is not that of its rows");
  if (auto checked = CheckSlotMapNodes(map); !checked)
    return Error{ErrorCode::kCorruption, std::move(checked).error().message};
  map.rows.resize(std::size_t{kSlotCount} * map.row_size);
  const auto rows = reader.TakeBytes(reader.remaining());
  std::ranges::copy(rows, std::as_writable_bytes(std::span(map.rows)).begin());
  FFR_TRY(CheckRows(map));
  return map;
}

}  // namespace ffrecord
