#include <ffrecord/client/dataset.h>

#include <algorithm>
#include <chrono>
#include <numeric>
#include <set>
#include <utility>

#include "client/dataset/catalog.h"
#include "client/dataset/cluster.h"
#include "client/dataset/durability.h"
#include "client/dataset/object_source.h"
#include "client/dataset/origin_copy.h"
#include "client/dataset/origin_files.h"
#include "client/dataset/published_files.h"
#include "client/dataset/upload.h"
#include "libffrecord/base/patience.h"
#include "libffrecord/base/random.h"
#include "libffrecord/net/rpc/session.h"
#include "libffrecord/record/read/open_records.h"
#include "libffrecord/source/range_reader.h"

namespace ffrecord::client {
namespace {

// Bytes that a check of a file reads at once.
constexpr std::uint64_t kCheckBytes = std::uint64_t{32} << 20;

net::Deadline After(const SessionOptions& options) { return net::Clock::now() + options.timeout; }

// An address with a name in it, of one daemon or of nodes of a cluster.
Result<std::vector<net::Location>> ParseAllNamed(std::string_view text) {
  auto locations = FFR_TRY(net::Location::ParseAll(text));
  FFR_TRY(net::CheckName(locations.front().name));
  return locations;
}

// Reads every record of the one file: what is published is whole.
Result<void> CheckRecords(const RecordReader& reader) {
  const std::uint64_t count = reader.record_count();
  const std::uint64_t size_mean = reader.file(0).size_bytes / std::max<std::uint64_t>(count, 1) + 1;
  const std::uint64_t step = std::clamp<std::uint64_t>(kCheckBytes / size_mean, 1, 4096);
  std::vector<std::uint64_t> indices;
  for (std::uint64_t first = 0; first < count; first += step) {
    indices.resize(std::min(step, count - first));
    std::iota(indices.begin(), indices.end(), first);
    const Batch batch = FFR_TRY(reader.ReadBatch(indices));
    for (std::size_t i = 0; i < batch.size(); ++i)
      if (const ErrorCode status = batch.statuses()[i]; status != ErrorCode::kOk)
        return Error{status, reader.Describe(indices[i], status) + "; nothing was published"};
  }
  return {};
}

// A daemon serves record files.
Result<void> RefuseInPlace(const RecordReader& reader) {
  for (std::size_t i = 0; i < reader.file_count(); ++i)
    if (const auto file = reader.file(i); file.in_place)
      return Error{ErrorCode::kInvalidArgument,
                   file.name +
                       ": an index makes it readable in place, and only record files are "
                       "published; make a record file of it (ffrecord-pack)"};
  return {};
}

Result<void> CheckFile(const std::filesystem::path& path) {
  return CheckRecords(FFR_TRY(RecordReader::Open({&path, 1}, {})));
}

// The name of each file in the manifest: its own name, made unique where two folders share one.
std::vector<std::string> NamesOf(std::span<const std::filesystem::path> files) {
  std::vector<std::string> names;
  std::set<std::string> taken;
  for (const auto& path : files) {
    std::string name = path.filename().string();
    for (std::size_t i = 2; taken.contains(name); ++i)
      name = std::to_string(i) + "-" + path.filename().string();
    names.push_back(*taken.insert(std::move(name)).first);
  }
  return names;
}

Error Exists(const net::Location& location) {
  return {ErrorCode::kConflict,
          location.ToString() + " exists already; choose another name, or ask to replace it"};
}

// Where a dataset is published: at one daemon, or in a cluster.
struct Place {
  net::Location location;  // With the dataset's name.
  std::shared_ptr<Cluster> cluster;
};

Result<Place> PlaceOf(std::span<const net::Location> locations, const SessionOptions& options) {
  return Place{locations.front(), FFR_TRY(Cluster::Find(locations, options))};
}

// That a dataset of this size can be published there, as far as the daemon knows.
Result<void> CheckPlace(const Place& place, std::uint64_t size_bytes, bool replace,
                        const SessionOptions& options) {
  const net::Location& location = place.location;
  const Catalog catalog(place.cluster);
  if (!replace && FFR_TRY(catalog.IsTaken(location.name, After(options)))) return Exists(location);
  return catalog.CheckRoom(location.name, size_bytes, After(options));
}

// That there are as many nodes as a name of this class needs. Before the first byte travels.
Result<void> CheckCluster(const Place& place, const Durability& durability) {
  const std::string where = place.location.ToString();
  if (place.cluster->is_one_daemon())
    return Error{ErrorCode::kInvalidArgument,
                 where +
                     " is a single daemon, and has one replica of everything; leave the "
                     "durability class out"};
  std::set<std::string_view> domains;
  for (const PlacedNode& node : place.cluster->view()->map.nodes)
    if (node.weight > 0) domains.insert(node.domain);
  const std::size_t needed =
      durability.code.is_none() ? durability.replicas : std::size_t{durability.code.parity} + 1;
  if (domains.size() >= needed) return {};
  return Error{ErrorCode::kInvalidArgument,
               where + ": the durability class needs " + std::to_string(needed) +
                   " failure domains, and the cluster has " + std::to_string(domains.size()) +
                   "; add nodes, or choose a smaller one"};
}

// Publishes checked files; calls `tell` with the number of bytes that were sent. Extents on nodes
// that were lost between their upload and the commit go to others then: those that are still there
// are not sent again, and count only once against a quota.
Result<void> PublishPatiently(const Place& place, std::span<const std::filesystem::path> files,
                              bool replace, const SessionOptions& options,
                              const Durability& durability, const Upload::Progress& tell) {
  constexpr int kTriesMax = 3;
  std::uint64_t upload_id = std::max<std::uint64_t>(RandomNumber(), 1);
  std::vector<Upload::LocalFile> named;
  const auto names = NamesOf(files);
  for (std::size_t i = 0; i < files.size(); ++i) named.push_back({names[i], files[i]});
  const auto mode = replace ? net::Publish::Mode::kReplace : net::Publish::Mode::kCreate;
  const Catalog catalog(place.cluster);
  for (int tries = 1;; ++tries) {
    const auto may_help = [&](const Error& error) {
      return error.code == ErrorCode::kConflict && !place.cluster->is_one_daemon() &&
             tries < kTriesMax;
    };
    Upload upload(place.cluster, upload_id, durability);
    const auto manifest = upload.PutManifest(named, tell);
    if (!manifest) {
      if (!may_help(manifest.error())) return manifest.error();
      upload_id = std::max<std::uint64_t>(RandomNumber(), 1);  // It was given up.
      continue;
    }
    const auto published =
        catalog.Publish(place.location.name, manifest.value(), mode, 0, After(options));
    if (published) return {};
    // The name is another's, who was faster.
    if (!may_help(published.error()) ||
        (!replace && catalog.Resolve(place.location.name, After(options))))
      return published.error();
  }
}

// Where a dataset of class origin is published. Fails with kInvalidArgument at a daemon outside of
// a cluster.
Result<Place> PlaceWithOrigins(std::string_view address, bool has_no_files,
                               const SessionOptions& options) {
  const auto locations = FFR_TRY(ParseAllNamed(address));
  const net::Location& location = locations.front();
  if (has_no_files)
    return Error{ErrorCode::kInvalidArgument, location.ToString() + ": no files to publish"};
  Place place = FFR_TRY(PlaceOf(locations, options));
  if (place.cluster->is_one_daemon())
    return Error{ErrorCode::kInvalidArgument,
                 location.ToString() +
                     " is a single daemon, and only the nodes of a cluster "
                     "fetch files from an origin; upload them"};
  return place;
}

// Opens the dataset that a name stands for. A daemon outside of a cluster keeps what was replaced
// for those clients alone that read it by then; a client that was about to begin opens what stands
// there now.
Result<RecordReader> OpenNamed(std::string_view address, const RecordReader::Options& options,
                               const SessionOptions& session_options) {
  const auto daemons = FFR_TRY(ParseAllNamed(address));
  const auto deadline = After(session_options);
  auto published = FFR_TRY(OpenPublished(daemons, session_options));
  for (;;) {
    auto reader = OpenRecords(std::move(published.files), options, std::move(published.hinter));
    const bool is_gone = !reader && reader.error().code == ErrorCode::kNotFound;
    if (!is_gone || net::Clock::now() >= deadline) return reader;
    auto now = OpenPublished(daemons, session_options);
    if (!now || now.value().manifest == published.manifest) return reader;
    published = std::move(now).value();
  }
}

Error Mixed(const char* schemes) {
  return {ErrorCode::kInvalidArgument, std::string("one list holds files of one kind: paths, or ") +
                                           schemes +
                                           "; join readers of several kinds with ffrecord.concat"};
}

}  // namespace

bool IsObjectAddress(std::string_view location) noexcept {
  for (const std::string_view scheme : {"s3://", "http://", "https://"})
    if (location.starts_with(scheme)) return true;
  return false;
}

Result<RecordReader> OpenDataset(std::span<const std::string> locations,
                                 const RecordReader::Options& reader_options,
                                 const SessionOptions& session_options, const CacheOptions& cache,
                                 const RecordReader::GiveUp& give_up) {
  const Patience patience(give_up);
  const auto is_remote = [](const std::string& text) {
    return text.starts_with(net::Location::kScheme);
  };
  if (std::ranges::any_of(locations, IsObjectAddress)) {
    if (!std::ranges::all_of(locations, IsObjectAddress)) return Mixed("addresses of objects");
    auto objects =
        FFR_TRY(OpenObjects(locations, reader_options.queue_depth, session_options, cache));
    return OpenRecords(std::move(objects), reader_options);
  }
  if (!cache.folder.empty())
    return Error{ErrorCode::kInvalidArgument,
                 "a cache is for objects of a store, s3:// or http(s)://, not for " +
                     (locations.empty() ? std::string() : locations.front())};
  if (std::ranges::none_of(locations, is_remote)) {
    const std::vector<std::filesystem::path> paths(locations.begin(), locations.end());
    return RecordReader::Open(paths, reader_options);
  }
  if (locations.size() != 1)
    return Error{ErrorCode::kInvalidArgument, "an ffrecord:// address must be the only location"};
  return OpenNamed(locations.front(), reader_options, session_options);
}

Result<void> PublishDataset(std::span<const std::filesystem::path> files, std::string_view address,
                            bool replace, const SessionOptions& options,
                            const std::function<void(std::uint64_t, std::uint64_t)>& progress,
                            std::string_view durability_text, bool dry_run) {
  const Durability durability = FFR_TRY(ParseDurability(durability_text));
  const auto daemons = FFR_TRY(ParseAllNamed(address));
  if (files.empty())
    return Error{ErrorCode::kInvalidArgument, daemons.front().ToString() + ": no files to publish"};
  // All at once, so that schemas that do not fit each other show.
  const RecordReader all = FFR_TRY(RecordReader::Open(files, {}));
  FFR_TRY(RefuseInPlace(all));
  std::uint64_t size_bytes = 0;
  for (std::size_t i = 0; i < all.file_count(); ++i) size_bytes += all.file(i).size_bytes;
  const Place place = FFR_TRY(PlaceOf(daemons, options));
  if (!durability.is_default()) FFR_TRY(CheckCluster(place, durability));
  FFR_TRY(CheckPlace(place, size_bytes, replace, options));
  // Before the first byte travels: an upload that falls silent for a long check is given up.
  for (const auto& file : files) FFR_TRY(CheckFile(file));
  if (dry_run) return {};
  std::uint64_t told = 0;  // Bytes that are sent again do not count twice.
  const auto tell = [&](std::uint64_t done) {
    if (!progress || done < told) return;
    progress(done, size_bytes);
    told = done;
  };
  return PublishPatiently(place, files, replace, options, durability, tell);
}

Result<void> PublishFromOrigin(std::span<const std::string> files, std::string_view address,
                               bool replace, const SessionOptions& options,
                               const std::function<void(std::uint64_t, std::uint64_t)>& progress,
                               bool dry_run) {
  const Place place = FFR_TRY(PlaceWithOrigins(address, files.empty(), options));
  const auto origin = FFR_TRY(OpenOriginFiles(files, options));
  // All at once, so that schemas that do not fit each other show.
  const RecordReader all = FFR_TRY(OpenRecords(origin.files, {}));
  std::uint64_t size_bytes = 0;
  for (std::size_t i = 0; i < all.file_count(); ++i) size_bytes += all.file(i).size_bytes;
  FFR_TRY(CheckPlace(place, size_bytes, replace, options));
  FFR_TRY(CheckRecords(all));
  if (dry_run) return {};

  std::vector<std::filesystem::path> paths;
  for (const FileOrigin& one : origin.origins) paths.emplace_back(one.address);
  const auto names = NamesOf(paths);
  const std::uint64_t upload = std::max<std::uint64_t>(RandomNumber(), 1);
  DatasetManifest manifest;
  std::uint64_t done = 0;
  for (std::uint32_t i = 0; i < names.size(); ++i) {
    const auto tell = [&](std::uint64_t of_this) {
      if (progress) progress(done + of_this, size_bytes);
    };
    manifest.files.push_back(FFR_TRY(DescribeOriginFile(origin, i, names[i], upload, tell)));
    done += manifest.files.back().size_bytes;
  }
  const auto mode = replace ? net::Publish::Mode::kReplace : net::Publish::Mode::kCreate;
  FFR_TRY(Catalog(place.cluster).Publish(place.location.name, manifest, mode, 0, After(options)));
  return {};
}

Result<void> PublishThroughOrigin(std::span<const std::filesystem::path> files,
                                  std::string_view place, std::string_view address, bool replace,
                                  const SessionOptions& options,
                                  const std::function<void(std::uint64_t, std::uint64_t)>& progress,
                                  bool dry_run) {
  const Place name = FFR_TRY(PlaceWithOrigins(address, files.empty(), options));
  for (const auto& file : files)
    if (IsObjectAddress(file.string()))
      return Error{ErrorCode::kInvalidArgument,
                   file.string() + ": only local files are copied; publish objects where they are"};
  const RecordReader all = FFR_TRY(RecordReader::Open(files, {}));
  FFR_TRY(RefuseInPlace(all));
  std::uint64_t size_bytes = 0;
  for (std::size_t i = 0; i < all.file_count(); ++i) size_bytes += all.file(i).size_bytes;
  FFR_TRY(CheckPlace(name, size_bytes, replace, options));
  for (const auto& file : files) FFR_TRY(CheckFile(file));
  if (dry_run) return {};
  const auto tell = [&](std::uint64_t done) {
    if (progress) progress(done, 2 * size_bytes);
  };
  const auto copies = FFR_TRY(CopyToOrigin(files, place, options, tell));
  auto published = PublishFromOrigin(
      copies, address, replace, options,
      [&](std::uint64_t done, std::uint64_t /*total*/) { tell(size_bytes + done); });
  if (published) return published;
  return Error{published.error().code,
               published.error().message + "; the copies stay at " + std::string(place) +
                   ", and are used if you publish again",
               published.error().system_errno};
}

Result<DaemonLink> ProbeDaemon(std::string_view address, const SessionOptions& options) {
  const net::Location location = FFR_TRY(net::Location::Parse(address));
  const auto session = net::Session::Get(location, options);
  const auto round_trip = FFR_TRY(session->Ping(After(options)));
  net::Connector::Link link = session->link();
  return DaemonLink{std::move(link.transport), std::move(link.reason), round_trip};
}

Result<std::vector<Published>> ListPublished(std::string_view address,
                                             const SessionOptions& options,
                                             const RecordReader::GiveUp& give_up) {
  const Patience patience(give_up);
  const auto locations = FFR_TRY(net::Location::ParseAll(address));
  const auto [location, cluster] = FFR_TRY(PlaceOf(locations, options));
  auto entries = FFR_TRY(Catalog(cluster).List(location.name, After(options)));
  std::vector<Published> published;
  for (auto& entry : entries)
    published.push_back(
        {std::move(entry.name), entry.size_bytes, entry.file_count, std::move(entry.durability)});
  return published;
}

Result<void> RemovePublished(std::string_view address, const SessionOptions& options) {
  const auto locations = FFR_TRY(ParseAllNamed(address));
  const auto [location, cluster] = FFR_TRY(PlaceOf(locations, options));
  return Catalog(cluster).Remove(location.name, After(options));
}

}  // namespace ffrecord::client
