#include "server/metadata/etcd_verdict.h"

#include <cerrno>
#include <string_view>

namespace ffrecord::server {
namespace {

using Kind = EtcdVerdict::Kind;

// A row holds for refusals with its code whose message contains its text; the first is taken.
struct Rule {
  int grpc_code;
  std::string_view text;
  Kind kind;
  ErrorCode code;
  std::string_view remedy;
  int system_errno = 0;
};

constexpr Rule kRules[] = {
    {3, "user name is empty", Kind::kTokenRefused, ErrorCode::kDenied,
     "; etcd wants a user: set its name and password"},
    {3, "revision of auth store is old", Kind::kTokenRefused, ErrorCode::kDenied, ""},
    {3, "authentication failed", Kind::kFailed, ErrorCode::kDenied,
     "; check the name and password of etcd's user"},
    {3, "", Kind::kFailed, ErrorCode::kInvalidArgument, ""},
    {5, "lease not found", Kind::kFailed, ErrorCode::kNotFound, "; nothing was committed"},
    {7, "", Kind::kFailed, ErrorCode::kDenied,
     "; grant etcd's user reading and writing of the keys below /ffrecord/<cluster>/"},
    {8, "database space exceeded", Kind::kFailed, ErrorCode::kIo,
     "; etcd's quota is used up: compact and defragment it, then disarm the alarm (etcdctl "
     "compact, "
     "defrag, alarm disarm), or raise --quota-backend-bytes",
     ENOSPC},
    {8, "too many requests", Kind::kElsewhere, ErrorCode::kUnavailable, ""},
    {8, "larger than max", Kind::kFailed, ErrorCode::kInvalidArgument, ""},
    {9, "authentication is not enabled", Kind::kAuthIsOff, ErrorCode::kDenied, ""},
    {11, "compacted", Kind::kFailed, ErrorCode::kConflict, "; list from the beginning"},
    {11, "future revision", Kind::kFailed, ErrorCode::kInvalidArgument, ""},
    // Said before the request is looked at, since requests want a leader.
    {14, "no leader", Kind::kElsewhere, ErrorCode::kUnavailable,
     "; a majority of etcd's members must run and reach each other"},
    {14, "not supported for learner", Kind::kElsewhere, ErrorCode::kUnavailable, ""},
    {16, "", Kind::kTokenRefused, ErrorCode::kDenied, "; set the name and password of etcd's user"},
};

}  // namespace

EtcdVerdict JudgeEtcdRefusal(const EtcdRefusal& refusal, const std::string& member) {
  if (!refusal.code) {
    const std::string status = std::to_string(refusal.http_status);
    // An address of something else carries nothing out.
    const Kind kind = refusal.http_status == 404 ? Kind::kElsewhere : Kind::kUnclear;
    return {kind,
            {ErrorCode::kUnavailable,
             member + " answers with HTTP " + status +
                 "; see whether it is the address for clients of an etcd 3.4 or newer"}};
  }
  for (const Rule& rule : kRules)
    if (rule.grpc_code == *refusal.code && refusal.message.find(rule.text) != std::string::npos)
      return {rule.kind,
              {rule.code, member + ": " + refusal.message + std::string(rule.remedy),
               rule.system_errno}};
  return {Kind::kUnclear, {ErrorCode::kUnavailable, member + ": " + refusal.message}};
}

}  // namespace ffrecord::server
