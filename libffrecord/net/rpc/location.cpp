#include "libffrecord/net/rpc/location.h"

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <system_error>
#include <utility>

namespace ffrecord::net {
namespace {

constexpr std::string_view kTokenFile = "token_file=";
constexpr std::string_view kTls = "tls=";
constexpr std::string_view kRdma = "rdma_";
constexpr std::string_view kOldNames = "old_names=accept";

// The transport in `query`, "transport=shm" and the like.
std::optional<Transport> TransportOf(std::string_view query) {
  for (const Transport one : {Transport::kAuto, Transport::kShm, Transport::kTcp, Transport::kRdma})
    if (query == "transport=" + std::string(NameOf(one))) return one;
  return std::nullopt;
}

Result<void> TakeNumber(std::string_view key, std::string_view value, std::uint8_t max,
                        std::uint8_t& into) {
  std::uint8_t number = 0;
  const char* const end = value.data() + value.size();
  const auto parsed = std::from_chars(value.data(), end, number);
  if (parsed.ec != std::errc() || parsed.ptr != end || number > max)
    return Error{ErrorCode::kInvalidArgument,
                 std::string(key) + " in an address must be a whole number from 0 to " +
                     std::to_string(max) + ", not '" + std::string(value) + "'"};
  into = number;
  return {};
}

// Takes an option of RDMA from one part of an address, "rdma_devices=mlx5_0" and the like.
Result<void> TakeRdma(std::string_view one, RdmaOptions& rdma) {
  const std::string_view key = one.substr(0, one.find('='));
  const std::string_view value = one.substr(std::min(key.size() + 1, one.size()));
  if (key == "rdma_traffic_class") return TakeNumber(key, value, UINT8_MAX, rdma.qos.traffic_class);
  if (key == "rdma_service_level")
    return TakeNumber(key, value, RdmaQos::kServiceLevelMax, rdma.qos.service_level);
  if (key != "rdma_devices" || value.empty())
    return Error{
        ErrorCode::kInvalidArgument,
        "'" + std::string(one) +
            "' in an address is not an RDMA option; the options are rdma_devices=DEVICE,..., "
            "rdma_traffic_class=N and rdma_service_level=N"};
  rdma.devices = FFR_TRY(RdmaOptions::ParseDevices(value));
  return {};
}

// An address with a user before its host, whose password no error may show.
Result<void> RefuseUser(std::string_view text) {
  const std::size_t at = text.substr(0, text.find('?')).rfind('@');
  if (at == std::string_view::npos) return {};
  return Error{ErrorCode::kInvalidArgument,
               "'" + std::string(Location::kScheme) + "..." + std::string(text.substr(at)) +
                   "': a daemon knows no user and no password: leave out what is before the @, "
                   "and name a file with a token, ffrecord://host[:port]/name?token_file=PATH"};
}

// Both are looked at again for each connection, wherever the process has gone since.
std::string Absolute(std::string_view path) {
  std::error_code error;
  auto absolute = std::filesystem::absolute(path, error);
  return error ? std::string(path) : absolute.string();
}

}  // namespace

std::string_view NameOf(Transport transport) {
  switch (transport) {
    case Transport::kAuto:
      break;
    case Transport::kShm:
      return "shm";
    case Transport::kTcp:
      return "tcp";
    case Transport::kRdma:
      return "rdma";
  }
  return "auto";
}

Result<Location> Location::Parse(std::string_view text) {
  FFR_TRY(RefuseUser(text));
  const auto bad = [&](std::string_view why) {
    return Error{ErrorCode::kInvalidArgument, "'" + std::string(text) + "': " + std::string(why) +
                                                  "; an address looks like "
                                                  "ffrecord://host[:port]/name"};
  };
  if (!text.starts_with(kScheme)) return bad("does not begin with ffrecord://");
  std::string_view rest = text.substr(kScheme.size());
  std::optional<Transport> transport;
  std::string token_file;
  std::string tls_folder;
  RdmaOptions rdma;
  bool accepts_old_names = false;
  if (const std::size_t mark = rest.find('?'); mark != std::string_view::npos) {
    std::string_view query = rest.substr(mark + 1);
    rest = rest.substr(0, mark);
    for (bool is_more = true; is_more;) {
      const std::size_t end = query.find('&');
      const std::string_view one = query.substr(0, end);
      is_more = end != std::string_view::npos;
      query = is_more ? query.substr(end + 1) : "";
      const auto named = TransportOf(one);
      if (named && !transport)
        transport = named;
      else if (one.starts_with(kTokenFile) && one.size() > kTokenFile.size() && token_file.empty())
        token_file = Absolute(one.substr(kTokenFile.size()));
      else if (one.starts_with(kTls) && one.size() > kTls.size() && tls_folder.empty())
        tls_folder = Absolute(one.substr(kTls.size()));
      else if (one.starts_with(kRdma))
        FFR_TRY(TakeRdma(one, rdma));
      else if (one == kOldNames)
        accepts_old_names = true;
      else
        return bad(
            "options after ? are transport=auto, shm, rdma or tcp, tls=FOLDER, token_file=PATH, "
            "rdma_devices=DEVICE,..., rdma_traffic_class=N, rdma_service_level=N and "
            "old_names=accept, separated by &");
    }
  }
  const std::size_t slash = rest.find('/');
  if (rest.substr(0, slash).find(',') != std::string_view::npos)
    return bad("it names several daemons, and this is for one");
  auto address = Address::Parse(rest.substr(0, slash), kDefaultPort);
  if (!address) return bad(address.error().message);
  if (address.value().port == 0) return bad("port 0 cannot be connected to");
  return Location{std::move(address).value(),
                  slash == std::string_view::npos ? "" : std::string(rest.substr(slash + 1)),
                  transport,
                  std::move(token_file),
                  std::move(tls_folder),
                  std::move(rdma),
                  accepts_old_names};
}

Result<std::vector<Location>> Location::ParseAll(std::string_view text) {
  const std::size_t begin = text.starts_with(kScheme) ? kScheme.size() : 0;
  const std::size_t end = std::min(text.find_first_of("/?", begin), text.size());
  std::string_view hosts = text.substr(begin, end - begin);
  std::vector<Location> locations;
  for (bool is_more = true; is_more;) {
    const std::string_view host = hosts.substr(0, hosts.find(','));
    is_more = host.size() < hosts.size();
    hosts.remove_prefix(host.size() + (is_more ? 1 : 0));
    std::string one(text.substr(0, begin));
    one.append(host).append(text.substr(end));
    locations.push_back(FFR_TRY(Parse(one)));
    const auto is_same = [&](const Location& other) {
      return other.address.ToString() == locations.back().address.ToString();
    };
    if (std::any_of(locations.begin(), locations.end() - 1, is_same))
      return Error{ErrorCode::kInvalidArgument, "'" + std::string(text) + "' names " +
                                                    locations.back().address.ToString() + " twice"};
    if (locations.size() > kDaemonsMax)
      return Error{ErrorCode::kInvalidArgument,
                   "an address names " + std::to_string(kDaemonsMax) + " daemons at most"};
  }
  return locations;
}

std::string Location::ToString() const {
  return std::string(kScheme) + address.ToString() + "/" + name;
}

}  // namespace ffrecord::net
