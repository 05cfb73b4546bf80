#pragma once

// A MetaStore as its tests use it: results are awaited, in virtual time or in real.

#include <gtest/gtest.h>

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "bytes.h"
#include "libffrecord/base/clock.h"
#include "server/metadata/memory_store.h"
#include "server/metadata/meta_store.h"

namespace ffrecord::test {

using server::MetaState;
using server::MetaStore;

inline std::vector<std::byte> Value(std::string_view text) {
  const auto bytes = AsBytes(text);
  return {bytes.begin(), bytes.end()};
}

// One form of the store, and how its time passes.
class TestedStore {
 public:
  virtual ~TestedStore() = default;
  virtual MetaStore& store() = 0;
  virtual MetaStore::TimePoint now() const { return Clock::now(); }
  // Waits for `is_done`, which the store's callbacks make true; false: it did not come in time.
  bool WaitFor(const std::function<bool()>& is_done, std::chrono::seconds patience) {
    const auto end = now() + patience;
    std::unique_lock lock(mutex_);
    while (!is_done()) {
      if (now() >= end) return false;
      Pass(lock);
    }
    return true;
  }
  // Runs a callback's work so that WaitFor() sees it.
  template <class Act>
  void Note(const Act& act) {
    const std::lock_guard lock(mutex_);
    act();
    changed_.notify_all();
  }
  // Makes the store forget the changes up to `newest`, its revision. Its revision then.
  virtual std::uint64_t Compact(std::uint64_t newest) = 0;

  std::mutex& mutex() { return mutex_; }

 protected:
  // Lets a little time pass, with the mutex not held meanwhile.
  virtual void Pass(std::unique_lock<std::mutex>& lock) {
    changed_.wait_for(lock, std::chrono::milliseconds(50));
  }
  std::mutex mutex_;
  std::condition_variable changed_;
};

// The result of the operation that `begin` begins. Without one within a minute the test fails.
template <class T, class Begin>
Result<T> Await(TestedStore& tested, const Begin& begin) {
  const auto result = std::make_shared<std::optional<Result<T>>>();
  begin([result, &tested](Result<T> got) {
    tested.Note([&] {
      EXPECT_FALSE(*result) << "completed twice";
      result->emplace(std::move(got));
    });
  });
  const bool has_come =
      tested.WaitFor([&] { return result->has_value(); }, std::chrono::seconds(60));
  EXPECT_TRUE(has_come) << "an operation did not complete";
  if (!has_come) return Error{ErrorCode::kIo, "an operation did not complete"};
  return **result;
}

// The news of one watch.
class TestedWatch {
 public:
  TestedWatch(TestedStore& tested, std::string prefix, std::uint64_t from_revision)
      : tested_(tested) {
    id_ = tested.store().Watch(std::move(prefix), from_revision, [this](MetaStore::News news) {
      tested_.Note([&] {
        told_.events.insert(told_.events.end(), news.events.begin(), news.events.end());
        batch_sizes_.push_back(news.events.size());
        if (news.kind != MetaStore::News::Kind::kEvents) end_ = news;
      });
    });
  }
  MetaStore::WatchId id() const { return id_; }

  // The events, once there are `count`.
  std::vector<MetaStore::Event> Events(std::size_t count) {
    EXPECT_TRUE(tested_.WaitFor([&] { return told_.events.size() >= count || end_; },
                                std::chrono::seconds(30)));
    const std::lock_guard lock(tested_.mutex());
    EXPECT_EQ(told_.events.size(), count);
    return told_.events;
  }
  // How it ended.
  MetaStore::News End() {
    EXPECT_TRUE(tested_.WaitFor([&] { return end_.has_value(); }, std::chrono::seconds(30)));
    const std::lock_guard lock(tested_.mutex());
    return end_.value_or(MetaStore::News{});
  }
  std::vector<std::size_t> batch_sizes() {
    const std::lock_guard lock(tested_.mutex());
    return batch_sizes_;
  }

 private:
  TestedStore& tested_;
  MetaStore::WatchId id_ = 0;
  MetaStore::News told_;
  std::vector<std::size_t> batch_sizes_;
  std::optional<MetaStore::News> end_;
};

// The memory form, in virtual time.
class TestedMemoryStore final : public TestedStore {
 public:
  explicit TestedMemoryStore(std::function<server::MemoryMetaStore::Trip()> next_trip = {})
      : store_(std::in_place, state, server::MemoryMetaStore::Options{std::move(next_trip), {}}) {}

  MetaStore& store() override { return *store_; }
  server::MemoryMetaStore& memory() { return *store_; }
  MetaStore::TimePoint now() const override { return now_; }
  std::uint64_t Compact(std::uint64_t newest) override {
    state.CompactTo(newest);
    return newest;
  }
  void Close() { store_.reset(); }

  MetaState state;

 private:
  void Pass(std::unique_lock<std::mutex>& lock) override {
    lock.unlock();
    now_ += std::chrono::milliseconds(10);
    store_->Run(now_);
    lock.lock();
  }

  MetaStore::TimePoint now_{};
  std::optional<server::MemoryMetaStore> store_;
};

// The one in a file.
class TestedSqliteStore final : public TestedStore {
 public:
  explicit TestedSqliteStore(const std::filesystem::path& file) : file_(file) { Open(); }

  MetaStore& store() override { return *store_; }
  // Its history is bounded: more changes than that.
  std::uint64_t Compact(std::uint64_t newest) override {
    MetaStore::Commit commit;
    for (int i = 0; i < 100; ++i) commit.puts.push_back({"more/" + std::to_string(i), {}});
    for (int i = 0; i < 10; ++i, ++newest)
      EXPECT_TRUE(Await<MetaStore::Outcome>(*this, [&](auto done) {
        store_->TryCommit(commit, MetaStore::TimePoint::max(), std::move(done));
      }));
    return newest;
  }
  void Close() { store_.reset(); }
  void Open() {
    auto opened = server::OpenSqliteStore(file_);
    ASSERT_TRUE(opened) << opened.error().message;
    store_ = std::move(opened).value();
  }

 private:
  const std::filesystem::path file_;
  std::unique_ptr<MetaStore> store_;
};

}  // namespace ffrecord::test
