#include "libffrecord/net/http/curl_library.h"

#include <array>
#include <string>

#include <gtest/gtest.h>

// Goal: a machine without a usable libcurl learns so from an error that names the remedy.
// Method: libraries that are not there, that are something else, and the real one.

namespace ffrecord::net {
namespace {

TEST(CurlLibraryTest, NoLibraryIsUnavailableAndNamesTheRemedy) {
  const std::array<const char*, 2> names = {"libnothing-of-this-name.so.4", "libnor-this.so.4"};
  const auto loaded = LoadCurlFrom(names);
  ASSERT_FALSE(loaded);
  EXPECT_EQ(loaded.error().code, ErrorCode::kUnavailable);
  EXPECT_NE(loaded.error().message.find("libnothing-of-this-name.so.4"), std::string::npos);
  EXPECT_NE(loaded.error().message.find("libcurl4"), std::string::npos);
}

TEST(CurlLibraryTest, ALibraryThatLacksAFunctionIsRefusedByItsName) {
  const std::array<const char*, 1> names = {"libm.so.6"};
  const auto loaded = LoadCurlFrom(names);
  ASSERT_FALSE(loaded);
  EXPECT_EQ(loaded.error().code, ErrorCode::kUnavailable);
  EXPECT_NE(loaded.error().message.find("curl_global_init"), std::string::npos);
}

TEST(CurlLibraryTest, TheFirstThatIsThereIsTaken) {
  const std::array<const char*, 2> names = {"libnothing-of-this-name.so.4", "libcurl.so.4"};
  const auto loaded = LoadCurlFrom(names);
  ASSERT_TRUE(loaded) << loaded.error().message;
  EXPECT_GE(loaded.value().version_info(CURLVERSION_NOW)->version_num, 0x075500U);
  ASSERT_TRUE(LoadCurl());
  EXPECT_EQ(Curl().easy_init, loaded.value().easy_init);
}

}  // namespace
}  // namespace ffrecord::net
