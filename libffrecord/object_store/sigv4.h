#pragma once

#include <string>
#include <string_view>

#include "libffrecord/net/http/http.h"

namespace ffrecord::object_store {

// Whom requests are signed for. Never printed.
struct AwsCredentials {
  std::string access_key;
  std::string secret_key;
  std::string session_token;  // Empty for lasting credentials.
};

// Where and when a signature holds.
struct SigningScope {
  std::string region;   // Such as us-east-1.
  std::string service;  // s3.
  std::string time;     // UTC, such as 20130524T000000Z.
};

// The time of this moment.
std::string SigningTime();

// Signs a request by AWS Signature Version 4: adds x-amz-date, x-amz-security-token if there is
// one, and authorization, over all headers that it has by then. `payload_hash` is the SHA-256 of
// the body in hex; for S3 the header x-amz-content-sha256 has it too. Pure.
void Sign(net::HttpRequest& request, const AwsCredentials& credentials, const SigningScope& scope,
          std::string_view payload_hash);

}  // namespace ffrecord::object_store
