// Goal: base64 is that of RFC 4648, and one text only stands for some bytes. Method: the vectors of
// the RFC, each length, and texts that are nearly right.

#include "libffrecord/base/base64.h"

#include <gtest/gtest.h>

#include <random>

#include "bytes.h"
#include "seed.h"

namespace ffrecord {
namespace {

TEST(Base64Test, HasTheVectorsOfTheRfc) {
  const std::pair<const char*, const char*> vectors[] = {{"", ""},
                                                         {"f", "Zg=="},
                                                         {"fo", "Zm8="},
                                                         {"foo", "Zm9v"},
                                                         {"foob", "Zm9vYg=="},
                                                         {"fooba", "Zm9vYmE="},
                                                         {"foobar", "Zm9vYmFy"}};
  for (const auto& [bytes, text] : vectors) {
    EXPECT_EQ(EncodeBase64(test::AsBytes(bytes)), text);
    EXPECT_EQ(test::AsString(DecodeBase64(text).value()), bytes);
  }
}

TEST(Base64Test, GivesBackBytesOfEveryLength) {
  std::mt19937_64 random(test::Seed());
  for (std::size_t size = 0; size < 100; ++size) {
    const std::string bytes = test::RandomText(size, random);
    EXPECT_EQ(test::AsString(DecodeBase64(EncodeBase64(test::AsBytes(bytes))).value()), bytes);
  }
}

TEST(Base64Test, RefusesEveryOtherText) {
  for (const char* text : {"Z", "Zg", "Zg=", "Zh==", "Zm9=", "====", "Z===", "Zg==Zg==", "Zm-v",
                           "Zm_v", "Zm9v\n", "=Zm9"})
    EXPECT_FALSE(DecodeBase64(text)) << text;
}

}  // namespace
}  // namespace ffrecord
