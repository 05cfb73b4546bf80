#include "client/collective/messages.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <new>
#include <string>
#include <utility>

#include "libffrecord/base/assert.h"

namespace ffrecord::client {
namespace {

// The begin of a head; the bytes of a small message follow.
struct Label {
  std::int64_t tag;
  std::uint64_t size_bytes;
};
static_assert(Messages::kInlineSizeMax == Messages::kHeadSizeBytes - sizeof(Label));

}  // namespace

// --- The sender ----------------------------------------------------------------------------------

Messages::Token Messages::Send(const std::byte* data, std::uint64_t size_bytes, std::int64_t tag,
                               Wants& wants) {
  const Token token = next_token_++;
  const bool is_small = size_bytes <= kInlineSizeMax;
  auto head = std::make_unique<Head>();
  const Label label{tag, size_bytes};
  std::memcpy(head->data(), &label, sizeof(label));
  if (is_small && size_bytes > 0) std::memcpy(head->data() + sizeof(label), data, size_bytes);
  wants.parts.push_back({head->data(), head->size(), true});
  under_way_.push_back(
      {.sent_head = std::move(head), .ends = is_small ? std::optional(token) : std::nullopt});
  if (is_small) return token;
  // The engine only reads what rank 0 broadcasts.
  wants.parts.push_back({const_cast<std::byte*>(data), size_bytes, true});
  under_way_.push_back({.ends = token});
  return token;
}

// --- The receiver --------------------------------------------------------------------------------

Messages::Token Messages::Receive(std::byte* data, std::uint64_t size_bytes, std::int64_t tag,
                                  Wants& wants) {
  if (const auto token = ReceiveKept(data, size_bytes, tag, wants)) return *token;
  const Token token = next_token_++;
  wanted_.push_back({token, data, size_bytes, tag});
  Ask(wants);
  return token;
}

std::optional<Messages::Token> Messages::ReceiveKept(std::byte* data, std::uint64_t size_bytes,
                                                     std::int64_t tag, Wants& wants) {
  const auto kept = FindKept(tag);
  if (kept == kept_.end()) return std::nullopt;
  const Token token = next_token_++;
  Take(kept, {token, data, size_bytes, tag}, wants);
  return token;
}

Messages::Token Messages::Probe(std::int64_t tag, Wants& wants) {
  const Token token = next_token_++;
  probes_.push_back({token, tag});
  if (FindKept(tag) != kept_.end()) AnswerProbes(tag, wants);
  return token;
}

void Messages::Look(bool peer_sends, Wants& wants) {
  const bool keeps_next = std::exchange(keeps_next_, false) && KeptSize() < kKeptSizeMax;
  if (peer_sends && (has_probes() || keeps_next)) Ask(wants);
}

std::uint64_t Messages::KeptSize() const {
  std::uint64_t size_bytes = 0;
  for (const Kept& kept : kept_) size_bytes += kept.size_bytes;
  return size_bytes;
}

void Messages::Ask(Wants& wants) {
  if (is_asking_) return;
  is_asking_ = true;
  wants.parts.push_back({head_.data(), head_.size(), false});
  under_way_.push_back({.is_asked_head = true});
}

Result<void> Messages::PartEnded(Wants& wants) {
  FFR_ASSERT(!under_way_.empty());
  const UnderWay ended = std::move(under_way_.front());
  under_way_.pop_front();
  if (ended.is_asked_head) return HeadCame(wants);
  if (ended.ends) wants.ended.push_back({*ended.ends});
  if (ended.kept == nullptr) return {};
  const auto kept =
      std::ranges::find_if(kept_, [&](const Kept& each) { return &each == ended.kept; });
  kept->has_come = true;
  if (kept->taker) HandOver(kept, wants);
  return {};
}

void Messages::Stop() {
  under_way_.clear();
  wanted_.clear();
  probes_.clear();
  std::erase_if(kept_, [](const Kept& kept) { return !kept.has_come; });
}

Result<void> Messages::HeadCame(Wants& wants) {
  is_asking_ = false;
  Label label{};
  std::memcpy(&label, head_.data(), sizeof(label));
  if (label.size_bytes > kSizeMax)
    return Error{
        ErrorCode::kCorruption,
        "rank 0 sent a message of " + std::to_string(label.size_bytes) + " bytes, which cannot be"};
  const bool is_small = label.size_bytes <= kInlineSizeMax;
  const auto found = std::ranges::find(wanted_, label.tag, &Wanted::tag);
  std::optional<Wanted> wanted;
  if (found != wanted_.end()) {
    wanted = *found;
    wanted_.erase(found);
  }
  if (!wanted || wanted->size_bytes != label.size_bytes) {
    FFR_TRY(Keep(label.tag, label.size_bytes, wanted, wants));
    if (!wanted) AnswerProbes(label.tag, wants);
  } else if (is_small) {
    if (label.size_bytes > 0)
      std::memcpy(wanted->data, head_.data() + sizeof(label), label.size_bytes);
    wants.ended.push_back({wanted->token});
  } else {
    wants.parts.push_back({wanted->data, label.size_bytes, true});
    under_way_.push_back({.ends = wanted->token});
  }
  if (!wanted_.empty()) Ask(wants);
  return {};
}

// A message of the wrong size is kept as well, until it has come: the next one follows it.
Result<void> Messages::Keep(std::int64_t tag, std::uint64_t size_bytes, std::optional<Wanted> taker,
                            Wants& wants) {
  std::unique_ptr<std::byte[]> bytes(new (std::nothrow) std::byte[size_bytes]);
  if (!bytes)
    return Error{ErrorCode::kIo,
                 "there is no memory for a message of " + std::to_string(size_bytes) +
                     " bytes that came with tag " + std::to_string(tag) +
                     " and no receive takes: receive messages sooner",
                 ENOMEM};
  const bool is_small = size_bytes <= kInlineSizeMax;
  if (is_small) std::memcpy(bytes.get(), head_.data() + sizeof(Label), size_bytes);
  kept_.push_back({tag, size_bytes, std::move(bytes), is_small, taker});
  Kept& kept = kept_.back();
  if (!is_small) {
    wants.parts.push_back({kept.bytes.get(), size_bytes, true});
    under_way_.push_back({.kept = &kept});
  } else if (taker) {
    HandOver(std::prev(kept_.end()), wants);
  }
  return {};
}

void Messages::AnswerProbes(std::int64_t tag, Wants& wants) {
  for (const Probing& probe : probes_)
    if (probe.tag == tag) wants.ended.push_back({probe.token});
  std::erase_if(probes_, [&](const Probing& probe) { return probe.tag == tag; });
}

std::list<Messages::Kept>::iterator Messages::FindKept(std::int64_t tag) {
  return std::ranges::find_if(kept_,
                              [&](const Kept& kept) { return kept.tag == tag && !kept.taker; });
}

void Messages::Take(std::list<Kept>::iterator kept, const Wanted& taker, Wants& wants) {
  kept->taker = taker;
  if (kept->has_come) HandOver(kept, wants);
}

void Messages::HandOver(std::list<Kept>::iterator kept, Wants& wants) {
  const Wanted& taker = *kept->taker;
  if (kept->size_bytes == taker.size_bytes) {
    if (kept->size_bytes > 0) std::memcpy(taker.data, kept->bytes.get(), kept->size_bytes);
    wants.ended.push_back({taker.token});
  } else {
    wants.ended.push_back(
        {taker.token, Error{ErrorCode::kInvalidArgument,
                            "recv: " + std::to_string(kept->size_bytes) +
                                " bytes were sent with tag " + std::to_string(kept->tag) +
                                ", and the tensor has " + std::to_string(taker.size_bytes)}});
  }
  kept_.erase(kept);
}

}  // namespace ffrecord::client
