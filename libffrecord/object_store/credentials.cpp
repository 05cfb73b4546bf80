#include "libffrecord/object_store/credentials.h"

#include <time.h>

#include <algorithm>
#include <array>
#include <utility>

#include <nlohmann/json.hpp>

#include "libffrecord/base/clock.h"
#include "libffrecord/base/hex.h"
#include "libffrecord/base/patient_wait.h"
#include "libffrecord/object_store/command_output.h"
#include "libffrecord/object_store/digests.h"
#include "libffrecord/object_store/http_address.h"
#include "libffrecord/object_store/retry.h"
#include "libffrecord/object_store/xml.h"

namespace ffrecord::object_store {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using Found = Result<std::optional<TimedCredentials>>;
using Json = nlohmann::json;

constexpr auto kRenewedBefore = std::chrono::minutes(5);
// Two looks lie so far apart, however often a store refuses what they find or they find nothing
// new.
constexpr auto kLookInterval = seconds(10);
constexpr milliseconds kServiceTimeout{5000};
constexpr int kServiceTries = 3;
constexpr std::uint64_t kAnswerSizeMax = 256 << 10;
constexpr milliseconds kCommandTimeout{60'000};

std::string Trimmed(std::string text) {
  const std::size_t end = text.find_last_not_of(" \t\r\n");
  text.resize(end == std::string::npos ? 0 : end + 1);
  return text;
}

std::string TextOf(const net::HttpResponse& response) {
  return {reinterpret_cast<const char*>(response.body.data()), response.body.size()};
}

std::optional<Sha256Digest> DigestOf(const std::optional<std::string>& text) {
  if (!text) return std::nullopt;
  return Sha256(std::as_bytes(std::span(*text)));
}

// "2026-11-23T22:46:17Z", fractions of a second left out.
std::optional<WallClock::time_point> TimeIn(const std::string& text) {
  std::tm utc{};
  if (::strptime(text.c_str(), "%Y-%m-%dT%H:%M:%S", &utc) == nullptr) return std::nullopt;
  return WallClock::from_time_t(::timegm(&utc));
}

// A request that is made a few times. Failures of the moment are kUnavailable.
Result<net::HttpResponse> Ask(const net::HttpRequest& request, const std::string& service,
                              milliseconds timeout, int tries) {
  BackOff back_off{BackOff::kOfStores};
  for (;;) {
    auto client = FFR_TRY(net::HttpClient::Create());
    auto response = client->Run(request, {timeout, kAnswerSizeMax});
    const bool may_pass = !response || MayPass(response.value().status);
    if (!may_pass || --tries <= 0 || Patience::OfThread().IsOver()) {
      if (!response)
        return Error{ErrorCode::kUnavailable, "S3: " + service + ": " + response.error().message};
      if (may_pass)
        return Error{ErrorCode::kUnavailable,
                     "S3: " + service + " answered " + std::to_string(response.value().status)};
      return response;
    }
    SleepPatiently(Clock::now() + back_off.Next());
  }
}

// The object that a text is; nothing if it is none.
std::optional<Json> ObjectIn(std::string_view text) {
  Json json = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object()) return std::nullopt;
  return json;
}

// A member of `object` that is a text; empty if there is none.
std::string TextOf(const Json& object, const char* name) {
  const auto found = object.find(name);
  return found != object.end() && found->is_string() ? found->get<std::string>() : std::string();
}

bool IsWhole(const AwsCredentials& found) {
  return !found.access_key.empty() && !found.secret_key.empty();
}

// A service that answers with something else than credentials, or than a refusal, is none, or is
// broken: a proxy's page does not say that anything is denied.
ErrorCode CodeOfRefusal(int status) {
  return status / 100 == 4 ? ErrorCode::kDenied : ErrorCode::kUnavailable;
}

// Containers and instances receive this: {"AccessKeyId": ..., "Expiration": ...}.
Result<TimedCredentials> InJson(const net::HttpResponse& response, const std::string& service) {
  const auto refused = [&](ErrorCode code, const std::string& why) {
    return Error{code, "S3: " + service + " gave no credentials: " + why};
  };
  if (response.status != 200)
    return refused(CodeOfRefusal(response.status),
                   "it answered " + std::to_string(response.status));
  const auto json = ObjectIn(TextOf(response));
  if (!json) return refused(ErrorCode::kUnavailable, "its answer is not a JSON object");
  TimedCredentials found{
      {TextOf(*json, "AccessKeyId"), TextOf(*json, "SecretAccessKey"), TextOf(*json, "Token")},
      TimeIn(TextOf(*json, "Expiration"))};
  if (!IsWhole(found.credentials))
    return refused(ErrorCode::kDenied, "its answer has none: " + TextOf(*json, "Code") + " " +
                                           TextOf(*json, "Message"));
  return found;
}

// Parses the output of credential_process: {"Version": 1, "AccessKeyId": ..., "Expiration": ...}.
Result<TimedCredentials> FromCommand(const AwsProfile& profile) {
  const std::string who = "S3: credential_process of profile " + profile.name;
  auto output = OutputOfCommand(profile.credential_process, kCommandTimeout, kAnswerSizeMax);
  if (!output) return Error{output.error().code, who + ": " + output.error().message};
  const auto json = ObjectIn(output.value());
  if (!json) return Error{ErrorCode::kDenied, who + ": it did not print one JSON object"};
  TimedCredentials found{{TextOf(*json, "AccessKeyId"), TextOf(*json, "SecretAccessKey"),
                          TextOf(*json, "SessionToken")},
                         TimeIn(TextOf(*json, "Expiration"))};
  if (!IsWhole(found.credentials))
    return Error{ErrorCode::kDenied, who + ": it printed no AccessKeyId or no SecretAccessKey"};
  return found;
}

// {"roleCredentials": {"accessKeyId": ..., "expiration": milliseconds since 1970}}
std::optional<TimedCredentials> RoleCredentialsIn(std::string_view text) {
  const auto json = ObjectIn(text);
  if (!json || !json->contains("roleCredentials")) return std::nullopt;
  const Json& role = (*json)["roleCredentials"];
  if (!role.is_object()) return std::nullopt;
  TimedCredentials found{
      {TextOf(role, "accessKeyId"), TextOf(role, "secretAccessKey"), TextOf(role, "sessionToken")},
      std::nullopt};
  if (!IsWhole(found.credentials)) return std::nullopt;
  const auto expires = role.find("expiration");
  if (expires != role.end() && expires->is_number_integer())
    found.expires = WallClock::time_point(milliseconds(expires->get<std::int64_t>()));
  return found;
}

std::string FormOf(const std::vector<std::pair<std::string, std::string>>& fields) {
  return net::EncodeQuery(fields);
}

// Where a container may send its secret token: under encryption anywhere, else to itself or to the
// agents of ECS and EKS.
bool MayHaveToken(const HttpAddress& address) {
  if (address.scheme == "https") return true;
  const std::string host = address.host.substr(0, address.host.rfind(':'));
  return host == "localhost" || host.starts_with("127.") || host == "[::1]" ||
         host == "169.254.170.2" || host == "169.254.170.23" || host == "[fd00:ec2::23]";
}

}  // namespace

CredentialChain::CredentialChain(VariableReader variable, FileReader file, std::string region)
    : variable_(std::move(variable)), file_(std::move(file)), region_(std::move(region)) {}

std::string CredentialChain::Variable(const char* name) const {
  return variable_(name).value_or("");
}

std::optional<std::string> CredentialChain::ReadFile(const std::string& path) const {
  auto text = file_(path);
  kept_.Get().files[path] = DigestOf(text);
  return text;
}

bool CredentialChain::AreFilesReplaced(Kept& kept) const {
  kept.compared = Clock::now();
  return std::ranges::any_of(
      kept.files, [&](const auto& file) { return DigestOf(file_(file.first)) != file.second; });
}

Result<AwsCredentials> CredentialChain::Get() {
  Kept& kept = kept_.Get();
  const std::scoped_lock lock(kept.mutex);
  const auto now = WallClock::now();
  const auto clock = Clock::now();
  const bool is_due =
      !kept.found || (kept.found->expires && now + kRenewedBefore >= *kept.found->expires);
  const bool is_replaced =
      !is_due && clock - kept.compared >= kLookInterval && AreFilesReplaced(kept);
  if (!is_due && !is_replaced) return kept.found->credentials;
  const bool still_holds = kept.found && (!kept.found->expires || now < *kept.found->expires);
  if (is_due && still_holds && clock - kept.looked < kLookInterval) return kept.found->credentials;
  auto found = Find(kept);
  if (found)
    kept.found = std::move(found).value();
  else if (!still_holds)
    return std::move(found).error();
  return kept.found->credentials;
}

bool CredentialChain::Refused(const std::string& access_key) {
  Kept& kept = kept_.Get();
  const std::scoped_lock lock(kept.mutex);
  // Another thread has looked since.
  if (!kept.found || kept.found->credentials.access_key != access_key) return true;
  if (kept.refused == access_key && Clock::now() - kept.looked < kLookInterval) return false;
  kept.refused = access_key;
  return FindOthers(kept);
}

bool CredentialChain::Denied() {
  Kept& kept = kept_.Get();
  const std::scoped_lock lock(kept.mutex);
  return kept.found && AreFilesReplaced(kept) && FindOthers(kept);
}

bool CredentialChain::FindOthers(Kept& kept) const {
  auto found = Find(kept);
  if (!found) return false;
  const AwsCredentials& before = kept.found->credentials;
  const AwsCredentials& after = found.value().credentials;
  const bool are_others = after.access_key != before.access_key ||
                          after.secret_key != before.secret_key ||
                          after.session_token != before.session_token;
  kept.found = std::move(found).value();
  return are_others;
}

Result<TimedCredentials> CredentialChain::Find(Kept& kept) const {
  kept.looked = kept.compared = Clock::now();
  kept.files.clear();
  const AwsCredentials in_variables{Variable("AWS_ACCESS_KEY_ID"),
                                    Variable("AWS_SECRET_ACCESS_KEY"),
                                    Variable("AWS_SESSION_TOKEN")};
  if (!in_variables.access_key.empty() && !in_variables.secret_key.empty())
    return TimedCredentials{in_variables, std::nullopt};
  if (auto found = FFR_TRY(FromWebIdentity())) return *std::move(found);
  const FileReader file = [this](const std::string& path) { return ReadFile(path); };
  const AwsProfile profile = FFR_TRY(ReadAwsProfile(variable_, file));
  if (auto found = FFR_TRY(FromProfile(profile))) return *std::move(found);
  if (auto found = FFR_TRY(FromContainer())) return *std::move(found);
  if (auto found = FFR_TRY(FromInstance())) return *std::move(found);
  const bool asked_instance = Variable("AWS_EC2_METADATA_DISABLED") != "true";
  return Error{
      ErrorCode::kDenied,
      "S3: no credentials; looked at: the variables AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY; "
      "AWS_WEB_IDENTITY_TOKEN_FILE and AWS_ROLE_ARN; " +
          profile.looked_at +
          (profile.unsupported.empty()
               ? ""
               : ", whose " + profile.unsupported +
                     " is not supported (`aws configure export-credentials` writes keys)") +
          "; AWS_CONTAINER_CREDENTIALS_RELATIVE_URI and AWS_CONTAINER_CREDENTIALS_FULL_URI; " +
          (asked_instance ? "the instance metadata service, which did not answer"
                          : "not the instance metadata service: AWS_EC2_METADATA_DISABLED is "
                            "true") +
          ". A public object needs none under its https:// address"};
}

// --- Roles ---------------------------------------------------------------------------------------

Found CredentialChain::FromWebIdentity() const {
  const std::string token_file = Variable("AWS_WEB_IDENTITY_TOKEN_FILE");
  const std::string role_arn = Variable("AWS_ROLE_ARN");
  if (token_file.empty() || role_arn.empty()) return std::optional<TimedCredentials>();
  return std::optional(
      FFR_TRY(AssumeWithWebIdentity(role_arn, Variable("AWS_ROLE_SESSION_NAME"), token_file)));
}

Found CredentialChain::FromProfile(const AwsProfile& profile) const {
  if (!profile.role_arn.empty() && !profile.web_identity_token_file.empty())
    return std::optional(FFR_TRY(AssumeWithWebIdentity(profile.role_arn, profile.role_session_name,
                                                       profile.web_identity_token_file)));
  if (!profile.role_arn.empty() && !profile.source_profile.empty())
    return std::optional(FFR_TRY(AssumeRole(profile)));
  return FromProfileAlone(profile);
}

Found CredentialChain::FromProfileAlone(const AwsProfile& profile) const {
  if (!profile.sso_account_id.empty() && !profile.sso_role_name.empty() &&
      !(profile.sso_session.empty() && profile.sso_start_url.empty()))
    return std::optional(FFR_TRY(FromSignOn(profile)));
  if (!profile.keys.access_key.empty())
    return std::optional(TimedCredentials{profile.keys, std::nullopt});
  if (!profile.credential_process.empty()) return std::optional(FFR_TRY(FromCommand(profile)));
  return std::optional<TimedCredentials>();
}

Result<std::string> CredentialChain::SignOnToken(const AwsProfile& profile) const {
  const std::string& named =
      profile.sso_session.empty() ? profile.sso_start_url : profile.sso_session;
  const auto digest = Sha1(std::as_bytes(std::span(named)));
  if (!digest) return Error{ErrorCode::kDenied, "S3: single sign-on needs SHA-1 in OpenSSL"};
  const std::string path = Variable("HOME") + "/.aws/sso/cache/" + Hex(*digest) + ".json";
  const std::string remedy = "; run: aws sso login --profile " + profile.name;
  const auto text = ReadFile(path);
  if (!text)
    return Error{ErrorCode::kDenied, "S3: profile " + profile.name +
                                         " uses single sign-on, but there is no " + path + remedy};
  const auto json = ObjectIn(*text);
  const std::string token = json ? TextOf(*json, "accessToken") : "";
  if (token.empty())
    return Error{ErrorCode::kDenied, "S3: " + path + " holds no accessToken" + remedy};
  const auto expires = TimeIn(TextOf(*json, "expiresAt"));
  if (expires && *expires <= WallClock::now())
    return Error{ErrorCode::kDenied, "S3: the token in " + path + " has expired at " +
                                         TextOf(*json, "expiresAt") + remedy};
  return token;
}

Result<TimedCredentials> CredentialChain::FromSignOn(const AwsProfile& profile) const {
  const std::string token = FFR_TRY(SignOnToken(profile));
  std::string endpoint = Variable("AWS_ENDPOINT_URL_SSO");
  if (endpoint.empty() && profile.sso_region.empty())
    return Error{ErrorCode::kDenied, "S3: profile " + profile.name + " names no sso_region"};
  if (endpoint.empty()) endpoint = "https://portal.sso." + profile.sso_region + ".amazonaws.com";
  const auto address = FFR_TRY(HttpAddress::Parse(endpoint));
  const std::string service = "single sign-on at " + endpoint;
  net::HttpRequest request;
  request.scheme = address.scheme;
  request.host = address.host;
  request.path = "/federation/credentials";
  request.query = {{"account_id", profile.sso_account_id}, {"role_name", profile.sso_role_name}};
  request.headers["x-amz-sso_bearer_token"] = token;
  const auto response = FFR_TRY(Ask(request, service, kServiceTimeout, kServiceTries));
  if (response.status != 200)
    return Error{CodeOfRefusal(response.status),
                 "S3: " + service + " gave no credentials: it answered " +
                     std::to_string(response.status) + "; run: aws sso login --profile " +
                     profile.name};
  if (auto found = RoleCredentialsIn(TextOf(response))) return *std::move(found);
  return Error{ErrorCode::kUnavailable, "S3: " + service + " gave no credentials in its answer"};
}

Result<net::HttpRequest> CredentialChain::StsRequest() const {
  std::string endpoint = Variable("AWS_ENDPOINT_URL_STS");
  if (endpoint.empty()) endpoint = Variable("AWS_ENDPOINT_URL");
  if (endpoint.empty()) endpoint = "https://sts." + region_ + ".amazonaws.com";
  const auto address = FFR_TRY(HttpAddress::Parse(endpoint));
  net::HttpRequest request;
  request.method = "POST";
  request.scheme = address.scheme;
  request.host = address.host;
  request.path = "/";
  request.headers["content-type"] = "application/x-www-form-urlencoded; charset=utf-8";
  return request;
}

Result<TimedCredentials> CredentialChain::AskSts(net::HttpRequest request) const {
  const std::string service = "the token service " + request.scheme + "://" + request.host;
  const auto response = FFR_TRY(Ask(request, service, kServiceTimeout, kServiceTries));
  const std::string text = TextOf(response);
  if (response.status != 200)
    return Error{CodeOfRefusal(response.status),
                 "S3: " + service + " gave no credentials: " + std::to_string(response.status) +
                     " " + TextOfElement(text, "Code") + " " + TextOfElement(text, "Message")};
  TimedCredentials found{
      {TextOfElement(text, "AccessKeyId"), TextOfElement(text, "SecretAccessKey"),
       TextOfElement(text, "SessionToken")},
      TimeIn(TextOfElement(text, "Expiration"))};
  if (found.credentials.access_key.empty() || found.credentials.secret_key.empty())
    return Error{ErrorCode::kUnavailable, "S3: " + service + " gave no credentials in its answer"};
  return found;
}

Result<TimedCredentials> CredentialChain::AssumeWithWebIdentity(
    const std::string& role_arn, const std::string& session, const std::string& token_file) const {
  const auto token = ReadFile(token_file);
  if (!token)
    return Error{ErrorCode::kDenied, "S3: the web identity token file " + token_file +
                                         " cannot be read; it is to prove the role " + role_arn};
  net::HttpRequest request = FFR_TRY(StsRequest());
  const std::string form = FormOf({{"Action", "AssumeRoleWithWebIdentity"},
                                   {"Version", "2011-06-15"},
                                   {"RoleArn", role_arn},
                                   {"RoleSessionName", session.empty() ? "ffrecord" : session},
                                   {"WebIdentityToken", Trimmed(*token)}});
  request.body = std::as_bytes(std::span(form));
  return AskSts(std::move(request));
}

Result<TimedCredentials> CredentialChain::AssumeRole(const AwsProfile& profile) const {
  const AwsProfile source = FFR_TRY(ReadAwsProfile(
      variable_, [this](const std::string& path) { return ReadFile(path); },
      profile.source_profile));
  const auto own = FFR_TRY(FromProfileAlone(source));
  if (!own)
    return Error{ErrorCode::kDenied, "S3: profile " + profile.name + " takes the role " +
                                         profile.role_arn + " with the credentials of profile " +
                                         source.name + ", which has none"};
  net::HttpRequest request = FFR_TRY(StsRequest());
  const std::string session = profile.role_session_name;
  std::vector<std::pair<std::string, std::string>> fields{
      {"Action", "AssumeRole"},
      {"Version", "2011-06-15"},
      {"RoleArn", profile.role_arn},
      {"RoleSessionName", session.empty() ? "ffrecord" : session}};
  if (!profile.external_id.empty()) fields.emplace_back("ExternalId", profile.external_id);
  const std::string form = FormOf(fields);
  request.body = std::as_bytes(std::span(form));
  Sign(request, own->credentials, {region_, "sts", SigningTime()}, Hex(Sha256(request.body)));
  return AskSts(std::move(request));
}

// --- Services of the machine ---------------------------------------------------------------------

Found CredentialChain::FromContainer() const {
  const std::string relative = Variable("AWS_CONTAINER_CREDENTIALS_RELATIVE_URI");
  const std::string full = Variable("AWS_CONTAINER_CREDENTIALS_FULL_URI");
  if (relative.empty() && full.empty()) return std::optional<TimedCredentials>();
  const auto address =
      FFR_TRY(HttpAddress::Parse(relative.empty() ? full : "http://169.254.170.2" + relative));
  const std::string service = "the container's credentials service at " + address.host;
  if (!MayHaveToken(address))
    return Error{ErrorCode::kDenied, "S3: AWS_CONTAINER_CREDENTIALS_FULL_URI: " + full +
                                         " is neither https:// nor on this machine"};
  net::HttpRequest request;
  request.scheme = address.scheme;
  request.host = address.host;
  request.target = address.target;
  request.without_proxy = true;
  std::string token = Variable("AWS_CONTAINER_AUTHORIZATION_TOKEN");
  // The file is newer: the agent renews it.
  if (const std::string path = Variable("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE"); !path.empty()) {
    const auto text = ReadFile(path);
    if (!text)
      return Error{ErrorCode::kDenied,
                   "S3: AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE: " + path + " cannot be read"};
    token = Trimmed(*text);
  }
  if (!token.empty()) request.headers["authorization"] = token;
  const auto response = FFR_TRY(Ask(request, service, kServiceTimeout, kServiceTries));
  return std::optional(FFR_TRY(InJson(response, service)));
}

// Nobody answers on machines that are no instances: that is no error, but there is nothing.
Found CredentialChain::FromInstance() const {
  if (Variable("AWS_EC2_METADATA_DISABLED") == "true") return std::optional<TimedCredentials>();
  std::string endpoint = Variable("AWS_EC2_METADATA_SERVICE_ENDPOINT");
  if (endpoint.empty()) endpoint = "http://169.254.169.254";
  const auto address = FFR_TRY(HttpAddress::Parse(endpoint));
  const auto number_in = [&](const char* name, int standard) {
    const std::string text = Variable(name);
    std::from_chars(text.data(), text.data() + text.size(), standard);
    return std::clamp(standard, 1, 60);
  };
  const milliseconds timeout = seconds(number_in("AWS_METADATA_SERVICE_TIMEOUT", 1));
  const int tries = number_in("AWS_METADATA_SERVICE_NUM_ATTEMPTS", 1);
  const std::string service = "the instance metadata service " + endpoint;
  net::HttpRequest request;
  request.scheme = address.scheme;
  request.host = address.host;
  request.without_proxy = true;
  request.method = "PUT";
  request.path = "/latest/api/token";
  request.headers["x-aws-ec2-metadata-token-ttl-seconds"] = "21600";
  const auto token = Ask(request, service, timeout, tries);
  if (!token || token.value().status != 200) return std::optional<TimedCredentials>();
  request.method = "GET";
  request.headers = {{"x-aws-ec2-metadata-token", TextOf(token.value())}};
  request.path = "/latest/meta-data/iam/security-credentials/";
  const auto roles = FFR_TRY(Ask(request, service, timeout, tries));
  if (roles.status == 404) return std::optional<TimedCredentials>();  // An instance without a role.
  const std::string names = Trimmed(TextOf(roles));
  request.path += names.substr(0, names.find('\n'));
  const auto response = FFR_TRY(Ask(request, service, timeout, tries));
  return std::optional(FFR_TRY(InJson(response, service)));
}

}  // namespace ffrecord::object_store
