#pragma once

#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "bytes.h"
#include "libffrecord/base/checksum.h"
#include "libffrecord/base/random.h"
#include "libffrecord/format/dataset_manifest.h"
#include "libffrecord/format/slot_map.h"
#include "libffrecord/net/protocol/cluster_messages.h"
#include "libffrecord/net/protocol/storage_messages.h"
#include "libffrecord/net/rpc/channel.h"
#include "libffrecord/net/transport/tls/tls.h"
#include "server/cluster/records.h"
#include "server/service/cluster/peer_calls.h"

// A client of a cluster, by hand: what the library does for users, in its simplest form.
namespace ffrecord::test {

inline net::Deadline Within(std::chrono::milliseconds time) { return net::Clock::now() + time; }

class ClusterClient {
 public:
  using Milliseconds = std::chrono::milliseconds;

  explicit ClusterClient(std::vector<std::string> addresses, std::vector<std::byte> token = {},
                         Milliseconds patience = std::chrono::seconds(40), net::TlsFiles tls = {})
      : addresses_(std::move(addresses)),
        token_(std::move(token)),
        patience_(patience),
        tls_(std::move(tls)) {}

  Result<std::unique_ptr<net::Channel>> Connect(const std::string& address) const {
    const auto at = FFR_TRY(net::Address::Parse(address, 0));
    if (tls_.authorities.empty()) return net::Channel::Connect(at, Within(patience_), token_);
    const auto tls = FFR_TRY(net::TlsContext::Load(net::TlsContext::Side::kClient, tls_));
    return net::Channel::Open(FFR_TRY(net::ConnectTls(at, *tls, Within(patience_))),
                              Within(patience_), token_);
  }

  struct Map {
    net::ClusterMapReply reply;
    SlotMap slots;
  };
  Result<Map> GetMap(const std::string& address) const {
    const auto channel = FFR_TRY(Connect(address));
    const auto got = FFR_TRY(channel->Call(net::FrameType::kClusterMap, net::ClusterMap{}.Encode(),
                                           {}, Within(patience_), "the map"));
    Map map;
    map.reply = FFR_TRY(net::ClusterMapReply::Decode(got.body));
    if (!got.payload.empty()) map.slots = FFR_TRY(DecodeSlotMap(got.payload));
    return map;
  }

  // Sends each extent to the nodes of the map's order that are up; the manifest of it all, with
  // a file for each.
  Result<DatasetManifest> Upload(const std::vector<std::string>& extents,
                                 std::size_t replicas = 2) const {
    const Map map = FFR_TRY(GetMap(addresses_.front()));
    const std::uint64_t upload = RandomNumber();
    DatasetManifest manifest;
    for (std::uint32_t i = 0; i < extents.size(); ++i) {
      const auto bytes = AsBytes(extents[i]);
      const ManifestExtent extent{MakeExtentId(upload, 0, i), bytes.size(), Xxh3(bytes)};
      std::size_t sent = 0;
      for (const std::uint16_t node : map.slots.OrderOf(SlotOf(extent.id))) {
        const auto& known = map.reply.nodes[node];
        if (sent == replicas || !known.is_up) continue;
        const auto channel = FFR_TRY(Connect(known.address));
        FFR_TRY(server::StoreExtent(*channel, extent, bytes, Within(patience_)));
        ++sent;
      }
      manifest.files.push_back({"data-" + std::to_string(i), bytes.size(), {extent}});
    }
    return manifest;
  }

  Result<std::uint64_t> Publish(const std::string& address, const std::string& name,
                                const DatasetManifest& manifest,
                                std::uint64_t attempt = RandomNumber()) const {
    const auto channel = FFR_TRY(Connect(address));
    net::Publish publish;
    publish.mode = net::Publish::Mode::kReplace;
    publish.attempt = attempt;
    publish.name = name;
    publish.patience_ms = PatienceFor(*channel);
    const auto bytes = FFR_TRY(EncodeDatasetManifest(manifest));
    const std::span<const std::byte> payload(bytes);
    const auto reply = FFR_TRY(channel->Call(net::FrameType::kPublish, publish.Encode(),
                                             {&payload, 1}, Within(patience_), "a publication"));
    return FFR_TRY(net::RevisionReply::Decode(reply.body)).revision;
  }

  Result<DatasetManifest> Resolve(const std::string& address, const std::string& name,
                                  bool accepts_old = false) const {
    const auto channel = FFR_TRY(Connect(address));
    const auto body = net::Resolve{name, accepts_old}.Encode();
    const auto reply =
        FFR_TRY(channel->Call(net::FrameType::kResolve, body, {}, Within(patience_), "a name"));
    return DecodeDatasetManifest(reply.payload);
  }

  Result<std::vector<std::string>> List(const std::string& address, const std::string& prefix,
                                        bool accepts_old = false) const {
    const auto channel = FFR_TRY(Connect(address));
    net::List list;
    list.prefix = prefix;
    list.accepts_old = accepts_old;
    const auto reply = FFR_TRY(channel->Call(net::FrameType::kList, list.Encode(), {},
                                             Within(patience_), "a list of names"));
    std::vector<std::string> names;
    for (const auto& entry : FFR_TRY(net::ListReply::Decode(reply.body)).entries)
      names.push_back(entry.name);
    return names;
  }

  Result<void> Remove(const std::string& address, const std::string& name) const {
    const auto channel = FFR_TRY(Connect(address));
    const auto body = net::Delete{0, name, PatienceFor(*channel)}.Encode();
    FFR_TRY(channel->Call(net::FrameType::kDelete, body, {}, Within(patience_), "a removal"));
    return {};
  }

  Result<void> SetMember(const std::string& address, const std::string& node,
                         net::MemberState state) const {
    const auto channel = FFR_TRY(Connect(address));
    FFR_TRY(channel->Call(net::FrameType::kSetMember, net::SetMember{state, node}.Encode(), {},
                          Within(patience_), "a member"));
    return {};
  }

  Result<std::uint32_t> RaiseLevel(const std::string& address, std::uint32_t level) const {
    const auto channel = FFR_TRY(Connect(address));
    const auto reply =
        FFR_TRY(channel->Call(net::FrameType::kSetLevel, net::SetLevel{level}.Encode(), {},
                              Within(patience_), "the feature level"));
    return FFR_TRY(net::SetLevel::Decode(reply.body)).level;
  }

  // The extent's bytes from that daemon alone.
  Result<std::string> ReadFrom(const std::string& address, const ManifestExtent& extent) const {
    const auto channel = FFR_TRY(Connect(address));
    std::string text;
    FFR_TRY(server::ReadExtent(*channel, extent, Within(patience_), patience_,
                               [&](std::span<const std::byte> piece) -> Result<void> {
                                 text += AsString(piece);
                                 return {};
                               }));
    return text;
  }

  // From the first of all daemons that has it and answers.
  Result<std::string> Read(const ManifestExtent& extent) const {
    Error last{ErrorCode::kUnavailable, "no daemon"};
    for (const std::string& address : addresses_) {
      auto text = ReadFrom(address, extent);
      if (text && Xxh3(AsBytes(text.value())) == extent.xxh3) return text;
      if (!text) last = text.error();
    }
    return last;
  }
  // On how many of the daemons it can be read.
  std::size_t CountReplicas(const ManifestExtent& extent) const {
    std::size_t count = 0;
    for (const std::string& address : addresses_) {
      const auto text = ReadFrom(address, extent);
      count += text && Xxh3(AsBytes(text.value())) == extent.xxh3 ? 1 : 0;
    }
    return count;
  }

  const std::vector<std::string>& addresses() const { return addresses_; }

 private:
  std::uint32_t PatienceFor(const net::Channel& channel) const {
    const bool is_understood = (channel.hello().capabilities & net::kCapabilityPatience) != 0;
    return is_understood ? static_cast<std::uint32_t>(patience_.count()) : 0;
  }

  const std::vector<std::string> addresses_;
  const std::vector<std::byte> token_;
  const Milliseconds patience_;
  const net::TlsFiles tls_;
};

inline std::vector<ManifestExtent> ExtentsOf(const DatasetManifest& manifest) {
  std::vector<ManifestExtent> extents;
  for (const ManifestFile& file : manifest.files)
    extents.insert(extents.end(), file.extents.begin(), file.extents.end());
  return extents;
}

// Adds empty files, until the manifest is too large for the record of its name.
inline void MakeLarge(DatasetManifest& manifest) {
  while (EncodeDatasetManifest(manifest).value().size() <=
         server::cluster::DatasetRecord::kOwnManifestSizeMax)
    manifest.files.push_back(
        {"empty-" + std::to_string(manifest.files.size()) + std::string(500, '-'), 0, {}});
}

// So many extents of a size, of random bytes.
inline std::vector<std::string> SomeExtents(std::size_t count, std::size_t size_bytes) {
  std::mt19937_64 random(count * 1000 + size_bytes);
  std::vector<std::string> extents;
  for (std::size_t i = 0; i < count; ++i) extents.push_back(RandomText(size_bytes, random));
  return extents;
}

}  // namespace ffrecord::test
