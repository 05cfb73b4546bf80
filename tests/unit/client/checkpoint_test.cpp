// Goal: a checkpoint is saved by all ranks or by none, and what is loaded is what was saved, or an
// error that names the damage.
// Method: saves of one to three ranks, which are threads, into a folder; loads of other boxes; each
// file damaged; ranks that race; a full disk. Ranks that fail: checkpoint_ranks_test.cpp.

#include <ffrecord/client/checkpoint.h>

#include <gtest/gtest.h>

#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <fstream>
#include <mutex>
#include <numeric>
#include <random>

#include "checkpoint_state.h"
#include "client/checkpoint/target.h"
#include "libffrecord/format/checkpoint_manifest.h"
#include "libffrecord/io/this_host.h"
#include "refused_calls.h"
#include "seed.h"
#include "temp_folder.h"
#include "thread_group.h"

namespace ffrecord::client {
namespace {

namespace fs = std::filesystem;
using test::Bytes;
using test::Compare;
using test::RandomBytes;
using test::SaveAlone;
using test::Shape;
using test::State;
using test::TempFolder;
using test::ThreadGroup;
using test::TreeOf;
using test::Whole;

void FlipBit(const fs::path& path, std::uint64_t bit) {
  std::fstream file(path, std::ios::binary | std::ios::in | std::ios::out);
  file.seekg(static_cast<std::streamoff>(bit / 8));
  const char byte = static_cast<char>(file.get() ^ (1 << bit % 8));
  file.seekp(static_cast<std::streamoff>(bit / 8));
  file.put(byte);
}

std::size_t CountEntries(const fs::path& run) {
  return static_cast<std::size_t>(std::distance(fs::directory_iterator(run), {}));
}

TEST(CheckpointTest, WhatWasSavedIsLoaded) {
  const TempFolder folder;
  const State state(10'000, test::Seed());

  const auto commit = SaveAlone(folder / "run", 1200, state);

  ASSERT_TRUE(commit) << commit.error().message;
  EXPECT_EQ(commit.value().step, 1200U);
  EXPECT_EQ(commit.value().size_bytes, 320'024U);
  EXPECT_EQ(commit.value().attempt.size(), 32U);
  EXPECT_EQ(Compare(folder / "run", state), "");
  const auto reader = CheckpointReader::Open((folder / "run").string(), 1200, {});
  EXPECT_EQ(reader.value().commit().attempt, commit.value().attempt);
  EXPECT_EQ(reader.value().world_size(), 1U);
  EXPECT_EQ(reader.value().tensors().at(0).shape, (Shape{10'000, 8}));
  EXPECT_EQ(test::ReadFile(folder / "run/LATEST"), "step-000001200\n");
  EXPECT_EQ(CountEntries(folder / "run"), 2U);
}

TEST(CheckpointTest, TensorsOfEveryShapeComeBack) {
  const TempFolder folder;
  std::mt19937 random(test::Seed());
  const std::vector<std::pair<std::string, Shape>> kinds{
      {"bool", {}},           {"int8", {0}},          {"bfloat16", {3, 0, 5}},
      {"float8_e4m3fn", {7}}, {"complex128", {2, 2}}, {"float64", {1, 1, 1, 1, 1}},
      {"uint16", {70'001}},   {"float32", {512, 130}}};
  std::vector<Bytes> data;
  std::vector<TensorView> tensors;
  data.reserve(kinds.size());
  for (const auto& [dtype, shape] : kinds) {
    const std::uint64_t size = SizeOfBox(dtype, shape, Shape(shape.size(), 0), shape).value();
    data.push_back(RandomBytes(size, random));
    tensors.push_back(Whole("t/" + dtype, dtype, shape, data.back()));
  }

  ASSERT_TRUE(SaveCheckpoint((folder / "run").string(), 0, tensors, TreeOf({}), nullptr, {}));

  const auto reader =
      CheckpointReader::Open((folder / "run").string(), CheckpointReader::kLatest, {});
  ASSERT_TRUE(reader) << reader.error().message;
  std::vector<Bytes> loaded(data.size());
  std::vector<CheckpointReader::Request> requests;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    loaded[i].resize(data[i].size());
    requests.push_back({tensors[i].key, tensors[i].offset, tensors[i].extent, loaded[i]});
  }
  const auto read = reader.value().Read(requests);
  ASSERT_TRUE(read) << read.error().message;
  EXPECT_EQ(loaded, data);
}

// Between the manifest of the base and the links to its segments, all of the state is hashed.
TEST(CheckpointTest, ABaseThatIsSavedAnewMeanwhileIsNotShared) {
  const TempFolder folder;
  const std::string run = (folder / "run").string();
  std::mt19937 random(test::Seed());
  const Bytes wanted = RandomBytes(64 << 10, random);
  const Bytes other = RandomBytes(wanted.size(), random);
  SaveOptions incremental;
  incremental.incremental = true;
  const auto save = [&](std::uint64_t step, const TensorView& tensor) {
    return SaveCheckpoint(run, step, {&tensor, 1}, TreeOf({}), nullptr, incremental);
  };
  const auto whole = [](const Bytes& data) { return Whole("t", "uint8", {data.size()}, data); };
  ASSERT_TRUE(save(1, whole(wanted)));

  TensorView late = whole(wanted);
  late.data = {static_cast<const std::byte*>(nullptr), wanted.size()};
  std::once_flag once;
  late.fetch = [&](std::uint64_t offset, std::span<std::byte> into) -> Result<void> {
    std::call_once(once, [&] {
      EXPECT_TRUE(RemoveCheckpoint(run, 1, {}));
      EXPECT_TRUE(save(1, whole(other)));
    });
    std::copy_n(wanted.begin() + static_cast<std::ptrdiff_t>(offset), into.size(), into.begin());
    return {};
  };
  const auto saved = save(2, late);
  ASSERT_TRUE(saved) << saved.error().message;

  for (const std::uint64_t step : {1U, 2U}) {
    Bytes loaded(wanted.size());
    const auto reader = CheckpointReader::Open(run, step, {});
    ASSERT_TRUE(reader) << reader.error().message;
    const CheckpointReader::Request request{"t", {0}, {loaded.size()}, loaded};
    const auto read = reader.value().Read({&request, 1});
    ASSERT_TRUE(read) << read.error().message;
    EXPECT_EQ(loaded, step == 1 ? other : wanted);
  }
}

TEST(CheckpointTest, LargeTensorsAreReadToWhereverTheyAreWanted) {
  const TempFolder folder;
  std::mt19937 random(test::Seed());
  const Bytes pattern = RandomBytes(5 << 20, random);
  std::vector<Bytes> data;
  std::vector<TensorView> tensors;
  for (const std::size_t phase : {0U, 64U, 1U}) {
    data.push_back(pattern);
    const auto whole = std::span(data.back());
    const auto address = reinterpret_cast<std::uintptr_t>(whole.data());
    const auto bytes = whole.subspan(4096 - address % 4096 + phase, (4 << 20) + 7 * phase);
    tensors.push_back(
        {"t" + std::to_string(phase), "uint8", {bytes.size()}, {0}, {bytes.size()}, bytes});
  }
  std::atomic<int> released{0};
  client::SaveOptions options;
  options.released = [&] { ++released; };
  ASSERT_TRUE(SaveCheckpoint((folder / "run").string(), 0, tensors, TreeOf({}), nullptr, options));
  EXPECT_EQ(released, 1);

  const auto reader =
      CheckpointReader::Open((folder / "run").string(), CheckpointReader::kLatest, {});
  ASSERT_TRUE(reader) << reader.error().message;
  for (const std::size_t phase : {0U, 64U, 1U, 63U}) {
    for (const TensorView& tensor : tensors) {
      Bytes room(tensor.data.size() + 3 * 4096, std::byte{0xEE});
      const std::size_t begin = 4096 - reinterpret_cast<std::uintptr_t>(room.data()) % 4096 + phase;
      const std::uint64_t skip = random() % 3000;
      const auto destination = std::span(room).subspan(begin, tensor.data.size() - skip);
      const CheckpointReader::Request request{
          tensor.key, {skip}, {destination.size()}, destination};
      const auto read = reader.value().Read({&request, 1});
      ASSERT_TRUE(read) << read.error().message;
      EXPECT_TRUE(std::equal(destination.begin(), destination.end(),
                             tensor.data.begin() + static_cast<std::ptrdiff_t>(skip)));
      const auto outside = [](std::byte byte) { return byte == std::byte{0xEE}; };
      EXPECT_TRUE(std::all_of(room.data(), destination.data(), outside));
      EXPECT_TRUE(
          std::all_of(destination.data() + destination.size(), room.data() + room.size(), outside));
    }
  }
}

TEST(CheckpointTest, RanksSaveTogetherAndAnyBoxIsLoaded) {
  const TempFolder folder;
  std::mt19937 random(test::Seed());
  for (const std::uint32_t world : {2U, 3U}) {
    const State state(1'001, static_cast<std::uint32_t>(random()));
    ThreadGroup group(world);
    const auto outcomes = group.Run([&](CheckpointGroup& rank) {
      return SaveCheckpoint((folder / "run").string(), world, state.PartOf(rank.rank(), world),
                            TreeOf({"matrix", "vector"}), &rank, {});
    });
    for (const auto& outcome : outcomes) {
      ASSERT_TRUE(*outcome) << outcome->error().message;
      EXPECT_EQ(outcome->value().attempt, outcomes[0]->value().attempt);
      EXPECT_EQ(outcome->value().size_bytes, state.matrix.size() + state.vector.size());
    }
    EXPECT_EQ(Compare(folder / "run", state), "");

    const auto reader = CheckpointReader::Open((folder / "run").string(), world, {});
    EXPECT_EQ(reader.value().world_size(), world);
    for (int round = 0; round < 50; ++round) {
      const std::uint64_t row = random() % 1001;
      const std::uint64_t column = random() % 8;
      const Shape extent{random() % (1001 - row) + 1, random() % (8 - column) + 1};
      Bytes box(extent[0] * extent[1] * 4);
      const std::vector<CheckpointReader::Request> request{{"matrix", {row, column}, extent, box}};
      ASSERT_TRUE(reader.value().Read(request));
      for (std::uint64_t r = 0; r < extent[0]; ++r)
        ASSERT_TRUE(std::equal(
            box.begin() + static_cast<std::ptrdiff_t>(r * extent[1] * 4),
            box.begin() + static_cast<std::ptrdiff_t>((r + 1) * extent[1] * 4),
            state.matrix.begin() + static_cast<std::ptrdiff_t>((row + r) * 32 + column * 4)));
    }
  }
}

TEST(CheckpointTest, RequestsThatDoNotFitAreRefused) {
  const TempFolder folder;
  const State state(100, 1);
  ASSERT_TRUE(SaveAlone(folder.path(), 1, state));
  const auto reader = CheckpointReader::Open(folder.path().string(), 1, {});
  Bytes bytes(32);
  const auto code = [&](CheckpointReader::Request request) {
    return reader.value().Read({{request}}).error().code;
  };
  EXPECT_EQ(code({"other", {0}, {1}, bytes}), ErrorCode::kNotFound);
  EXPECT_EQ(code({"matrix", {100, 0}, {1, 8}, bytes}), ErrorCode::kInvalidArgument);
  EXPECT_EQ(code({"matrix", {0, 0}, {2, 8}, bytes}), ErrorCode::kInvalidArgument);
  EXPECT_EQ(code({"matrix", {0}, {8}, bytes}), ErrorCode::kInvalidArgument);
}

TEST(CheckpointTest, OverlappingRequestsAreAllFilled) {
  const TempFolder folder;
  const State state(200'000, test::Seed());
  ASSERT_TRUE(SaveAlone(folder.path(), 1, state));
  const auto reader = CheckpointReader::Open(folder.path().string(), 1, {});
  Bytes whole(state.matrix.size());
  Bytes again(state.matrix.size());
  Bytes row(32);
  const std::vector<CheckpointReader::Request> requests{{"matrix", {0, 0}, {200'000, 8}, whole},
                                                        {"matrix", {3, 0}, {1, 8}, row},
                                                        {"matrix", {0, 0}, {200'000, 8}, again}};
  ASSERT_TRUE(reader.value().Read(requests));
  EXPECT_EQ(whole, state.matrix);
  EXPECT_EQ(again, state.matrix);
  EXPECT_TRUE(std::equal(row.begin(), row.end(), state.matrix.begin() + 96));
}

TEST(CheckpointTest, NothingThereIsNotFound) {
  const TempFolder folder;
  const auto open = [&](std::uint64_t step) {
    return CheckpointReader::Open((folder / "run").string(), step, {});
  };
  EXPECT_EQ(open(CheckpointReader::kLatest).error().code, ErrorCode::kNotFound);
  EXPECT_EQ(open(3).error().code, ErrorCode::kNotFound);
  EXPECT_TRUE(ListCheckpoints((folder / "run").string(), {}).value().empty());
  EXPECT_EQ(CheckpointReader::Open("", 1, {}).error().code, ErrorCode::kInvalidArgument);
}

TEST(CheckpointTest, ACommittedStepIsNeverReplaced) {
  const TempFolder folder;
  const State first(100, 1);
  const State second(100, 2);
  ASSERT_TRUE(SaveAlone(folder.path(), 5, first));

  const auto again = SaveAlone(folder.path(), 5, second);

  ASSERT_FALSE(again);
  EXPECT_EQ(again.error().code, ErrorCode::kConflict);
  EXPECT_NE(again.error().message.find("step-000000005"), std::string::npos);
  EXPECT_EQ(Compare(folder.path(), first), "");
  EXPECT_EQ(CountEntries(folder.path()), 2U);
}

TEST(CheckpointTest, OfTwoSaversOfOneStepOneWins) {
  const TempFolder folder;
  for (std::uint64_t step = 0; step < 40; ++step) {
    const std::vector<State> states{State(2'000, 1), State(2'000, 2)};
    std::vector<ErrorCode> codes(2, ErrorCode::kOk);
    std::vector<std::thread> savers;
    for (std::size_t i = 0; i < 2; ++i)
      savers.emplace_back([&, i] {
        const auto saved = SaveAlone(folder.path(), step, states[i]);
        if (!saved) codes[i] = saved.error().code;
      });
    for (auto& saver : savers) saver.join();

    ASSERT_NE(codes[0] == ErrorCode::kOk, codes[1] == ErrorCode::kOk);
    const std::size_t winner = codes[0] == ErrorCode::kOk ? 0 : 1;
    EXPECT_EQ(codes[1 - winner], ErrorCode::kConflict);
    EXPECT_EQ(Compare(folder.path(), states[winner], step), "");
  }
  EXPECT_EQ(CountEntries(folder.path()), 41U);  // The steps and LATEST, no attempts.
}

TEST(CheckpointTest, StepsAreListedAndRemoved) {
  const TempFolder folder;
  const State state(10, 1);
  for (const std::uint64_t step : {3U, 1U, 2'000'000'000U})
    ASSERT_TRUE(SaveAlone(folder.path(), step, state));
  fs::create_directory(folder / "step-1");  // Not how a step is written.
  fs::create_directory(folder / "step-0000000x");

  ASSERT_TRUE(RemoveCheckpoint(folder.path().string(), 3, {}));

  EXPECT_EQ(RemoveCheckpoint(folder.path().string(), 3, {}).error().code, ErrorCode::kNotFound);
  const auto listed = ListCheckpoints(folder.path().string(), {}).value();
  ASSERT_EQ(listed.size(), 2U);
  EXPECT_EQ(listed[0].step, 1U);
  EXPECT_EQ(listed[1].step, 2'000'000'000U);
  EXPECT_EQ(listed[0].size_bytes, 344U);
  EXPECT_EQ(CountEntries(folder.path()), 5U);
}

// --- Damage --------------------------------------------------------------------------------------

class DamagedCheckpointTest : public testing::Test {
 protected:
  void SetUp() override {
    ASSERT_TRUE(SaveAlone(run(), 1, before_));
    ASSERT_TRUE(SaveAlone(run(), 2, state_));
  }
  fs::path run() const { return folder_.path(); }
  fs::path newest() const { return run() / "step-000000002"; }

  // The newest step is refused by its number, and the message names `file`; as the latest, the
  // step before it loads and says why; or, if only tensor bytes are hurt, reading says so.
  void ExpectNamed(const std::string& file, const std::string& what) const {
    const std::string error = Compare(run(), state_, 2);
    EXPECT_NE(error.find(file), std::string::npos) << what << ": " << error;
    const auto latest = CheckpointReader::Open(run().string(), CheckpointReader::kLatest, {});
    ASSERT_TRUE(latest) << what << ": " << latest.error().message;
    if (latest.value().commit().step == 1) {
      ASSERT_EQ(latest.value().skipped().size(), 1U);
      EXPECT_NE(latest.value().skipped()[0].find(file), std::string::npos);
    }
    EXPECT_EQ(Compare(run(), before_, 1), "") << what;
  }

  const TempFolder folder_;
  const State before_{300, 1};
  const State state_{300, 2};
};

TEST_F(DamagedCheckpointTest, EveryFlippedBitOfAManifestIsNamed) {
  for (const std::string file : {"root.manifest", "part-00000.manifest"}) {
    const std::uint64_t bit_count = fs::file_size(newest() / file) * 8;
    for (std::uint64_t bit = 0; bit < bit_count; ++bit) {
      FlipBit(newest() / file, bit);
      ExpectNamed(file, file + " bit " + std::to_string(bit));
      FlipBit(newest() / file, bit);
    }
  }
  EXPECT_EQ(Compare(run(), state_), "");
}

TEST_F(DamagedCheckpointTest, FlippedBitsOfASegmentAreNamedOrHarmless) {
  const fs::path segment = newest() / "part-00000/seg-0000";
  const std::uint64_t payload = (300 * 32 + 24 + 4095) / 4096 * 4096;
  std::mt19937 random(test::Seed());
  for (int round = 0; round < 300; ++round) {
    // Any bit that is checked: payload with its padding, and the table of one block.
    const std::uint64_t bit = random() % ((payload + 8) * 8);
    FlipBit(segment, bit);
    ExpectNamed("part-00000/seg-0000", "bit " + std::to_string(bit));
    FlipBit(segment, bit);
  }
  FlipBit(segment, fs::file_size(segment) * 8 - 1);  // The trailer: only for salvage.
  EXPECT_EQ(Compare(run(), state_), "");
}

TEST_F(DamagedCheckpointTest, EveryTruncationOfAManifestIsNamed) {
  for (const std::string file : {"root.manifest", "part-00000.manifest"}) {
    const std::string whole = test::ReadFile(newest() / file);
    for (std::size_t size = 0; size < whole.size(); ++size) {
      test::WriteFile(newest() / file, std::string_view(whole).substr(0, size));
      ExpectNamed(file, file + " cut to " + std::to_string(size));
    }
    test::WriteFile(newest() / file, whole + "x");
    ExpectNamed(file, file + " longer");
    test::WriteFile(newest() / file, whole);
  }
}

TEST_F(DamagedCheckpointTest, MissingAndTruncatedFilesAreNamed) {
  for (const std::string file : {"root.manifest", "part-00000.manifest", "part-00000/seg-0000"}) {
    const std::string whole = test::ReadFile(newest() / file);
    fs::remove(newest() / file);
    ExpectNamed(file, file + " removed");
    fs::create_directory(newest() / file);
    const auto as_folder = CheckpointReader::Open(run().string(), 2, {});
    EXPECT_FALSE(as_folder);
    fs::remove(newest() / file);
    test::WriteFile(newest() / file, std::string_view(whole).substr(0, whole.size() / 2));
    ExpectNamed(file, file + " halved");
    test::WriteFile(newest() / file, "");
    ExpectNamed(file, file + " empty");
    test::WriteFile(newest() / file, whole);
  }
  EXPECT_EQ(Compare(run(), state_), "");
}

TEST_F(DamagedCheckpointTest, FilesOfAnotherStepAreRefused) {
  for (const std::string file : {"root.manifest", "part-00000.manifest", "part-00000/seg-0000"}) {
    const std::string whole = test::ReadFile(newest() / file);
    fs::copy_file(run() / "step-000000001" / file, newest() / file,
                  fs::copy_options::overwrite_existing);
    ExpectNamed(file, file + " of the step before");
    test::WriteFile(newest() / file, whole);
  }
}

TEST_F(DamagedCheckpointTest, APartThatTheRootDoesNotListIsRefused) {
  const fs::path path = newest() / "part-00000.manifest";
  const std::string text = test::ReadFile(path);
  auto part = DecodePartManifest(std::as_bytes(std::span(text)));
  ASSERT_TRUE(part);
  part.value().segments.at(0).table_digest[0] ^= std::byte{1};
  const auto other = EncodePartManifest(part.value());  // As large, and whole by itself.
  ASSERT_EQ(other.size(), text.size());
  test::WriteFile(path, {reinterpret_cast<const char*>(other.data()), other.size()});
  ExpectNamed("part-00000.manifest: not the part that the root", "another part");
}

TEST_F(DamagedCheckpointTest, WhenNoStepIsWholeTheNewestIsNamed) {
  FlipBit(newest() / "root.manifest", 200);
  FlipBit(run() / "step-000000001/root.manifest", 200);
  const auto latest = CheckpointReader::Open(run().string(), CheckpointReader::kLatest, {});
  ASSERT_FALSE(latest);
  EXPECT_EQ(latest.error().code, ErrorCode::kCorruption);
  EXPECT_NE(latest.error().message.find("step-000000002/root.manifest"), std::string::npos);
}

// --- Garbage and full disks ----------------------------------------------------------------------

void MakeAttempt(const fs::path& path, std::string host = "") {
  fs::create_directories(path / "part-00000");
  struct stat status {};
  if (::stat(path.c_str(), &status) == 0 && host.empty()) host = ThisHost(status.st_dev);
  test::WriteFile(path / ("owner-" + host), "");
}

TEST(CheckpointGarbageTest, AttemptsOfDeadRunsGoAndThoseOfLivingOnesStay) {
  const TempFolder folder;
  const State state(10, 1);
  for (const char* name : {".attempt-1-dead", ".attempt-3-dead", ".attempt-9-dead", ".attempt-x"})
    MakeAttempt(folder / name);
  fs::create_directories(folder / ".attempt-1-empty");  // Killed before it said whose it is.
  fs::create_directories(folder / ".removed-3-dead" / "part-00000");

  ThreadGroup group(2);
  std::mutex mutex;
  const auto outcomes = group.Run(
      [&](CheckpointGroup& rank) {
        return SaveCheckpoint(folder.path().string(), 2, state.PartOf(rank.rank(), 2),
                              TreeOf({"matrix"}), &rank, {});
      },
      // In the middle of this save of step 2 another run commits step 3, and collects.
      [&](std::uint32_t round, Bytes&) {
        const std::lock_guard lock(mutex);
        if (round != 1 || fs::exists(folder / "step-000000003")) return;
        EXPECT_TRUE(SaveAlone(folder.path(), 3, state));
      });

  ASSERT_TRUE(*outcomes[0]) << outcomes[0]->error().message;
  EXPECT_EQ(Compare(folder.path(), state, 2), "");
  EXPECT_FALSE(fs::exists(folder / ".attempt-1-dead"));
  EXPECT_FALSE(fs::exists(folder / ".attempt-3-dead"));
  EXPECT_FALSE(fs::exists(folder / ".attempt-1-empty"));
  EXPECT_FALSE(fs::exists(folder / ".removed-3-dead"));
  EXPECT_FALSE(fs::exists(folder / ".attempt-9-dead"));  // The begin of a save removes it.
  EXPECT_TRUE(fs::exists(folder / ".attempt-x"));
}

// Where locks do not reach other hosts, a coordinator on one of them looks dead.
TEST(CheckpointGarbageTest, AttemptsOfAnotherHostStayUntilNothingHasChangedForADay) {
  const TempFolder folder;
  const std::string foreign = "00000000000000aa";
  MakeAttempt(folder / ".attempt-1-foreign", foreign);
  MakeAttempt(folder / ".attempt-1-both");
  MakeAttempt(folder / ".attempt-1-both", foreign);
  fs::create_directories(folder / ".attempt-1-unknown" / "part-00000");
  const auto set_age = [&](std::chrono::hours age) {
    const auto then = fs::file_time_type::clock::now() - age;
    for (const auto& attempt : fs::directory_iterator(folder.path())) {
      if (!attempt.path().filename().string().starts_with(".attempt")) continue;
      for (const auto& entry : fs::recursive_directory_iterator(attempt.path()))
        fs::last_write_time(entry.path(), then);
      fs::last_write_time(attempt.path(), then);
    }
  };

  set_age(std::chrono::hours(23));
  ASSERT_TRUE(SaveAlone(folder.path(), 2, State(10, 1)));
  EXPECT_EQ(CountEntries(folder.path()), 5U);
  set_age(std::chrono::hours(25));
  const fs::path changed = folder / ".attempt-1-both" / "part-00000";
  fs::last_write_time(changed, fs::file_time_type::clock::now());
  ASSERT_TRUE(SaveAlone(folder.path(), 3, State(10, 1)));
  EXPECT_EQ(CountEntries(folder.path()), 4U);
  EXPECT_TRUE(fs::exists(changed));
  EXPECT_EQ(CountEntries(folder / "step-000000003"), 3U);  // No owner in it any more.
}

TEST(CheckpointFullDiskTest, AFullDiskIsNoSpaceAndLeavesNothing) {
  const TempFolder folder;
  if (::mount("tmpfs", folder.path().c_str(), "tmpfs", 0, "size=1m") != 0)
    GTEST_SKIP() << "mounting a tmpfs needs root: errno " << errno;
  const State small(1'000, 1);
  const State large(100'000, 2);
  ASSERT_TRUE(SaveAlone(folder.path(), 1, small));

  const auto saved = SaveAlone(folder.path(), 2, large);
  const std::size_t entries = CountEntries(folder.path());
  const std::string first = Compare(folder.path(), small);
  const auto fitting = SaveAlone(folder.path(), 3, small);
  ::umount(folder.path().c_str());

  ASSERT_FALSE(saved);
  EXPECT_EQ(saved.error().code, ErrorCode::kIo);
  EXPECT_EQ(saved.error().system_errno, ENOSPC);
  EXPECT_EQ(entries, 2U);
  EXPECT_EQ(first, "");
  EXPECT_TRUE(fitting);
}

// The file system of the child exchanges nothing, and the second of two renames fails.
TEST(CheckpointReplaceTest, AFailureBetweenTwoRenamesKeepsTheStepThatWasThere) {
  constexpr int kSkipped = 77;
  const TempFolder folder;
  const State old(1'000, 1);
  ASSERT_TRUE(SaveAlone(folder.path(), 1, old));

  const pid_t child = ::fork();
  if (child == 0) {
    if (!test::RefuseCalls({{SYS_renameat2, EINVAL}})) ::_exit(kSkipped);
    const auto target = OpenFolderTarget(folder.path().string(), true);
    const auto attempt = target->BeginInPlace(1, AttemptId{}, [] { return true; });
    if (!attempt) ::_exit(2);
    for (const auto& entry : fs::directory_iterator(folder.path()))
      if (entry.path().filename().string().starts_with(".attempt-")) fs::remove_all(entry.path());
    ::_exit(attempt.value()->Commit({}) ? 1 : 0);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);

  if (WEXITSTATUS(status) == kSkipped) GTEST_SKIP() << "system calls cannot be refused here";
  EXPECT_EQ(WEXITSTATUS(status), 0);
  EXPECT_EQ(Compare(folder.path(), old), "");
}

// What BeginInPlace() replaces is what was there when it was called, in a folder and no other.
TEST(CheckpointReplaceTest, ASaveThatTakesTheStepsPlaceDuringTheLookStays) {
  const State late(1'000, 2);
  for (const bool is_removed_first : {true, false}) {
    const TempFolder folder;
    const std::string target = folder.path().string();
    ASSERT_TRUE(SaveAlone(target, 1, State(1'000, 1)));

    const auto opened = OpenFolderTarget(target, true);
    const auto attempt = opened->BeginInPlace(1, AttemptId{}, [&]() -> Result<bool> {
      // The inode of a folder that is removed is that of the next one, on many file systems.
      if (is_removed_first) {
        EXPECT_TRUE(RemoveCheckpoint(target, 1, {}));
      }
      SaveOptions options;
      options.replaces = !is_removed_first;
      auto other = CheckpointShards::Begin(target, 1, options).value();
      const Bytes part = other.Write(0, late.PartOf(0, 1)).value();
      EXPECT_TRUE(other.Commit({{part}}, TreeOf({"matrix", "vector"})));
      return true;
    });
    ASSERT_TRUE(attempt) << attempt.error().message;

    const auto committed = attempt.value()->Commit({});
    ASSERT_FALSE(committed);
    EXPECT_EQ(committed.error().code, ErrorCode::kConflict);
    EXPECT_EQ(Compare(target, late), "");
  }
}

}  // namespace
}  // namespace ffrecord::client
