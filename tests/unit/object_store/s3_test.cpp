// Goal: requests are signed as Amazon's servers check them, and settings are found where its tools
// find them.
// Method: the examples that Amazon publishes with Signature Version 4, signature by signature;
// settings from environments and files made up here.

#include <chrono>
#include <map>
#include <optional>
#include <string>
#include <string_view>

#include <gtest/gtest.h>

#include "libffrecord/base/hex.h"
#include "libffrecord/net/http/http.h"
#include "libffrecord/object_store/aws_settings.h"
#include "libffrecord/object_store/credentials.h"
#include "libffrecord/object_store/digests.h"
#include "libffrecord/object_store/sigv4.h"
#include "libffrecord/object_store/xml.h"
#include "virtual_clock.h"

namespace ffrecord::object_store {
namespace {

std::span<const std::byte> BytesOf(std::string_view text) { return std::as_bytes(std::span(text)); }

std::string SignatureOf(const net::HttpRequest& request) {
  const std::string& header = request.headers.at("authorization");
  return header.substr(header.rfind('=') + 1);
}

TEST(DigestsTest, GiveTheSumsOfTheirStandards) {
  EXPECT_EQ(Hex(Sha256(BytesOf("abc"))),
            "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  EXPECT_EQ(Hex(HmacSha256(BytesOf("Jefe"), BytesOf("what do ya want for nothing?"))),
            "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843");
  if (const auto sum = Md5(BytesOf("message digest"))) {
    EXPECT_EQ(Hex(*sum), "f96b697d7cb7938d525a2f31aaf161d0");
  }
}

// get-vanilla of the test suite of Signature Version 4.
TEST(SignTest, AgreesWithTheSuiteOfSignatureVersion4) {
  net::HttpRequest request;
  request.host = "example.amazonaws.com";

  Sign(request, {"AKIDEXAMPLE", "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY", ""},
       {"us-east-1", "service", "20150830T123600Z"}, Hex(Sha256({})));

  EXPECT_EQ(request.headers.at("authorization"),
            "AWS4-HMAC-SHA256 Credential=AKIDEXAMPLE/20150830/us-east-1/service/aws4_request, "
            "SignedHeaders=host;x-amz-date, "
            "Signature=5fa00fa31553b73ebf1942676e86291e8372ff2a2260956d9b8aae1d763fbf31");
}

// The four examples of Amazon's page on signing requests to S3 with a header.
class SignForS3Test : public testing::Test {
 protected:
  SignForS3Test() { request_.host = "examplebucket.s3.amazonaws.com"; }

  std::string Signature() {
    const std::string hash = Hex(Sha256(request_.body));
    request_.headers["x-amz-content-sha256"] = hash;
    Sign(request_, {"AKIAIOSFODNN7EXAMPLE", "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY", ""},
         {"us-east-1", "s3", "20130524T000000Z"}, hash);
    return SignatureOf(request_);
  }

  net::HttpRequest request_;
};

TEST_F(SignForS3Test, ARangeOfAnObject) {
  request_.path = "/test.txt";
  request_.headers["range"] = "bytes=0-9";
  EXPECT_EQ(Signature(), "f0e8bdb87c964420e857bd35b5d6ed310bd44f0170aba48dd91039c6036bdb41");
}

TEST_F(SignForS3Test, AnObjectWithABodyAndANameToBeEncoded) {
  request_.method = "PUT";
  request_.path = "/test$file.text";
  request_.headers["date"] = "Fri, 24 May 2013 00:00:00 GMT";
  request_.headers["x-amz-storage-class"] = "REDUCED_REDUNDANCY";
  request_.body = BytesOf("Welcome to Amazon S3.");
  EXPECT_EQ(Signature(), "98ad721746da40c64f1a55b78f14c238d841ea1380cd77a1b5971af0ece108bd");
}

TEST_F(SignForS3Test, AQueryWithoutAValue) {
  request_.query = {{"lifecycle", ""}};
  EXPECT_EQ(Signature(), "fea454ca298b7da1c68078a5d1bdbfbbe0d65c699e0f91ac7a200a0136783543");
}

TEST_F(SignForS3Test, AQueryIsSortedByName) {
  request_.query = {{"prefix", "J"}, {"max-keys", "2"}};
  EXPECT_EQ(Signature(), "34b48302e7b5fa45bde8084f4b7868a86f0a534bc59db6670ed5711ef69dc6f7");
}

TEST(SignTest, AnOwnersTokenIsSent) {
  net::HttpRequest request;
  request.host = "example.amazonaws.com";

  Sign(request, {"A", "B", "the token"}, {"us-east-1", "s3", "20150830T123600Z"}, "");

  EXPECT_EQ(request.headers.at("x-amz-security-token"), "the token");
  EXPECT_NE(request.headers.at("authorization").find("x-amz-security-token"), std::string::npos);
}

TEST(UriEncodeTest, LeavesWhatTheSignatureLeaves) {
  EXPECT_EQ(net::UriEncode("aZ09-._~/ +\xC3\xA4", false), "aZ09-._~%2F%20%2B%C3%A4");
  EXPECT_EQ(net::UriEncode("a/b", true), "a/b");
}

TEST(XmlTest, ElementsAreFoundAndEntitiesReplaced) {
  const std::string text =
      "<R xmlns=\"x\"><C><Key>a&amp;b&#47;c</Key></C><C><Key>&lt;d</Key></C></R>";
  std::string keys;

  ForEachElement(text, "C", [&](std::string_view c) { keys += TextOfElement(c, "Key") + ","; });

  EXPECT_EQ(keys, "a&b/c,<d,");
  EXPECT_EQ(TextOfElement(text, "Missing"), "");
  EXPECT_EQ(TextOfElement("<Key>cut", "Key"), "");
  EXPECT_EQ(EscapeXml("\"a&b\""), "&quot;a&amp;b&quot;");
}

TEST(XmlTest, CharactersByNumberAreUtf8) {
  EXPECT_EQ(TextOfElement("<K>l&#228;&#xE4;&#x20AC;&#x1F600;</K>", "K"),
            "l\xC3\xA4\xC3\xA4\xE2\x82\xAC\xF0\x9F\x98\x80");
  EXPECT_EQ(TextOfElement("<K>&#0;&#x110000;&#12a;&#;</K>", "K"), "????");
}

TEST(XmlTest, ADocumentIsWhole) {
  EXPECT_TRUE(IsDocument("<?xml?>\n<R xmlns=\"x\"><C/></R>\n", "R"));
  EXPECT_TRUE(IsDocument("<?xml?><R xmlns=\"x\"/>", "R"));
  EXPECT_FALSE(IsDocument("", "R"));
  EXPECT_FALSE(IsDocument("<R><C>", "R"));
  EXPECT_FALSE(IsDocument("<html></html>", "R"));
  EXPECT_FALSE(IsDocument("<R><C/>", "R"));
}

// --- Settings ------------------------------------------------------------------------------------

using Texts = std::map<std::string, std::string>;

Result<AwsSettings> Read(const Texts& variables, const Texts& files = {}) {
  return ReadAwsSettings(
      [variables](const char* name) -> std::optional<std::string> {
        const auto found = variables.find(name);
        return found == variables.end() ? std::nullopt : std::optional(found->second);
      },
      [files](const std::string& path) {
        const auto found = files.find(path);
        return found == files.end() ? std::nullopt : std::optional(found->second);
      });
}

const Texts kFiles{
    {"/me/.aws/credentials",
     "[default]\naws_access_key_id = ONE\naws_secret_access_key=first\n"
     "# [default]\n[other]\naws_access_key_id=TWO\naws_secret_access_key=second==\n"
     "aws_session_token=token\n"},
    {"/me/.aws/config",
     "[default]\nregion = eu-west-1\n[profile other]\nregion=eu-central-1\n"
     "s3 =\n  endpoint_url = http://nested\nendpoint_url=https://store:9000\n"},
};

TEST(AwsSettingsTest, VariablesComeFirst) {
  const auto settings = Read({{"HOME", "/me"},
                              {"AWS_ACCESS_KEY_ID", "ENV"},
                              {"AWS_SECRET_ACCESS_KEY", "secret"},
                              {"AWS_SESSION_TOKEN", "t"},
                              {"AWS_REGION", "ap-east-1"},
                              {"AWS_ENDPOINT_URL", "http://all"},
                              {"AWS_ENDPOINT_URL_S3", "http://s3"}},
                             kFiles);

  ASSERT_TRUE(settings) << settings.error().message;
  const auto credentials = settings.value().chain->Get().value();
  EXPECT_EQ(credentials.access_key, "ENV");
  EXPECT_EQ(credentials.session_token, "t");
  EXPECT_EQ(settings.value().region, "ap-east-1");
  EXPECT_EQ(settings.value().endpoint, "http://s3");
}

TEST(AwsSettingsTest, ThenTheFilesOfTheHomeFolder) {
  const auto settings = Read({{"HOME", "/me"}}, kFiles);

  ASSERT_TRUE(settings) << settings.error().message;
  const auto credentials = settings.value().chain->Get().value();
  EXPECT_EQ(credentials.access_key, "ONE");
  EXPECT_EQ(credentials.secret_key, "first");
  EXPECT_EQ(credentials.session_token, "");
  EXPECT_EQ(settings.value().region, "eu-west-1");
  EXPECT_EQ(settings.value().endpoint, "");
}

TEST(AwsSettingsTest, AProfileHasItsOwnSections) {
  const auto settings = Read({{"HOME", "/me"}, {"AWS_PROFILE", "other"}}, kFiles);

  ASSERT_TRUE(settings) << settings.error().message;
  const auto credentials = settings.value().chain->Get().value();
  EXPECT_EQ(credentials.access_key, "TWO");
  EXPECT_EQ(credentials.secret_key, "second==");
  EXPECT_EQ(credentials.session_token, "token");
  EXPECT_EQ(settings.value().region, "eu-central-1");
  EXPECT_EQ(settings.value().endpoint, "https://store:9000");
}

// Lasting keys in a file, which somebody replaces while they hold.
class ReplacedKeysTest : public testing::Test {
 protected:
  void Write(const std::string& key) {
    text_ = "[default]\naws_access_key_id = " + key + "\naws_secret_access_key = secret\n";
  }
  std::string Key() { return chain_.Get().value().access_key; }

  test::VirtualClock clock_;
  std::string text_;
  CredentialChain chain_{[](const char* name) -> std::optional<std::string> {
                           if (name == std::string_view("HOME")) return "/me";
                           if (name == std::string_view("AWS_EC2_METADATA_DISABLED")) return "true";
                           return std::nullopt;
                         },
                         [this](const std::string& path) -> std::optional<std::string> {
                           if (path != "/me/.aws/credentials") return std::nullopt;
                           return text_;
                         },
                         "us-east-1"};
};

TEST_F(ReplacedKeysTest, CountWithinSeconds) {
  Write("ONE");
  EXPECT_EQ(Key(), "ONE");
  for (const char* const next : {"TWO", "THREE"}) {
    Write(next);
    clock_.RunFor(std::chrono::seconds(10));
    EXPECT_EQ(Key(), next);
  }
}

TEST_F(ReplacedKeysTest, CountAtOnceWhereTheStoreDenies) {
  Write("ONE");
  EXPECT_EQ(Key(), "ONE");
  EXPECT_FALSE(chain_.Denied());  // Nothing else is there.
  Write("TWO");
  EXPECT_TRUE(chain_.Denied());
  EXPECT_EQ(Key(), "TWO");
  EXPECT_FALSE(chain_.Denied());
}

TEST_F(ReplacedKeysTest, TheOldOnesHoldWhileTheFileHasNone) {
  Write("ONE");
  EXPECT_EQ(Key(), "ONE");
  text_.clear();
  EXPECT_FALSE(chain_.Denied());
  clock_.RunFor(std::chrono::seconds(10));
  EXPECT_EQ(Key(), "ONE");
  Write("TWO");
  EXPECT_TRUE(chain_.Denied());
  EXPECT_EQ(Key(), "TWO");
}

TEST(AwsSettingsTest, WhatIsMissingIsNamed) {
  const auto settings = Read({{"HOME", "/nowhere"}, {"AWS_EC2_METADATA_DISABLED", "true"}});
  ASSERT_TRUE(settings) << settings.error().message;
  const auto none = settings.value().chain->Get();
  ASSERT_FALSE(none);
  EXPECT_EQ(none.error().code, ErrorCode::kDenied);
  EXPECT_NE(none.error().message.find("/nowhere/.aws/credentials"), std::string::npos);

  const auto unknown = Read({{"HOME", "/me"}, {"AWS_PROFILE", "third"}}, kFiles);
  ASSERT_FALSE(unknown);
  EXPECT_EQ(unknown.error().code, ErrorCode::kInvalidArgument);
}

}  // namespace
}  // namespace ffrecord::object_store
