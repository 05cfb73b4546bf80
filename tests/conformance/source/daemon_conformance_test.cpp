// The byte sources before a daemon and in it: range_reader_conformance.h says what of them is
// tested.

#include <gtest/gtest.h>

#include <functional>
#include <optional>

#include "bytes.h"
#include "client/dataset/upload.h"
#include "daemon.h"
#include "libffrecord/base/checksum.h"
#include "libffrecord/io/file.h"
#include "libffrecord/net/rpc/remote_files.h"
#include "new_extents.h"
#include "one_daemon.h"
#include "range_queue_conformance.h"
#include "range_reader_conformance.h"
#include "server/service/read_ahead/extent_files.h"

namespace ffrecord::test {
namespace {

using namespace std::chrono_literals;
using Made = Result<std::shared_ptr<const RangeReader>>;

struct RemoteSource {
  Daemon daemon;
  std::optional<net::RemoteFiles> files;
};

auto Remote(Transport transport) {
  return [transport](const Contents& contents) -> Made {
    auto source = std::make_shared<RemoteSource>();
    const SessionOptions options{60s, transport};
    const auto session = net::Session::Get(source->daemon.address(), transport);
    client::Upload upload(test::OneDaemon(source->daemon.address(), options));
    DatasetManifest manifest;
    for (std::size_t i = 0; i < contents.size(); ++i) {
      const auto bytes = std::as_bytes(std::span(contents[i]));
      manifest.files.push_back(FFR_TRY(upload.PutBytes("file-" + std::to_string(i), {&bytes, 1})));
    }
    source->files.emplace(session, std::move(manifest), "ffrecord://daemon/name", options);
    return Made(std::shared_ptr<const RangeReader>(source, &*source->files));
  };
}

struct ExtentSource {
  TempFolder folder;
  std::unique_ptr<server::ExtentStore> store;
  std::unique_ptr<server::ExtentStore> other;  // Of another node.
  std::unique_ptr<const server::ExtentFiles> files;
};

// Each extent in the store that `choose` says.
Result<ManifestFile> Store(const std::function<server::ExtentStore&()>& choose,
                           std::uint32_t number, std::span<const std::byte> bytes) {
  ManifestFile file{"file-" + std::to_string(number), bytes.size(), {}};
  while (!bytes.empty()) {
    const auto extent = bytes.first(std::min<std::uint64_t>(bytes.size(), kExtentSizeMax));
    const auto id = MakeExtentId(1, number, static_cast<std::uint32_t>(file.extents.size()));
    auto writer = FFR_TRY(test::Create(choose(), id, extent.size()));
    FFR_TRY(writer.Append(extent));
    FFR_TRY(writer.Seal(Xxh3(extent)));
    file.extents.push_back({id, extent.size(), Xxh3(extent)});
    bytes = bytes.subspan(extent.size());
  }
  return file;
}

Made Extents(const Contents& contents) {
  auto source = std::make_shared<ExtentSource>();
  source->store = FFR_TRY(server::ExtentStore::Open(source->folder / "extents"));
  DatasetManifest manifest;
  const auto choose = [&]() -> server::ExtentStore& { return *source->store; };
  for (std::uint32_t i = 0; i < contents.size(); ++i)
    manifest.files.push_back(FFR_TRY(Store(choose, i, std::as_bytes(std::span(contents[i])))));
  source->files = FFR_TRY(server::ExtentFiles::Open(std::move(manifest), *source->store, {}));
  return Made(std::shared_ptr<const RangeReader>(source, source->files.get()));
}

// As a node of a cluster has them: every second extent is at another node.
Made ExtentsInCluster(const Contents& contents) {
  auto source = std::make_shared<ExtentSource>();
  source->store = FFR_TRY(server::ExtentStore::Open(source->folder / "extents"));
  source->other = FFR_TRY(server::ExtentStore::Open(source->folder / "others"));
  DatasetManifest manifest;
  bool is_here = false;
  const auto choose = [&]() -> server::ExtentStore& {
    return (is_here = !is_here) ? *source->store : *source->other;
  };
  for (std::uint32_t i = 0; i < contents.size(); ++i)
    manifest.files.push_back(FFR_TRY(Store(choose, i, std::as_bytes(std::span(contents[i])))));
  server::ExtentFiles::Others others;
  others.read = [&other = *source->other](const ExtentId& id, std::uint64_t offset_bytes,
                                          std::span<std::byte> destination) -> Result<void> {
    const server::ExtentPtr extent = other.Find(id);
    if (!extent) return Error{ErrorCode::kUnavailable, "it is not there either"};
    const auto file = FFR_TRY(server::ExtentStore::OpenFile(*extent));
    return ReadExactly(file.get(), extent->disk->PathOf(id), offset_bytes, destination);
  };
  source->files =
      FFR_TRY(server::ExtentFiles::Open(std::move(manifest), *source->store, std::move(others)));
  return Made(std::shared_ptr<const RangeReader>(source, source->files.get()));
}

// A daemon does not fork: a child would find the locks of its store as another thread held them.
const std::vector<RangeReaderForm> kForms = {
    {.name = "remote_tcp", .make = Remote(Transport::kTcp)},
    {.name = "remote_shm", .make = Remote(Transport::kShm)},
    {.name = "extents", .make = Extents, .may_be_forked = false},
    {.name = "extents_in_cluster", .make = ExtentsInCluster, .may_be_forked = false}};

INSTANTIATE_TEST_SUITE_P(Forms, RangeReaderConformance, testing::ValuesIn(AndTheirQueues(kForms)),
                         NameOfForm);
INSTANTIATE_TEST_SUITE_P(Forms, RangeQueueConformance, testing::ValuesIn(kForms), NameOfForm);

// --- Files of several extents --------------------------------------------------------------------

class ManyExtentsTest : public testing::TestWithParam<RangeReaderForm> {};

TEST_P(ManyExtentsTest, RangesThatCrossTheEndOfAnExtentAreRead) {
  const Contents contents{RandomContent(1000), RandomContent(kExtentSizeMax + 5000),
                          RandomContent(2000)};
  const auto reader = GetParam().make(contents);
  ASSERT_TRUE(reader) << reader.error().message;
  RangesWanted wanted(*reader.value(), contents);
  wanted.Add(1, kExtentSizeMax - 1, 2);
  wanted.Add(1, kExtentSizeMax - 3'000'000, 3'005'000);
  wanted.Add(1, kExtentSizeMax - 10, 10);
  wanted.Add(1, kExtentSizeMax, 10);
  wanted.Add(1, kExtentSizeMax + 4999, 1);
  wanted.Add(2, 0, 2000);
  wanted.Add(0, 0, 1000);
  const auto ranges = wanted.Prepare();

  std::size_t arrived = 0;
  const auto read = reader.value()->ReadEach(ranges, [&](RangeRead&) { ++arrived; });

  ASSERT_TRUE(read) << read.error().message;
  EXPECT_EQ(arrived, ranges.size());
  for (const RangeRead& range : ranges) EXPECT_EQ(range.status, ErrorCode::kOk);
  wanted.ExpectRight();
  const auto mapped = reader.value()->MapIndex(1, kExtentSizeMax - 4000, 8000);
  ASSERT_TRUE(mapped) << mapped.error().message;
  EXPECT_TRUE(std::ranges::equal(
      mapped.value().bytes,
      std::as_bytes(std::span(contents[1]).subspan(kExtentSizeMax - 4000, 8000))));
}

INSTANTIATE_TEST_SUITE_P(Forms, ManyExtentsTest, testing::ValuesIn(kForms), NameOfForm);

}  // namespace
}  // namespace ffrecord::test
