#include "libffrecord/object_store/aws_settings.h"

#include <cstdlib>
#include <fstream>
#include <initializer_list>
#include <iterator>
#include <map>
#include <string_view>
#include <utility>

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
    // What is indented belongs to a setting before it, such as "s3 =".
    if (!is_inside || equals == std::string_view::npos || line.front() == ' ' ||
        line.front() == '\t')
      continue;
    (*found)[std::string(Trimmed(content.substr(0, equals)))] = Trimmed(content.substr(equals + 1));
  }
  return found;
}

}  // namespace

Result<AwsSettings> ReadAwsSettings(const VariableReader& variable, const FileReader& file) {
  const auto first_of = [&](std::initializer_list<const char*> names) -> std::string {
    for (const char* const name : names)
      if (auto value = variable(name); value && !value->empty()) return *value;
    return {};
  };
  const std::string folder = first_of({"HOME"}) + "/.aws/";
  const auto path_of = [&](const char* name, const char* other) {
    const std::string named = first_of({name});
    return named.empty() ? folder + other : named;
  };
  const std::string asked_for = first_of({"AWS_PROFILE", "AWS_DEFAULT_PROFILE"});
  const std::string profile = asked_for.empty() ? "default" : asked_for;
  const std::string secrets = path_of("AWS_SHARED_CREDENTIALS_FILE", "credentials");
  const std::string config = path_of("AWS_CONFIG_FILE", "config");
  const auto in_secrets = SectionOf(file(secrets), profile);
  const auto in_config =
      SectionOf(file(config), profile == "default" ? profile : "profile " + profile);
  if (!asked_for.empty() && !in_secrets && !in_config)
    return Error{ErrorCode::kInvalidArgument,
                 "S3: profile " + asked_for + " is neither in " + secrets + " nor in " + config};
  // The file of secrets comes first.
  const auto stored = [&](std::string_view name) -> std::string {
    for (const auto* const section : {&in_secrets, &in_config})
      if (*section)
        if (const auto found = (*section)->find(name); found != (*section)->end())
          return found->second;
    return {};
  };
  const auto either = [&](std::initializer_list<const char*> names, std::string_view in_file) {
    std::string value = first_of(names);
    return value.empty() ? stored(in_file) : value;
  };

  AwsSettings settings;
  AwsCredentials& credentials = settings.credentials;
  credentials.access_key = first_of({"AWS_ACCESS_KEY_ID"});
  credentials.secret_key = first_of({"AWS_SECRET_ACCESS_KEY"});
  credentials.session_token = first_of({"AWS_SESSION_TOKEN"});
  if (credentials.access_key.empty() || credentials.secret_key.empty())
    credentials = {stored("aws_access_key_id"), stored("aws_secret_access_key"),
                   stored("aws_session_token")};
  if (credentials.access_key.empty() || credentials.secret_key.empty())
    return Error{ErrorCode::kDenied,
                 "S3: no credentials: neither AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY are set, "
                 "nor has profile " +
                     profile + " of " + secrets + " or " + config + " any; set one of them"};
  if (auto region = either({"AWS_REGION", "AWS_DEFAULT_REGION"}, "region"); !region.empty())
    settings.region = std::move(region);
  settings.endpoint = either({"AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL"}, "endpoint_url");
  return settings;
}

Result<AwsSettings> ReadAwsSettings() {
  return ReadAwsSettings(
      [](const char* name) -> std::optional<std::string> {
        const char* const value = std::getenv(name);
        return value == nullptr ? std::nullopt : std::optional<std::string>(value);
      },
      [](const std::string& path) {
        std::ifstream stream(path, std::ios::binary);
        return std::string(std::istreambuf_iterator<char>(stream), {});
      });
}

}  // namespace ffrecord::object_store
