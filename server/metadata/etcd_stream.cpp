#include "server/metadata/etcd_stream.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "server/metadata/etcd_verdict.h"

namespace ffrecord::server {
namespace {

using News = MetaStore::News;

// etcd cuts what it sends into fragments of the size that a request may have.
constexpr std::size_t kLineSizeMax = 64 << 20;

News Broken(Error why) { return {News::Kind::kBroken, {}, std::move(why)}; }

// The code at the beginning of "rpc error: code = PermissionDenied desc = ...".
std::optional<int> CodeOf(std::string_view reason) {
  constexpr std::pair<std::string_view, int> kCodes[] = {
      {"InvalidArgument", 3}, {"PermissionDenied", 7}, {"Unauthenticated", 16}};
  for (const auto& [name, code] : kCodes)
    if (reason.find(name) != std::string_view::npos) return code;
  return 2;  // Unknown.
}

}  // namespace

std::vector<News> EtcdStream::Take(std::string& bytes) {
  std::vector<News> news;
  std::size_t begin = 0;
  for (std::size_t end; (end = bytes.find('\n', begin)) != std::string::npos; begin = end + 1) {
    auto told = TakeLine(std::string_view(bytes).substr(begin, end - begin));
    if (!told) continue;
    news.push_back(*std::move(told));
    if (news.back().kind != News::Kind::kEvents) return news;
  }
  bytes.erase(0, begin);
  if (bytes.size() > kLineSizeMax)
    news.push_back(Broken({ErrorCode::kUnavailable, member_ + ": a line of a watch is too long"}));
  return news;
}

std::optional<News> EtcdStream::TakeLine(std::string_view text) {
  auto parsed = ParseEtcdWatchLine(text, prefix_);
  if (!parsed) return Broken({ErrorCode::kUnavailable, member_ + ": " + parsed.error().message});
  EtcdWatchLine line = std::move(parsed).value();
  if (line.refusal) return Ended(*line.refusal);
  if (line.compact_revision != 0) return News{News::Kind::kCompacted, {}, std::nullopt};
  if (line.is_canceled) return Ended({0, CodeOf(line.cancel_reason), line.cancel_reason});
  is_created_ = is_created_ || line.is_created;
  return TakeEvents(std::move(line));
}

News EtcdStream::Ended(const EtcdRefusal& refusal) {
  EtcdVerdict verdict = JudgeEtcdRefusal(refusal, member_);
  wants_token_ = verdict.kind == EtcdVerdict::Kind::kTokenRefused;
  return Broken(std::move(verdict.error));
}

std::optional<News> EtcdStream::TakeEvents(EtcdWatchLine line) {
  std::ranges::move(line.events, std::back_inserter(held_));
  const auto not_ascending = std::ranges::is_sorted_until(held_, {}, &MetaStore::Event::revision);
  if (not_ascending != held_.end() || (!held_.empty() && held_.front().revision < next_revision_))
    return Broken({ErrorCode::kUnavailable, member_ + ": the events of a watch are out of order"});
  if (held_.empty()) return std::nullopt;
  const std::uint64_t last = held_.back().revision;
  News news;
  if (line.is_fragment) {
    const auto of_last = std::ranges::lower_bound(held_, last, {}, &MetaStore::Event::revision);
    news.events.assign(std::make_move_iterator(held_.begin()), std::make_move_iterator(of_last));
    held_.erase(held_.begin(), of_last);
  } else {
    news.events = std::exchange(held_, {});
  }
  if (news.events.empty()) return std::nullopt;
  next_revision_ = news.events.back().revision + 1;
  return news;
}

}  // namespace ffrecord::server
