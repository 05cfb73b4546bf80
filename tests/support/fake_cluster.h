#pragma once

#include <array>
#include <atomic>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "daemon.h"
#include "fake_daemon.h"
#include "libffrecord/format/slot_map.h"
#include "libffrecord/net/protocol/cluster_messages.h"
#include "libffrecord/net/protocol/storage_messages.h"

namespace ffrecord::test {

// A cluster as clients see it: daemons that hold extents, each in a failure domain of its own, and
// two nodes without slots, which are scripts: they hand out the map and answer for names. Nobody
// repairs anything.
class FakeCluster {
 public:
  static constexpr std::uint16_t kScriptCount = 2;  // "a0" and "a1".
  static constexpr std::uint16_t kNodeCount = 3;    // "n0" to "n2".
  static constexpr std::uint32_t kReplicas = 2;

  // `capabilities`: of its scripts, besides kCapabilityCluster.
  explicit FakeCluster(std::uint64_t capabilities = net::kCapabilityNone) {
    reply_.cluster.fill(std::byte{0xC1});
    for (std::uint16_t i = 0; i < kNodeCount; ++i) {
      server::Server::Options options;
      options.identity = IdentityOf(i);
      nodes_[i] = std::make_unique<Daemon>(std::move(options));
    }
    const net::Address nobody{"127.0.0.1", 1};
    for (std::uint16_t i = 0; i < kScriptCount; ++i)
      AddNode("a" + std::to_string(i), nobody, net::MemberState::kOut, 0);
    for (std::uint16_t i = 0; i < kNodeCount; ++i)
      AddNode("n" + std::to_string(i), nodes_[i]->address(), net::MemberState::kIn, 1);
    reply_.version = map_.version = 5;
    reply_.replicas = map_.row_size = kReplicas;
    for (std::uint32_t slot = 0; slot < kSlotCount; ++slot)
      for (std::uint32_t i = 0; i < kReplicas; ++i)
        map_.rows.push_back(static_cast<std::uint16_t>(kScriptCount + OwnerOf(slot, i)));
    for (std::uint16_t i = 0; i < kScriptCount; ++i) {
      scripts_[i] = std::make_unique<FakeDaemon>(
          [this, i](FakeDaemon::Request& request) { return Answer(request, i); }, true,
          net::kCapabilityCluster | capabilities,
          net::NodeIdentity{reply_.cluster, "a" + std::to_string(i)});
      reply_.nodes[i].address = scripts_[i]->address().ToString();
    }
  }
  ~FakeCluster() { scripts_ = {}; }

  Daemon& node(std::size_t i) { return *nodes_[i]; }
  // As which "n0" to "n2" answer.
  net::NodeIdentity IdentityOf(std::uint16_t i) const {
    return {reply_.cluster, "n" + std::to_string(i)};
  }
  const net::Address& seed() const { return scripts_[0]->address(); }
  std::string Uri(const std::string& name) const { return scripts_[0]->Uri(name); }
  // The number of the node that is the i-th owner of the slot.
  static std::uint16_t OwnerOf(std::uint32_t slot, std::uint32_t i) {
    return static_cast<std::uint16_t>((slot + i) % kNodeCount);
  }

  // Changes the scripts' answers from now on.
  template <class Change>
  void Alter(Change change) {
    const std::lock_guard lock(mutex_);
    change(reply_, map_);
  }
  std::vector<net::Publish> publications() {
    const std::lock_guard lock(mutex_);
    return publications_;
  }
  // Those of the manifests that came with them.
  std::set<std::uint64_t> uploads() {
    const std::lock_guard lock(mutex_);
    return uploads_;
  }
  int map_count() const { return map_count_; }

  // So many requests to publish or remove are carried out without an answer.
  std::atomic<int> lost_answers{0};
  // The script "a0" cannot change names now, and says so; "a1" takes what is to change them and
  // never answers.
  std::atomic<bool> is_stuck{false};
  // The script "a0" takes requests and never answers.
  std::atomic<bool> is_silent{false};
  // So many scripts, from "a0" on, deny what is asked of names.
  std::atomic<std::uint16_t> denying_count{0};
  // So many scripts, from "a0" on, cannot tell whether they know the newest names: they refuse, but
  // for who accepts what they knew before, which is revision 1 of "x"; it is at 2 by now.
  std::atomic<std::uint16_t> cut_off_count{0};
  std::atomic<int> accepted_count{0};  // Answers of such.
  // The scripts refuse to change names like this, once no answer is lost any more; kOk: they do
  // not.
  std::atomic<ErrorCode> change_refusal{ErrorCode::kOk};
  // "a0" answers for names like this, whatever is asked; kOk: it knows them.
  std::atomic<ErrorCode> refusal{ErrorCode::kOk};

 private:
  void AddNode(const std::string& id, const net::Address& address, net::MemberState state,
               std::uint32_t weight) {
    reply_.nodes.push_back({id, address.ToString(), "d-" + id, weight, state, true});
    map_.nodes.push_back({id, "d-" + id, weight});
  }

  bool Answer(FakeDaemon::Request& request, std::uint16_t number) {
    if (number == 0 && is_silent) return true;
    if (number < denying_count && request.header.type != net::FrameType::kClusterMap) {
      FakeDaemon::SendError(request, ErrorCode::kDenied);
      return true;
    }
    if (number == 0 && refusal != ErrorCode::kOk &&
        request.header.type != net::FrameType::kClusterMap) {
      FakeDaemon::SendError(request, refusal);
      return true;
    }
    const std::lock_guard lock(mutex_);
    if (cut_off_count > 0 && AnswerAsCutOff(request, number)) return true;
    switch (request.header.type) {
      case net::FrameType::kClusterMap: {
        ++map_count_;
        auto reply = reply_;
        reply.node = "a" + std::to_string(number);
        const auto asked = net::ClusterMap::Decode(request.body);
        const bool is_known = asked && asked.value().known_version == map_.version;
        FakeDaemon::Send(request, net::ReplyTo(request.header.type), reply.Encode(),
                         is_known ? std::vector<std::byte>() : EncodeSlotMap(map_));
        return true;
      }
      case net::FrameType::kPublish: {
        publications_.push_back(net::Publish::Decode(request.body).value());
        if (is_stuck) return Refuse(request, number);
        manifest_ = request.payload();
        NoteUploads(DecodeDatasetManifest(*manifest_).value());
        if (lost_answers > 0) return --lost_answers, false;
        if (change_refusal != ErrorCode::kOk) {
          FakeDaemon::SendError(request, change_refusal);
          return true;
        }
        FakeDaemon::Send(request, net::ReplyTo(request.header.type),
                         net::RevisionReply{1}.Encode());
        return true;
      }
      case net::FrameType::kDelete: {
        if (is_stuck) return Refuse(request, number);
        const bool was_there = std::exchange(manifest_, std::nullopt).has_value();
        if (lost_answers > 0) return --lost_answers, false;
        if (was_there)
          FakeDaemon::Send(request, net::ReplyTo(request.header.type), {});
        else
          FakeDaemon::SendError(request, ErrorCode::kNotFound);
        return true;
      }
      case net::FrameType::kCheckRoom:
        FakeDaemon::Send(request, net::ReplyTo(request.header.type), {});
        return true;
      case net::FrameType::kList: {
        net::ListReply list;
        if (manifest_) list.entries.push_back({"x", 1, 0, 1});
        FakeDaemon::Send(request, net::ReplyTo(request.header.type), list.Encode());
        return true;
      }
      case net::FrameType::kResolve:
        if (!manifest_) {
          FakeDaemon::SendError(request, ErrorCode::kNotFound);
          return true;
        }
        FakeDaemon::Send(request, net::ReplyTo(request.header.type), net::RevisionReply{1}.Encode(),
                         *manifest_);
        return true;
      default:  // It holds no extents.
        FakeDaemon::SendError(request, ErrorCode::kUnavailable);
        return true;
    }
  }

  // False: it is not asked for names.
  bool AnswerAsCutOff(FakeDaemon::Request& request, std::uint16_t number) {
    const bool resolves = request.header.type == net::FrameType::kResolve;
    if (!resolves && request.header.type != net::FrameType::kList) return false;
    const bool is_cut_off = number < cut_off_count;
    const bool accepts_old = resolves ? net::Resolve::Decode(request.body).value().accepts_old
                                      : net::List::Decode(request.body).value().accepts_old;
    if (is_cut_off && !accepts_old) {
      FakeDaemon::SendError(request, ErrorCode::kUnavailable);
      return true;
    }
    if (is_cut_off) ++accepted_count;
    const std::uint64_t revision = is_cut_off ? 1 : 2;
    net::ListReply list;
    list.entries.push_back({"x", revision, 10, 1});
    if (resolves)
      FakeDaemon::Send(request, net::ReplyTo(request.header.type),
                       net::RevisionReply{revision}.Encode(),
                       EncodeDatasetManifest(OneFile(10)).value());
    else
      FakeDaemon::Send(request, net::ReplyTo(request.header.type), list.Encode());
    return true;
  }

  void NoteUploads(const DatasetManifest& manifest) {
    for (const ManifestFile& file : manifest.files)
      for (const ManifestExtent& extent : file.extents) uploads_.insert(UploadOf(extent.id));
  }

  static bool Refuse(FakeDaemon::Request& request, std::uint16_t number) {
    if (number == 0) FakeDaemon::SendError(request, ErrorCode::kUnavailable);
    return true;
  }

  std::array<std::unique_ptr<Daemon>, kNodeCount> nodes_;
  std::mutex mutex_;
  net::ClusterMapReply reply_;
  SlotMap map_;
  std::vector<net::Publish> publications_;
  std::set<std::uint64_t> uploads_;
  std::optional<std::vector<std::byte>> manifest_;  // Manifest of the one name that is published.
  std::atomic<int> map_count_{0};
  std::array<std::unique_ptr<FakeDaemon>, kScriptCount> scripts_;
};

}  // namespace ffrecord::test
