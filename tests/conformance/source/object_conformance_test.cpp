// Objects of a bucket as a byte source: range_reader_conformance.h says what is tested.

#include "fake_bucket.h"
#include "libffrecord/object_store/object_files.h"
#include "range_queue_conformance.h"
#include "range_reader_conformance.h"

namespace ffrecord::test {
namespace {

using object_store::S3Bucket;
using Made = Result<std::shared_ptr<const RangeReader>>;

struct ObjectSource {
  explicit ObjectSource(std::map<std::string, std::string> objects) : store(std::move(objects)) {}
  FakeBucket store;
  std::unique_ptr<RangeReader> files;
};

Made Objects(const Contents& contents) {
  std::map<std::string, std::string> stored;
  std::vector<S3Bucket::Object> objects;
  for (std::size_t i = 0; i < contents.size(); ++i) {
    objects.push_back({"folder/file-" + std::to_string(i), contents[i].size(), ""});
    stored[objects.back().key] = contents[i];
  }
  auto source = std::make_shared<ObjectSource>(std::move(stored));
  auto bucket =
      FFR_TRY(S3Bucket::Open("bucket", source->store.settings(), std::chrono::seconds(20)));
  source->files = object_store::OpenObjectFiles(std::move(bucket), std::move(objects));
  return Made(std::shared_ptr<const RangeReader>(source, source->files.get()));
}

const std::vector<RangeReaderForm> kForms{{.name = "objects", .make = Objects, .range_count = 300}};

INSTANTIATE_TEST_SUITE_P(Forms, RangeReaderConformance, testing::ValuesIn(AndTheirQueues(kForms)),
                         NameOfForm);
INSTANTIATE_TEST_SUITE_P(Forms, RangeQueueConformance, testing::ValuesIn(kForms), NameOfForm);

TEST(ObjectFilesTest, AnObjectThatIsNotThereSaysSo) {
  FakeBucket store({});
  const auto files = object_store::OpenObjectFiles(
      S3Bucket::Open("bucket", store.settings(), std::chrono::seconds(5)).value(),
      {{"gone", 100, ""}});
  std::vector<std::byte> memory(10);
  RangeRead range{0, 0, memory};
  ASSERT_TRUE(files->Read({&range, 1}));
  EXPECT_EQ(range.status, ErrorCode::kNotFound);
  EXPECT_NE(files->Trouble(0, ErrorCode::kNotFound).find("gone"), std::string::npos);
  EXPECT_EQ(files->MapIndex(0, 0, 10).error().code, ErrorCode::kNotFound);
}

}  // namespace
}  // namespace ffrecord::test
