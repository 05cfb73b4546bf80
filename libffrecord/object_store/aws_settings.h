#pragma once

#include <functional>
#include <optional>
#include <string>

#include <ffrecord/result.h>

#include "libffrecord/object_store/sigv4.h"

namespace ffrecord::object_store {

// Where an S3-compatible store is, and who we are there.
struct AwsSettings {
  AwsCredentials credentials;
  std::string region = "us-east-1";
  std::string endpoint;  // Such as http://127.0.0.1:9000; empty for Amazon's own.
};

// What the AWS tools read as well: the variables AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY,
// AWS_SESSION_TOKEN, AWS_REGION or AWS_DEFAULT_REGION, AWS_ENDPOINT_URL_S3 or AWS_ENDPOINT_URL; for
// what they do not say, the profile AWS_PROFILE (or "default") of AWS_SHARED_CREDENTIALS_FILE
// (~/.aws/credentials) and AWS_CONFIG_FILE (~/.aws/config). Roles, web identities and the metadata
// services of machines are not asked.
//
// Fails with kDenied if there are no credentials, kInvalidArgument if a profile that is asked for
// is in neither file.
Result<AwsSettings> ReadAwsSettings();

// The same from another environment: `variable` gives those that are set, `file` the text of a
// file, empty if it cannot be read.
using VariableReader = std::function<std::optional<std::string>(const char* name)>;
using FileReader = std::function<std::string(const std::string& path)>;
Result<AwsSettings> ReadAwsSettings(const VariableReader& variable, const FileReader& file);

}  // namespace ffrecord::object_store
