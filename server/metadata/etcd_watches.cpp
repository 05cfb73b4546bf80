#include "server/metadata/etcd_watches.h"

#include <algorithm>
#include <set>
#include <span>
#include <utility>

#include "libffrecord/base/clock.h"
#include "server/metadata/etcd_verdict.h"

namespace ffrecord::server {

EtcdWatches::EtcdWatches(const EtcdOptions& options, const EtcdRequests& requests, EtcdCalls& calls,
                         net::HttpTransfers& transfers, OnNews on_news)
    : options_(options),
      requests_(requests),
      calls_(calls),
      transfers_(transfers),
      on_news_(std::move(on_news)) {}

void EtcdWatches::Start(WatchId id, std::string prefix, std::uint64_t from_revision) {
  auto watch = std::make_unique<Watch>();
  watch->prefix = std::move(prefix);
  watch->from_revision = from_revision;
  watch->began = Clock::now();
  watches_[id] = std::move(watch);
}

void EtcdWatches::Stop(WatchId id) {
  const auto found = watches_.find(id);
  if (found == watches_.end()) return;
  if (found->second->is_streaming) transfers_.Cancel(found->second->transfer);
  watches_.erase(found);
}

void EtcdWatches::Close() {
  for (const WatchId id : Ids()) Stop(id);
}

std::vector<EtcdWatches::WatchId> EtcdWatches::Ids() const {
  std::vector<WatchId> ids;
  for (const auto& [id, watch] : watches_) ids.push_back(id);
  return ids;
}

void EtcdWatches::Break(WatchId id, Error why) {
  Stop(id);
  on_news_(id, {MetaStore::News::Kind::kBroken, {}, std::move(why)});
}

void EtcdWatches::Connect(WatchId id, Watch& watch, TimePoint now) {
  watch.member = calls_.member();
  watch.request = requests_.Watch(watch.prefix, watch.from_revision);
  auto request = calls_.RequestTo(watch.member, watch.request);
  if (!request) return Break(id, std::move(request).error());
  if (!request.value()) return;  // The next Tick() asks again.
  watch.transfer = {};
  watch.transfer.request = *std::move(request).value();
  watch.transfer.stream = &watch.bytes;
  watch.bytes.clear();
  watch.stream = std::make_unique<EtcdStream>(requests_.prefix(), watch.from_revision,
                                              calls_.AddressOf(watch.member));
  watch.began = now;
  if (auto begun = transfers_.Begin(watch.transfer, options_.try_timeout); !begun)
    return Break(id, std::move(begun).error());
  watch.is_streaming = true;
}

void EtcdWatches::ReadStream(WatchId id, Watch& watch) {
  for (auto& news : watch.stream->Take(watch.bytes)) {
    if (news.kind == MetaStore::News::Kind::kEvents) {
      on_news_(id, std::move(news));
      continue;
    }
    const bool wants_token = watch.stream->wants_token();
    if (wants_token && !options_.user.empty() && !watch.had_token_refused) {
      calls_.ForgetToken();
      watch.had_token_refused = true;
      transfers_.Cancel(watch.transfer);
      watch.is_streaming = false;
      watch.from_revision = watch.stream->next_revision();
      return;
    }
    Stop(id);
    on_news_(id, std::move(news));
    return;
  }
}

void EtcdWatches::Tick(TimePoint now) {
  for (const WatchId id : Ids()) {
    const auto found = watches_.find(id);
    if (found == watches_.end()) continue;
    Watch& watch = *found->second;
    if (!watch.is_streaming)
      Connect(id, watch, now);
    else
      ReadStream(id, watch);
    const auto still = watches_.find(id);
    if (still == watches_.end()) continue;
    const bool is_created = watch.stream && watch.stream->is_created();
    if (is_created || now < watch.began + options_.try_timeout) continue;
    calls_.Suspect(watch.member);
    Break(id, {ErrorCode::kUnavailable, calls_.AddressOf(watch.member) +
                                            " did not begin a watch in time; see whether etcd "
                                            "runs there"});
  }
  if (now >= next_probe_) Probe(now);
}

void EtcdWatches::Probe(TimePoint now) {
  next_probe_ = now + options_.probe_interval;
  std::set<std::size_t> members;
  for (const auto& [id, watch] : watches_)
    if (watch->is_streaming) members.insert(watch->member);
  for (const std::size_t member : members)
    calls_.Begin({requests_.Probe(), now + options_.try_timeout, false, member,
                  [this, member](const EtcdAnswer& answer) {
                    if (answer.error) BreakAllOf(member, *answer.error);
                  }});
}

void EtcdWatches::BreakAllOf(std::size_t member, const Error& why) {
  for (const WatchId id : Ids()) {
    const auto found = watches_.find(id);
    if (found == watches_.end() || !found->second->is_streaming) continue;
    if (found->second->member == member) Break(id, why);
  }
}

EtcdWatches::TimePoint EtcdWatches::next() const {
  if (watches_.empty()) return TimePoint::max();
  TimePoint first = next_probe_;
  for (const auto& [id, watch] : watches_)
    if (!watch->stream || !watch->stream->is_created())
      first = std::min(first, watch->began + options_.try_timeout);
  return first;
}

bool EtcdWatches::Take(const net::HttpTransfer& transfer) {
  const auto found = std::ranges::find_if(
      watches_, [&](const auto& each) { return &each.second->transfer == &transfer; });
  if (found == watches_.end()) return false;
  const WatchId id = found->first;
  Watch& watch = *found->second;
  // The last bytes of the response may say why.
  const auto& response = watch.transfer.response;
  const std::string& member = calls_.AddressOf(watch.member);
  Error why{ErrorCode::kUnavailable, member + " ended a watch"};
  if (watch.transfer.error) {
    why.message = watch.transfer.error->message;
  } else if (response.status != 200) {
    const std::string_view body(reinterpret_cast<const char*>(response.body.data()),
                                response.body.size());
    why = JudgeEtcdRefusal(ParseEtcdRefusal(response.status, body), member).error;
  }
  auto news = watch.stream->Take(watch.bytes);
  calls_.Suspect(watch.member);
  watches_.erase(found);
  for (auto& each : news) {
    const bool is_end = each.kind != MetaStore::News::Kind::kEvents;
    on_news_(id, std::move(each));
    if (is_end) return true;
  }
  on_news_(id, {MetaStore::News::Kind::kBroken, {}, std::move(why)});
  return true;
}

}  // namespace ffrecord::server
