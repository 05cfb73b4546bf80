#include "libffrecord/net/http/http_transfers.h"

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <string>
#include <utility>

#include "libffrecord/base/assert.h"
#include "libffrecord/base/clock.h"
#include "libffrecord/base/io_times.h"
#include "libffrecord/net/http/easy_handle.h"

namespace ffrecord::net {
namespace {

Error Refused(const char* what, CURLMcode code) {
  return {ErrorCode::kIo, std::string("http: ") + what + ": " + Curl().multi_strerror(code),
          ENOMEM};
}

}  // namespace

struct HttpTransfers::Impl {
  // A transfer under way.
  struct Slot {
    std::unique_ptr<EasyHandle> handle;
    HttpSink sink;
    HttpTransfer* transfer = nullptr;
  };

  CURLM* multi = nullptr;
  std::vector<std::unique_ptr<Slot>> live;
  std::vector<std::unique_ptr<Slot>> idle;
  std::atomic<bool> is_woken = false;

  ~Impl() {
    for (auto& slot : live) Curl().multi_remove_handle(multi, slot->handle->curl());
    live.clear();
    idle.clear();
    Curl().multi_cleanup(multi);
  }

  Result<std::unique_ptr<Slot>> TakeSlot() {
    if (idle.empty()) {
      auto slot = std::make_unique<Slot>();
      slot->handle = FFR_TRY(EasyHandle::Create());
      return slot;
    }
    auto slot = std::move(idle.back());
    idle.pop_back();
    return slot;
  }

  template <class Matches>
  std::size_t Find(const Matches& matches) const {
    const auto found =
        std::find_if(live.begin(), live.end(), [&](auto& slot) { return matches(*slot); });
    FFR_ASSERT(found != live.end());
    return static_cast<std::size_t>(found - live.begin());
  }
  std::size_t Find(const HttpTransfer& transfer) const {
    return Find([&](const Slot& slot) { return slot.transfer == &transfer; });
  }

  // Takes the slot out of the ring.
  Slot& Retire(std::size_t number) {
    CURL* const curl = live[number]->handle->curl();
    long sent_bytes = 0;
    Curl().easy_getinfo(curl, CURLINFO_REQUEST_SIZE, &sent_bytes);
    live[number]->transfer->was_sent = sent_bytes > 0;
    Curl().multi_remove_handle(multi, curl);
    idle.push_back(std::move(live[number]));
    live[number] = std::move(live.back());
    live.pop_back();
    return *idle.back();
  }

  // Whether bytes have come for a stream since the last call.
  bool HasStreamed() {
    bool has_streamed = false;
    for (const auto& slot : live) has_streamed |= std::exchange(slot->sink.has_streamed, false);
    return has_streamed;
  }

  HttpTransfer* End(CURL* curl, CURLcode code) {
    Slot& slot = Retire(Find([&](const Slot& each) { return each.handle->curl() == curl; }));
    HttpTransfer& transfer = *slot.transfer;
    transfer.response = std::move(slot.sink.response);
    transfer.error.reset();
    if (auto outcome = slot.handle->Outcome(code); !outcome)
      transfer.error = std::move(outcome).error();
    curl_off_t first_byte_us = 0;
    Curl().easy_getinfo(curl, CURLINFO_STARTTRANSFER_TIME_T, &first_byte_us);
    transfer.first_byte_after = std::chrono::microseconds(first_byte_us);
    return &transfer;
  }
};

HttpTransfers::HttpTransfers(std::unique_ptr<Impl> impl) noexcept : impl_(std::move(impl)) {}
HttpTransfers::~HttpTransfers() = default;

Result<std::unique_ptr<HttpTransfers>> HttpTransfers::Create(std::size_t connection_count_max) {
  FFR_TRY(EasyHandle::Create());  // Starts libcurl.
  CURLM* const multi = Curl().multi_init();
  if (multi == nullptr)
    return Error{ErrorCode::kIo, "http: libcurl has no memory for a ring of transfers", ENOMEM};
  Curl().multi_setopt(multi, CURLMOPT_MAXCONNECTS, static_cast<long>(connection_count_max));
  Curl().multi_setopt(multi, CURLMOPT_PIPELINING, static_cast<long>(CURLPIPE_NOTHING));
  auto impl = std::make_unique<Impl>();
  impl->multi = multi;
  return std::unique_ptr<HttpTransfers>(new HttpTransfers(std::move(impl)));
}

Result<void> HttpTransfers::Begin(HttpTransfer& transfer,
                                  std::chrono::milliseconds connect_timeout) {
  auto slot = FFR_TRY(impl_->TakeSlot());
  slot->transfer = &transfer;
  slot->sink = {};
  slot->sink.destination = transfer.destination;
  slot->sink.accepts = transfer.accepts;
  slot->sink.body_size_max = transfer.body_size_max;
  slot->sink.stream = transfer.stream;
  slot->handle->Prepare(transfer.request, slot->sink, connect_timeout, {});
  const CURLMcode added = Curl().multi_add_handle(impl_->multi, slot->handle->curl());
  if (added != CURLM_OK) return Refused("cannot begin a transfer", added);
  impl_->live.push_back(std::move(slot));
  return {};
}

Result<void> HttpTransfers::Wait(std::chrono::milliseconds timeout,
                                 std::vector<HttpTransfer*>& ended) {
  const std::size_t ended_before = ended.size();
  const auto deadline = Clock::now() + timeout;
  for (;;) {
    int live_count = 0;
    const CURLMcode moved = Curl().multi_perform(impl_->multi, &live_count);
    if (moved != CURLM_OK) return Refused("cannot move bytes", moved);
    int left = 0;
    while (const CURLMsg* message = Curl().multi_info_read(impl_->multi, &left))
      if (message->msg == CURLMSG_DONE)
        ended.push_back(impl_->End(message->easy_handle, message->data.result));
    const auto now = Clock::now();
    const bool is_woken = impl_->is_woken.exchange(false);
    if (impl_->HasStreamed() || is_woken || ended.size() > ended_before || now >= deadline)
      return {};
    const auto wait = std::chrono::ceil<std::chrono::milliseconds>(deadline - now);
    const TimedIo timed(&IoTimes::device);
    Curl().multi_poll(impl_->multi, nullptr, 0, static_cast<int>(wait.count()), nullptr);
  }
}

void HttpTransfers::Wake() {
  impl_->is_woken = true;
  Curl().multi_wakeup(impl_->multi);
}

void HttpTransfers::Cancel(HttpTransfer& transfer) { impl_->Retire(impl_->Find(transfer)); }

HttpTransfers::Progress HttpTransfers::ProgressOf(const HttpTransfer& transfer) const {
  const HttpSink& sink = impl_->live[impl_->Find(transfer)]->sink;
  return {sink.progressed, sink.response.size_bytes};
}

}  // namespace ffrecord::net
