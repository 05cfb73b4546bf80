#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include <ffrecord/result.h>

#include "libffrecord/object_store/sigv4.h"

namespace ffrecord::object_store {

class CredentialChain;

// Where an S3-compatible store is, and who we are there.
struct AwsSettings {
  AwsCredentials credentials;  // Used if there is no chain.
  std::string region = "us-east-1";
  std::string endpoint;  // Such as http://127.0.0.1:9000; empty for Amazon's own.
  std::shared_ptr<CredentialChain> chain;
};

// Return the variables that are set, and the text of a file: nothing if it cannot be read.
using VariableReader = std::function<std::optional<std::string>(const char* name)>;
using FileReader = std::function<std::optional<std::string>(const std::string& path)>;

// A profile of the AWS tools, and where it was looked for.
struct AwsProfile {
  std::string name;
  std::string looked_at;  // For people: the files.
  AwsCredentials keys;    // Empty if it has none.
  std::string region;
  std::string endpoint;
  std::string role_arn;
  std::string source_profile;
  std::string role_session_name;
  std::string external_id;
  std::string web_identity_token_file;
  std::string credential_process;  // A command line.
  // Single sign-on: what `aws sso login` left in ~/.aws/sso/cache is named after the session, or,
  // without one, after the URL where it starts.
  std::string sso_session;
  std::string sso_start_url;
  std::string sso_region;
  std::string sso_account_id;
  std::string sso_role_name;
  std::string unsupported;  // A setting that gives credentials in a way that is not known here.
};

// Reads the profile `name`, by default AWS_PROFILE or "default", of AWS_SHARED_CREDENTIALS_FILE
// (~/.aws/credentials), which comes first, and AWS_CONFIG_FILE (~/.aws/config). Fails with
// kInvalidArgument if a profile that was asked for by name is in neither.
Result<AwsProfile> ReadAwsProfile(const VariableReader& variable, const FileReader& file,
                                  const std::string& name = {});

// Reads the settings of the AWS tools: AWS_REGION or AWS_DEFAULT_REGION, AWS_ENDPOINT_URL_S3 or
// AWS_ENDPOINT_URL, and, for missing ones, the profile; credentials from the chain, which is asked
// when the first request is signed.
//
// Fails with kInvalidArgument if a profile that is asked for is in neither file.
Result<AwsSettings> ReadAwsSettings();
Result<AwsSettings> ReadAwsSettings(const VariableReader& variable, const FileReader& file);

}  // namespace ffrecord::object_store
