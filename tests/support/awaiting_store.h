#pragma once

// A BlockingStore over any MetaStore: each call waits for its answer, without a deadline.

#include <future>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "server/metadata/blocking_store.h"

namespace ffrecord::test {

class AwaitingStore final : public server::BlockingStore {
 public:
  explicit AwaitingStore(std::unique_ptr<server::MetaStore> store) : store_(std::move(store)) {}

  Result<std::optional<KeyValue>> Get(std::string_view key) override {
    return Await<std::optional<KeyValue>>(
        [&](auto done) { store_->Get(std::string(key), kNever, std::move(done)); });
  }
  Result<Page> List(std::string_view prefix, std::string_view after, std::uint32_t limit) override {
    const server::MetaStore::ListRequest request{std::string(prefix), std::string(after), limit, 0};
    return Await<Page>([&](auto done) { store_->List(request, kNever, std::move(done)); });
  }
  Result<Outcome> TryCommit(const Commit& commit) override {
    const auto outcome = FFR_TRY(Await<server::MetaStore::Outcome>(
        [&](auto done) { store_->TryCommit(commit, kNever, std::move(done)); }));
    if (outcome.why) return *outcome.why;
    return Outcome{outcome.fate == server::MetaStore::Outcome::Fate::kCommitted, outcome.revision};
  }

 private:
  static constexpr auto kNever = server::MetaStore::TimePoint::max();

  // The result of an operation that `begin` begins.
  template <class T, class Begin>
  static Result<T> Await(const Begin& begin) {
    const auto promise = std::make_shared<std::promise<Result<T>>>();
    begin([promise](Result<T> result) { promise->set_value(std::move(result)); });
    return promise->get_future().get();
  }

  const std::unique_ptr<server::MetaStore> store_;
};

}  // namespace ffrecord::test
