#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <list>
#include <memory>
#include <optional>
#include <vector>

#include <ffrecord/client/collective.h>
#include <ffrecord/result.h>

namespace ffrecord::client {

// Messages from rank 0 of a group of two to rank 1, which takes them by their tags. A message is a
// head of fixed size, with the tag and the bytes of a small message, and, if it is large, a body.
// The engine broadcasts each as an operation of its own: these are the parts.
//
// The receiver asks for a head while a receive waits for one, or if the sender is seen to send and
// somebody probes, or wants the next message kept. So an idle line has no operation that could be
// late. A message whose tag nobody waits for is kept, in memory of its own.
//
// A state machine: no thread, no lock, no system call. Tokens are never those of operations. Memory
// of receives and of large messages is borrowed until the token has ended.
class Messages {
 public:
  using Token = CollectiveEngine::Token;

  static constexpr std::size_t kHeadSizeBytes = 4096;
  static constexpr std::uint64_t kInlineSizeMax = kHeadSizeBytes - 16;
  static constexpr std::uint64_t kSizeMax = std::uint64_t{1} << 44;
  // KeepNext() takes no message while so many bytes are kept.
  static constexpr std::uint64_t kKeptSizeMax = std::uint64_t{1} << 30;

  // To be broadcast after those before, from memory that stays until PartEnded().
  struct Part {
    std::byte* data;
    std::uint64_t size_bytes;
    bool is_phase;  // The network is needed for it from now on: it waits for nobody's program.
  };
  struct Ended {
    Token token;
    std::optional<Error> failure{};
  };
  // The work of the owner, which does it before the next call.
  struct Wants {
    std::vector<Part> parts{};
    std::vector<Ended> ended{};
  };

  // --- The sender. The token ends when `data` may change. Requires size_bytes <= kSizeMax.
  Token Send(const std::byte* data, std::uint64_t size_bytes, std::int64_t tag, Wants& wants);

  // --- The receiver. Receives with one tag take messages in the order in which they were sent.
  Token Receive(std::byte* data, std::uint64_t size_bytes, std::int64_t tag, Wants& wants);
  // Takes a message that is there, or has begun to come; none if there is none.
  std::optional<Token> ReceiveKept(std::byte* data, std::uint64_t size_bytes, std::int64_t tag,
                                   Wants& wants);
  // Ends once ReceiveKept() has something to take, unless another receive takes it.
  Token Probe(std::int64_t tag, Wants& wants);
  bool has_probes() const { return !probes_.empty(); }
  bool HasKept(std::int64_t tag) { return FindKept(tag) != kept_.end(); }
  // If the sender has begun to send, its message is kept although no receive waits for it: a sender
  // that waits for its end goes on. Until the next Look().
  void KeepNext() { keeps_next_ = true; }
  bool is_looking() const { return has_probes() || keeps_next_; }
  // Whether the sender has begun to send something that nobody has asked for.
  void Look(bool peer_sends, Wants& wants);

  // The oldest part has been broadcast. Fails if what came cannot be right, or with kIo (ENOMEM):
  // the group is broken then.
  Result<void> PartEnded(Wants& wants);
  // Nothing moves any more: what has come whole can still be received.
  void Stop();

 private:
  using Head = std::array<std::byte, kHeadSizeBytes>;

  struct Wanted {
    Token token;
    std::byte* data;
    std::uint64_t size_bytes;
    std::int64_t tag;
  };
  // A message that nobody waited for, or one of another size than the receive.
  struct Kept {
    std::int64_t tag;
    std::uint64_t size_bytes;
    std::unique_ptr<std::byte[]> bytes;
    bool has_come;
    std::optional<Wanted> taker{};
  };
  // A part that is being broadcast.
  struct UnderWay {
    std::unique_ptr<Head> sent_head{};
    std::optional<Token> ends{};
    bool is_asked_head = false;
    Kept* kept = nullptr;
  };

  void Ask(Wants& wants);
  Result<void> HeadCame(Wants& wants);
  Result<void> Keep(std::int64_t tag, std::uint64_t size_bytes, std::optional<Wanted> taker,
                    Wants& wants);
  void AnswerProbes(std::int64_t tag, Wants& wants);
  std::list<Kept>::iterator FindKept(std::int64_t tag);
  std::uint64_t KeptSize() const;
  void Take(std::list<Kept>::iterator kept, const Wanted& taker, Wants& wants);
  void HandOver(std::list<Kept>::iterator kept, Wants& wants);

  Token next_token_ = Token{1} << 63;
  std::deque<UnderWay> under_way_;  // Oldest first.
  Head head_{};                     // The one that was asked for.
  bool is_asking_ = false;
  bool keeps_next_ = false;
  std::deque<Wanted> wanted_;
  std::list<Kept> kept_;  // In the order in which they were sent. A list: parts point into it.
  struct Probing {
    Token token;
    std::int64_t tag;
  };
  std::vector<Probing> probes_;
};

}  // namespace ffrecord::client
