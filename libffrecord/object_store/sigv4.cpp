#include "libffrecord/object_store/sigv4.h"

#include <array>
#include <ctime>
#include <map>

#include "libffrecord/base/clock.h"
#include "libffrecord/base/hex.h"
#include "libffrecord/object_store/digests.h"

namespace ffrecord::object_store {
namespace {

constexpr std::string_view kAlgorithm = "AWS4-HMAC-SHA256";

std::span<const std::byte> BytesOf(std::string_view text) { return std::as_bytes(std::span(text)); }

}  // namespace

std::string SigningTime() {
  const std::time_t now = WallClock::to_time_t(WallClock::now());
  std::tm utc{};
  gmtime_r(&now, &utc);
  std::array<char, 32> text{};
  const std::size_t size = std::strftime(text.data(), text.size(), "%Y%m%dT%H%M%SZ", &utc);
  return {text.data(), size};
}

void Sign(net::HttpRequest& request, const AwsCredentials& credentials, const SigningScope& scope,
          std::string_view payload_hash) {
  request.headers["x-amz-date"] = scope.time;
  if (!credentials.session_token.empty())
    request.headers["x-amz-security-token"] = credentials.session_token;

  std::map<std::string, std::string> headers = request.headers;
  headers["host"] = request.host;
  std::string names;
  std::string canonical = request.method + "\n" + net::UriEncode(request.path, true) + "\n" +
                          net::EncodeQuery(request.query) + "\n";
  for (const auto& [name, value] : headers) {
    canonical += name + ":" + value + "\n";
    names += (names.empty() ? "" : ";") + name;
  }
  canonical += "\n" + names + "\n" + std::string(payload_hash);

  const std::string date = scope.time.substr(0, 8);
  const std::string where = date + "/" + scope.region + "/" + scope.service + "/aws4_request";
  const std::string to_sign = std::string(kAlgorithm) + "\n" + scope.time + "\n" + where + "\n" +
                              Hex(Sha256(BytesOf(canonical)));
  Sha256Digest key = HmacSha256(BytesOf("AWS4" + credentials.secret_key), BytesOf(date));
  for (const std::string_view part :
       {std::string_view(scope.region), std::string_view(scope.service),
        std::string_view("aws4_request")})
    key = HmacSha256(key, BytesOf(part));
  request.headers["authorization"] =
      std::string(kAlgorithm) + " Credential=" + credentials.access_key + "/" + where +
      ", SignedHeaders=" + names + ", Signature=" + Hex(HmacSha256(key, BytesOf(to_sign)));
}

}  // namespace ffrecord::object_store
