#include "server/metadata/blocking_store.h"

#include <future>
#include <string>
#include <utility>

namespace ffrecord::server {
namespace {

// The result of an operation that `begin` begins.
template <class T, class Begin>
Result<T> Await(const Begin& begin) {
  const auto promise = std::make_shared<std::promise<Result<T>>>();
  begin([promise](Result<T> result) { promise->set_value(std::move(result)); });
  return promise->get_future().get();
}

class AwaitingStore final : public BlockingStore {
 public:
  explicit AwaitingStore(std::unique_ptr<MetaStore> store) : store_(std::move(store)) {}

  Result<std::optional<KeyValue>> Get(std::string_view key) override {
    return Await<std::optional<KeyValue>>(
        [&](auto done) { store_->Get(std::string(key), kNever, std::move(done)); });
  }

  Result<Page> List(std::string_view prefix, std::string_view after, std::uint32_t limit) override {
    const MetaStore::ListRequest request{std::string(prefix), std::string(after), limit, 0};
    return Await<Page>([&](auto done) { store_->List(request, kNever, std::move(done)); });
  }

  Result<Outcome> TryCommit(const Commit& commit) override {
    const MetaStore::Outcome outcome = FFR_TRY(Await<MetaStore::Outcome>(
        [&](auto done) { store_->TryCommit(commit, kNever, std::move(done)); }));
    if (outcome.why) return *outcome.why;
    return Outcome{outcome.fate == MetaStore::Outcome::Fate::kCommitted, outcome.revision};
  }

 private:
  static constexpr auto kNever = MetaStore::TimePoint::max();

  const std::unique_ptr<MetaStore> store_;
};

}  // namespace

std::unique_ptr<BlockingStore> MakeBlockingStore(std::unique_ptr<MetaStore> store) {
  return std::make_unique<AwaitingStore>(std::move(store));
}

}  // namespace ffrecord::server
