// Goal: local files come to a bucket whole, in one request or in parts, and never over an object
// that is there already. Method: a bucket in this process; objects appear before an upload, and in
// the middle of it.

#include "client/dataset/origin_copy.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <string>
#include <utility>
#include <vector>

#include "fake_bucket.h"
#include "temp_folder.h"
#include "test_file.h"

namespace ffrecord::client {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kSmall = 100'000;
constexpr std::size_t kLarge = (std::size_t{64} << 20) + 1000;  // Two parts.

class OriginCopyTest : public testing::TestWithParam<std::size_t> {
 protected:
  OriginCopyTest() {
    const std::string endpoint = "http://127.0.0.1:" + std::to_string(bucket_.port());
    for (const auto& [name, value] :
         {std::pair<const char*, std::string>{"AWS_ENDPOINT_URL_S3", endpoint},
          {"AWS_ACCESS_KEY_ID", "key"},
          {"AWS_SECRET_ACCESS_KEY", "secret"},
          {"AWS_REGION", "us-east-1"}})
      ::setenv(name, value.c_str(), 1);
    std::uint32_t state = 7;
    for (char& c : content_) c = static_cast<char>((state = state * 1664525 + 1013904223) >> 24);
    test::WriteFile(file_, content_);
  }

  Result<std::vector<std::string>> Copy() {
    std::uint64_t told = 0;
    SessionOptions options;
    options.timeout = std::chrono::seconds(120);
    auto copied = CopyToOrigin({&file_, 1}, "s3://bucket/data/", options, [&](std::uint64_t done) {
      EXPECT_GE(done, told);
      told = done;
    });
    if (copied) {
      EXPECT_EQ(told, content_.size());
    }
    return copied;
  }

  test::TempFolder folder_;
  const fs::path file_ = folder_ / "x.ffr";
  std::string content_ = std::string(GetParam(), '\0');
  const std::string key_ = "data/x.ffr";
  test::FakeBucket bucket_{{}};
};

TEST_P(OriginCopyTest, AFileBecomesAnObjectAndIsNotSentTwice) {
  const auto copied = Copy();
  ASSERT_TRUE(copied) << copied.error().message;
  EXPECT_EQ(copied.value(), std::vector<std::string>{"s3://bucket/data/x.ffr"});
  EXPECT_TRUE(bucket_.Get(key_) == content_);
  EXPECT_EQ(bucket_.pending_count(), 0U);

  const std::size_t write_count = bucket_.write_count();
  EXPECT_TRUE(Copy());
  EXPECT_TRUE(bucket_.Get(key_) == content_);
  // A small one goes along with the question whether it is there.
  EXPECT_EQ(bucket_.write_count() - write_count, GetParam() == kLarge ? 0U : 1U);
}

TEST_P(OriginCopyTest, AnotherObjectOfThatNameStays) {
  std::string other = content_;
  other.back() ^= 1;
  bucket_.Put(key_, other);
  const auto refused = Copy();
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, ErrorCode::kConflict) << refused.error().message;
  EXPECT_NE(refused.error().message.find("s3://bucket/data/x.ffr exists with other bytes"),
            std::string::npos);
  EXPECT_TRUE(bucket_.Get(key_) == other);
}

INSTANTIATE_TEST_SUITE_P(Sizes, OriginCopyTest, testing::Values(kSmall, kLarge));

class PartsTest : public OriginCopyTest {};

TEST_P(PartsTest, AnObjectThatAppearsMeanwhileStaysAndNoPartsAreLeft) {
  bucket_.OnPart([&](auto& objects) { objects[key_] = "somebody's"; });
  const auto refused = Copy();
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, ErrorCode::kConflict) << refused.error().message;
  EXPECT_EQ(bucket_.Get(key_), "somebody's");
  EXPECT_EQ(bucket_.pending_count(), 0U);
}

// As when the answer to the end of an upload was lost, and it is asked for once more.
TEST_P(PartsTest, TheSameObjectThatAppearsMeanwhileCountsAsCopied) {
  bucket_.OnPart([&](auto& objects) { objects[key_] = content_; });
  const auto copied = Copy();
  EXPECT_TRUE(copied) << copied.error().message;
  EXPECT_TRUE(bucket_.Get(key_) == content_);
}

INSTANTIATE_TEST_SUITE_P(Large, PartsTest, testing::Values(kLarge));

}  // namespace
}  // namespace ffrecord::client
