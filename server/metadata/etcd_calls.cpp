#include "server/metadata/etcd_calls.h"

#include <algorithm>
#include <span>
#include <string_view>
#include <utility>

#include "libffrecord/base/assert.h"
#include "libffrecord/base/clock.h"

namespace ffrecord::server {
namespace {

using namespace std::chrono_literals;

// Limit for a page of a list: the values of a cluster's metadata are small.
constexpr std::uint64_t kReplySizeMax = 64 << 20;
// Between rounds over all members that gave nothing: half of it to all of it.
constexpr std::chrono::milliseconds kRoundPause = 200ms;
constexpr std::size_t kTokenRefusedMax = 2;

std::string_view AsText(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

}  // namespace

EtcdCalls::EtcdCalls(const EtcdOptions& options, net::HttpTransfers& transfers)
    : options_(options), transfers_(transfers), random_(std::random_device{}()) {
  // Clients of one cluster begin with different members.
  member_ = random_() % options.endpoints.size();
}

void EtcdCalls::Begin(Call call) { Add(std::move(call), false); }

void EtcdCalls::Add(Call call, bool is_authentication) {
  auto open = std::make_unique<Open>();
  open->call = std::move(call);
  open->is_authentication = is_authentication;
  open->member = open->call.only_member.value_or(member_);
  open_.push_back(std::move(open));
}

void EtcdCalls::Suspect(std::size_t member) {
  if (member == member_) member_ = (member_ + 1) % options_.endpoints.size();
}

net::HttpRequest EtcdCalls::HttpRequestTo(std::size_t member, const EtcdRequest& request) const {
  const std::string& address = AddressOf(member);
  const std::size_t host = address.find("://");
  net::HttpRequest http;
  http.method = "POST";
  http.scheme = address.substr(0, host);
  http.host = address.substr(host + 3);
  http.target = request.path;
  http.headers = {{"content-type", "application/json"},
                  // A member without a leader refuses at once, in place of silence.
                  {"grpc-metadata-hasleader", "true"}};
  if (!token_.empty()) http.headers["authorization"] = token_;
  http.body = std::as_bytes(std::span(request.body));
  http.without_proxy = true;
  http.ca_file = options_.ca_file;
  http.certificate_file = options_.certificate_file;
  http.key_file = options_.key_file;
  return http;
}

Result<std::optional<net::HttpRequest>> EtcdCalls::RequestTo(std::size_t member,
                                                             const EtcdRequest& request) {
  if (denied_) return *denied_;
  if (!HasToken()) return std::optional<net::HttpRequest>();
  return std::optional(HttpRequestTo(member, request));
}

bool EtcdCalls::HasToken() {
  if (options_.user.empty() || auth_is_off_ || !token_.empty()) return true;
  if (is_authenticating_) return false;
  is_authenticating_ = true;
  Add({EtcdRequests::Authenticate(options_.user, options_.password),
       Clock::now() + 2 * options_.try_timeout, false, std::nullopt,
       [this](const EtcdAnswer& answer) { TakeToken(answer); }},
      true);
  return false;
}

void EtcdCalls::TakeToken(const EtcdAnswer& answer) {
  is_authenticating_ = false;
  if (answer.error) {
    // Another reason than the user's passes: those that wait ask again.
    if (answer.error->code == ErrorCode::kDenied && !auth_is_off_) denied_ = answer.error;
    return;
  }
  if (auto token = EtcdReplies::Authenticate(answer.body)) token_ = std::move(token).value();
}

void EtcdCalls::Tick(TimePoint now) {
  for (auto next = open_.begin(); next != open_.end();) {
    Open& open = **next++;  // Which may go.
    if (now >= open.call.deadline || (open.is_trying && now >= open.try_deadline))
      OnLate(open, now);
    else if (!open.is_trying && denied_ && !open.is_authentication)
      End(open, {{}, denied_, false});
    else if (!open.is_trying && now >= open.due && (open.is_authentication || HasToken()))
      StartTry(open, now);
  }
  denied_.reset();  // Later calls try anew.
}

EtcdCalls::TimePoint EtcdCalls::next() const {
  TimePoint first = TimePoint::max();
  for (const auto& open : open_) {
    first = std::min(first, open->call.deadline);
    if (open->is_trying)
      first = std::min(first, open->try_deadline);
    else if (open->is_authentication || !is_authenticating_)
      first = std::min(first, open->due);
  }
  return first;
}

void EtcdCalls::StartTry(Open& open, TimePoint now) {
  open.transfer = {};
  open.transfer.request = HttpRequestTo(open.member, open.call.request);
  open.transfer.request.is_sent_once = open.call.is_sent_once;
  open.transfer.body_size_max = kReplySizeMax;
  ++open.try_count;
  open.try_deadline = std::min(now + options_.try_timeout, open.call.deadline);
  if (auto begun = transfers_.Begin(open.transfer, options_.try_timeout); !begun) {
    OnVerdict(open, {EtcdVerdict::Kind::kElsewhere, std::move(begun).error()});
    return;
  }
  open.is_trying = true;
}

bool EtcdCalls::Take(net::HttpTransfer& transfer) {
  const auto found =
      std::ranges::find_if(open_, [&](const auto& open) { return &open->transfer == &transfer; });
  if (found == open_.end()) return false;
  OnResponse(**found);
  return true;
}

void EtcdCalls::OnResponse(Open& open) {
  open.is_trying = false;
  const net::HttpTransfer& transfer = open.transfer;
  const auto& response = transfer.response;
  if (transfer.error)
    OnVerdict(open,
              {transfer.was_sent ? EtcdVerdict::Kind::kUnclear : EtcdVerdict::Kind::kElsewhere,
               *transfer.error});
  else if (response.status != 200)
    OnVerdict(open, JudgeEtcdRefusal(ParseEtcdRefusal(response.status, AsText(response.body)),
                                     AddressOf(open.member)));
  else
    End(open, {std::string(AsText(response.body)), std::nullopt, false});
}

void EtcdCalls::OnVerdict(Open& open, EtcdVerdict verdict) {
  using Kind = EtcdVerdict::Kind;
  const TimePoint now = Clock::now();
  open.last_error = verdict.error;
  const bool has_user = !options_.user.empty();
  switch (verdict.kind) {
    case Kind::kAuthIsOff:
      auth_is_off_ = true;
      return End(open, {{}, std::move(verdict.error), false});
    case Kind::kFailed:
      return End(open, {{}, std::move(verdict.error), false});
    case Kind::kTokenRefused:
      token_.clear();
      auth_is_off_ = false;
      if (!has_user || ++open.token_refused_count > kTokenRefusedMax)
        return End(open, {{}, std::move(verdict.error), false});
      open.due = now;
      return;
    case Kind::kUnclear:
      if (open.call.is_sent_once) {
        Suspect(open.member);
        return End(open, {{}, std::move(verdict.error), true});
      }
      break;
    case Kind::kElsewhere:
      break;
  }
  if (open.call.only_member) return End(open, {{}, std::move(verdict.error), false});
  Suspect(open.member);
  const std::size_t count = options_.endpoints.size();
  open.member = (open.member + 1) % count;
  open.due = now;
  if (open.try_count % count == 0)
    open.due += kRoundPause / 2 + std::chrono::milliseconds(random_() % (kRoundPause.count() / 2));
}

void EtcdCalls::OnLate(Open& open, TimePoint now) {
  Error silent{ErrorCode::kDeadlineExceeded,
               AddressOf(open.member) + " did not answer in time; see whether etcd runs there"};
  bool was_sent = false;
  if (open.is_trying) {
    transfers_.Cancel(open.transfer);
    open.is_trying = false;
    was_sent = open.transfer.was_sent;
    Suspect(open.member);
  }
  if (now >= open.call.deadline) {
    if (open.last_error && !was_sent) {
      silent = {
          ErrorCode::kUnavailable,
          "no member of etcd carried out the request in time; last, " + open.last_error->message};
    }
    End(open, {{}, std::move(silent), was_sent && open.call.is_sent_once});
    return;
  }
  OnVerdict(open, {was_sent ? EtcdVerdict::Kind::kUnclear : EtcdVerdict::Kind::kElsewhere,
                   std::move(silent)});
}

void EtcdCalls::End(Open& open, EtcdAnswer answer) {
  const auto found =
      std::ranges::find_if(open_, [&](const auto& each) { return each.get() == &open; });
  FFR_ASSERT(found != open_.end());
  const std::unique_ptr<Open> ended = std::move(*found);
  open_.erase(found);
  ended->call.done(std::move(answer));
}

void EtcdCalls::Close() {
  while (!open_.empty()) {
    Open& open = *open_.front();
    if (open.is_trying) transfers_.Cancel(open.transfer);
    const bool is_unclear = open.is_trying && open.call.is_sent_once && open.transfer.was_sent;
    End(open, {{}, Error{ErrorCode::kUnavailable, "the metadata store is closed"}, is_unclear});
  }
}

}  // namespace ffrecord::server
