#include "libffrecord/object_store/aws_settings.h"

#include <array>
#include <cstdlib>
#include <fstream>
#include <initializer_list>
#include <iterator>
#include <map>
#include <string_view>
#include <utility>

#include "libffrecord/object_store/credentials.h"

namespace ffrecord::object_store {
namespace {

using Section = std::map<std::string, std::string, std::less<>>;

std::string_view Trimmed(std::string_view text) {
  constexpr std::string_view kSpace = " \t\r";
  const std::size_t first = text.find_first_not_of(kSpace);
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(kSpace) - first + 1);
}

// The settings of one section of an INI file, nested ones left out; nothing if it is not there.
std::optional<Section> SectionOf(std::string_view text, std::string_view wanted) {
  std::optional<Section> found;
  bool is_inside = false;
  while (!text.empty()) {
    const std::size_t end = text.find('\n');
    const std::string_view line = text.substr(0, end);
    text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
    const std::string_view content = Trimmed(line);
    if (content.empty() || content.front() == '#' || content.front() == ';') continue;
    if (content.front() == '[' && content.back() == ']') {
      is_inside = Trimmed(content.substr(1, content.size() - 2)) == wanted;
      if (is_inside && !found) found.emplace();
      continue;
    }
    const std::size_t equals = content.find('=');
    // Indented lines belong to a setting before them, such as "s3 =".
    if (!is_inside || equals == std::string_view::npos || line.front() == ' ' ||
        line.front() == '\t')
      continue;
    (*found)[std::string(Trimmed(content.substr(0, equals)))] = Trimmed(content.substr(equals + 1));
  }
  return found;
}

std::string FirstOf(const VariableReader& variable, std::initializer_list<const char*> names) {
  for (const char* const name : names)
    if (auto value = variable(name); value && !value->empty()) return *value;
  return {};
}

// Variables are read once: a process changes them while others read them at its own risk.
VariableReader SnapshotOfEnvironment() {
  constexpr std::array kNames{
      "HOME",
      "AWS_PROFILE",
      "AWS_DEFAULT_PROFILE",
      "AWS_SHARED_CREDENTIALS_FILE",
      "AWS_CONFIG_FILE",
      "AWS_ACCESS_KEY_ID",
      "AWS_SECRET_ACCESS_KEY",
      "AWS_SESSION_TOKEN",
      "AWS_REGION",
      "AWS_DEFAULT_REGION",
      "AWS_ENDPOINT_URL",
      "AWS_ENDPOINT_URL_S3",
      "AWS_ENDPOINT_URL_STS",
      "AWS_ENDPOINT_URL_SSO",
      "AWS_ROLE_ARN",
      "AWS_ROLE_SESSION_NAME",
      "AWS_WEB_IDENTITY_TOKEN_FILE",
      "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
      "AWS_CONTAINER_CREDENTIALS_FULL_URI",
      "AWS_CONTAINER_AUTHORIZATION_TOKEN",
      "AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE",
      "AWS_EC2_METADATA_DISABLED",
      "AWS_EC2_METADATA_SERVICE_ENDPOINT",
      "AWS_METADATA_SERVICE_TIMEOUT",
      "AWS_METADATA_SERVICE_NUM_ATTEMPTS",
  };
  std::map<std::string, std::string, std::less<>> values;
  for (const char* const name : kNames)
    if (const char* const value = std::getenv(name); value != nullptr) values[name] = value;
  return [values = std::move(values)](const char* name) -> std::optional<std::string> {
    const auto found = values.find(name);
    return found == values.end() ? std::nullopt : std::optional(found->second);
  };
}

std::optional<std::string> TextOfFile(const std::string& path) {
  std::ifstream stream(path, std::ios::binary);
  if (!stream) return std::nullopt;
  return std::string(std::istreambuf_iterator<char>(stream), {});
}

}  // namespace

Result<AwsProfile> ReadAwsProfile(const VariableReader& variable, const FileReader& file,
                                  const std::string& name) {
  const std::string folder = FirstOf(variable, {"HOME"}) + "/.aws/";
  const auto path_of = [&](const char* variable_name, const char* other) {
    const std::string named = FirstOf(variable, {variable_name});
    return named.empty() ? folder + other : named;
  };
  std::string asked_for = name;
  if (asked_for.empty()) asked_for = FirstOf(variable, {"AWS_PROFILE", "AWS_DEFAULT_PROFILE"});
  AwsProfile profile;
  profile.name = asked_for.empty() ? "default" : asked_for;
  const std::string secrets = path_of("AWS_SHARED_CREDENTIALS_FILE", "credentials");
  const std::string config = path_of("AWS_CONFIG_FILE", "config");
  profile.looked_at = "profile " + profile.name + " of " + secrets + " and " + config;
  const auto in_secrets = SectionOf(file(secrets).value_or(""), profile.name);
  const auto in_config =
      SectionOf(file(config).value_or(""),
                profile.name == "default" ? profile.name : "profile " + profile.name);
  if (!asked_for.empty() && !in_secrets && !in_config)
    return Error{ErrorCode::kInvalidArgument,
                 "S3: profile " + asked_for + " is neither in " + secrets + " nor in " + config};
  const auto stored = [&](std::string_view setting) -> std::string {
    for (const auto* const section : {&in_secrets, &in_config})
      if (*section)
        if (const auto found = (*section)->find(setting); found != (*section)->end())
          return found->second;
    return {};
  };
  profile.keys = {stored("aws_access_key_id"), stored("aws_secret_access_key"),
                  stored("aws_session_token")};
  if (profile.keys.access_key.empty() || profile.keys.secret_key.empty()) profile.keys = {};
  profile.region = stored("region");
  profile.endpoint = stored("endpoint_url");
  profile.role_arn = stored("role_arn");
  profile.source_profile = stored("source_profile");
  profile.role_session_name = stored("role_session_name");
  profile.external_id = stored("external_id");
  profile.web_identity_token_file = stored("web_identity_token_file");
  profile.credential_process = stored("credential_process");
  // The command is asked before keys of the config file, but after those of the credentials file.
  const bool are_in_config = !in_secrets || !in_secrets->contains("aws_access_key_id");
  if (!profile.credential_process.empty() && are_in_config) profile.keys = {};
  profile.sso_session = stored("sso_session");
  profile.sso_account_id = stored("sso_account_id");
  profile.sso_role_name = stored("sso_role_name");
  if (profile.sso_session.empty()) {
    profile.sso_start_url = stored("sso_start_url");
    profile.sso_region = stored("sso_region");
  } else if (auto session =
                 SectionOf(file(config).value_or(""), "sso-session " + profile.sso_session)) {
    profile.sso_start_url = (*session)["sso_start_url"];
    profile.sso_region = (*session)["sso_region"];
  }
  if (!stored("credential_source").empty()) profile.unsupported = "credential_source";
  return profile;
}

Result<AwsSettings> ReadAwsSettings(const VariableReader& variable, const FileReader& file) {
  const AwsProfile profile = FFR_TRY(ReadAwsProfile(variable, file));
  const auto either = [&](std::initializer_list<const char*> names, const std::string& in_file) {
    std::string value = FirstOf(variable, names);
    return value.empty() ? in_file : value;
  };
  AwsSettings settings;
  if (auto region = either({"AWS_REGION", "AWS_DEFAULT_REGION"}, profile.region); !region.empty())
    settings.region = std::move(region);
  settings.endpoint = either({"AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL"}, profile.endpoint);
  settings.chain = std::make_shared<CredentialChain>(variable, file, settings.region);
  return settings;
}

Result<AwsSettings> ReadAwsSettings() {
  return ReadAwsSettings(SnapshotOfEnvironment(), TextOfFile);
}

}  // namespace ffrecord::object_store
