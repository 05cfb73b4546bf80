// What nodes and clients of a simulated cluster say to each other, and what nodes do to disks.

#include <algorithm>
#include <utility>

#include "libffrecord/base/checksum.h"
#include "libffrecord/base/hex.h"
#include "sim_client.h"
#include "sim_node.h"
#include "simulation.h"

namespace ffrecord::test {

using namespace server::cluster;
using std::chrono::seconds;

// --- The network --------------------------------------------------------------------------------

bool Simulation::IsCut(const Node* from, const Node& to) const {
  return !cuts_.empty() && cuts_.contains({from ? from->id : "", to.id});
}

template <class T>
void Simulation::Ask(Node* from, const std::string& to, Duration patience,
                     std::function<Result<T>(Node&)> ask, Done<T> done) {
  auto state = std::make_shared<Done<T>>(std::move(done));
  const auto finish = [state](Result<T> result) {
    if (*state) std::exchange(*state, nullptr)(std::move(result));
  };
  At(std::max(patience, Duration(0)), [finish] {
    finish(Error{ErrorCode::kDeadlineExceeded, "no answer"});
  });
  Node* const node = Find(to);
  if (node == nullptr || IsCut(from, *node) || Chance(is_healing_ ? 0 : loss_)) return;
  At(Delay(), [this, from, node, finish, ask = std::move(ask)] {
    if (!node->is_up) return finish(Error{ErrorCode::kUnavailable, "the node is down"});
    On(*node, [this, from, node, finish, ask] {
      auto result = ask(*node);
      const bool is_lost = from != nullptr && IsCut(node, *from);
      if (is_lost || Chance(is_healing_ ? 0 : loss_)) return;
      const bool is_late = Chance(is_healing_ ? 0 : late_answers_);
      At(is_late ? Between(100, 5'000) : Delay(),
         [finish, result = std::move(result)] { finish(result); });
    });
  });
}

void Simulation::AskHoldingsOf(Node& node, const AskHoldings& question, Duration patience,
                               Done<Holdings> done) {
  Provoke(node);
  Ask<Holdings>(
      &node, question.node, patience,
      [this, question](Node& other) {
        Holdings holdings = other.machine->OnAsk(Local(other), question);
        CheckAnswer(other, question, holdings);
        return Result<Holdings>(std::move(holdings));
      },
      [this, &node, question, done = std::move(done)](const Result<Holdings>& holdings) {
        if (holdings) NotePromises(node, question, holdings.value());
        done(holdings);
      });
}

void Simulation::AskKnownOf(Node& node, const AskKnown& question, Duration patience,
                            Done<Known> done) {
  Ask<Known>(
      &node, question.node, patience,
      [this, question](Node& other) {
        return Result<Known>(other.machine->OnAsk(Local(other), question));
      },
      std::move(done));
}

template <class Question>
void Simulation::AskFlags(Node& node, const Question& question, Duration patience,
                          Done<Flags> done) {
  Ask<Flags>(
      &node, question.node, patience,
      [this, question](Node& other) {
        Flags flags = other.machine->OnAsk(Local(other), question);
        CheckAnswer(other, question, flags);
        return Result<Flags>(std::move(flags));
      },
      [this, &node, question, done = std::move(done)](const Result<Flags>& flags) {
        if (flags) NoteAnswer(node, question, flags.value());
        done(flags);
      });
}

// --- Disks --------------------------------------------------------------------------------------

Result<Body> Simulation::ReadBody(Node& node, const ManifestExtent& extent) {
  const auto found = node.disk.replicas.find(extent.id);
  if (!node.disk.Find(extent.id)) return Error{ErrorCode::kNotFound, "not here"};
  if (found->second.is_rotten) {
    FindOut(found->second);
    return Error{ErrorCode::kCorruption, "rotten"};
  }
  return found->second.bytes;
}

void Simulation::Fetch(Node& node, FetchBody fetch, std::size_t next, Done<Body> done) {
  if (next == 0)
    if (auto own = ReadBody(node, fetch.extents.front())) return done(std::move(own));
  if (next == fetch.nodes.size()) return done(Error{ErrorCode::kUnavailable, "nobody has it"});
  const ManifestExtent extent = fetch.extents.front();
  const std::string from = fetch.nodes[next];
  const std::uint64_t incarnation = node.incarnation;
  Ask<Body>(
      &node, from, seconds(1), [this, extent](Node& other) { return ReadBody(other, extent); },
      [this, &node, fetch = std::move(fetch), next, done, incarnation](Result<Body> body) {
        if (!node.is_up || node.incarnation != incarnation) return;
        if (body) return done(std::move(body));
        Fetch(node, fetch, next + 1, done);
      });
}

void Simulation::Pull(Node& node, PullExtent pull, std::size_t next, Done<void> done) {
  const ManifestExtent extent = pull.extent;
  const auto end = [&node, extent, done](Result<void> result) {
    std::erase(node.disk.pulling, extent.id);
    done(std::move(result));
  };
  if (pull.part) return Rebuild(node, pull, end);
  if (pull.nodes.empty()) return WriteKnown(node, extent, end);
  if (next == pull.nodes.size()) return end(Error{ErrorCode::kUnavailable, "nobody has it"});
  const std::string from = pull.nodes[next];
  const std::uint64_t incarnation = node.incarnation;
  Ask<Body>(
      &node, from, seconds(3), [this, extent](Node& other) { return ReadBody(other, extent); },
      [this, &node, pull = std::move(pull), next, done, end, extent,
       incarnation](Result<Body> body) {
        if (!node.is_up || node.incarnation != incarnation) return;
        if (!body) return Pull(node, pull, next + 1, done);
        // The bytes arrive, and are written.
        At(Between(1, 400), [this, &node, end, extent, incarnation, bytes = body.value()] {
          if (!node.is_up || node.incarnation != incarnation) return;
          On(node, [this, &node, end, extent, bytes] {
            // An id is free again once its old file is gone.
            if (const auto old = node.disk.replicas.find(extent.id);
                old != node.disk.replicas.end() && old->second.is_dropping)
              return end(Error{ErrorCode::kConflict, "it is being dropped"});
            ++counts_.pulls;
            Trace(node.id, " has pulled ", Hex(extent.id));
            node.disk.replicas.insert_or_assign(extent.id, SimDisk::Replica{extent, bytes, now_});
            end({});
          });
        });
      });
}

// The list of files of a name that the node knows.
void Simulation::WriteKnown(Node& node, const ManifestExtent& extent, const Done<void>& end) {
  const std::uint64_t incarnation = node.incarnation;
  At(Between(1, 400), [this, &node, extent, end, incarnation] {
    if (!node.is_up || node.incarnation != incarnation) return;
    On(node, [this, &node, extent, end] {
      const auto& names = node.machine->view().names.names();
      const auto name = std::ranges::find_if(names, [&](const auto& entry) {
        return entry.second.manifest && entry.second.record.body == std::vector{extent};
      });
      if (name == names.end()) return end(Error{ErrorCode::kNotFound, "no such name"});
      const auto old = node.disk.replicas.find(extent.id);
      if (old != node.disk.replicas.end() && old->second.is_dropping)
        return end(Error{ErrorCode::kConflict, "it is being dropped"});
      const Body bytes = EncodeDatasetManifest(*name->second.manifest).value();
      if (Xxh3(bytes) != extent.xxh3) Fail(node.id + " knows another list of " + name->first);
      ++counts_.lists;
      Trace(node.id, " writes out what it knows: ", Hex(extent.id));
      node.disk.replicas.insert_or_assign(extent.id, SimDisk::Replica{extent, bytes, now_});
      end({});
    });
  });
}

// Of the members that nodes have when they are asked.
void Simulation::Rebuild(Node& node, const PullExtent& pull, const Done<void>& end) {
  const std::uint64_t incarnation = node.incarnation;
  At(Between(1, 800), [this, &node, end, pull, incarnation] {
    if (!node.is_up || node.incarnation != incarnation) return;
    On(node, [this, &node, end, pull] {
      const Stripe& stripe = pull.part->stripe;
      std::size_t count = 0;
      for (std::size_t i = 0; i < stripe.members.size(); ++i)
        count += i != pull.part->member &&
                         std::ranges::any_of(nodes_,
                                             [&](const auto& other) {
                                               if (!other->is_up || IsCut(&node, *other) ||
                                                   IsCut(other.get(), node))
                                                 return false;
                                               if (now_ < other->paused_until) return false;
                                               return bool(ReadBody(*other, stripe.members[i]));
                                             })
                     ? 1
                     : 0;
      if (count < stripe.data_count)
        return end(Error{ErrorCode::kNotFound, "too few members of its stripe"});
      if (const auto old = node.disk.replicas.find(pull.extent.id);
          old != node.disk.replicas.end() && old->second.is_dropping)
        return end(Error{ErrorCode::kConflict, "it is being dropped"});
      ++counts_.rebuilds;
      Trace(node.id, " has computed ", Hex(pull.extent.id));
      node.disk.replicas.insert_or_assign(pull.extent.id, SimDisk::Replica{pull.extent, {}, now_});
      end({});
    });
  });
}

// An extent of an upload: taken only while that is open. An answer means that it is durable.
Result<void> Simulation::Write(Node& node, const ManifestExtent& extent, Body bytes) {
  const std::uint64_t upload = UploadOf(extent.id);
  if (!node.machine->TakesUpload(Local(node), upload))
    return Error{ErrorCode::kUnavailable, "that upload is not open here"};
  CheckWriter(node);
  node.disk.heard[upload] = Local(node);
  const auto found = node.disk.replicas.find(extent.id);
  if (found != node.disk.replicas.end() && !found->second.is_known_bad) {
    if (found->second.is_dropping) return Error{ErrorCode::kUnavailable, "it is being dropped"};
    if (found->second.extent != extent)
      return Error{ErrorCode::kConflict, "it is here with other bytes"};
    return {};
  }
  Trace(node.id, " takes ", Hex(extent.id));
  node.disk.replicas.insert_or_assign(extent.id, SimDisk::Replica{extent, std::move(bytes), now_});
  return {};
}

void Simulation::Drop(Node& node, const ExtentId& id) {
  const auto found = node.disk.replicas.find(id);
  if (found == node.disk.replicas.end() || found->second.is_dropping) return;
  Trace(node.id, " drops ", Hex(id));
  ++counts_.drops;
  found->second.is_dropping = true;
  CheckDrop(node, id);
  // Unlinked once readers have gone.
  const std::uint64_t incarnation = node.incarnation;
  At(Between(0, 2000), [&node, id, incarnation] {
    if (node.is_up && node.incarnation == incarnation) node.disk.replicas.erase(id);
  });
}

// --- For clients --------------------------------------------------------------------------------

// The answer comes when the request has finished, if the node has not crashed by then.
void Simulation::AskPublication(const std::string& to, Publication::Request request,
                                Done<std::uint64_t> done) {
  auto state = std::make_shared<Done<std::uint64_t>>(std::move(done));
  const auto finish = [state](Result<std::uint64_t> result) {
    if (*state) std::exchange(*state, nullptr)(std::move(result));
  };
  At(request.deadline - now_ + seconds(2), [finish] {
    finish(Error{ErrorCode::kDeadlineExceeded, "no answer"});
  });
  Node* const node = Find(to);
  if (IsCut(nullptr, *node) || Chance(is_healing_ ? 0 : loss_)) return;
  At(Delay(), [this, node, finish, request = std::move(request)] {
    if (!node->is_up) return finish(Error{ErrorCode::kUnavailable, "the node is down"});
    On(*node, [this, node, finish, request] {
      Provoke(*node);
      Publication::Request local = request;
      local.deadline = Local(*node) + (request.deadline - now_);
      const auto id = node->machine->Begin(std::move(local));
      node->requests[id] = [this, node, finish, request,
                            asked_at = now_](Result<std::uint64_t> result) {
        if (!result) CheckRefusal(*node, request, asked_at, result.error());
        if (Chance(is_healing_ ? 0 : loss_)) return;
        At(Delay(), [finish, result = std::move(result)] { finish(result); });
      };
      Step(*node, nullptr);
    });
  });
}

void Simulation::AskName(const std::string& to, const std::string& name) {
  const auto generation = state_.Get(std::string(kGenerationKey));
  const std::uint64_t revision = generation ? generation->mod_revision : 0;
  Node* const node = Find(to);
  if (was_put_back_ || IsCut(nullptr, *node) || Chance(loss_)) return;
  At(Delay(), [this, node, name, revision] {
    On(*node, [this, node, name, revision] {
      const auto id = node->machine->BeginLook(name, Local(*node) + seconds(3));
      node->requests[id] = [this, node, name, revision](const Result<std::uint64_t>& told) {
        ++(told ? counts_.looks : counts_.looks_refused);
        if (told && !was_put_back_) CheckTold(*node, name, revision);
      };
      Step(*node, nullptr);
    });
  });
}

template void Simulation::AskFlags(Node&, const AskHeard&, Duration, Done<Flags>);
template void Simulation::AskFlags(Node&, const AskBuried&, Duration, Done<Flags>);
template void Simulation::AskFlags(Node&, const AskFilled&, Duration, Done<Flags>);
template void Simulation::Ask<void>(Node*, const std::string&, Duration,
                                    std::function<Result<void>(Node&)>, Done<void>);

}  // namespace ffrecord::test
