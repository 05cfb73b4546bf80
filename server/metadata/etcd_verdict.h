#pragma once

#include <string>
#include <utility>

#include <ffrecord/result.h>

#include "server/metadata/etcd_messages.h"

namespace ffrecord::server {

// The meaning of a refusal.
struct EtcdVerdict {
  enum class Kind {
    kFailed,        // Not carried out, and no member would.
    kElsewhere,     // Not carried out; another member may.
    kTokenRefused,  // Not carried out for want of a good token.
    kAuthIsOff,     // There are no users, and no tokens.
    kUnclear,       // Perhaps carried out, now or later.
  };
  Kind kind = Kind::kUnclear;
  Error error;
};

// Pure. The message begins with `member`, the address that refused.
EtcdVerdict JudgeEtcdRefusal(const EtcdRefusal& refusal, const std::string& member);

}  // namespace ffrecord::server
