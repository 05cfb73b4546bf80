#include "server/metadata/etcd_store.h"

#include <algorithm>
#include <cctype>
#include <functional>
#include <map>
#include <mutex>
#include <string_view>
#include <thread>
#include <type_traits>
#include <utility>

#include "libffrecord/base/assert.h"
#include "libffrecord/base/quiet_signals.h"
#include "server/metadata/etcd_calls.h"
#include "server/metadata/etcd_messages.h"
#include "server/metadata/etcd_watches.h"

namespace ffrecord::server {
namespace {

using namespace std::chrono_literals;

constexpr std::size_t kConnectionCountMax = 64;

Error Invalid(std::string what) { return {ErrorCode::kInvalidArgument, std::move(what)}; }

bool IsEndpoint(std::string_view text) {
  for (const std::string_view scheme : {"http://", "https://"}) {
    if (!text.starts_with(scheme)) continue;
    text.remove_prefix(scheme.size());
    const auto is_good = [](unsigned char c) {
      return std::isalnum(c) != 0 ||
             std::string_view(".-_:[]").find(static_cast<char>(c)) != std::string_view::npos;
    };
    return !text.empty() && std::ranges::all_of(text, is_good);
  }
  return false;
}

Result<void> Check(const EtcdOptions& options) {
  if (options.endpoints.empty())
    return Invalid("etcd: no endpoints; give the members' addresses, such as http://host:2379");
  for (const std::string& endpoint : options.endpoints)
    if (!IsEndpoint(endpoint))
      return Invalid(
          "etcd: " + endpoint +
          " is not the address of a member; write http://host:2379 or https://host:2379");
  const auto is_good = [](unsigned char c) {
    return std::isalnum(c) != 0 || c == '.' || c == '-' || c == '_';
  };
  if (options.cluster.empty() || !std::ranges::all_of(options.cluster, is_good))
    return Invalid("etcd: the cluster's name \"" + options.cluster +
                   "\" is not made of letters, digits, '.', '-' and '_'");
  return {};
}

// A reply that cannot be read says nothing about what was done.
template <class T>
Result<T> Read(Result<T> parsed) {
  if (!parsed) return Unanswered<T>({ErrorCode::kUnavailable, parsed.error().message});
  return parsed;
}

class EtcdStore final : public MetaStore {
 public:
  EtcdStore(EtcdOptions options, std::unique_ptr<net::HttpTransfers> transfers)
      : options_(std::move(options)),
        requests_(options_.cluster),
        transfers_(std::move(transfers)),
        calls_(options_, *transfers_),
        watches_(options_, requests_, calls_, *transfers_,
                 [this](WatchId id, News news) { Tell(id, std::move(news)); }) {
    const QuietSignals quiet;
    thread_ = std::thread([this] { Run(); });
  }

  ~EtcdStore() override {
    {
      const std::lock_guard lock(mutex_);
      is_closing_ = true;
      on_news_.clear();
    }
    transfers_->Wake();
    thread_.join();
  }

  void Get(std::string key, TimePoint deadline, Done<std::optional<KeyValue>> done) override {
    Begin<std::optional<KeyValue>>(
        requests_.Get(key), deadline, std::move(done),
        [this](std::string_view body) { return EtcdReplies::Get(body, requests_.prefix()); });
  }

  void List(ListRequest request, TimePoint deadline, Done<Page> done) override {
    Begin<Page>(requests_.List(request), deadline, std::move(done),
                [this, revision = request.revision](std::string_view body) {
                  return EtcdReplies::List(body, requests_.prefix(), revision);
                });
  }

  void TryCommit(Commit commit, TimePoint deadline, Done<Outcome> done) override {
    if (auto checked = CheckCommit(commit); !checked) {
      Post([done = std::move(done), why = checked.error()] { done(why); });
      return;
    }
    Begin<Outcome>(requests_.TryCommit(commit), deadline, std::move(done),
                   [](std::string_view body) { return EtcdReplies::TryCommit(body); });
  }

  void GrantLease(std::chrono::milliseconds ttl, TimePoint deadline, Done<Lease> done) override {
    Begin<Lease>(EtcdRequests::GrantLease(ttl), deadline, std::move(done),
                 [](std::string_view body) { return EtcdReplies::GrantLease(body); });
  }

  void KeepLease(LeaseId lease, TimePoint deadline,
                 Done<std::optional<std::chrono::milliseconds>> done) override {
    Begin<std::optional<std::chrono::milliseconds>>(
        EtcdRequests::KeepLease(lease), deadline, std::move(done),
        [](std::string_view body) { return EtcdReplies::KeepLease(body); });
  }

  void RevokeLease(LeaseId lease, TimePoint deadline, Done<void> done) override {
    auto unless_ended = [done = std::move(done)](Result<void> result) {
      const bool has_ended = !result && result.error().code == ErrorCode::kNotFound;
      done(has_ended ? Result<void>() : std::move(result));
    };
    Begin<void>(EtcdRequests::RevokeLease(lease), deadline, std::move(unless_ended),
                [](std::string_view) { return Result<void>(); });
  }

  WatchId Watch(std::string prefix, std::uint64_t from_revision, OnNews on_news) override {
    FFR_ASSERT(from_revision > 0);
    WatchId id = 0;
    {
      const std::lock_guard lock(mutex_);
      id = next_watch_++;
      on_news_[id] = std::move(on_news);
    }
    Post([this, id, prefix = std::move(prefix), from_revision] {
      watches_.Start(id, prefix, from_revision);
    });
    return id;
  }

  void StopWatch(WatchId watch) override {
    {
      const std::lock_guard lock(mutex_);
      on_news_.erase(watch);
    }
    Post([this, watch] { watches_.Stop(watch); });
  }

 private:
  template <class T, class Parse>
  void Begin(EtcdRequest request, TimePoint deadline, Done<T> done, Parse parse) {
    EtcdCalls::Call call;
    call.request = std::move(request);
    call.deadline = deadline;
    call.is_sent_once = std::is_same_v<T, Outcome>;
    call.done = [done = std::move(done), parse = std::move(parse)](EtcdAnswer answer) {
      if (!answer.error)
        done(Read<T>(parse(answer.body)));
      else if (answer.is_unclear)
        done(Unanswered<T>(*std::move(answer.error)));
      else
        done(*std::move(answer.error));
    };
    Post([this, call = std::move(call)] { calls_.Begin(call); });
  }

  // Runs `act` on the thread.
  void Post(std::function<void()> act) {
    {
      const std::lock_guard lock(mutex_);
      posted_.push_back(std::move(act));
    }
    transfers_->Wake();
  }

  // --- The thread ---

  void Run() {
    std::vector<net::HttpTransfer*> ended;
    while (RunPosted()) {
      const TimePoint now = Clock::now();
      watches_.Tick(now);
      calls_.Tick(now);
      ended.clear();
      const auto moved = transfers_->Wait(UntilNext(), ended);
      FFR_ASSERT(moved);  // It fails for want of memory alone.
      for (net::HttpTransfer* transfer : ended) {
        const bool is_taken = calls_.Take(*transfer) || watches_.Take(*transfer);
        FFR_ASSERT(is_taken);
      }
    }
    watches_.Close();
    calls_.Close();
  }

  // False: the store is closed, and the operations that were posted are the calls'.
  bool RunPosted() {
    std::vector<std::function<void()>> posted;
    bool is_closing = false;
    {
      const std::lock_guard lock(mutex_);
      posted = std::exchange(posted_, {});
      is_closing = is_closing_;
    }
    for (const auto& act : posted) act();
    return !is_closing;
  }

  std::chrono::milliseconds UntilNext() const {
    const TimePoint next = std::min(calls_.next(), watches_.next());
    const TimePoint now = Clock::now();
    if (next <= now) return 0ms;
    return std::chrono::ceil<std::chrono::milliseconds>(std::min<Clock::duration>(next - now, 1h));
  }

  void Tell(WatchId id, News news) {
    OnNews on_news;
    {
      const std::lock_guard lock(mutex_);
      const auto found = on_news_.find(id);
      if (found == on_news_.end()) return;
      on_news = found->second;
      if (news.kind != News::Kind::kEvents) on_news_.erase(found);
    }
    on_news(std::move(news));
  }

  const EtcdOptions options_;
  const EtcdRequests requests_;
  const std::unique_ptr<net::HttpTransfers> transfers_;
  // The thread's.
  EtcdCalls calls_;
  EtcdWatches watches_;

  std::mutex mutex_;  // Guards all below.
  std::vector<std::function<void()>> posted_;
  std::map<WatchId, OnNews> on_news_;
  WatchId next_watch_ = 1;
  bool is_closing_ = false;
  std::thread thread_;
};

}  // namespace

Result<std::unique_ptr<MetaStore>> OpenEtcdStore(EtcdOptions options) {
  FFR_TRY(Check(options));
  auto transfers = FFR_TRY(net::HttpTransfers::Create(kConnectionCountMax));
  return std::unique_ptr<MetaStore>(
      std::make_unique<EtcdStore>(std::move(options), std::move(transfers)));
}

}  // namespace ffrecord::server
