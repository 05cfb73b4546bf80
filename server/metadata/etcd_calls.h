#pragma once

#include <chrono>
#include <cstddef>
#include <functional>
#include <list>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include <ffrecord/result.h>

#include "libffrecord/net/http/http_transfers.h"
#include "server/metadata/etcd_messages.h"
#include "server/metadata/etcd_store.h"
#include "server/metadata/etcd_verdict.h"

namespace ffrecord::server {

// How a call ended.
struct EtcdAnswer {
  std::string body;            // Body of a 2xx response.
  std::optional<Error> error;  // Else.
  bool is_unclear = false;     // An error; the request may have been carried out all the same.
};

// Requests to the members of an etcd cluster: each goes to one member after the other until one
// answers or its deadline has passed. Silence of a member for the try timeout is an answer: go on.
// Takes tokens and takes them anew. Thread-bound; never blocks. `transfers` outlives it.
class EtcdCalls {
 public:
  using TimePoint = MetaStore::TimePoint;

  struct Call {
    EtcdRequest request;
    TimePoint deadline;
    // Not sent again once it may have been carried out: then it ends as unclear.
    bool is_sent_once = false;
    std::optional<std::size_t> only_member;  // One try, at this one.
    std::function<void(EtcdAnswer)> done;    // May begin other calls.
  };

  EtcdCalls(const EtcdOptions& options, net::HttpTransfers& transfers);
  void Begin(Call call);
  // Begins tries and ends those that are late.
  void Tick(TimePoint now);
  // When Tick() has something to do next.
  TimePoint next() const;
  // Takes a transfer that has ended. False: it is of nobody here.
  bool Take(net::HttpTransfer& transfer);
  // Ends all calls, as if the store were closed.
  void Close();

  // The member that calls begin with.
  std::size_t member() const { return member_; }
  const std::string& AddressOf(std::size_t member) const { return options_.endpoints[member]; }
  // That member does not answer: others go first.
  void Suspect(std::size_t member);

  // For requests that are no calls. Fails with kDenied; none: there is no token yet, but soon.
  Result<std::optional<net::HttpRequest>> RequestTo(std::size_t member, const EtcdRequest& request);
  void ForgetToken() { token_.clear(); }

 private:
  struct Open {
    Call call;
    bool is_authentication = false;
    std::size_t member = 0;
    TimePoint due;  // Time of the next try, while none is under way.
    bool is_trying = false;
    TimePoint try_deadline;
    std::size_t try_count = 0;
    std::size_t token_refused_count = 0;
    std::optional<Error> last_error;
    net::HttpTransfer transfer;
  };

  net::HttpRequest HttpRequestTo(std::size_t member, const EtcdRequest& request) const;
  void Add(Call call, bool is_authentication);
  bool HasToken();  // Else begins to take one.
  void TakeToken(const EtcdAnswer& answer);
  void StartTry(Open& open, TimePoint now);
  // The call ends, or has another try: none may be under way.
  void OnResponse(Open& open);
  void OnVerdict(Open& open, EtcdVerdict verdict);
  void OnLate(Open& open, TimePoint now);
  void End(Open& open, EtcdAnswer answer);  // `open` is gone afterwards.

  const EtcdOptions& options_;
  net::HttpTransfers& transfers_;
  std::size_t member_ = 0;
  std::list<std::unique_ptr<Open>> open_;
  std::minstd_rand random_;

  std::string token_;
  bool auth_is_off_ = false;
  bool is_authenticating_ = false;
  std::optional<Error> denied_;  // The user was refused: so are the calls that wait for a token.
};

}  // namespace ffrecord::server
