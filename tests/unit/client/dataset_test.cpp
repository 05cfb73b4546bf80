// Goal: a published dataset gives what the files give, byte for byte, and every fault of daemon,
// disk or peer is an error that names it, for the records concerned only.
// Method: daemons in this process, over TCP, shared memory and RDMA; files of all kinds published
// and compared with the embedded reader; daemons killed and started again under readers; extents
// damaged on the disk.

#include <ffrecord/client/dataset.h>

#include <ffrecord/permutation.h>
#include <gtest/gtest.h>

#include <atomic>
#include <random>
#include <thread>

#include "child.h"
#include "daemon.h"
#include "daemon_metrics.h"
#include "endpoint_pairs.h"
#include "libffrecord/net/rpc/channel.h"
#include "seed.h"
#include "test_file.h"
#include "virtual_clock.h"

namespace ffrecord::client {
namespace {

using test::Daemon;
using test::TempFolder;
using test::TestFileOptions;
using namespace std::chrono_literals;

constexpr SessionOptions kPatient{20s};
constexpr SessionOptions kBrief{1500ms};

Result<RecordReader> OpenRemote(const std::string& uri, const SessionOptions& options = kPatient) {
  return OpenDataset({{uri}}, {}, options);
}

Result<void> Publish(const std::vector<std::filesystem::path>& files, const std::string& uri,
                     bool replace = false, const SessionOptions& options = kPatient) {
  return PublishDataset(files, uri, replace, options, {});
}

// What a test wants published before it begins; says why it was not.
testing::AssertionResult Published(const std::vector<std::filesystem::path>& files,
                                   const std::string& uri) {
  const auto published = Publish(files, uri);
  if (published) return testing::AssertionSuccess();
  return testing::AssertionFailure() << published.error().message;
}

std::vector<std::string> RandomRecords(std::size_t count, std::size_t size_max,
                                       std::mt19937& random) {
  std::vector<std::string> records(count);
  for (auto& record : records) {
    record.resize(random() % (size_max + 1));
    for (auto& c : record) c = static_cast<char>(random());
  }
  return records;
}

// Compressible, so that zstd is really used.
std::vector<std::string> WordyRecords(std::size_t count) {
  std::vector<std::string> records;
  for (std::size_t i = 0; i < count; ++i) {
    std::string record;
    for (std::size_t j = 0; j < 40 + i % 50; ++j) record += "word " + std::to_string(i % 7) + " ";
    records.push_back(record);
  }
  return records;
}

// Both readers give the same bytes and statuses for the same indices.
void ExpectSameBatch(const RecordReader& remote, const RecordReader& local,
                     const std::vector<std::uint64_t>& indices) {
  const auto theirs = remote.ReadBatch(indices);
  const auto ours = local.ReadBatch(indices);
  ASSERT_TRUE(theirs) << theirs.error().message;
  ASSERT_TRUE(ours) << ours.error().message;
  for (std::size_t i = 0; i < indices.size(); ++i) {
    ASSERT_EQ(theirs.value().statuses()[i], ours.value().statuses()[i]) << i;
    ASSERT_TRUE(std::ranges::equal(theirs.value().record(i), ours.value().record(i))) << i;
  }
}

void ExpectSame(const RecordReader& remote, const RecordReader& local) {
  ASSERT_EQ(remote.record_count(), local.record_count());
  EXPECT_EQ(remote.fingerprint(), local.fingerprint());
  EXPECT_EQ(remote.schema(), local.schema());
  std::mt19937 random(test::Seed());
  for (std::size_t count : {1U, 7U, 100U, 1000U}) {
    std::vector<std::uint64_t> indices(count);
    for (auto& index : indices) index = random() % local.record_count();
    ExpectSameBatch(remote, local, indices);
  }
}

class DatasetTest : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    if (GetParam() == std::string_view("rdma") && !net::test::TestRdmaDevice())
      GTEST_SKIP() << net::test::TestRdmaDevice().error().message;
  }
  std::string Uri(const std::string& name) const {
    return daemon_.Uri(name) + "?transport=" + GetParam();
  }
  std::filesystem::path Write(const std::string& name, const std::vector<std::string>& records,
                              const TestFileOptions& options = {}) {
    test::WriteRecords(folder_ / name, records, options);
    return folder_ / name;
  }

  std::mt19937 random_{test::Seed()};
  TempFolder folder_;
  Daemon daemon_;
};

TEST_P(DatasetTest, AHintedEpochReadsTheSameAndALostDaemonIsNoticed) {
  const auto file = Write("a.ffr", RandomRecords(500, 9000, random_));
  ASSERT_TRUE(Published({file}, daemon_.Uri("a")));
  const auto local = RecordReader::Open({{file}}, {}).value();
  const auto remote = OpenRemote(Uri("a")).value();
  const EpochPlan plan{.seed = 4, .end = 480, .step_size = 32, .world_size = 2, .rank = 1};
  const auto order = Permutation::Make(4, 0, 0, 500).value();
  EXPECT_EQ(local.HintEpoch(plan).value(), nullptr);

  auto hint = remote.HintEpoch(plan);

  ASSERT_TRUE(hint) << hint.error().message;
  ASSERT_TRUE(hint.value());
  std::vector<std::uint64_t> indices(16);
  for (std::uint64_t step = 0; step < 480; step += 32) {
    order.Fill(step + 16, indices);
    ExpectSameBatch(remote, local, indices);
  }
  EXPECT_TRUE(hint.value()->alive());
  EXPECT_FALSE(remote.HintEpoch({.end = 2000}));
  EXPECT_FALSE(remote.HintEpoch({.end = 1, .rank = 1}));
  daemon_.Kill();
  EXPECT_TRUE(test::Eventually([&] { return !hint.value()->alive(); }));
}

TEST_P(DatasetTest, EveryKindOfFileReadsTheSameAsEmbedded) {
  TestFileOptions v1;
  v1.version = 1;
  TestFileOptions compressed;
  compressed.writer.compress = true;
  TestFileOptions aligned;
  aligned.writer.alignment_bytes = 4096;
  const std::vector<std::pair<std::string, std::filesystem::path>> files{
      {"v1", Write("v1.ffr", RandomRecords(500, 3000, random_), v1)},
      {"v2", Write("v2.ffr", RandomRecords(500, 3000, random_))},
      {"zstd", Write("zstd.ffr", WordyRecords(400), compressed)},
      {"aligned", Write("aligned.ffr", RandomRecords(300, 9000, random_), aligned)},
      {"tiny", Write("tiny.ffr", {"", "a", ""})},
  };
  for (const auto& [name, path] : files) {
    SCOPED_TRACE(name);
    const auto published = Publish({path}, Uri(name));
    ASSERT_TRUE(published) << published.error().message;

    const auto remote = OpenRemote(Uri(name));

    ASSERT_TRUE(remote) << remote.error().message;
    ExpectSame(remote.value(), test::OpenOne(path).value());
  }
}

TEST_P(DatasetTest, ASchemaTravelsWithTheFile) {
  TestFileOptions options;
  options.schema =
      Schema::Make({{"label", ColumnType::kI64}, {"data", ColumnType::kBytes}}).value();
  std::vector<std::string> records;
  for (int i = 0; i < 50; ++i) records.push_back(std::string(8, static_cast<char>(i)) + "payload");
  const auto path = Write("schema.ffr", records, options);
  ASSERT_TRUE(Published({path}, Uri("schema")));

  const auto remote = OpenRemote(Uri("schema"));

  ASSERT_TRUE(remote) << remote.error().message;
  ExpectSame(remote.value(), test::OpenOne(path).value());
}

TEST_P(DatasetTest, ManyFilesAreOneSequence) {
  std::vector<std::filesystem::path> paths;
  for (int i = 0; i < 9; ++i)
    paths.push_back(Write(std::to_string(i) + ".ffr", RandomRecords(40, 5000, random_)));
  std::filesystem::create_directory(folder_ / "other");
  paths.push_back(Write("other/3.ffr", RandomRecords(5, 100, random_)));  // A name used twice.
  ASSERT_TRUE(Published(paths, Uri("run/many")));

  const auto remote = OpenRemote(Uri("run/many"));

  ASSERT_TRUE(remote) << remote.error().message;
  ExpectSame(remote.value(), RecordReader::Open(paths, {}).value());
  EXPECT_EQ(remote.value().file(0).name, daemon_.Uri("run/many") + "/0.ffr");
}

TEST_P(DatasetTest, RecordsThatCrossExtentsAreWhole) {
  // 150 MB in records of up to 23 MB: two ends of extents lie within records.
  std::vector<std::string> records;
  for (std::size_t i = 0; i < 13; ++i) {
    std::string record((i % 4 + 1) * 5'500'000 + i, '\0');
    for (std::size_t j = 0; j < record.size(); j += 97) record[j] = static_cast<char>(random_());
    records.push_back(std::move(record));
  }
  const auto path = Write("large.ffr", records);
  ASSERT_TRUE(Published({path}, Uri("large")));
  ASSERT_EQ(daemon_.Extents().size(), 3U);

  const auto remote = OpenRemote(Uri("large"));

  ASSERT_TRUE(remote) << remote.error().message;
  EXPECT_EQ(test::ReadAll(remote.value()), records);
}

TEST_P(DatasetTest, ThreadsReadRandomBatchesTogether) {
  const auto path = Write("file.ffr", RandomRecords(3000, 4000, random_));
  ASSERT_TRUE(Published({path}, Uri("threads")));
  const auto remote = OpenRemote(Uri("threads")).value();
  const auto local = test::OpenOne(path).value();
  std::vector<std::thread> threads;
  for (unsigned thread = 0; thread < 6; ++thread) {
    threads.emplace_back([&, thread] {
      std::mt19937 random(test::Seed() + thread);
      for (int round = 0; round < 20; ++round) {
        std::vector<std::uint64_t> indices(random() % 300 + 1);
        for (auto& index : indices) index = random() % local.record_count();
        ExpectSameBatch(remote, local, indices);
      }
    });
  }
  for (auto& thread : threads) thread.join();
}

TEST_P(DatasetTest, AForkedChildReadsOnConnectionsOfItsOwn) {
  const auto path = Write("file.ffr", RandomRecords(100, 1000, random_));
  ASSERT_TRUE(Published({path}, Uri("fork")));
  const auto remote = OpenRemote(Uri("fork")).value();
  const auto records = test::ReadAll(remote);

  EXPECT_EQ(test::RunInChild([&] { return test::ReadAll(remote) == records ? 0 : 1; }), 0);

  EXPECT_EQ(test::ReadAll(remote), records);
}

// --- Names ---------------------------------------------------------------------------------------

TEST_P(DatasetTest, AnExistingNameIsAConflictUnlessReplaced) {
  const auto first = Write("first.ffr", {"first"});
  const auto second = Write("second.ffr", {"second"});
  ASSERT_TRUE(Published({first}, Uri("name")));

  const auto refused = Publish({second}, Uri("name"));
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, ErrorCode::kConflict) << refused.error().message;
  EXPECT_EQ(test::ReadAll(OpenRemote(Uri("name")).value()).at(0), "first");

  const auto replaced = Publish({second}, Uri("name"), /*replace=*/true);
  ASSERT_TRUE(replaced) << replaced.error().message;
  EXPECT_EQ(test::ReadAll(OpenRemote(Uri("name")).value()).at(0), "second");
  EXPECT_TRUE(test::Eventually([&] { return daemon_.Extents().size() == 1; }));
}

TEST_P(DatasetTest, AReaderKeepsItsDataWhenTheNameIsReplacedOrRemoved) {
  test::VirtualClock clock;
  daemon_.Kill();
  daemon_.Start();  // By that clock.
  const auto records = RandomRecords(200, 1000, random_);
  const auto path = Write("file.ffr", records);
  ASSERT_TRUE(Published({path}, Uri("name")));
  {
    const auto remote = OpenRemote(Uri("name")).value();
    ASSERT_EQ(test::ReadAll(remote), records);

    ASSERT_TRUE(RemovePublished(Uri("name"), kPatient));

    clock.RunFor(10s);  // Several rounds of collection.
    EXPECT_EQ(test::ReadAll(remote), records);
    EXPECT_EQ(daemon_.Extents().size(), 1U);
  }
  // The reader is gone, and with it the last use.
  EXPECT_TRUE(test::Eventually([&] { return daemon_.Extents().empty(); }));
}

TEST_P(DatasetTest, NamesAreListedByPrefixAndRemoved) {
  const auto path = Write("file.ffr", {"a", "b"});
  for (const char* name : {"train", "run/a", "run/b", "running"})
    ASSERT_TRUE(Published({path}, Uri(name)));
  const auto names = [&](const std::string& prefix) {
    std::vector<std::string> found;
    const auto listed = ListPublished(Uri(prefix), kPatient).value();
    for (const auto& one : listed) found.push_back(one.name);
    return found;
  };

  EXPECT_EQ(names(""), (std::vector<std::string>{"run/a", "run/b", "running", "train"}));
  EXPECT_EQ(names("run/"), (std::vector<std::string>{"run/a", "run/b"}));
  EXPECT_EQ(names("no"), std::vector<std::string>{});
  const auto train = ListPublished(Uri("train"), kPatient).value().at(0);
  EXPECT_EQ(train.size_bytes, std::filesystem::file_size(path));
  EXPECT_EQ(train.file_count, 1U);

  ASSERT_TRUE(RemovePublished(Uri("run/a"), kPatient));
  EXPECT_EQ(names("run/"), std::vector<std::string>{"run/b"});
  const auto again = RemovePublished(Uri("run/a"), kPatient);
  ASSERT_FALSE(again);
  EXPECT_EQ(again.error().code, ErrorCode::kNotFound);
}

TEST_P(DatasetTest, AddressesAreChecked) {
  const auto path = Write("file.ffr", {"a"});
  for (const char* bad :
       {"ffrecord://", "ffrecord:///name", "ffrecord://host:99999/name", "ffrecord://localhost/",
        "ffrecord://localhost/a//b", "ffrecord://localhost/../etc"}) {
    const auto opened = OpenRemote(bad, kBrief);
    ASSERT_FALSE(opened) << bad;
    EXPECT_EQ(opened.error().code, ErrorCode::kInvalidArgument) << opened.error().message;
    const auto published = Publish({path}, bad);
    ASSERT_FALSE(published) << bad;
    EXPECT_EQ(published.error().code, ErrorCode::kInvalidArgument) << published.error().message;
  }
  const auto mixed = OpenDataset({{Uri("a"), path.string()}}, {}, kBrief);
  ASSERT_FALSE(mixed);
  EXPECT_EQ(mixed.error().code, ErrorCode::kInvalidArgument);
}

TEST_P(DatasetTest, AMissingNameIsNotFound) {
  const auto opened = OpenRemote(Uri("nothing"));
  ASSERT_FALSE(opened);
  EXPECT_EQ(opened.error().code, ErrorCode::kNotFound);
  EXPECT_NE(opened.error().message.find("nothing"), std::string::npos) << opened.error().message;
}

// --- Damage --------------------------------------------------------------------------------------

TEST_P(DatasetTest, DamagedFilesAreNotPublished) {
  test::TestFile flipped({"zero", "first", "second"});
  flipped.FlipByteOfRecord(1);
  const auto good = Write("good.ffr", {"a"});
  test::WriteFile(folder_ / "short.ffr", test::ReadFile(good).substr(0, 200));
  test::WriteFile(folder_ / "empty.ffr", "");
  for (const auto& bad : {flipped.path(), folder_ / "short.ffr", folder_ / "empty.ffr"}) {
    const auto published = Publish({good, bad}, Uri("damaged"));
    ASSERT_FALSE(published) << bad;
    EXPECT_EQ(published.error().code, ErrorCode::kCorruption) << published.error().message;
    EXPECT_NE(published.error().message.find(bad.filename().string()), std::string::npos)
        << published.error().message;
  }
  const auto missing = Publish({folder_ / "none.ffr"}, Uri("damaged"));
  ASSERT_FALSE(missing);
  EXPECT_EQ(missing.error().code, ErrorCode::kNotFound);
  EXPECT_EQ(OpenRemote(Uri("damaged")).error().code, ErrorCode::kNotFound);
}

TEST_P(DatasetTest, AFlippedBitInAnExtentSpoilsItsOwnRecordOnly) {
  const std::vector<std::string> records{"zero", std::string(5000, 'x'), "second"};
  ASSERT_TRUE(Published({Write("file.ffr", records)}, Uri("name")));
  const auto extent = daemon_.Extents().at(0);
  std::string content = test::ReadFile(extent);
  content[content.find("xxxxx") + 100] = 'y';
  test::WriteFile(extent, content);

  const auto remote = OpenRemote(Uri("name")).value();
  const auto batch = remote.ReadBatch(test::UpTo(3)).value();

  EXPECT_EQ(batch.statuses()[0], ErrorCode::kOk);
  EXPECT_EQ(batch.statuses()[1], ErrorCode::kCorruption);
  EXPECT_EQ(batch.statuses()[2], ErrorCode::kOk);
  EXPECT_EQ(test::AsString(batch.record(2)), "second");
}

// The daemon has nothing to mend it with: it says so, and publishing the files again does.
TEST_P(DatasetTest, ADaemonIsToldOfDamageThatAReaderMeets) {
  server::Server::Options options;
  options.data = {folder_ / "watched"};
  options.admin = net::Address{"127.0.0.1", 0};
  Daemon watched(options);
  const auto file = Write("file.ffr", {"zero", std::string(5000, 'x'), "second"});
  const std::string uri = watched.Uri("name") + "?transport=" + GetParam();
  ASSERT_TRUE(Published({file}, uri));
  const auto extent = watched.Extents().at(0);
  std::string content = test::ReadFile(extent);
  content[content.find("xxxxx") + 100] = 'y';
  test::WriteFile(extent, content);
  const auto bad = [&] {
    return test::MetricOf(*watched.server().admin_address(), "ffrecord_extents_bad");
  };
  const auto remote = OpenRemote(uri).value();
  ASSERT_TRUE(remote.ReadBatch({{0, 2}}));
  EXPECT_EQ(bad(), 0U);

  const auto batch = remote.ReadBatch(test::UpTo(3)).value();

  EXPECT_EQ(batch.statuses()[1], ErrorCode::kCorruption);
  EXPECT_TRUE(test::Eventually([&] { return bad() == 1; }));
  // The daemon serves the intact records of the extent as before.
  EXPECT_EQ(remote.ReadBatch(test::UpTo(3)).value().statuses()[2], ErrorCode::kOk);
  ASSERT_TRUE(PublishDataset({{file}}, uri, true, {}, {}));
  EXPECT_EQ(test::ReadAll(OpenRemote(uri).value()).at(1), std::string(5000, 'x'));
}

TEST_P(DatasetTest, AnExtentCutShortSpoilsTheRecordsThatAreGone) {
  std::vector<std::string> records(100, std::string(1000, 'r'));
  ASSERT_TRUE(Published({Write("file.ffr", records)}, Uri("name")));
  const auto remote = OpenRemote(Uri("name")).value();
  ASSERT_EQ(test::ReadAll(remote), records);  // So the index, at the file's end, is known.
  std::filesystem::resize_file(daemon_.Extents().at(0), 50'000);

  const auto first = remote.ReadBatch({{0, 1, 2}}).value();
  const auto last = remote.ReadBatch({{3, 97, 98}}).value();

  EXPECT_EQ(first.statuses()[2], ErrorCode::kOk);
  EXPECT_EQ(last.statuses()[0], ErrorCode::kOk);
  EXPECT_EQ(last.statuses()[1], ErrorCode::kCorruption);
  EXPECT_EQ(last.statuses()[2], ErrorCode::kCorruption);
}

// --- Daemons that go away ------------------------------------------------------------------------

TEST(DatasetWithoutDaemonTest, ARefusedConnectionSaysWhereAndHowToStartOne) {
  const std::string uri = [] {
    const Daemon gone;
    return gone.Uri("name");
  }();

  const auto opened = OpenRemote(uri, {std::chrono::hours(1)});  // It does not wait for that.

  ASSERT_FALSE(opened);
  EXPECT_EQ(opened.error().code, ErrorCode::kUnavailable);
  const std::string& message = opened.error().message;
  EXPECT_NE(message.find(uri.substr(0, uri.rfind('/'))), std::string::npos) << message;
  EXPECT_NE(message.find("ffrecordd --data"), std::string::npos) << message;
}

TEST(DatasetWithoutDaemonTest, ADaemonThatIsFullIsAskedAgainUntilThereIsRoom) {
  Daemon full({.connection_count_max = 1});
  auto guest = net::Channel::Connect(full.address(), net::Clock::now() + 60s);
  ASSERT_TRUE(guest) << guest.error().message;
  const auto refused = OpenDataset({{full.Uri("name") + "?transport=tcp"}}, {}, {300ms});
  ASSERT_FALSE(refused);
  EXPECT_NE(refused.error().message.find("busy"), std::string::npos) << refused.error().message;

  guest.value().reset();

  const auto answered = OpenDataset({{full.Uri("name") + "?transport=tcp"}}, {}, {60s});
  EXPECT_EQ(answered.error().code, ErrorCode::kNotFound) << answered.error().message;
}

TEST_P(DatasetTest, AReaderGoesOnWhenItsDaemonStartsAgain) {
  const auto path = Write("file.ffr", RandomRecords(2000, 2000, random_));
  ASSERT_TRUE(Published({path}, Uri("name")));
  const auto remote = OpenRemote(Uri("name")).value();
  const auto local = test::OpenOne(path).value();
  std::atomic<bool> is_over{false};
  std::atomic<int> batches{0};
  std::thread reader([&] {
    std::mt19937 random(test::Seed());
    while (!is_over) {
      std::vector<std::uint64_t> indices(200);
      for (auto& index : indices) index = random() % local.record_count();
      ExpectSameBatch(remote, local, indices);
      ++batches;
    }
  });
  for (int restart = 0; restart < 4; ++restart) {
    const int before = batches;
    EXPECT_TRUE(test::Eventually([&] { return batches > before + 3; }));
    daemon_.Kill();
    daemon_.Start();
  }
  const int before = batches;
  EXPECT_TRUE(test::Eventually([&] { return batches > before + 3; }));
  is_over = true;
  reader.join();
}

// As where the daemon has become a node of a cluster, and others have the extent now.
TEST_P(DatasetTest, ARecordThatTheDaemonHasNoMoreSaysSo) {
  const auto path = Write("file.ffr", {"a", "b", "c"});
  ASSERT_TRUE(Published({path}, Uri("name")));
  const auto remote = OpenRemote(Uri("name")).value();
  daemon_.Kill();
  for (const auto& extent : daemon_.Extents()) std::filesystem::remove(extent);
  daemon_.Start();

  const auto batch = remote.ReadBatch(test::UpTo(3));

  ASSERT_TRUE(batch) << batch.error().message;
  EXPECT_EQ(batch.value().statuses()[0], ErrorCode::kNotFound);
  const std::string why = remote.Describe(0, ErrorCode::kNotFound);
  EXPECT_NE(why.find("open it again"), std::string::npos) << why;
}

TEST_P(DatasetTest, ADaemonThatStaysAwayGivesEachRecordAStatusWithinTheTimeout) {
  const auto path = Write("file.ffr", {"a", "b", "c"});
  ASSERT_TRUE(Published({path}, Uri("name")));
  const auto remote = OpenRemote(Uri("name"), kBrief).value();
  daemon_.Kill();
  const auto started = std::chrono::steady_clock::now();

  const auto batch = remote.ReadBatch(test::UpTo(3));

  ASSERT_TRUE(batch) << batch.error().message;
  // Over RDMA nobody tells that the peer is dead: its silence may outlast the timeout.
  const bool is_silent = GetParam() == std::string_view("rdma");
  for (const ErrorCode status : batch.value().statuses())
    EXPECT_TRUE(status == ErrorCode::kUnavailable ||
                (is_silent && status == ErrorCode::kDeadlineExceeded));
  EXPECT_LT(std::chrono::steady_clock::now() - started, 20s);
  daemon_.Start();
  EXPECT_EQ(test::ReadAll(remote), (std::vector<std::string>{"a", "b", "c"}));
}

TEST_P(DatasetTest, AnUploadGoesOnWhenTheDaemonStartsAgain) {
  std::vector<std::string> records;
  for (int i = 0; i < 20; ++i) records.emplace_back(4'000'000, static_cast<char>('a' + i));
  const auto path = Write("file.ffr", records);
  std::thread restarter;
  bool is_restarted = false;
  const auto progress = [&](std::uint64_t done, std::uint64_t) {
    if (done < 20'000'000 || std::exchange(is_restarted, true)) return;
    restarter = std::thread([&] {
      daemon_.Kill();
      daemon_.Start();
    });
  };

  const auto published =
      PublishDataset({{path}}, Uri("name"), /*replace=*/false, kPatient, progress);

  restarter.join();
  ASSERT_TRUE(published) << published.error().message;
  EXPECT_EQ(test::ReadAll(OpenRemote(Uri("name")).value()), records);
}

TEST_P(DatasetTest, ProgressRisesToTheWhole) {
  const auto first = Write("a.ffr", RandomRecords(3000, 3000, random_));
  const auto second = Write("b.ffr", RandomRecords(10, 10, random_));
  std::uint64_t last = 0;
  std::uint64_t total = 0;
  const auto progress = [&](std::uint64_t done, std::uint64_t all) {
    EXPECT_GE(done, last);
    last = done;
    total = all;
  };

  ASSERT_TRUE(PublishDataset({{first, second}}, Uri("name"), false, kPatient, progress));

  EXPECT_EQ(total, std::filesystem::file_size(first) + std::filesystem::file_size(second));
  EXPECT_EQ(last, total);
}

INSTANTIATE_TEST_SUITE_P(Transports, DatasetTest, testing::Values("tcp", "shm", "rdma"),
                         [](const auto& instance) { return std::string(instance.param); });

}  // namespace
}  // namespace ffrecord::client
