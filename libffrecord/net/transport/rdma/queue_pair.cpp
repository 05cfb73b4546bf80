#include "libffrecord/net/transport/rdma/queue_pair.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cerrno>
#include <cstring>
#include <string>
#include <utility>

#include "libffrecord/base/assert.h"
#include "libffrecord/base/random.h"

namespace ffrecord::net {
namespace {

constexpr std::uint32_t kInlineSizeBytes = 128;
// Every so many requests one is signalled, so fewer than the buffers are ever without a sign.
constexpr std::uint32_t kSignalEvery = QueuePair::kBufferCount / 2;
constexpr std::uint32_t kNumberMask = (1U << 24) - 1;
// 4.096 us * 2^16 = 0.27 s to wait for an answer, seven times, then the connection is broken.
constexpr std::uint8_t kTimeoutExponent = 16;
constexpr std::uint8_t kRetries = 7;
// 0.64 ms, six times: a peer that keeps to its credits has always posted a buffer.
constexpr std::uint8_t kNotReadyTimer = 12;
constexpr std::uint8_t kNotReadyRetries = 6;
constexpr std::uint8_t kHopLimit = 64;

// Writes posted together, and bytes after which they are: the device begins while more is copied.
constexpr std::size_t kChainCountMax = 32;
constexpr std::size_t kChainBytes = 128 << 10;

// Copies from memory; a file that was cut is an error.
Result<void> ReadWhole(int file, std::uint64_t offset_bytes, std::span<std::byte> to) {
  while (!to.empty()) {
    const ssize_t got = ::pread(file, to.data(), to.size(), static_cast<off_t>(offset_bytes));
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0)
      return Error{ErrorCode::kIo,
                   std::string("a file that is being sent cannot be read: ") +
                       (got == 0 ? "it was cut" : std::strerror(errno)),
                   got == 0 ? EIO : errno};
    to = to.subspan(static_cast<std::size_t>(got));
    offset_bytes += static_cast<std::uint64_t>(got);
  }
  return {};
}

ibv_mtu MtuOf(std::uint32_t bytes) {
  return static_cast<ibv_mtu>(std::bit_width(bytes) - std::bit_width(128U));
}

}  // namespace

QueuePair::QueuePair(OpenRdmaDevice& device, RdmaLink::Side side) noexcept
    : device_(device), side_(side), verbs_(device.verbs()) {}

QueuePair::~QueuePair() {
  if (!home_.is_here()) return;
  if (pair_ != nullptr) {
    // In this order nothing is under way any more when the memory and its domain go.
    ibv_qp_attr attributes{};
    attributes.qp_state = IBV_QPS_ERR;
    (void)verbs_.modify_qp(pair_, &attributes, IBV_QP_STATE);
    TakeEvents();  // The library waits for events that nobody has taken.
    (void)verbs_.destroy_qp(pair_);
  }
  exposed_.insert(exposed_.end(), {receive_region_, send_region_, write_region_, staging_region_});
  for (ibv_mr* const region : exposed_)
    if (region != nullptr) (void)verbs_.dereg_mr(region);
  for (ibv_cq* const queue : {sent_, received_})
    if (queue != nullptr) (void)verbs_.destroy_cq(queue);
  if (channel_ != nullptr) (void)verbs_.destroy_comp_channel(channel_);
  if (domain_ != nullptr) (void)verbs_.dealloc_pd(domain_);
  for (const auto memory : {memory_, write_memory_})
    if (!memory.empty()) ::munmap(memory.data(), memory.size());
  device_.RemoveConnection();
}

Result<std::unique_ptr<QueuePair>> QueuePair::Make(OpenRdmaDevice& device, RdmaLink::Side side) {
  if (!device.AddConnection())
    return Error{ErrorCode::kUnavailable,
                 "the RDMA device " + device.port().device + " was taken away"};
  std::unique_ptr<QueuePair> made(new QueuePair(device, side));
  FFR_TRY(made->MapBuffers());
  FFR_TRY(made->MakeObjects());
  for (std::uint32_t i = 0; i < kReceiveCount; ++i) FFR_TRY(made->PostReceive(i));
  made->AskForReceived();
  return made;
}

Result<std::span<std::byte>> QueuePair::Map(std::size_t size_bytes) const {
  void* const begin = ::mmap(nullptr, size_bytes, PROT_READ | PROT_WRITE,
                             MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
  if (begin == MAP_FAILED) return Refused("map its buffers", errno);
  // The device knows pages, not addresses: after a fork they must stay with this process.
  if (::madvise(begin, size_bytes, MADV_DONTFORK) != 0) {
    const int number = errno;
    ::munmap(begin, size_bytes);
    return Refused("keep its buffers from children", number);
  }
  return std::span(static_cast<std::byte*>(begin), size_bytes);
}

ibv_mr* QueuePair::Register(std::span<std::byte> bytes, int access) const {
  if (verbs_.reg_mr_iova2 == nullptr)
    return verbs_.reg_mr(domain_, bytes.data(), bytes.size(), access);
  return verbs_.reg_mr_iova2(domain_, bytes.data(), bytes.size(),
                             reinterpret_cast<std::uintptr_t>(bytes.data()),
                             static_cast<unsigned>(access) | IBV_ACCESS_RELAXED_ORDERING);
}

Result<void> QueuePair::MapBuffers() {
  constexpr std::size_t kSizeBytes = std::size_t{kReceiveCount + kBufferCount} * kBufferSizeBytes;
  memory_ = FFR_TRY(Map(kSizeBytes));
  domain_ = verbs_.alloc_pd(device_.context());
  if (domain_ == nullptr) return Refused("make a protection domain", errno);
  constexpr std::size_t kReceiveBytes = std::size_t{kReceiveCount} * kBufferSizeBytes;
  receive_region_ = Register(memory_.first(kReceiveBytes), IBV_ACCESS_LOCAL_WRITE);
  if (receive_region_ == nullptr) return Refused("lock its buffers in memory", errno);
  send_region_ = Register(memory_.subspan(kReceiveBytes), 0);
  if (send_region_ == nullptr) return Refused("lock its buffers in memory", errno);
  return {};
}

Result<void> QueuePair::MakeObjects() {
  channel_ = verbs_.create_comp_channel(device_.context());
  if (channel_ == nullptr) return Refused("make a completion channel", errno);
  if (::fcntl(channel_->fd, F_SETFL, ::fcntl(channel_->fd, F_GETFL) | O_NONBLOCK) != 0)
    return Refused("make its channel not block", errno);
  constexpr std::uint32_t kRequestCount = kSendCount + kWriteCount + kReadCount;
  sent_ =
      verbs_.create_cq(device_.context(), static_cast<int>(kRequestCount), nullptr, channel_, 0);
  received_ =
      verbs_.create_cq(device_.context(), static_cast<int>(kReceiveCount), nullptr, channel_, 0);
  if (sent_ == nullptr || received_ == nullptr) return Refused("make a completion queue", errno);

  ibv_qp_init_attr wanted{};
  wanted.send_cq = sent_;
  wanted.recv_cq = received_;
  wanted.cap = {.max_send_wr = kRequestCount,
                .max_recv_wr = kReceiveCount,
                .max_send_sge = 1,
                .max_recv_sge = 1,
                .max_inline_data = kInlineSizeBytes};
  wanted.qp_type = IBV_QPT_RC;
  pair_ = verbs_.create_qp(domain_, &wanted);
  if (pair_ == nullptr) {
    wanted.cap.max_inline_data = 0;  // Only a faster way for small messages.
    pair_ = verbs_.create_qp(domain_, &wanted);
  }
  if (pair_ == nullptr) return Refused("make a queue pair", errno);
  inline_size_bytes_ = wanted.cap.max_inline_data;

  ibv_qp_attr attributes{};
  attributes.qp_state = IBV_QPS_INIT;
  attributes.port_num = device_.port().port;
  if (side_ == RdmaLink::Side::kConnects)
    attributes.qp_access_flags =
        IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ;
  const int failed = verbs_.modify_qp(
      pair_, &attributes, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS);
  if (failed != 0) return Refused("prepare its queue pair", failed);

  ibv_gid_entry gid{};
  const int unknown = verbs_.query_gid(device_.context(), device_.port().port,
                                       device_.port().gid_index, &gid, 0, sizeof(gid));
  if (unknown != 0) return Refused("read its own address", unknown);
  std::memcpy(own_.gid.data(), gid.gid.raw, own_.gid.size());
  own_.queue_pair = pair_->qp_num;
  own_.packet_number = static_cast<std::uint32_t>(RandomNumber()) & kNumberMask;
  own_.buffer_size_bytes = kBufferSizeBytes;
  own_.buffer_count = kBufferCount;
  own_.mtu_bytes = static_cast<std::uint16_t>(device_.port().mtu_bytes);
  return {};
}

Result<void> QueuePair::Connect(const RdmaConnect& peer) {
  ibv_qp_attr attributes{};
  attributes.qp_state = IBV_QPS_RTR;
  attributes.path_mtu = MtuOf(std::min(own_.mtu_bytes, peer.mtu_bytes));
  attributes.dest_qp_num = peer.queue_pair;
  attributes.rq_psn = peer.packet_number;
  // Reads go one way, from the end that accepts to the memory of the one that connects.
  if (side_ == RdmaLink::Side::kConnects) attributes.max_dest_rd_atomic = ReadCountTaken();
  attributes.min_rnr_timer = kNotReadyTimer;
  attributes.ah_attr.is_global = 1;
  attributes.ah_attr.port_num = device_.port().port;
  attributes.ah_attr.sl = device_.qos().service_level;
  attributes.ah_attr.grh.traffic_class = device_.qos().traffic_class;
  std::memcpy(attributes.ah_attr.grh.dgid.raw, peer.gid.data(), peer.gid.size());
  attributes.ah_attr.grh.sgid_index = static_cast<std::uint8_t>(device_.port().gid_index);
  attributes.ah_attr.grh.hop_limit = kHopLimit;
  int failed =
      verbs_.modify_qp(pair_, &attributes,
                       IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN |
                           IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER);
  if (failed != 0)
    return Error{ErrorCode::kUnavailable,
                 "no route to the peer's RDMA address from " + device_.port().device + " (" +
                     device_.port().gid + "): " + std::strerror(failed) +
                     "; both ends need RoCE version 2 addresses that can reach each other"};
  attributes = {};
  attributes.qp_state = IBV_QPS_RTS;
  attributes.sq_psn = own_.packet_number;
  attributes.timeout = kTimeoutExponent;
  attributes.retry_cnt = kRetries;
  attributes.rnr_retry = kNotReadyRetries;
  if (side_ == RdmaLink::Side::kAccepts) attributes.max_rd_atomic = ReadCountMade();
  failed = verbs_.modify_qp(pair_, &attributes,
                            IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
                                IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC);
  if (failed != 0) return Refused("make its queue pair send", failed);
  return {};
}

Error QueuePair::Refused(const char* tried, int number) const {
  const bool is_lock = number == ENOMEM || number == EPERM || number == EAGAIN;
  return {
      ErrorCode::kIo,
      "an RDMA connection on " + device_.port().device + " cannot " + tried + ": " +
          std::strerror(number) +
          (is_lock ? "; allow more locked memory (ulimit -l, LimitMEMLOCK=) or fewer connections"
                   : ""),
      number};
}

Error QueuePair::Broken(const ibv_wc& completion) const {
  std::string why = verbs_.wc_status_str(completion.status);
  switch (completion.status) {
    case IBV_WC_RETRY_EXC_ERR:
      return {ErrorCode::kUnavailable, "the peer does not answer (" + why + ")"};
    case IBV_WC_RNR_RETRY_EXC_ERR:
      return {ErrorCode::kUnavailable,
              "the peer takes no messages though it said so (" + why + ")"};
    case IBV_WC_LOC_LEN_ERR:
      return {ErrorCode::kCorruption, "the peer sent more than a buffer holds (" + why + ")"};
    case IBV_WC_REM_ACCESS_ERR:
      return {ErrorCode::kCorruption,
              "the peer has not exposed the memory that it named (" + why + ")"};
    default:
      return {ErrorCode::kUnavailable, "the queue pair broke (" + why + ")"};
  }
}

// --- Messages ------------------------------------------------------------------------------------

std::span<const std::byte> QueuePair::receive_buffer(std::uint32_t index) const {
  FFR_ASSERT(index < kReceiveCount);
  return memory_.subspan(std::size_t{index} * kBufferSizeBytes, kBufferSizeBytes);
}

std::span<std::byte> QueuePair::send_buffer() const {
  FFR_ASSERT(HasSendBuffer());
  const std::size_t index = kReceiveCount + messages_sent_ % kBufferCount;
  return memory_.subspan(index * kBufferSizeBytes, kBufferSizeBytes);
}

Result<void> QueuePair::PostReceive(std::uint32_t index) {
  const auto buffer = receive_buffer(index);
  ibv_sge piece{reinterpret_cast<std::uintptr_t>(buffer.data()), kBufferSizeBytes,
                receive_region_->lkey};
  ibv_recv_wr request{};
  request.wr_id = index;
  request.sg_list = &piece;
  request.num_sge = 1;
  ibv_recv_wr* bad = nullptr;
  const int failed = ::ibv_post_recv(pair_, &request, &bad);
  if (failed != 0) return Refused("post a receive buffer", failed);
  return {};
}

Result<void> QueuePair::PostSend(std::uint32_t size_bytes, std::uint32_t immediate, bool is_last) {
  FFR_ASSERT(HasSendRoom());
  ibv_sge piece{};
  if (size_bytes > 0) {
    piece = {reinterpret_cast<std::uintptr_t>(send_buffer().data()), size_bytes,
             send_region_->lkey};
    ++messages_sent_;
  }
  ++posted_;
  if (is_last) last_ = posted_;
  ibv_send_wr request{};
  request.sg_list = &piece;
  request.num_sge = size_bytes > 0 ? 1 : 0;
  request.opcode = IBV_WR_SEND_WITH_IMM;
  request.imm_data = htonl(immediate);
  if (is_last || posted_ % kSignalEvery == 0) {
    request.send_flags |= IBV_SEND_SIGNALED;
    MarkPosted();
  }
  if (size_bytes <= inline_size_bytes_) request.send_flags |= IBV_SEND_INLINE;
  ibv_send_wr* bad = nullptr;
  const int failed = ::ibv_post_send(pair_, &request, &bad);
  if (failed != 0) return Refused("send", failed);
  return {};
}

Result<std::optional<QueuePair::Received>> QueuePair::TakeReceived() {
  ibv_wc completion{};
  const int count = ::ibv_poll_cq(received_, 1, &completion);
  if (count < 0) return Refused("read its completions", errno);
  if (count == 0) return std::optional<Received>();
  if (completion.status != IBV_WC_SUCCESS) {
    // Receives fail because a send did: that one knows why.
    FFR_TRY(TakeSent());
    return Broken(completion);
  }
  if (completion.opcode != IBV_WC_RECV || (completion.wc_flags & IBV_WC_WITH_IMM) == 0)
    return Error{ErrorCode::kCorruption, "the peer sent an unknown message"};
  return std::optional(Received{static_cast<std::uint32_t>(completion.wr_id), completion.byte_len,
                                ntohl(completion.imm_data)});
}

Result<void> QueuePair::TakeSent() {
  ibv_wc completion{};
  for (;;) {
    const int count = ::ibv_poll_cq(sent_, 1, &completion);
    if (count < 0) return Refused("read its completions", errno);
    if (count == 0) return {};
    if (completion.status != IBV_WC_SUCCESS) {
      is_broken_ = true;
      return Broken(completion);
    }
    FFR_ASSERT(!marks_.empty());
    const Mark mark = marks_.front();
    marks_.pop_front();
    done_ = mark.posted;
    messages_done_ = mark.messages_sent;
    writes_done_ = mark.writes_posted;
    reads_done_ = mark.reads_posted;
    write_begin_ = mark.write_end;
  }
}

bool QueuePair::HasSentAll() { return is_broken_ || !last_ || !TakeSent() || done_ == *last_; }

// --- Events --------------------------------------------------------------------------------------

void QueuePair::TakeEvents() noexcept {
  ibv_cq* queue = nullptr;
  void* context = nullptr;
  while (verbs_.get_cq_event(channel_, &queue, &context) == 0) {
    verbs_.ack_cq_events(queue, 1);
    (queue == received_ ? asked_for_received_ : asked_for_sent_) = false;
  }
}

void QueuePair::AskForReceived() noexcept {
  if (!std::exchange(asked_for_received_, true)) (void)::ibv_req_notify_cq(received_, 0);
}

void QueuePair::AskForSent() noexcept {
  if (!std::exchange(asked_for_sent_, true)) (void)::ibv_req_notify_cq(sent_, 0);
}

// --- Memory of the other end: what is exposed to it, and what is written or read there -----------

std::uint8_t QueuePair::ReadCountTaken() const {
  return static_cast<std::uint8_t>(std::min<int>(kReadCount, device_.attributes().max_qp_rd_atom));
}

std::uint8_t QueuePair::ReadCountMade() const {
  return static_cast<std::uint8_t>(
      std::min<int>(kReadCount, device_.attributes().max_qp_init_rd_atom));
}

Error QueuePair::NoReads(const char* what) const {
  return {ErrorCode::kIo,
          "the RDMA device " + device_.port().device + " " + what + " no reads of memory",
          EOPNOTSUPP};
}

Result<RemoteRegion> QueuePair::Expose(std::span<std::byte> bytes, RemoteMemory::Reach reach) {
  if (side_ != RdmaLink::Side::kConnects)
    return Error{ErrorCode::kInvalidArgument,
                 "the end that accepts an RDMA connection exposes no memory"};
  const bool is_read = reach == RemoteMemory::Reach::kRead;
  if (is_read && ReadCountTaken() == 0) return NoReads("answers");
  ibv_mr* const region = Register(
      bytes, is_read ? IBV_ACCESS_REMOTE_READ : IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
  if (region == nullptr)
    return Refused(("lock " + std::to_string(bytes.size()) + " bytes in memory to " +
                    (is_read ? "send from" : "read into"))
                       .c_str(),
                   errno);
  exposed_.push_back(region);
  return RemoteRegion{reinterpret_cast<std::uintptr_t>(bytes.data()), region->rkey};
}

Result<PooledBuffer> QueuePair::MakeStaging(std::size_t size_bytes) {
  FFR_ASSERT(staging_region_ == nullptr);
  if (ReadCountMade() == 0) return NoReads("makes");
  const auto memory = FFR_TRY(Map(size_bytes));
  staging_ = PooledBuffer(new std::span(memory), [home = home_](std::span<std::byte>* dead) {
    if (home.is_here()) ::munmap(dead->data(), dead->size());  // No child has it.
    delete dead;
  });
  staging_region_ = Register(memory, IBV_ACCESS_LOCAL_WRITE);
  if (staging_region_ == nullptr) return Refused("lock memory for uploads", errno);
  return staging_;
}

Result<void> QueuePair::Read(const RemoteRegion& source, std::span<std::byte> place) {
  FFR_ASSERT(!is_reading());
  const auto whole = staging_ ? *staging_ : std::span<std::byte>();
  if (place.empty() || place.data() < whole.data() ||
      place.data() + place.size() > whole.data() + whole.size())
    return Error{ErrorCode::kInvalidArgument,
                 "memory of a peer is read only into the staging buffer of its connection"};
  ibv_sge piece{reinterpret_cast<std::uintptr_t>(place.data()),
                static_cast<std::uint32_t>(place.size()), staging_region_->lkey};
  ibv_send_wr request{};
  request.sg_list = &piece;
  request.num_sge = 1;
  request.opcode = IBV_WR_RDMA_READ;
  request.send_flags = IBV_SEND_SIGNALED;
  request.wr.rdma.remote_addr = source.address;
  request.wr.rdma.rkey = source.key;
  ++posted_;
  ++reads_posted_;
  MarkPosted();
  ibv_send_wr* bad = nullptr;
  const int failed = ::ibv_post_send(pair_, &request, &bad);
  if (failed != 0) return Refused("read", failed);
  return {};
}

Result<void> QueuePair::MapWriteBuffer() {
  if (write_region_ != nullptr) return {};
  if (write_memory_.empty()) write_memory_ = FFR_TRY(Map(kWriteBufferBytes));
  write_region_ = Register(write_memory_, 0);
  if (write_region_ == nullptr) return Refused("lock its buffer in memory", errno);
  return {};
}

struct QueuePair::Chain {
  std::array<ibv_send_wr, kChainCountMax> requests{};
  std::array<ibv_sge, kChainCountMax> pieces{};
  std::size_t count = 0;
  std::size_t size_bytes = 0;

  bool is_full() const { return count == kChainCountMax || size_bytes >= kChainBytes; }

  // The write for bytes at `address` here and `place` there: the last write, if they go on where it
  // ends, here and there, or a new one. Null if there may be no more than `count_max`.
  ibv_sge* PartFor(std::uint64_t address, const RemoteRegion& place, std::size_t count_max,
                   std::uint32_t key) {
    if (count > 0) {
      ibv_sge& last = pieces[count - 1];
      const auto& there = requests[count - 1].wr.rdma;
      if (last.addr + last.length == address && there.remote_addr + last.length == place.address &&
          there.rkey == place.key && last.length < QueuePair::kWriteSizeBytesMax)
        return &last;
    }
    if (count == std::min(count_max, kChainCountMax)) return nullptr;
    pieces[count] = {address, 0, key};
    ibv_send_wr& request = requests[count];
    request.sg_list = &pieces[count];
    request.num_sge = 1;
    request.opcode = IBV_WR_RDMA_WRITE;
    request.wr.rdma.remote_addr = place.address;
    request.wr.rdma.rkey = place.key;
    return &pieces[count++];
  }
};

// Copies from the front of a piece into the buffer, and has it written to its place; returns how
// many bytes, none if there is no room. The piece goes on behind them.
Result<std::size_t> QueuePair::CopyTo(Chain& chain, RemoteMemory::PlacedPiece& piece) {
  const std::size_t begin = write_end_ % kWriteBufferBytes;
  const std::size_t room =
      std::min(kWriteBufferBytes - (write_end_ - write_begin_), kWriteBufferBytes - begin);
  if (room == 0) return std::size_t{0};
  std::byte* const to = write_memory_.data() + begin;
  ibv_sge* const part = chain.PartFor(reinterpret_cast<std::uintptr_t>(to), piece.place,
                                      kWriteCount - writes_under_way(), write_region_->lkey);
  if (part == nullptr) return std::size_t{0};
  auto& [bytes, file, file_offset_bytes] = piece.source;
  const std::size_t size_bytes =
      std::min({bytes.size(), room, std::size_t{kWriteSizeBytesMax - part->length}});
  if (file < 0)
    std::memcpy(to, bytes.data(), size_bytes);
  else
    FFR_TRY(ReadWhole(file, file_offset_bytes, {to, size_bytes}));
  part->length += static_cast<std::uint32_t>(size_bytes);
  chain.size_bytes += size_bytes;
  write_end_ += size_bytes;
  bytes = bytes.subspan(size_bytes);
  file_offset_bytes += size_bytes;
  piece.place.address += size_bytes;
  return size_bytes;
}

// One chain, one bell; its end has a completion, and so all before it.
Result<void> QueuePair::Post(Chain& chain) {
  if (chain.count == 0) return {};
  ibv_send_wr& last = chain.requests[chain.count - 1];
  for (std::size_t i = 0; i + 1 < chain.count; ++i) chain.requests[i].next = &chain.requests[i + 1];
  last.next = nullptr;
  last.send_flags = IBV_SEND_SIGNALED;
  posted_ += static_cast<std::uint32_t>(chain.count);
  writes_posted_ += static_cast<std::uint32_t>(chain.count);
  MarkPosted();
  ibv_send_wr* bad = nullptr;
  const int failed = ::ibv_post_send(pair_, chain.requests.data(), &bad);
  if (failed != 0) return Refused("write", failed);
  last.send_flags = 0;
  chain.count = 0;
  chain.size_bytes = 0;
  return {};
}

Result<std::size_t> QueuePair::Write(std::span<RemoteMemory::PlacedPiece>& pieces) {
  FFR_TRY(MapWriteBuffer());
  Chain chain;
  std::size_t written_bytes = 0;
  while (!pieces.empty()) {
    const std::size_t copied_bytes = FFR_TRY(CopyTo(chain, pieces.front()));
    written_bytes += copied_bytes;
    if (pieces.front().source.bytes.empty()) pieces = pieces.subspan(1);
    const bool is_full = chain.is_full();
    if (is_full || copied_bytes == 0) FFR_TRY(Post(chain));
    if (copied_bytes == 0 && !is_full) break;
  }
  FFR_TRY(Post(chain));
  return written_bytes;
}

}  // namespace ffrecord::net
