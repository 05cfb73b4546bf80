#include "libffrecord/net/http/http.h"

#include <algorithm>
#include <string_view>

#include "libffrecord/base/patience.h"
#include "libffrecord/net/http/easy_handle.h"

namespace ffrecord::net {
namespace {

bool IsPlain(char c) {
  return (c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') ||
         std::string_view("-._~").find(c) != std::string_view::npos;
}

}  // namespace

std::string PercentEncode(std::string_view text, bool (*may_stay)(char)) {
  constexpr char kDigits[] = "0123456789ABCDEF";
  std::string encoded;
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (may_stay(c)) {
      encoded += c;
    } else {
      encoded += '%';
      encoded += kDigits[byte >> 4];
      encoded += kDigits[byte & 15];
    }
  }
  return encoded;
}

std::string UriEncode(std::string_view text, bool keep_slashes) {
  if (keep_slashes) return PercentEncode(text, [](char c) { return c == '/' || IsPlain(c); });
  return PercentEncode(text, IsPlain);
}

std::string EncodeQuery(const std::vector<std::pair<std::string, std::string>>& query) {
  std::vector<std::pair<std::string, std::string>> sorted;
  for (const auto& [name, value] : query)
    sorted.emplace_back(UriEncode(name, false), UriEncode(value, false));
  std::sort(sorted.begin(), sorted.end());
  std::string text;
  for (const auto& [name, value] : sorted) text += (text.empty() ? "" : "&") + name + "=" + value;
  return text;
}

namespace {

bool MayGoOn() { return !Patience::OfThread().IsOver(); }

}  // namespace

HttpClient::HttpClient(std::unique_ptr<EasyHandle> handle) noexcept : handle_(std::move(handle)) {}
HttpClient::~HttpClient() = default;

Result<std::unique_ptr<HttpClient>> HttpClient::Create() {
  auto handle = FFR_TRY(EasyHandle::Create());
  return std::unique_ptr<HttpClient>(new HttpClient(std::move(handle)));
}

Result<HttpResponse> HttpClient::Run(const HttpRequest& request, const Limits& limits,
                                     std::span<std::byte> destination) {
  HttpSink sink;
  sink.destination = destination;
  sink.body_size_max = limits.body_size_max;
  handle_->Prepare(request, sink, limits.timeout, limits.timeout);
  if (!Patience::OfThread().is_endless()) handle_->AskWhetherToGoOn(&MayGoOn);
  FFR_TRY(handle_->Outcome(Curl().easy_perform(handle_->curl())));
  return std::move(sink.response);
}

}  // namespace ffrecord::net
