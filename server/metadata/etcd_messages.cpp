#include "server/metadata/etcd_messages.h"

#include <algorithm>
#include <charconv>
#include <span>
#include <utility>

#include <nlohmann/json.hpp>

#include "libffrecord/base/base64.h"

namespace ffrecord::server {
namespace {

// Fields stay in order: tests hold the bytes of requests.
using Json = nlohmann::ordered_json;

std::string Text(std::uint64_t number) { return std::to_string(number); }
std::string Base64(std::string_view text) { return EncodeBase64(std::as_bytes(std::span(text))); }

EtcdRequest Make(const char* path, const Json& body) {
  return {path, body.dump(-1, ' ', false, Json::error_handler_t::replace)};
}

Error Unreadable(std::string_view what) {
  return {ErrorCode::kCorruption, "etcd's reply cannot be understood: it has no good " +
                                      std::string(what) +
                                      "; see whether the address is that of an etcd 3.4 or newer"};
}

// The whole text as an object, or the object of that name in it; null if there is none.
const Json* Object(const Json& json, const char* name) {
  const auto found = json.find(name);
  return found != json.end() && found->is_object() ? &*found : nullptr;
}
Result<Json> Parse(std::string_view body) {
  Json json = Json::parse(body, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object()) return Unreadable("JSON");
  return json;
}

// A number, or its digits; 0 if it is left out.
Result<std::uint64_t> Number(const Json& json, const char* name) {
  const auto found = json.find(name);
  if (found == json.end()) return std::uint64_t{0};
  if (found->is_number_unsigned()) return found->get<std::uint64_t>();
  if (!found->is_string()) return Unreadable(name);
  const auto& text = found->get_ref<const std::string&>();
  std::uint64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end != text.data() + text.size()) return Unreadable(name);
  return number;
}

// Empty if it is left out, as for Bytes() and Flag().
Result<std::string> String(const Json& json, const char* name) {
  const auto found = json.find(name);
  if (found == json.end()) return std::string();
  if (!found->is_string()) return Unreadable(name);
  return found->get<std::string>();
}

Result<std::vector<std::byte>> Bytes(const Json& json, const char* name) {
  const std::string text = FFR_TRY(String(json, name));
  auto bytes = DecodeBase64(text);
  if (!bytes) return Unreadable(name);
  return *std::move(bytes);
}

bool Flag(const Json& json, const char* name) {
  const auto found = json.find(name);
  return found != json.end() && found->is_boolean() && found->get<bool>();
}

Result<std::uint64_t> HeaderRevision(const Json& json) {
  const Json* const header = Object(json, "header");
  const std::uint64_t revision = header == nullptr ? 0 : FFR_TRY(Number(*header, "revision"));
  if (revision == 0) return Unreadable("revision");
  return revision;
}

Result<MetaStore::KeyValue> ReadKeyValue(const Json& json, std::string_view prefix) {
  if (!json.is_object()) return Unreadable("key");
  const auto key_bytes = FFR_TRY(Bytes(json, "key"));
  const std::string_view key(reinterpret_cast<const char*>(key_bytes.data()), key_bytes.size());
  if (!key.starts_with(prefix)) return Unreadable("key");
  MetaStore::KeyValue entry;
  entry.key = key.substr(prefix.size());
  entry.value = FFR_TRY(Bytes(json, "value"));
  entry.mod_revision = FFR_TRY(Number(json, "mod_revision"));
  if (entry.mod_revision == 0) return Unreadable("mod_revision");
  return entry;
}

Result<std::vector<MetaStore::KeyValue>> ReadKeyValues(const Json& json, std::string_view prefix) {
  std::vector<MetaStore::KeyValue> entries;
  const auto found = json.find("kvs");
  if (found == json.end()) return entries;
  if (!found->is_array()) return Unreadable("kvs");
  for (const Json& entry : *found) entries.push_back(FFR_TRY(ReadKeyValue(entry, prefix)));
  return entries;
}

// A reply of a stream is in an object of its own.
Result<Json> ParseResult(std::string_view body) {
  const Json json = FFR_TRY(Parse(body));
  const Json* const result = Object(json, "result");
  if (result == nullptr) return Unreadable("result");
  return *result;
}

std::chrono::milliseconds Seconds(std::uint64_t count) {
  constexpr std::uint64_t kMax = 1'000'000'000;
  return std::chrono::seconds(std::min(count, kMax));
}

EtcdRefusal ReadRefusal(int http_status, const Json& json) {
  EtcdRefusal refusal;
  refusal.http_status = http_status;
  // A stream's error is an object of its own, with other names.
  const Json* const of_stream = Object(json, "error");
  const Json& error = of_stream == nullptr ? json : *of_stream;
  const auto code = error.find(of_stream == nullptr ? "code" : "grpc_code");
  if (code != error.end() && code->is_number_integer()) refusal.code = code->get<int>();
  if (auto message = String(error, "message")) refusal.message = std::move(message).value();
  return refusal;
}

Result<MetaStore::Event> ReadEvent(const Json& json, std::string_view prefix) {
  const Json* const kv = json.is_object() ? Object(json, "kv") : nullptr;
  if (kv == nullptr) return Unreadable("event");
  auto entry = FFR_TRY(ReadKeyValue(*kv, prefix));
  const std::string type = FFR_TRY(String(json, "type"));  // That of a put is left out.
  if (!type.empty() && type != "PUT" && type != "DELETE") return Unreadable("type of an event");
  MetaStore::Event event{std::move(entry.key), std::nullopt, entry.mod_revision};
  if (type != "DELETE") event.value = std::move(entry.value);
  return event;
}

}  // namespace

// --- Requests ------------------------------------------------------------------------------------

EtcdRequests::EtcdRequests(std::string_view cluster)
    : prefix_("/ffrecord/" + std::string(cluster) + "/") {}

std::string EtcdRequests::Encode(std::string_view key) const {
  return Base64(prefix_ + std::string(key));
}

std::string EtcdRequests::EncodeEnd(std::string_view prefix) const {
  std::string end = prefix_ + std::string(prefix);
  ++end.back();  // Keys are ASCII: there is no byte to carry into.
  return Base64(end);
}

EtcdRequest EtcdRequests::Get(std::string_view key) const {
  return Make("/v3/kv/range", {{"key", Encode(key)}});
}

EtcdRequest EtcdRequests::List(const MetaStore::ListRequest& request) const {
  // The smallest key that is greater than `after` has a NUL behind it.
  const std::string from = request.after < request.prefix ? request.prefix : request.after + '\0';
  Json body = {{"key", Encode(from)},
               {"range_end", EncodeEnd(request.prefix)},
               {"limit", Text(request.limit)}};
  if (request.revision != 0) body["revision"] = Text(request.revision);
  return Make("/v3/kv/range", body);
}

EtcdRequest EtcdRequests::TryCommit(const MetaStore::Commit& commit) const {
  Json compares = Json::array();
  for (const auto& [key, mod_revision] : commit.compares) {
    if (mod_revision == 0)
      compares.push_back({{"key", Encode(key)},
                          {"target", "CREATE"},
                          {"result", "EQUAL"},
                          {"create_revision", "0"}});
    else
      compares.push_back({{"key", Encode(key)},
                          {"target", "MOD"},
                          {"result", "EQUAL"},
                          {"mod_revision", Text(mod_revision)}});
  }
  Json changes = Json::array();
  for (const auto& [key, value, lease] : commit.puts) {
    Json put = {{"key", Encode(key)}, {"value", EncodeBase64(value)}};
    if (lease != 0) put["lease"] = Text(lease);
    changes.push_back({{"request_put", std::move(put)}});
  }
  for (const std::string& key : commit.deletes)
    changes.push_back({{"request_delete_range", {{"key", Encode(key)}}}});
  return Make("/v3/kv/txn", {{"compare", std::move(compares)}, {"success", std::move(changes)}});
}

EtcdRequest EtcdRequests::Watch(std::string_view prefix, std::uint64_t from_revision) const {
  return Make("/v3/watch", {{"create_request",
                             {{"key", Encode(prefix)},
                              {"range_end", EncodeEnd(prefix)},
                              {"start_revision", Text(from_revision)},
                              {"fragment", true}}}});
}

EtcdRequest EtcdRequests::GrantLease(std::chrono::milliseconds ttl) {
  const auto seconds =
      std::max<std::int64_t>(std::chrono::ceil<std::chrono::seconds>(ttl).count(), 1);
  return Make("/v3/lease/grant", {{"TTL", std::to_string(seconds)}});
}

EtcdRequest EtcdRequests::KeepLease(MetaStore::LeaseId lease) {
  return Make("/v3/lease/keepalive", {{"ID", Text(lease)}});
}

EtcdRequest EtcdRequests::RevokeLease(MetaStore::LeaseId lease) {
  return Make("/v3/lease/revoke", {{"ID", Text(lease)}});
}

EtcdRequest EtcdRequests::Authenticate(std::string_view user, std::string_view password) {
  return Make("/v3/auth/authenticate", {{"name", user}, {"password", password}});
}

EtcdRequest EtcdRequests::Probe() const {
  return Make("/v3/kv/range",
              {{"key", Encode("probe")}, {"count_only", true}, {"serializable", true}});
}

// --- Replies -------------------------------------------------------------------------------------

Result<std::optional<MetaStore::KeyValue>> EtcdReplies::Get(std::string_view body,
                                                            std::string_view prefix) {
  const Json json = FFR_TRY(Parse(body));
  FFR_TRY(HeaderRevision(json));
  auto entries = FFR_TRY(ReadKeyValues(json, prefix));
  if (entries.empty()) return std::optional<MetaStore::KeyValue>();
  return std::optional(std::move(entries.front()));
}

Result<MetaStore::Page> EtcdReplies::List(std::string_view body, std::string_view prefix,
                                          std::uint64_t revision) {
  const Json json = FFR_TRY(Parse(body));
  const std::uint64_t newest = FFR_TRY(HeaderRevision(json));
  MetaStore::Page page;
  page.entries = FFR_TRY(ReadKeyValues(json, prefix));
  page.more = Flag(json, "more");
  page.revision = revision == 0 ? newest : revision;
  return page;
}

Result<MetaStore::Outcome> EtcdReplies::TryCommit(std::string_view body) {
  using Fate = MetaStore::Outcome::Fate;
  const Json json = FFR_TRY(Parse(body));
  const std::uint64_t revision = FFR_TRY(HeaderRevision(json));
  return MetaStore::Outcome{Flag(json, "succeeded") ? Fate::kCommitted : Fate::kLost, revision,
                            std::nullopt};
}

Result<MetaStore::Lease> EtcdReplies::GrantLease(std::string_view body) {
  const Json json = FFR_TRY(Parse(body));
  const MetaStore::Lease lease{FFR_TRY(Number(json, "ID")), Seconds(FFR_TRY(Number(json, "TTL")))};
  if (lease.id == 0 || lease.ttl.count() == 0) return Unreadable("lease");
  return lease;
}

Result<std::optional<EtcdReplies::Ttl>> EtcdReplies::KeepLease(std::string_view body) {
  const Json result = FFR_TRY(ParseResult(body));
  FFR_TRY(HeaderRevision(result));
  const Ttl ttl = Seconds(FFR_TRY(Number(result, "TTL")));
  return ttl.count() == 0 ? std::nullopt : std::optional(ttl);
}

Result<std::string> EtcdReplies::Authenticate(std::string_view body) {
  const Json json = FFR_TRY(Parse(body));
  std::string token = FFR_TRY(String(json, "token"));
  // It becomes a line of a request's head.
  const auto is_good = [](char c) { return c > ' ' && c < 0x7F; };
  if (token.empty() || !std::ranges::all_of(token, is_good)) return Unreadable("token");
  return token;
}

EtcdRefusal ParseEtcdRefusal(int http_status, std::string_view body) {
  const auto json = Parse(body);
  if (!json) return {http_status, std::nullopt, {}};
  return ReadRefusal(http_status, json.value());
}

Result<EtcdWatchLine> ParseEtcdWatchLine(std::string_view line, std::string_view prefix) {
  const Json json = FFR_TRY(Parse(line));
  EtcdWatchLine parsed;
  if (json.contains("error")) {
    parsed.refusal = ReadRefusal(0, json);
    return parsed;
  }
  const Json* const result = Object(json, "result");
  if (result == nullptr) return Unreadable("result");
  parsed.is_created = Flag(*result, "created");
  parsed.is_canceled = Flag(*result, "canceled");
  parsed.is_fragment = Flag(*result, "fragment");
  parsed.compact_revision = FFR_TRY(Number(*result, "compact_revision"));
  parsed.cancel_reason = FFR_TRY(String(*result, "cancel_reason"));
  const auto events = result->find("events");
  if (events == result->end()) return parsed;
  if (!events->is_array()) return Unreadable("events");
  for (const Json& event : *events) parsed.events.push_back(FFR_TRY(ReadEvent(event, prefix)));
  return parsed;
}

}  // namespace ffrecord::server
