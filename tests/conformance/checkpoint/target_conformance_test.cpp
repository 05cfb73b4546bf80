// Goal: every place that keeps the checkpoints of a run keeps the contract of CheckpointTarget:
// nothing is seen before Commit(), of two saves one wins, a removal is of one save, and a question
// is decided once.
// Method: the same calls on each form. A save in a folder of its own gives the files.

#include "client/checkpoint/target.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <map>
#include <thread>

#include "bytes.h"
#include "checkpoint_state.h"
#include "daemon.h"
#include "fake_bucket.h"
#include "seed.h"
#include "temp_folder.h"

namespace ffrecord::client {
namespace {

namespace fs = std::filesystem;

// A place for runs, as long as this lives.
struct Place {
  std::string address;
  std::shared_ptr<void> owner = nullptr;
};

struct TargetUnderTest {
  std::string name;
  std::function<Place(const test::TempFolder&)> make;
};

// The files of a checkpoint, and whose they are.
struct SavedFiles {
  std::map<std::string, std::string> files;
  AttemptId attempt{};
};

SavedFiles Save(std::uint64_t step, std::uint32_t seed) {
  const test::TempFolder folder;
  const auto saved =
      test::SaveAlone(folder.path().string(), step, test::State(200, test::Seed() + seed));
  EXPECT_TRUE(saved) << saved.error().message;
  SavedFiles made;
  const fs::path root = folder.path() / StepName(step);
  for (const auto& entry : fs::recursive_directory_iterator(root))
    if (entry.is_regular_file())
      made.files[entry.path().lexically_relative(root).string()] = test::ReadFile(entry.path());
  const std::string& manifest = made.files.at(std::string(kRootManifestName));
  made.attempt = DecodeRootManifest(std::as_bytes(std::span(manifest))).value().attempt;
  return made;
}

class CheckpointTargetConformance : public testing::TestWithParam<TargetUnderTest> {
 protected:
  // As another process opens it.
  std::unique_ptr<CheckpointTarget> Open() const {
    auto opened = OpenTarget(place_.address, {.direct = false, .session = {}});
    EXPECT_TRUE(opened) << opened.error().message;
    return std::move(opened).value();
  }

  static Result<WrittenFile> Put(CheckpointAttempt& attempt, const std::string& name,
                                 const std::string& text) {
    return attempt.Put(name, text.size(), [&](std::uint64_t offset, std::uint64_t size_max) {
      return Result(std::as_bytes(std::span(text).subspan(offset))
                        .first(std::min(size_max, text.size() - offset)));
    });
  }
  static Result<std::vector<WrittenFile>> PutAll(CheckpointAttempt& attempt,
                                                 const SavedFiles& save) {
    std::vector<WrittenFile> written;
    for (const auto& [name, text] : save.files)
      written.push_back(FFR_TRY(Put(attempt, name, text)));
    return written;
  }
  Result<void> Commit(std::uint64_t step, const SavedFiles& save) {
    const auto attempt = FFR_TRY(target_->Begin(step, save.attempt));
    return attempt->Commit(FFR_TRY(PutAll(*attempt, save)));
  }
  std::vector<std::uint64_t> Steps() const { return Open()->Steps().value(); }
  // Empty if the step is `save`.
  std::string WrongIn(std::uint64_t step, const SavedFiles& save) const {
    const auto opened = Open()->Open(step);
    if (!opened) return opened.error().message;
    for (const auto& [name, text] : save.files) {
      const auto read = opened.value()->ReadFile(name, text.size());
      if (!read) return read.error().message;
      if (test::AsString(read.value()) != text) return name + " has other bytes";
    }
    return "";
  }

  const test::TempFolder folder_;
  const Place place_ = GetParam().make(folder_);
  const std::unique_ptr<CheckpointTarget> target_ = Open();
};

// --- Saves ---------------------------------------------------------------------------------------

TEST_P(CheckpointTargetConformance, NothingIsSeenBeforeTheCommitAndAllOfItAfterwards) {
  const SavedFiles save = Save(7, 1);
  const auto attempt = target_->Begin(7, save.attempt).value();
  const auto written = PutAll(*attempt, save);
  ASSERT_TRUE(written) << written.error().message;
  EXPECT_EQ(Steps(), std::vector<std::uint64_t>{});
  EXPECT_EQ(Open()->Open(7).error().code, ErrorCode::kNotFound);

  const auto committed = attempt->Commit(written.value());

  ASSERT_TRUE(committed) << committed.error().message;
  EXPECT_EQ(Steps(), std::vector<std::uint64_t>{7});
  EXPECT_EQ(WrongIn(7, save), "");
}

TEST_P(CheckpointTargetConformance, ASaveThroughTheAddressIsLoadedAsItWas) {
  const test::State state(1'001, test::Seed());
  ASSERT_TRUE(test::SaveAlone(place_.address, 3, state));
  EXPECT_EQ(test::Compare(place_.address, state), "");
}

TEST_P(CheckpointTargetConformance, StepsAreInAscendingOrder) {
  for (const std::uint64_t step : {30U, 4U, 1'000'000'007U, 29U})
    ASSERT_TRUE(Commit(step, Save(step, 1))) << step;
  EXPECT_EQ(Steps(), (std::vector<std::uint64_t>{4, 29, 30, 1'000'000'007}));
}

TEST_P(CheckpointTargetConformance, FilesAreBoundedByTheReaderAndFoundByName) {
  const SavedFiles save = Save(1, 1);
  ASSERT_TRUE(Commit(1, save));
  const auto step = Open()->Open(1).value();
  const auto& [name, text] = *std::ranges::max_element(
      save.files, {}, [](const auto& file) { return file.second.size(); });

  EXPECT_EQ(step->ReadFile(name, text.size() - 1).error().code, ErrorCode::kCorruption);
  EXPECT_EQ(step->ReadFile(SegmentName(9, 9), 1).error().code, ErrorCode::kNotFound);
  const std::vector<std::string> names{name};
  ASSERT_TRUE(step->OpenFiles(names));
  const std::vector<std::string> absent{name, SegmentName(9, 9)};
  EXPECT_EQ(step->OpenFiles(absent).error().code, ErrorCode::kNotFound);
}

TEST_P(CheckpointTargetConformance, RanksBringTheirFilesOnTheirOwn) {
  const SavedFiles save = Save(2, 1);
  const auto coordinator = target_->Begin(2, save.attempt).value();
  const auto others = Open();
  const auto joined = others->Join(2, save.attempt).value();
  std::vector<WrittenFile> written;
  for (const auto& [name, text] : save.files) {
    auto put = Put(name == kRootManifestName ? *coordinator : *joined, name, text);
    ASSERT_TRUE(put) << put.error().message;
    written.push_back(std::move(put).value());
  }
  ASSERT_TRUE(coordinator->Commit(written));
  EXPECT_EQ(WrongIn(2, save), "");
}

TEST_P(CheckpointTargetConformance, AnAbandonedSaveLeavesItsStepFree) {
  const SavedFiles first = Save(1, 1), second = Save(1, 2);
  const auto attempt = target_->Begin(1, first.attempt).value();
  ASSERT_TRUE(PutAll(*attempt, first));
  attempt->Abandon();
  EXPECT_EQ(Steps(), std::vector<std::uint64_t>{});
  ASSERT_TRUE(Commit(1, second));
  EXPECT_EQ(WrongIn(1, second), "");
}

TEST_P(CheckpointTargetConformance, ACommittedStepRefusesOthersAndStays) {
  const SavedFiles first = Save(1, 1), second = Save(1, 2);
  const auto late = target_->Begin(1, second.attempt).value();
  const auto written = PutAll(*late, second).value();
  ASSERT_TRUE(Commit(1, first));

  EXPECT_EQ(target_->Begin(1, second.attempt).error().code, ErrorCode::kConflict);
  const auto committed = late->Commit(written);
  ASSERT_FALSE(committed);
  EXPECT_EQ(committed.error().code, ErrorCode::kConflict) << committed.error().message;
  late->Abandon();
  EXPECT_EQ(WrongIn(1, first), "");
}

// Whether the target shares bytes between steps or not.
TEST_P(CheckpointTargetConformance, AnIncrementalSaveIsWholeWithoutTheStepBeforeIt) {
  SaveOptions options;
  options.incremental = true;
  test::State state(1'001, test::Seed());
  for (std::uint64_t step = 1; step < 5; ++step) {
    state.vector[step] ^= std::byte{1};
    const auto saved = test::SaveAlone(place_.address, step, state, options);
    ASSERT_TRUE(saved) << saved.error().message;
    if (step > 1) {
      ASSERT_TRUE(Open()->Remove(step - 1, std::nullopt));
    }
    EXPECT_EQ(test::Compare(place_.address, state, step), "");
  }
  state.vector[0] ^= std::byte{1};
  options.replaces = true;
  const auto replaced = test::SaveAlone(place_.address, 4, state, options);
  ASSERT_TRUE(replaced) << replaced.error().message;
  EXPECT_EQ(test::Compare(place_.address, state, 4), "");
}

// --- Removals ------------------------------------------------------------------------------------

TEST_P(CheckpointTargetConformance, ARemovedStepIsGoneAndMayBeSavedAgain) {
  const SavedFiles first = Save(1, 1), second = Save(1, 2), other = Save(2, 3);
  ASSERT_TRUE(Commit(1, first));
  ASSERT_TRUE(Commit(2, other));

  ASSERT_TRUE(target_->Remove(1, std::nullopt));

  EXPECT_EQ(Steps(), std::vector<std::uint64_t>{2});
  EXPECT_EQ(Open()->Open(1).error().code, ErrorCode::kNotFound);
  EXPECT_EQ(target_->Remove(1, std::nullopt).error().code, ErrorCode::kNotFound);
  ASSERT_TRUE(Commit(1, second));
  EXPECT_EQ(WrongIn(1, second), "");
  EXPECT_EQ(WrongIn(2, other), "");
}

TEST_P(CheckpointTargetConformance, ARemovalOfOneSaveIsNotOfAnother) {
  const SavedFiles save = Save(1, 1), other = Save(1, 2);
  ASSERT_TRUE(Commit(1, save));
  EXPECT_EQ(target_->Remove(1, other.attempt).error().code, ErrorCode::kNotFound);
  EXPECT_EQ(WrongIn(1, save), "");
  ASSERT_TRUE(target_->Remove(1, save.attempt));
  EXPECT_EQ(Steps(), std::vector<std::uint64_t>{});
}

TEST_P(CheckpointTargetConformance, AStepThatGivesWayIsReplaced) {
  const SavedFiles first = Save(1, 1), second = Save(1, 2);
  ASSERT_TRUE(Commit(1, first));
  const auto attempt = target_->BeginInPlace(1, second.attempt, [] { return Result(true); });
  ASSERT_TRUE(attempt) << attempt.error().message;
  const auto committed = attempt.value()->Commit(PutAll(*attempt.value(), second).value());
  ASSERT_TRUE(committed) << committed.error().message;
  EXPECT_EQ(Steps(), std::vector<std::uint64_t>{1});
  EXPECT_EQ(WrongIn(1, second), "");
}

TEST_P(CheckpointTargetConformance, AStepThatDoesNotGiveWayStays) {
  const SavedFiles first = Save(1, 1), second = Save(1, 2);
  ASSERT_TRUE(Commit(1, first));
  const auto attempt = target_->BeginInPlace(1, second.attempt, [] { return Result(false); });
  ASSERT_FALSE(attempt);
  EXPECT_EQ(attempt.error().code, ErrorCode::kConflict);
  EXPECT_EQ(WrongIn(1, first), "");
}

TEST_P(CheckpointTargetConformance, AFailedLookLeavesTheStep) {
  const SavedFiles first = Save(1, 1), second = Save(1, 2);
  ASSERT_TRUE(Commit(1, first));
  const auto attempt = target_->BeginInPlace(1, second.attempt, []() -> Result<bool> {
    return Error{ErrorCode::kIo, "no look"};
  });
  ASSERT_FALSE(attempt);
  EXPECT_EQ(attempt.error().code, ErrorCode::kIo);
  EXPECT_EQ(WrongIn(1, first), "");
}

// --- Decisions -----------------------------------------------------------------------------------

TEST_P(CheckpointTargetConformance, TheFirstAnswerIsEverybodys) {
  EXPECT_EQ(target_->Decided("line-1").error().code, ErrorCode::kNotFound);
  EXPECT_EQ(target_->Decide("line-1", "yes").value(), "yes");
  EXPECT_EQ(Open()->Decide("line-1", "no").value(), "yes");
  EXPECT_EQ(Open()->Decided("line-1").value(), "yes");
  target_->Forget("line-1");
  EXPECT_EQ(Open()->Decided("line-1").error().code, ErrorCode::kNotFound);
  EXPECT_EQ(Open()->Decide("line-1", "no").value(), "no");
}

TEST_P(CheckpointTargetConformance, OfManyWhoAskAtOnceAllHearOneAnswer) {
  std::vector<std::string> heard(8);
  std::vector<std::thread> askers;
  for (std::size_t i = 0; i < heard.size(); ++i)
    askers.emplace_back(
        [&, i] { heard[i] = Open()->Decide("line-1", "answer-" + std::to_string(i)).value(); });
  for (std::thread& asker : askers) asker.join();
  EXPECT_EQ(std::ranges::count(heard, heard[0]), 8);
  EXPECT_EQ(Open()->Decided("line-1").value(), heard[0]);
}

TEST_P(CheckpointTargetConformance, DecisionsAreListedByPrefixAndAreNoSteps) {
  for (const char* name : {"line-1", "line-20", "life-1"})
    ASSERT_TRUE(target_->Decide(name, "yes")) << name;
  auto names = Open()->Decisions("line-").value();
  std::ranges::sort(names);
  EXPECT_EQ(names, (std::vector<std::string>{"line-1", "line-20"}));
  EXPECT_EQ(Open()->Decisions("none-").value(), std::vector<std::string>{});
  EXPECT_EQ(Steps(), std::vector<std::uint64_t>{});
}

// --- The forms -----------------------------------------------------------------------------------

Place InAFolder(const test::TempFolder& folder) { return {(folder / "run").string()}; }

Place AtTwoFolders(const test::TempFolder& folder) {
  return {std::string(kBuddiesScheme) + (folder / "a").string() + "|" + (folder / "b").string()};
}

Place AtADaemon(const test::TempFolder&) {
  auto daemon = std::make_shared<test::Daemon>();
  std::string address = daemon->Uri("runs/x");
  return {std::move(address), std::move(daemon)};
}

// The settings of the store are those of the process.
Place AtAStore(const test::TempFolder&) {
  auto bucket = std::make_shared<test::FakeBucket>(std::map<std::string, std::string>());
  ::setenv("AWS_ENDPOINT_URL", bucket->settings().endpoint.c_str(), 1);
  ::setenv("AWS_ACCESS_KEY_ID", "key", 1);
  ::setenv("AWS_SECRET_ACCESS_KEY", "secret", 1);
  ::setenv("AWS_REGION", "us-east-1", 1);
  return {"s3://bucket/runs/x", std::move(bucket)};
}

// The first place of a staged target is replicated itself, and has everything.
Place InAFolderAndBehindIt(const test::TempFolder& folder) {
  return {std::string(kStageScheme) + AtTwoFolders(folder).address + kStageMark +
          (folder / "far").string()};
}

Place InAFolderBeforeAStore(const test::TempFolder& folder) {
  Place place = AtAStore(folder);
  place.address =
      std::string(kStageScheme) + (folder / "run").string() + kStageMark + place.address;
  return place;
}

INSTANTIATE_TEST_SUITE_P(AllTargets, CheckpointTargetConformance,
                         testing::Values(TargetUnderTest{"folder", InAFolder},
                                         TargetUnderTest{"buddies", AtTwoFolders},
                                         TargetUnderTest{"daemon", AtADaemon},
                                         TargetUnderTest{"store", AtAStore},
                                         TargetUnderTest{"staged", InAFolderAndBehindIt},
                                         TargetUnderTest{"staged_store", InAFolderBeforeAStore}),
                         [](const auto& instance) { return instance.param.name; });

}  // namespace
}  // namespace ffrecord::client
