#pragma once

#include <atomic>
#include <chrono>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <string>

#include <ffrecord/result.h>

#include "libffrecord/base/clock.h"
#include "libffrecord/base/per_process.h"
#include "libffrecord/net/http/http.h"
#include "libffrecord/object_store/aws_settings.h"
#include "libffrecord/object_store/digests.h"
#include "libffrecord/object_store/sigv4.h"

namespace ffrecord::object_store {

// Credentials that hold for a while; lasting ones have no end.
struct TimedCredentials {
  AwsCredentials credentials;
  std::optional<WallClock::time_point> expires;
};

// Finds credentials where the AWS tools find them; the first place that has some counts:
//
//   1. the variables AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_SESSION_TOKEN;
//   2. a role with a web identity: AWS_WEB_IDENTITY_TOKEN_FILE and AWS_ROLE_ARN;
//   3. the profile: a role with a web identity or with the credentials of `source_profile`; a token
//      of single sign-on, which `aws sso login` keeps fresh; keys; the output of the command
//      `credential_process`;
//   4. a container: AWS_CONTAINER_CREDENTIALS_RELATIVE_URI or ..._FULL_URI (ECS, EKS);
//   5. the instance metadata service, version 2, unless AWS_EC2_METADATA_DISABLED is "true".
//
// A place that is set up but fails ends the search with its error: no other identity is used in its
// place. Credentials are renewed five minutes before they end, and within ten seconds after a file
// that they came from was replaced; while they hold, a failure to renew them is no error.
//
// Thread-safe; a forked child asks again. Fails with kDenied if there are none (the message names
// what was looked at), kUnavailable if a service did not answer, or as no such service does.
class CredentialChain {
 public:
  CredentialChain(VariableReader variable, FileReader file, std::string region);

  Result<AwsCredentials> Get();

  // Told that a store has refused these as expired or unknown. True if others may be had: the next
  // Get() then looks for them.
  bool Refused(const std::string& access_key);
  // Told that a store knows the credentials of the moment, and does not let them do what was asked
  // for. True if a file that they came from was replaced, and has others.
  bool Denied();

 private:
  struct Kept {
    std::mutex mutex;
    // The files that the last search has read, or looked for, and what they held.
    std::map<std::string, std::optional<Sha256Digest>> files;
    Clock::time_point compared{};  // When they were last read again.
    std::optional<TimedCredentials> found;
    Clock::time_point looked{};  // When they were last looked for.
    std::string refused;         // The last access key that a store refused.
  };

  Result<TimedCredentials> Find(Kept& kept) const;  // Requires the lock.
  bool AreFilesReplaced(Kept& kept) const;          // Requires the lock.
  bool FindOthers(Kept& kept) const;                // Requires the lock.
  Result<std::optional<TimedCredentials>> FromWebIdentity() const;
  Result<std::optional<TimedCredentials>> FromProfile(const AwsProfile& profile) const;
  Result<std::optional<TimedCredentials>> FromProfileAlone(const AwsProfile& profile) const;
  Result<TimedCredentials> FromSignOn(const AwsProfile& profile) const;
  Result<std::string> SignOnToken(const AwsProfile& profile) const;
  Result<std::optional<TimedCredentials>> FromContainer() const;
  Result<std::optional<TimedCredentials>> FromInstance() const;
  Result<TimedCredentials> AssumeWithWebIdentity(const std::string& role_arn,
                                                 const std::string& session,
                                                 const std::string& token_file) const;
  Result<TimedCredentials> AssumeRole(const AwsProfile& profile) const;
  Result<TimedCredentials> AskSts(net::HttpRequest request) const;
  Result<net::HttpRequest> StsRequest() const;
  std::string Variable(const char* name) const;
  // As file_, and noted as a source. Requires the lock, as all that is called by Find().
  std::optional<std::string> ReadFile(const std::string& path) const;

  const VariableReader variable_;
  const FileReader file_;
  const std::string region_;
  mutable PerProcess<Kept> kept_{[] { return new Kept; }};
};

}  // namespace ffrecord::object_store
