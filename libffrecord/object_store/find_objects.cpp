#include "libffrecord/object_store/find_objects.h"

#include <algorithm>
#include <array>
#include <map>
#include <memory>
#include <optional>
#include <utility>

#include "libffrecord/base/patience.h"
#include "libffrecord/object_store/http_store.h"
#include "libffrecord/object_store/key_pattern.h"
#include "libffrecord/object_store/range_fetch.h"

namespace ffrecord::object_store {
namespace {

constexpr std::string_view kS3Scheme = "s3://";
constexpr std::string_view kSuffix = ".ffr";

// The objects that one address stands for: a list, or one object whose version is still to be asked
// for.
struct Place {
  std::vector<StoredObject> objects;
  bool is_one = false;
};

class ObjectSearch {
 public:
  explicit ObjectSearch(std::chrono::milliseconds timeout) : timeout_(timeout) {}

  Result<std::vector<StoredObject>> Run(std::span<const std::string> addresses) {
    std::vector<Place> places;
    for (const std::string& address : addresses) {
      if (Patience::OfThread().IsOver()) return GivenUp();
      places.push_back(
          FFR_TRY(address.starts_with(kS3Scheme) ? InBucket(address) : AtServer(address)));
    }
    FFR_TRY(AskForVersions(places, /*or_folders=*/true));
    std::vector<StoredObject> found;
    for (Place& place : places) std::ranges::move(place.objects, std::back_inserter(found));
    return found;
  }

  Result<std::vector<std::optional<StoredObject>>> LookFor(std::span<const std::string> addresses) {
    std::vector<Place> places;
    for (const std::string& address : addresses)
      places.push_back(
          FFR_TRY(address.starts_with(kS3Scheme) ? Exactly(address) : AtServer(address)));
    FFR_TRY(AskForVersions(places, /*or_folders=*/false));
    std::vector<std::optional<StoredObject>> found(places.size());
    for (std::size_t i = 0; i < places.size(); ++i)
      if (!places[i].objects.empty()) found[i] = std::move(places[i].objects.front());
    return found;
  }

  Result<std::vector<StoredObject>> List(const std::string& folder) {
    if (!folder.starts_with(kS3Scheme))
      return Error{ErrorCode::kInvalidArgument,
                   folder + ": only buckets (s3://) have listings; name each file of a server"};
    const auto [bucket, key] = FFR_TRY(Split(folder));
    const std::string prefix = key.empty() || key.ends_with('/') ? key : key + "/";
    auto listing = FFR_TRY(bucket->List(prefix, false));
    std::vector<StoredObject> found;
    for (auto& object : listing.objects)
      if (!object.key.ends_with('/')) found.push_back(Listed(bucket, std::move(object)));
    return found;
  }

 private:
  struct KeyInBucket {
    std::shared_ptr<const S3Bucket> bucket;
    std::string key;
  };
  Result<Place> AtServer(const std::string& text) {
    const auto address = FFR_TRY(HttpAddress::Parse(text));
    const std::string server = address.scheme + "://" + address.user + "@" + address.host;
    auto& store = servers_[server];
    if (!store) store = std::make_shared<HttpStore>(address, timeout_);
    return Place{{{store, address.target, {}}}, true};
  }

  Result<KeyInBucket> Split(std::string_view text) {
    const std::string_view rest = text.substr(kS3Scheme.size());
    const std::string_view name = rest.substr(0, rest.find('/'));
    const std::string_view key = rest.substr(std::min(name.size() + 1, rest.size()));
    if (name.empty() || name.find_first_of("?*[@:") != std::string_view::npos)
      return Error{ErrorCode::kInvalidArgument,
                   std::string(text) + ": an address is s3://BUCKET/KEY"};
    return KeyInBucket{FFR_TRY(Bucket(std::string(name))), std::string(key)};
  }

  Result<Place> InBucket(std::string_view text) {
    auto [bucket, key] = FFR_TRY(Split(text));
    if (IsPattern(key)) return Matching(bucket, key);
    if (key.empty() || key.ends_with('/')) return Folder(bucket, key);
    return Place{{{bucket, std::move(key), {}}}, true};
  }

  // A bucket itself, and a folder's mark, are no objects.
  Result<Place> Exactly(std::string_view text) {
    auto [bucket, key] = FFR_TRY(Split(text));
    if (key.empty() || key.ends_with('/')) return Place{};
    return Place{{{bucket, std::move(key), {}}}, true};
  }

  Result<std::shared_ptr<const S3Bucket>> Bucket(const std::string& name) {
    auto& bucket = buckets_[name];
    if (!bucket) {
      if (!settings_) settings_ = FFR_TRY(ReadAwsSettings());
      bucket = FFR_TRY(S3Bucket::Open(name, *settings_, timeout_));
    }
    return bucket;
  }

  static StoredObject Listed(const std::shared_ptr<const S3Bucket>& bucket,
                             S3Bucket::Object object) {
    return {bucket, std::move(object.key), {object.size_bytes, std::move(object.etag), {}}};
  }

  Result<Place> Matching(const std::shared_ptr<const S3Bucket>& bucket, std::string_view pattern) {
    auto listing = FFR_TRY(bucket->List(LiteralPrefix(pattern), false));
    Place place;
    for (auto& object : listing.objects) {
      // An object that is called like the pattern is meant alone.
      if (object.key == pattern) return Place{{Listed(bucket, std::move(object))}};
      if (!object.key.ends_with('/') && Matches(pattern, object.key))
        place.objects.push_back(Listed(bucket, std::move(object)));
    }
    if (place.objects.empty())
      return Error{ErrorCode::kNotFound, "no object matches " + bucket->Describe(pattern)};
    return place;
  }

  Result<Place> Folder(const std::shared_ptr<const S3Bucket>& bucket, const std::string& folder) {
    auto listing = FFR_TRY(bucket->List(folder, true));
    Place place;
    for (auto& object : listing.objects)
      if (object.key.ends_with(kSuffix)) place.objects.push_back(Listed(bucket, std::move(object)));
    if (place.objects.empty())
      return Error{ErrorCode::kNotFound, "no *.ffr objects in " + bucket->Describe(folder)};
    return place;
  }

  // Asks for the first byte of each object: the answer names size and version, and shows that the
  // server knows ranges. HEAD would not, and addresses that are signed allow GET alone.
  //
  // A place without its object may be a folder; else it is empty.
  Result<void> AskForVersions(std::vector<Place>& places, bool or_folders) {
    std::vector<ObjectRange> ranges;
    std::vector<Place*> asked;
    std::vector<std::array<std::byte, 1>> bytes(places.size());
    for (std::size_t i = 0; i < places.size(); ++i) {
      if (!places[i].is_one) continue;
      const StoredObject& object = places[i].objects.front();
      asked.push_back(&places[i]);
      ranges.push_back({.store = object.store.get(),
                        .key = object.key,
                        .version = nullptr,
                        .destination = bytes[i],
                        .offset_bytes = 0,
                        .error = {},
                        .found = {}});
    }
    FFR_TRY(FetchRanges(
        ranges, kObjectRequestsAtOnce, [](ObjectRange&) {}, Patience::OfThread()));
    for (std::size_t i = 0; i < ranges.size(); ++i) {
      if (!or_folders && ranges[i].error && ranges[i].error->code == ErrorCode::kNotFound) {
        asked[i]->objects.clear();
        continue;
      }
      if (!or_folders && ranges[i].error) return *std::move(ranges[i].error);
      if (ranges[i].error) {
        *asked[i] = FFR_TRY(PerhapsFolder(asked[i]->objects.front(), *std::move(ranges[i].error)));
        continue;
      }
      asked[i]->objects.front().version = std::move(ranges[i].found);
    }
    return {};
  }

  // A name without an object may be a folder's.
  Result<Place> PerhapsFolder(const StoredObject& object, Error error) {
    const auto bucket = std::dynamic_pointer_cast<const S3Bucket>(object.store);
    if (error.code != ErrorCode::kNotFound || !bucket || object.key.ends_with(kSuffix))
      return error;
    auto folder = Folder(bucket, object.key + "/");
    if (folder || folder.error().code != ErrorCode::kNotFound) return folder;
    return Error{ErrorCode::kNotFound,
                 object.name() + ": there is no such object, and no *.ffr object below it"};
  }

  const std::chrono::milliseconds timeout_;
  std::optional<AwsSettings> settings_;
  std::map<std::string, std::shared_ptr<const S3Bucket>> buckets_;
  std::map<std::string, std::shared_ptr<const HttpStore>> servers_;
};

}  // namespace

Result<std::vector<StoredObject>> FindObjects(std::span<const std::string> addresses,
                                              std::chrono::milliseconds timeout) {
  return ObjectSearch(timeout).Run(addresses);
}

Result<std::vector<std::optional<StoredObject>>> LookForObjects(
    std::span<const std::string> addresses, std::chrono::milliseconds timeout) {
  return ObjectSearch(timeout).LookFor(addresses);
}

Result<std::vector<StoredObject>> ListObjects(const std::string& folder,
                                              std::chrono::milliseconds timeout) {
  return ObjectSearch(timeout).List(folder);
}

}  // namespace ffrecord::object_store
