// Goal: patterns, addresses, answers about ranges and JSON from a service are understood as their
// standards say, and what is wrong with them is told.
// Method: examples, each with what it has to give.

#include <gtest/gtest.h>

#include "libffrecord/object_store/content_range.h"
#include "libffrecord/object_store/http_address.h"
#include "libffrecord/object_store/key_pattern.h"
#include "libffrecord/object_store/store_pace.h"

namespace ffrecord::object_store {
namespace {

TEST(KeyPatternTest, MatchesAsAGlobDoes) {
  EXPECT_TRUE(Matches("train/*.ffr", "train/a.ffr"));
  EXPECT_TRUE(Matches("train/*.ffr", "train/.ffr"));
  EXPECT_FALSE(Matches("train/*.ffr", "train/a/b.ffr"));
  EXPECT_FALSE(Matches("train/*.ffr", "train/a.ffr.tmp"));
  EXPECT_TRUE(Matches("train/**/*.ffr", "train/a.ffr"));
  EXPECT_TRUE(Matches("train/**/*.ffr", "train/a/b/c.ffr"));
  EXPECT_FALSE(Matches("train/**/*.ffr", "trainee/a.ffr"));
  EXPECT_TRUE(Matches("a**", "a/b/c"));
  EXPECT_TRUE(Matches("part-?[0-9].ffr", "part-01.ffr"));
  EXPECT_FALSE(Matches("part-?[!0-9].ffr", "part-01.ffr"));
  EXPECT_FALSE(Matches("a?b", "a/b"));
  EXPECT_TRUE(Matches("[]]x[", "]x["));
  EXPECT_TRUE(Matches("", ""));
  EXPECT_FALSE(Matches("", "a"));
  const std::string many(1000, 'a');
  EXPECT_FALSE(Matches("*a*a*a*a*a*a*a*a*a*b", many));  // In a moment.
}

TEST(KeyPatternTest, KnowsWhatAllMatchesBeginWith) {
  EXPECT_EQ(LiteralPrefix("train/part-[01]*.ffr"), "train/part-");
  EXPECT_FALSE(IsPattern("train/a.ffr"));
  EXPECT_TRUE(IsPattern("train/?.ffr"));
}

TEST(HttpAddressTest, IsTakenApart) {
  const auto address =
      HttpAddress::Parse("https://me:p%40ss@host:8443/a%20b/c d?x=%2F&y#z").value();
  EXPECT_EQ(address.scheme, "https");
  EXPECT_EQ(address.user, "me:p@ss");
  EXPECT_EQ(address.host, "host:8443");
  EXPECT_EQ(address.target, "/a%20b/c%20d?x=%2F&y");
  EXPECT_EQ(address.Shown(), "https://host:8443/a%20b/c%20d");
  EXPECT_EQ(HttpAddress::Parse("http://host").value().target, "/");
  EXPECT_EQ(HttpAddress::Parse("http://host?q").value().target, "/?q");
  EXPECT_EQ(HttpAddress::Parse("http://host/a\r\nX: y").value().target, "/a%0D%0AX:%20y");
  for (const char* const wrong : {"", "http://", "ftp://a/b", "http:///a", "http://a\r\nb/"})
    EXPECT_FALSE(HttpAddress::Parse(wrong)) << wrong;
}

// --- Answers about ranges ------------------------------------------------------------------------

const ObjectVersion kVersion{1000, "\"tag\"", "yesterday"};

std::optional<ErrorCode> Complaint(int status, std::map<std::string, std::string> headers,
                                   const ObjectVersion* version = &kVersion) {
  net::HttpResponse response;
  response.status = status;
  response.headers = std::move(headers);
  const auto complaint = ComplaintAbout(response, 100, 50, version, "x");
  return complaint ? std::optional(complaint->code) : std::nullopt;
}

TEST(ContentRangeTest, TheAnswerAskedForIsAccepted) {
  EXPECT_EQ(Complaint(206, {{"content-range", "bytes 100-149/1000"}, {"etag", "\"tag\""}}),
            std::nullopt);
  EXPECT_EQ(Complaint(206, {{"content-range", "bytes 100-149/*"}, {"etag", "\"tag\""}}),
            std::nullopt);
  EXPECT_EQ(Complaint(206, {{"content-range", "bytes 100-149/1000"}, {"etag", "W/\"tag\""}}),
            std::nullopt);
}

TEST(ContentRangeTest, AnotherVersionIsAConflict) {
  EXPECT_EQ(Complaint(206, {{"content-range", "bytes 100-149/1001"}}), ErrorCode::kConflict);
  EXPECT_EQ(Complaint(206, {{"content-range", "bytes 100-149/1000"}, {"etag", "\"other\""}}),
            ErrorCode::kConflict);
  const ObjectVersion dated{1000, "", "yesterday"};
  EXPECT_EQ(
      Complaint(206, {{"content-range", "bytes 100-149/1000"}, {"last-modified", "today"}}, &dated),
      ErrorCode::kConflict);
}

TEST(ContentRangeTest, AnAnswerThatNamesNoVersionMayBeOfAnother) {
  EXPECT_EQ(Complaint(206, {{"content-range", "bytes 100-149/1000"}}), ErrorCode::kConflict);
  EXPECT_EQ(
      Complaint(206, {{"content-range", "bytes 100-149/1000"}, {"last-modified", "yesterday"}}),
      std::nullopt);
  EXPECT_EQ(Complaint(206, {{"content-range", "bytes 100-149/1000"}, {"last-modified", "today"}}),
            ErrorCode::kConflict);
  const ObjectVersion dated{1000, "", "yesterday"};
  EXPECT_EQ(Complaint(206, {{"content-range", "bytes 100-149/1000"}, {"etag", "\"tag\""}}, &dated),
            ErrorCode::kConflict);
  const ObjectVersion unnamed{1000, "", ""};
  EXPECT_EQ(Complaint(206, {{"content-range", "bytes 100-149/1000"}}, &unnamed), std::nullopt);
}

TEST(ContentRangeTest, AnythingElseIsTheServersMistake) {
  for (const auto& headers : std::vector<std::map<std::string, std::string>>{
           {},
           {{"content-range", "bytes 100-149"}},
           {{"content-range", "bytes 0-49/1000"}},
           {{"content-range", "bytes 100-150/1000"}},
           {{"content-range", "bytes 149-100/1000"}},
           {{"content-range", "bytes 100-99999999999999999999/1000"}},
           {{"content-range", "bytes 100-149/1000"}, {"content-encoding", "gzip"}}})
    EXPECT_EQ(Complaint(206, headers), ErrorCode::kInvalidArgument);
  EXPECT_EQ(Complaint(200, {{"content-range", "bytes 100-149/1000"}}), ErrorCode::kInvalidArgument);
}

// --- Pace ----------------------------------------------------------------------------------------

TEST(StorePaceTest, AThrottledStoreIsAskedForLessAndForMoreAgainLater) {
  StorePace pace;
  int begun = 0;
  while (pace.MayBegin(begun > 0)) ++begun;
  EXPECT_EQ(begun, static_cast<int>(StorePace::kInFlightMax));
  for (int i = 0; i < 5; ++i) pace.Throttled();  // At once: one slowing down.
  for (int i = 0; i < begun / 2; ++i) pace.Ended();
  EXPECT_FALSE(pace.MayBegin(true));
  EXPECT_TRUE(pace.MayBegin(false));
  pace.Ended();
  for (int i = 0; i < 1000; ++i) pace.Answered(std::chrono::milliseconds(5));
  EXPECT_TRUE(pace.MayBegin(true));
}

TEST(StorePaceTest, FewAnswersAreHedged) {
  StorePace pace;
  for (int i = 0; i < 1000; ++i) pace.Answered(std::chrono::milliseconds(20));
  EXPECT_LE(pace.LateAfter(), std::chrono::milliseconds(100));
  int hedges = 0;
  while (pace.MayHedge()) ++hedges;
  EXPECT_LE(hedges, 16);
  for (int i = 0; i < 100; ++i) pace.Answered(std::chrono::milliseconds(20));
  int more = 0;
  while (pace.MayHedge()) ++more;
  EXPECT_LE(more, 5);
}

}  // namespace
}  // namespace ffrecord::object_store
