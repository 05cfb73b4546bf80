// Goal: a checkpoint whose parts are at two places each outlives either, is made of one save alone,
// and is whole or absent.
// Method: folders, and daemons in this process, of which one after the other is lost, damaged, or
// left behind as by a save that was killed while it became visible.

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <functional>
#include <future>
#include <optional>
#include <string>
#include <thread>

#include <ffrecord/client/checkpoint.h>

#include "checkpoint_state.h"
#include "client/checkpoint/forwarding_target.h"
#include "daemon.h"
#include "seed.h"
#include "temp_folder.h"
#include "thread_group.h"

namespace ffrecord::client {
namespace {

namespace fs = std::filesystem;
using test::Compare;
using test::Daemon;
using test::SaveAlone;
using test::State;
using test::TempFolder;
using test::ThreadGroup;
using test::TreeOf;

constexpr auto kLatest = CheckpointReader::kLatest;

// The first code that a rank of a save got.
ErrorCode Save(const std::string& target, std::uint64_t step, const State& state,
               std::uint32_t world) {
  ThreadGroup group(world);
  const auto outcomes = group.Run([&](CheckpointGroup& rank) {
    return SaveCheckpoint(target, step, state.PartOf(rank.rank(), world),
                          TreeOf({"matrix", "vector"}), &rank, {});
  });
  for (const auto& outcome : outcomes)
    if (!*outcome) return outcome->error().code;
  return ErrorCode::kOk;
}

// In memory where that can be had: many saves wait for nothing but syncs else.
fs::path InMemory() {
  std::error_code error;
  return fs::is_directory("/dev/shm", error) ? "/dev/shm" : fs::temp_directory_path();
}

// Folders a, b, ... as places.
struct Folders {
  explicit Folders(std::size_t count) {
    address = kBuddiesScheme;
    for (std::size_t i = 0; i < count; ++i) {
      paths.push_back(folder / std::string(1, static_cast<char>('a' + i)));
      address += (i == 0 ? "" : "|") + paths.back().string();
    }
  }
  TempFolder folder{InMemory()};
  std::vector<fs::path> paths;
  std::string address;
};

std::vector<fs::path> FilesBelow(const fs::path& folder) {
  std::vector<fs::path> files;
  for (const auto& entry : fs::recursive_directory_iterator(folder))
    if (entry.is_regular_file()) files.push_back(entry.path());
  return files;
}

TEST(CheckpointBuddiesTest, AnyOnePlaceMayBeLost) {
  Folders folders(3);
  const State state(10'001, test::Seed());
  ASSERT_EQ(Save(folders.address, 5, state, 4), ErrorCode::kOk);
  for (const fs::path& lost : folders.paths) {
    fs::rename(lost, folders.folder / "lost");
    EXPECT_EQ(Compare(folders.address, state), "") << lost;
    EXPECT_EQ(CheckpointReader::Open(folders.address, kLatest, {}).value().commit().step, 5U);
    fs::rename(folders.folder / "lost", lost);
  }
  EXPECT_TRUE(CheckpointReader::Open(folders.address, 5, {}).value().Verify().value().empty());
}

TEST(CheckpointBuddiesTest, ADaemonThatIsGoneWithItsFolderIsNotMissed) {
  Daemon first;
  Daemon second;
  const std::string address = "buddies:" + first.Uri("run") + "|" + second.Uri("run");
  const State state(10'000, test::Seed());
  ASSERT_EQ(Save(address, 1, state, 2), ErrorCode::kOk);
  const auto open = CheckpointReader::Open(address, 1, {});
  ASSERT_TRUE(open) << open.error().message;

  first.Kill();
  fs::remove_all(first.data());

  EXPECT_EQ(Compare(address, state), "");
  EXPECT_EQ(Compare(second.Uri("run"), state), "");  // Of two places, each has everything.
  // Nothing is saved at half of the places.
  SaveOptions options;
  options.session.timeout = std::chrono::milliseconds(300);
  const auto saved =
      SaveCheckpoint(address, 2, state.PartOf(0, 1), TreeOf({"matrix"}), nullptr, options);
  ASSERT_FALSE(saved);
  EXPECT_EQ(ListCheckpoints(second.Uri("run"), {}).value().size(), 1U);

  first.Start();
  ASSERT_TRUE(SaveAlone(address, 2, state));
  second.Kill();
  EXPECT_EQ(Compare(address, state, 2), "");
}

// As on a disk that rots: a load needs bytes of each place.
TEST(CheckpointBuddiesTest, AllThatOnePlaceHoldsMayBeDamaged) {
  Folders folders(2);
  const State state(30'000, test::Seed());
  ASSERT_EQ(Save(folders.address, 1, state, 3), ErrorCode::kOk);
  const auto flip = [](const fs::path& path) {
    std::string bytes = test::ReadFile(path);
    bytes[bytes.size() / 3] ^= 1;
    test::WriteFile(path, bytes);
  };
  const auto cut = [](const fs::path& path) { fs::resize_file(path, 4096); };
  const auto grow = [](const fs::path& path) { fs::resize_file(path, fs::file_size(path) + 4096); };
  const auto remove = [](const fs::path& path) { fs::remove(path); };
  const std::vector<std::function<void(const fs::path&)>> damages{flip, cut, grow, remove};
  for (const fs::path& place : folders.paths)
    for (std::size_t i = 0; i < damages.size(); ++i)
      for (const bool manifests : {false, true}) {
        const fs::path before = folders.folder / "before";
        fs::copy(place, before, fs::copy_options::recursive);
        for (const fs::path& path : FilesBelow(place / "step-000000001"))
          if (path.filename().string().starts_with(manifests ? "part-" : "seg-")) damages[i](path);

        EXPECT_EQ(Compare(folders.address, state), "")
            << place << " damage " << i << (manifests ? " of manifests" : " of segments");
        const auto reader = CheckpointReader::Open(folders.address, 1, {});
        ASSERT_TRUE(reader) << reader.error().message;
        EXPECT_FALSE(reader.value().Verify().value().empty());
        const auto is_whole = reader.value().IsWhole();
        ASSERT_TRUE(is_whole) << is_whole.error().message;
        EXPECT_TRUE(is_whole.value());
        fs::remove_all(place);
        fs::rename(before, place);
      }
  EXPECT_TRUE(CheckpointReader::Open(folders.address, 1, {}).value().Verify().value().empty());
}

TEST(CheckpointBuddiesTest, DamageToACopyIsFoundAndTheOtherIsLoaded) {
  Folders folders(2);
  const State state(3'000, test::Seed());
  ASSERT_EQ(Save(folders.address, 1, state, 2), ErrorCode::kOk);
  for (const fs::path& place : folders.paths)
    for (const fs::path& path : FilesBelow(place / "step-000000001")) {
      const auto size = fs::file_size(path);
      std::fstream file(path, std::ios::binary | std::ios::in | std::ios::out);
      file.seekg(static_cast<std::streamoff>(size / 4));
      const char byte = static_cast<char>(file.get());
      file.seekp(static_cast<std::streamoff>(size / 4));
      file.put(static_cast<char>(byte ^ 1)).flush();

      EXPECT_EQ(Compare(folders.address, state), "") << path;
      if (path.filename().string().starts_with("seg-")) {
        const auto damage = CheckpointReader::Open(folders.address, 1, {}).value().Verify().value();
        ASSERT_EQ(damage.size(), 1U) << path;
        EXPECT_NE(damage[0].find(path.string()), std::string::npos) << damage[0];
      }

      file.seekp(static_cast<std::streamoff>(size / 4));
      file.put(byte).flush();
      fs::resize_file(path, size - 1);
      EXPECT_EQ(Compare(folders.address, state), "") << path;
      fs::resize_file(path, size);
      file.seekp(static_cast<std::streamoff>(size - 1));
      file.close();
      // What was cut off comes back from the other place.
      const fs::path other = (place == folders.paths[0] ? folders.paths[1] : folders.paths[0]) /
                             fs::relative(path, place);
      fs::copy_file(other, path, fs::copy_options::overwrite_existing);
    }
}

TEST(CheckpointBuddiesTest, WhatASaveLeftThatWasKilledAtTheEndIsNoStepAndIsReplaced) {
  Folders folders(3);
  const State before(500, 1);
  ASSERT_EQ(Save(folders.address, 1, before, 3), ErrorCode::kOk);
  const State killed(500, 2);
  ASSERT_EQ(Save(folders.address, 2, killed, 3), ErrorCode::kOk);
  // It had become visible at the first place alone.
  fs::remove_all(folders.paths[1] / "step-000000002");
  fs::remove_all(folders.paths[2] / "step-000000002");

  const auto reader = CheckpointReader::Open(folders.address, kLatest, {});
  ASSERT_TRUE(reader) << reader.error().message;
  EXPECT_EQ(reader.value().commit().step, 1U);
  ASSERT_EQ(reader.value().skipped().size(), 1U);
  EXPECT_NE(reader.value().skipped()[0].find("not whole"), std::string::npos);
  const auto listed = ListCheckpoints(folders.address, {}).value();
  ASSERT_EQ(listed.size(), 2U);
  EXPECT_EQ(listed[0].damage, "");
  EXPECT_NE(listed[1].damage.find("not whole"), std::string::npos) << listed[1].damage;

  const State again(500, 3);
  ASSERT_EQ(Save(folders.address, 2, again, 3), ErrorCode::kOk);
  EXPECT_EQ(Compare(folders.address, again), "");
  EXPECT_EQ(Save(folders.address, 2, killed, 3), ErrorCode::kConflict);
}

TEST(CheckpointBuddiesTest, PartsOfTwoSavesOfAStepNeverMix) {
  Folders folders(3);
  const State one(500, 1);
  const State other(500, 2);
  ASSERT_EQ(Save(folders.address, 1, one, 3), ErrorCode::kOk);
  Folders elsewhere(3);
  ASSERT_EQ(Save(elsewhere.address, 1, other, 3), ErrorCode::kOk);
  // The second place has another save of the step: all parts are left of `one`, not of `other`.
  fs::remove_all(folders.paths[1] / "step-000000001");
  fs::rename(elsewhere.paths[1] / "step-000000001", folders.paths[1] / "step-000000001");
  EXPECT_EQ(Compare(folders.address, one), "");
  // And now neither is whole.
  fs::remove_all(folders.paths[2] / "step-000000001");
  EXPECT_EQ(CheckpointReader::Open(folders.address, 1, {}).error().code, ErrorCode::kNotFound);
}

TEST(CheckpointBuddiesTest, OfTwoSaversOneWinsAndTheOtherLeavesNothing) {
  Folders folders(2);
  for (std::uint64_t step = 0; step < 10; ++step) {
    const std::vector<State> states{State(200, 1), State(200, 2)};
    std::vector<ErrorCode> codes(2, ErrorCode::kOk);
    std::vector<std::thread> savers;
    for (std::size_t i = 0; i < 2; ++i)
      savers.emplace_back([&, i] {
        const auto saved = SaveAlone(folders.address, step, states[i]);
        if (!saved) codes[i] = saved.error().code;
      });
    for (auto& saver : savers) saver.join();
    ASSERT_NE(codes[0] == ErrorCode::kOk, codes[1] == ErrorCode::kOk);
    const State& winner = states[codes[0] == ErrorCode::kOk ? 0 : 1];
    for (const fs::path& place : folders.paths)
      EXPECT_EQ(Compare(place.string(), winner, step), "") << place;
  }
}

// --- A second saver at every moment --------------------------------------------------------------

// What is called between two operations of a saver at any of its places.
using Between = std::function<void()>;

// A place that says when it is about to do something.
class WatchedAttempt final : public CheckpointAttempt {
 public:
  WatchedAttempt(std::unique_ptr<CheckpointAttempt> real, const Between& between)
      : real_(std::move(real)), between_(between) {}
  Result<WrittenFile> Put(std::string_view name, std::uint64_t size_bytes,
                          const FileSource& source) override {
    return real_->Put(name, size_bytes, source);
  }
  Result<std::vector<WrittenFile>> PutSegments(std::span<SegmentFile> segments,
                                               const std::function<void()>& released) override {
    return real_->PutSegments(segments, released);
  }
  Result<std::optional<WrittenFile>> Keep(const PartManifest& base, std::uint32_t index,
                                          std::string_view name) override {
    return real_->Keep(base, index, name);
  }

 protected:
  Result<void> MakeVisible(std::span<const WrittenFile> files) override {
    between_();
    return real_->Commit(files);
  }
  void Discard() noexcept override { real_->Abandon(); }

 private:
  std::unique_ptr<CheckpointAttempt> real_;
  const Between& between_;
};

class WatchedTarget final : public ForwardingTarget {
 public:
  WatchedTarget(const fs::path& folder, const Between& between)
      : WatchedTarget(OpenFolderTarget(folder.string(), false), between) {}

  Result<std::vector<std::uint64_t>> Steps() const override {
    between_();
    return ForwardingTarget::Steps();
  }
  Result<std::unique_ptr<CommittedStep>> Open(std::uint64_t step) const override {
    between_();
    return ForwardingTarget::Open(step);
  }
  Result<void> Remove(std::uint64_t step, const std::optional<AttemptId>& only) override {
    between_();
    return ForwardingTarget::Remove(step, only);
  }
  Result<std::unique_ptr<CheckpointAttempt>> Begin(std::uint64_t step,
                                                   const AttemptId& attempt) override {
    between_();
    auto begun = FFR_TRY(ForwardingTarget::Begin(step, attempt));
    return std::unique_ptr<CheckpointAttempt>(new WatchedAttempt(std::move(begun), between_));
  }
  Result<std::string> Decide(std::string_view name, std::string_view answer) override {
    between_();
    return ForwardingTarget::Decide(name, answer);
  }
  Result<std::vector<std::string>> Decisions(std::string_view prefix) const override {
    between_();
    return ForwardingTarget::Decisions(prefix);
  }
  Result<std::string> Decided(std::string_view name) const override {
    between_();
    return ForwardingTarget::Decided(name);
  }

 private:
  WatchedTarget(std::unique_ptr<CheckpointTarget> real, const Between& between)
      : ForwardingTarget(*real), real_(std::move(real)), between_(between) {}

  std::unique_ptr<CheckpointTarget> real_;
  const Between& between_;
};

std::string RootAt(const fs::path& run) {
  return test::ReadFile(run / "step-000000001" / kRootManifestName);
}

// A saver of step 1: what is committed in a folder goes to places of which it is told.
class Saver {
 public:
  Saver(fs::path source, std::uint32_t seed) : source_(std::move(source)), state_(200, seed) {
    EXPECT_TRUE(SaveAlone(source_.string(), 1, state_));
    const auto files = OpenFolderTarget(source_.string(), false)->Open(1);
    id_ = DecodeRootManifest(files.value()->ReadFile(kRootManifestName, kManifestSizeMax).value())
              .value()
              .attempt;
  }

  const State& state() const { return state_; }
  std::string root() const { return RootAt(source_); }

  // Dies, that is, comes to no end and cleans nothing up, where `between` throws.
  Result<void> Save(const std::vector<fs::path>& folders, const Between& between) const {
    std::vector<BuddyPlace> places;
    std::vector<std::size_t> order;
    for (const fs::path& folder : folders) {
      order.push_back(order.size());
      places.push_back({folder.string(), std::make_unique<WatchedTarget>(folder, between),
                        std::make_unique<WatchedTarget>(folder, between)});
    }
    const auto target = JoinBuddies("test", std::move(places), std::move(order));
    const auto attempt = FFR_TRY(target->Begin(1, id_));
    auto saved = Put(*attempt);
    if (!saved) attempt->Abandon();
    return saved;
  }

 private:
  Result<void> Put(CheckpointAttempt& attempt) const {
    std::vector<WrittenFile> written;
    const fs::path step = source_ / "step-000000001";
    for (const fs::path& path : FilesBelow(step)) {
      const std::string text = test::ReadFile(path);
      const auto bytes = std::as_bytes(std::span(text));
      written.push_back(FFR_TRY(attempt.Put(
          path.lexically_relative(step).string(), bytes.size(),
          [&](std::uint64_t offset, std::uint64_t) -> Result<std::span<const std::byte>> {
            return bytes.subspan(offset);
          })));
    }
    return attempt.Commit(written);
  }

  fs::path source_;
  State state_;
  AttemptId id_{};
};

struct Killed {};

// Made once: it is their saves that meet.
struct Savers {
  explicit Savers(const TempFolder& folder)
      : first(folder / "one", 1), second(folder / "two", 2), third(folder / "three", 3) {}
  Saver first;
  Saver second;
  Saver third;
};

void CheckOutcome(const Folders& folders, const Savers& savers, bool first_saved,
                  bool second_saved) {
  EXPECT_FALSE(first_saved && second_saved);
  if (first_saved || second_saved) {
    const Saver& winner = first_saved ? savers.first : savers.second;
    EXPECT_EQ(Compare(folders.address, winner.state(), 1), "");
    for (const fs::path& place : folders.paths) EXPECT_EQ(RootAt(place), winner.root());
  }
  // Whatever has happened, the step is whole, or can be saved at the second try.
  const bool is_whole = static_cast<bool>(CheckpointReader::Open(folders.address, 1, {}));
  const bool is_saved = static_cast<bool>(savers.third.Save(folders.paths, [] {})) ||
                        static_cast<bool>(savers.third.Save(folders.paths, [] {}));
  EXPECT_EQ(is_saved, !is_whole);
}

// One saver, and before its operation number `moment` another, from its beginning to its end. False
// if the first came to its end before.
bool MeetAt(std::size_t moment, const Savers& savers, bool first_dies, bool other_order) {
  Folders folders(3);
  const Saver& first = savers.first;
  const Saver& second = savers.second;
  const testing::ScopedTrace trace(__FILE__, __LINE__, "moment " + std::to_string(moment));
  std::vector<fs::path> order = folders.paths;
  if (other_order) std::reverse(order.begin(), order.end());
  std::size_t count = 0;
  std::optional<bool> second_saved;
  const Between meet = [&] {
    if (++count != moment) return;
    second_saved.emplace(static_cast<bool>(second.Save(order, [] {})));
    if (first_dies) throw Killed();
  };
  bool first_saved = false;
  try {
    first_saved = static_cast<bool>(first.Save(folders.paths, meet));
  } catch (const Killed&) {
  }
  if (!second_saved) {
    EXPECT_TRUE(first_saved);
    return false;
  }
  CheckOutcome(folders, savers, first_saved, *second_saved);
  return true;
}

// The first saver waits before its operation number `first_moment` until the second comes to its
// number `second_moment`; then it goes on to its end while the second waits.
struct Reached {
  bool first;
  bool second;
};
Reached MeetBetween(std::size_t first_moment, std::size_t second_moment, const Savers& savers) {
  Folders folders(3);
  const testing::ScopedTrace trace(
      __FILE__, __LINE__,
      "moments " + std::to_string(first_moment) + " and " + std::to_string(second_moment));
  // Visible at the place that comes first by name, the step has no part there yet.
  const std::vector<fs::path> order(folders.paths.rbegin(), folders.paths.rend());
  std::promise<void> waits;
  std::promise<void> goes_on;
  std::size_t first_count = 0;
  std::size_t second_count = 0;
  bool first_saved = false;
  const Between first_waits = [&] {
    if (++first_count != first_moment) return;
    waits.set_value();
    goes_on.get_future().wait();
  };
  std::thread first([&] {
    first_saved = static_cast<bool>(savers.first.Save(order, first_waits));
    if (first_count < first_moment) waits.set_value();
  });
  waits.get_future().wait();
  const auto let_it_end = [&] {
    goes_on.set_value();
    first.join();
  };
  const Between second_waits = [&] {
    if (++second_count == second_moment) let_it_end();
  };
  const bool second_saved = static_cast<bool>(savers.second.Save(order, second_waits));
  if (first.joinable()) let_it_end();
  CheckOutcome(folders, savers, first_saved, second_saved);
  return {first_count >= first_moment, second_count >= second_moment};
}

TEST(CheckpointBuddiesTest, ASecondSaverAtAnyMomentNeverMakesASuccessUntrue) {
  const TempFolder folder;
  const Savers savers(folder);
  for (const bool other_order : {false, true}) {
    std::size_t moment = 1;
    while (MeetAt(moment, savers, false, other_order)) ++moment;
    EXPECT_GT(moment, 10U);
  }
}

TEST(CheckpointBuddiesTest, ASaverThatEndsAtAnyMomentOfAnotherKeepsItsSuccess) {
  const TempFolder folder;
  const Savers savers(folder);
  for (std::size_t first = 1;; ++first) {
    Reached reached{true, true};
    for (std::size_t second = 1; reached.first && reached.second; ++second)
      reached = MeetBetween(first, second, savers);
    if (reached.first) continue;
    EXPECT_GT(first, 10U);
    return;
  }
}

TEST(CheckpointBuddiesTest, ASaverThatDiesAtAnyMomentIsFollowedByAnother) {
  const TempFolder folder;
  const Savers savers(folder);
  std::size_t moment = 1;
  while (MeetAt(moment, savers, true, false)) ++moment;
  EXPECT_GT(moment, 10U);
}

TEST(CheckpointBuddiesTest, ACopyThatWasKilledAtAnyMomentGoesOn) {
  const TempFolder folder;
  const Saver saver(folder / "source", 1);
  for (std::size_t moment = 1, killed = moment; killed == moment; ++moment) {
    Folders folders(3);
    std::size_t count = 0;
    const Between die = [&] {
      if (++count == moment) throw Killed();
    };
    try {
      EXPECT_TRUE(saver.Save(folders.paths, die));
    } catch (const Killed&) {
      killed = moment + 1;
    }
    const auto again = CopyCheckpoint((folder / "source").string(), 1, folders.address, {});
    ASSERT_TRUE(again) << moment << ": " << again.error().message;
    EXPECT_EQ(Compare(folders.address, saver.state(), 1), "") << moment;
  }
}

TEST(CheckpointBuddiesTest, StepsAreCopiedFromAndToBuddiesAndRemovedEverywhere) {
  Folders folders(3);
  const State state(500, 1);
  const auto source = (folders.folder / "alone").string();
  const auto commit = SaveAlone(source, 7, state);
  ASSERT_TRUE(commit);
  const auto copied = CopyCheckpoint(source, 7, folders.address, {});
  ASSERT_TRUE(copied) << copied.error().message;
  EXPECT_EQ(copied.value().attempt, commit.value().attempt);
  fs::remove_all(source);
  ASSERT_TRUE(CopyCheckpoint(folders.address, 7, source, {}));
  EXPECT_EQ(Compare(source, state), "");

  ASSERT_TRUE(RemoveCheckpoint(folders.address, 7, {}));
  EXPECT_EQ(RemoveCheckpoint(folders.address, 7, {}).error().code, ErrorCode::kNotFound);
  for (const fs::path& place : folders.paths) EXPECT_FALSE(fs::exists(place / "step-000000007"));
}

TEST(CheckpointBuddiesTest, APlaceForEachRankMayBeNamedAndOneAloneIsRefused) {
  Folders folders(2);
  const std::string a = folders.paths[0].string();
  const std::string b = folders.paths[1].string();
  const State state(500, 1);
  ASSERT_EQ(Save("buddies:" + a + "|" + a + "|" + b + "|" + b, 1, state, 4), ErrorCode::kOk);
  EXPECT_EQ(Compare(folders.address, state), "");
  EXPECT_EQ(Compare("buddies:" + b + "|" + a, state), "");
  for (const std::string& bad : {"buddies:" + a, "buddies:" + a + "|" + a, std::string("buddies:"),
                                 "buddies:" + a + "|buddies:" + b, "buddies:" + a + "|"})
    EXPECT_EQ(ListCheckpoints(bad, {}).error().code, ErrorCode::kInvalidArgument) << bad;
}

}  // namespace
}  // namespace ffrecord::client
