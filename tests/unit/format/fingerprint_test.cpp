// Goal: fingerprints are those of format.md and tell content and order apart.
// Method: the definition written out with whole digests, against the chain.

#include "libffrecord/format/fingerprint.h"

#include <gtest/gtest.h>

#include <string>

#include "bytes.h"

namespace ffrecord {
namespace {

using test::AsBytes;
using test::AsString;

std::string Digest(const std::string& bytes) { return AsString(Xxh3Digest(AsBytes(bytes))); }

TEST(FingerprintTest, ChainIsTheDefinition) {
  FingerprintChain chain(AsBytes("schema"));
  std::string f = Digest("schema");
  EXPECT_EQ(AsString(chain.digest()), f);
  chain.Add(AsBytes("abc"));
  f = Digest(f + std::string("\3\0\0\0\0\0\0\0", 8) + Digest("abc"));
  EXPECT_EQ(AsString(chain.digest()), f);
}

TEST(FingerprintTest, OrderAndBoundariesMatter) {
  const auto of = [](std::initializer_list<const char*> records) {
    FingerprintChain chain({});
    for (const char* record : records) chain.Add(AsBytes(record));
    return chain.digest();
  };
  EXPECT_NE(of({"a", "b"}), of({"b", "a"}));
  EXPECT_NE(of({"a", "b"}), of({"ab"}));
  EXPECT_NE(of({"a"}), of({"a", ""}));
}

TEST(FingerprintTest, ListIsTheDefinition) {
  ListFingerprint list;
  const Digest128 file = Xxh3Digest(AsBytes("file"));
  list.Add(258, file);
  EXPECT_EQ(AsString(list.Finish()), Digest(std::string("\2\1\0\0\0\0\0\0", 8) + AsString(file)));
}

}  // namespace
}  // namespace ffrecord
