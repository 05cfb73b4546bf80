#pragma once

#include <optional>

#include <ffrecord/result.h>

#include "libffrecord/net/protocol/messages.h"
#include "server/service/access/local_tickets.h"
#include "server/service/connection/caller.h"
#include "server/service/connection/connection_context.h"
#include "server/service/connection/conversation.h"
#include "server/service/connection/frame.h"

namespace ffrecord::server {

// The beginning of one connection: admits its client, and agrees with it on what both understand;
// protocol.md, "Conversation".
//
// Thread-bound to the worker of the connection; never waits. Owns the ticket that the client
// received for the local socket: it is withdrawn when this ends. Errors end the connection.
class Greeting {
 public:
  // All of them outlive this.
  Greeting(const ConnectionContext& context, Conversation& conversation, Caller& caller)
      : context_(context), conversation_(conversation), caller_(caller) {}
  ~Greeting();
  Greeting(const Greeting&) = delete;
  Greeting& operator=(const Greeting&) = delete;

  Result<void> TakeHello(const Frame& frame);
  Result<void> TakeLocalOpen(const Frame& frame);

  // The client has been admitted.
  bool has_greeted() const noexcept { return has_greeted_; }
  // The type of the next frame, until the client has been admitted.
  FrameType FirstFrame() const noexcept;
  // Why the client is to connect again: the daemon has joined a cluster since HELLO, or it had
  // names of its own then that the cluster has by now. Said once; null: it need not.
  const char* TakeReasonToReturn();

 private:
  // Takes the credential of HELLO.
  Result<void> Admit(const net::Hello& hello);
  // Refuses a client for good.
  Result<void> TurnAway(const FrameHeader& header, const Error& error);
  bool OffersLocal() const noexcept;

  const ConnectionContext& context_;
  Conversation& conversation_;
  Caller& caller_;
  std::optional<net::LocalTicket> issued_ticket_;     // To this client, for the local socket.
  std::optional<LocalTickets::Admission> admission_;  // On the local socket, before HELLO.
  bool has_greeted_ = false;
  bool was_alone_ = false;      // The daemon greeted as one of no cluster, and is to be a node.
  bool had_own_names_ = false;  // It greeted as one whose cluster does not have all its names.
};

}  // namespace ffrecord::server
