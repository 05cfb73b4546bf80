// Goal: a token is believed if it was made with one of the keys, is whole and has not expired; and
// every other one is refused in the same words.
// Method: a golden token, made by another program; every bit of it flipped, every cut, every time;
// key files of every kind.

#include "server/service/access/tokens.h"

#include <gtest/gtest.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <sys/stat.h>

#include <random>

#include "libffrecord/base/cursor.h"
#include "libffrecord/base/hex.h"
#include "seed.h"
#include "temp_folder.h"

namespace ffrecord::server {
namespace {

using Bytes = std::vector<std::byte>;
using Time = std::chrono::system_clock::time_point;

// protocol.md, "Golden vectors". The key is 00 01 ... 1f.
constexpr std::string_view kGolden =
    "0103000000943577000000000600747261696e2f0500616c69636530f817f4d8fa626e5fa217ac3a31a965c1d241fa"
    "73b8a4a51155ddf56df8dabc";
// The same, bound to a connection whose binding is 40 41 ... 5f.
constexpr std::string_view kGoldenBound =
    "0103000000943577000000000600747261696e2f0500616c69636570de8140077819cae594c4e99824909111676d43"
    "b5b71dc083380c1d98a7b1b3";
constexpr std::string_view kKey =
    "000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f";

Time At(std::int64_t seconds) { return Time(std::chrono::seconds(seconds)); }
const Time kBefore = At(1'999'999'999);
const Time kExpiry = At(2'000'000'000);

net::ChannelBinding GoldenBinding() {
  net::ChannelBinding binding{};
  for (std::size_t i = 0; i < binding.size(); ++i) binding[i] = static_cast<std::byte>(0x40 + i);
  return binding;
}

Bytes Spelled(std::string_view text) {
  Bytes bytes(text.size() / 2);
  EXPECT_TRUE(FromHex(text, bytes));
  return bytes;
}

// `body` with the sum that the key gives it, whatever it says.
Bytes Signed(Bytes body) {
  const Bytes key = Spelled(kKey);
  std::array<unsigned char, 32> mac;
  unsigned size = 0;
  ::HMAC(EVP_sha256(), key.data(), static_cast<int>(key.size()),
         reinterpret_cast<const unsigned char*>(body.data()), body.size(), mac.data(), &size);
  for (const unsigned char byte : mac) body.push_back(static_cast<std::byte>(byte));
  return body;
}

class TokensTest : public testing::Test {
 protected:
  Result<TokenKeys> Load(std::string_view content, mode_t mode = 0600) {
    test::WriteFile(folder_ / "keys", content);
    EXPECT_EQ(::chmod((folder_ / "keys").c_str(), mode), 0);
    return TokenKeys::Load(folder_ / "keys");
  }
  void ExpectDenied(const TokenKeys& keys, std::span<const std::byte> credential, Time now,
                    const std::optional<net::ChannelBinding>& binding = std::nullopt) {
    const auto token = keys.Check(credential, now, binding);
    ASSERT_FALSE(token);
    EXPECT_EQ(token.error().code, ErrorCode::kDenied);
    EXPECT_EQ(token.error().message, keys.Check({}, now).error().message);
  }
  test::TempFolder folder_;
};

TEST_F(TokensTest, TheGoldenTokenSaysWhatItSaysUntilItExpires) {
  const auto keys = Load(kKey);
  ASSERT_TRUE(keys) << keys.error().message;

  const auto token = keys.value().Check(Spelled(kGolden), kBefore);

  ASSERT_TRUE(token) << token.error().message;
  EXPECT_EQ(token.value().prefix, "train/");
  EXPECT_EQ(token.value().client, "alice");
  EXPECT_EQ(token.value().expires, kExpiry);
  EXPECT_TRUE(token.value().Allows(Right::kRead, "train/a"));
  EXPECT_TRUE(token.value().Allows(Right::kWrite, "train/"));
  EXPECT_FALSE(token.value().Allows(Right::kDelete, "train/a"));
  EXPECT_FALSE(token.value().Allows(Right::kRead, "train"));
  EXPECT_FALSE(token.value().Allows(Right::kRead, "other/train/"));
  const auto expired = keys.value().Check(Spelled(kGolden), kExpiry);
  ASSERT_FALSE(expired);
  EXPECT_EQ(expired.error().code, ErrorCode::kDenied);
  EXPECT_NE(expired.error().message.find("the token expired at 2"), std::string::npos)
      << expired.error().message;
}

TEST_F(TokensTest, ADenialSaysWhatTheTokenLacks) {
  const auto token = Load(kKey).value().Check(Spelled(kGolden), kBefore).value();
  for (const auto& [right, what] :
       {std::pair(Right::kDelete, "lacks the right \"delete\""),
        std::pair(Right::kPeer, "lacks the right \"peer\""),
        std::pair(Right::kAdmin, "lacks the right \"admin\""),
        std::pair(Right::kRead, "is for names that begin with \"train/\"")}) {
    const Error denial = token.Denial(right);
    EXPECT_EQ(denial.code, ErrorCode::kDenied);
    EXPECT_NE(denial.message.find(what), std::string::npos) << denial.message;
  }
}

TEST_F(TokensTest, NoChangedBitAndNoCutIsBelieved) {
  const auto keys = Load(kKey).value();
  const Bytes golden = Spelled(kGolden);
  for (std::size_t bit = 0; bit < golden.size() * 8; ++bit) {
    Bytes flipped = golden;
    flipped[bit / 8] ^= static_cast<std::byte>(1U << (bit % 8));
    ExpectDenied(keys, flipped, kBefore);
  }
  for (std::size_t size = 0; size < golden.size(); ++size)
    ExpectDenied(keys, std::span(golden).first(size), kBefore);
  Bytes longer = golden;
  longer.push_back({});
  ExpectDenied(keys, longer, kBefore);
  std::mt19937 random(test::Seed());
  for (int i = 0; i < 2000; ++i) {
    Bytes noise(random() % 200);
    for (auto& byte : noise) byte = static_cast<std::byte>(random());
    ExpectDenied(keys, noise, kBefore);
  }
}

// Who has the key may be mistaken all the same; nothing that is signed may hurt.
TEST_F(TokensTest, WellSignedNonsenseIsRefusedToo) {
  const auto keys = Load(kKey).value();
  const Bytes golden = Spelled(kGolden);
  const Bytes body(golden.begin(), golden.end() - 32);
  ASSERT_TRUE(keys.Check(Signed(body), kBefore));
  const auto with = [&](std::size_t at, int value) {
    Bytes changed = body;
    changed[at] = static_cast<std::byte>(value);
    return Signed(changed);
  };
  ExpectDenied(keys, with(0, 2), kBefore);      // Version.
  ExpectDenied(keys, with(1, 32), kBefore);     // A right that there is not.
  ExpectDenied(keys, with(2, 1), kBefore);      // What must be zero.
  ExpectDenied(keys, with(11, 0xFF), kBefore);  // An expiry that no clock can say.
  ExpectDenied(keys, with(12, 200), kBefore);   // A prefix that passes the end.
  ExpectDenied(keys, with(20, 4), kBefore);     // A byte left over.
  for (std::size_t size = 0; size < body.size(); ++size)
    ExpectDenied(keys, Signed(Bytes(body.begin(), body.begin() + static_cast<long>(size))),
                 kBefore);
}

TEST_F(TokensTest, OverAnEncipheredConnectionOnlyATokenThatIsBoundToItIsBelieved) {
  const auto keys = Load(kKey).value();
  const Bytes bound = Spelled(kGoldenBound);
  const auto binding = GoldenBinding();

  const auto token = keys.Check(bound, kBefore, binding);

  ASSERT_TRUE(token) << token.error().message;
  EXPECT_EQ(token.value().client, "alice");
  EXPECT_FALSE(keys.Check(bound, kExpiry, binding));
  ExpectDenied(keys, bound, kBefore);  // Overheard, and shown without TLS.
  ExpectDenied(keys, Spelled(kGolden), kBefore, binding);
  for (std::size_t bit = 0; bit < binding.size() * 8; ++bit) {
    auto other = binding;
    other[bit / 8] ^= static_cast<std::byte>(1U << (bit % 8));
    ExpectDenied(keys, bound, kBefore, other);
  }
  for (std::size_t bit = 0; bit < bound.size() * 8; ++bit) {
    Bytes flipped = bound;
    flipped[bit / 8] ^= static_cast<std::byte>(1U << (bit % 8));
    ExpectDenied(keys, flipped, kBefore, binding);
  }
}

TEST_F(TokensTest, EveryKeyOfTheFileIsGoodAndNoOther) {
  const std::string other(64, 'a');
  EXPECT_TRUE(
      Load(other + "\n\n" + std::string(kKey) + " \r\n").value().Check(Spelled(kGolden), kBefore));
  ExpectDenied(Load(other).value(), Spelled(kGolden), kBefore);
}

TEST_F(TokensTest, KeyFilesThatOthersReadOrThatHoldNoKeysAreRefusedAndNeverQuoted) {
  for (const mode_t mode : {0640U, 0604U, 0660U, 0644U}) {
    const auto keys = Load(kKey, mode);
    ASSERT_FALSE(keys) << mode;
    EXPECT_EQ(keys.error().code, ErrorCode::kDenied) << keys.error().message;
  }
  for (const std::string& bad :
       {std::string(), std::string("\n"), std::string(62, 'a'), std::string(65, 'a'),
        std::string(64, 'g'), std::string(kKey) + "\nsecret"}) {
    const auto keys = Load(bad);
    ASSERT_FALSE(keys) << bad;
    EXPECT_EQ(keys.error().code, ErrorCode::kInvalidArgument);
    EXPECT_EQ(keys.error().message.find("secret"), std::string::npos);
    EXPECT_EQ(keys.error().message.find("aaaa"), std::string::npos);
  }
  EXPECT_EQ(TokenKeys::Load(folder_ / "none").error().code, ErrorCode::kNotFound);
  EXPECT_EQ(TokenKeys::Load(folder_.path()).error().code, ErrorCode::kInvalidArgument);
}

}  // namespace
}  // namespace ffrecord::server
