#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <ffrecord/result.h>

#include "libffrecord/net/http/http.h"
#include "libffrecord/object_store/aws_settings.h"
#include "libffrecord/object_store/object_store.h"

namespace ffrecord::object_store {

// One bucket of an S3-compatible store. Every body travels with its SHA-256, which the store checks
// before it takes it. Requests that fail for the moment (no connection, 429, 5xx) are tried again
// with back-off until `timeout` has passed since the first try; every request may thus arrive
// twice.
//
// Thread-safe; a forked child may go on using it. Errors: kNotFound, kDenied (names the store's
// code), kConflict, kUnavailable, kDeadlineExceeded, kInvalidArgument; messages name the object.
class S3Bucket final : public ObjectStore {
 public:
  static Result<std::shared_ptr<S3Bucket>> Open(std::string_view bucket, AwsSettings settings,
                                                std::chrono::milliseconds timeout);
  ~S3Bucket() override;

  std::string Describe(std::string_view key) const override;  // s3://bucket/key.
  std::string Identify(std::string_view key) const override;  // With the store's host.
  Result<net::HttpRequest> GetRequest(std::string_view key, const Headers& headers) const override;
  Refusal RefusalOf(std::string_view key, const net::HttpResponse& response) const override;
  std::chrono::milliseconds timeout() const noexcept override;

  struct Object {
    std::string key;
    std::uint64_t size_bytes = 0;
    std::string etag;  // As ObjectVersion has it.
  };
  struct Listing {
    std::vector<Object> objects;
    std::vector<std::string> folders;  // With `by_folder`: what goes on behind the next slash.
  };
  // All keys that begin with `prefix`, in order. An answer that is no whole listing of them is
  // kUnavailable: what it lacks may be there.
  Result<Listing> List(std::string_view prefix, bool by_folder) const;

  // Fails with kCorruption if the object is larger than `size_bytes_max`.
  Result<std::vector<std::byte>> Get(std::string_view key, std::uint64_t size_bytes_max) const;

  enum class Existing { kReplace, kRefuse };
  // With kRefuse fails with kConflict if the object exists, with an `etag` if it is another object
  // than that, at stores that know the condition: it may be the one that an earlier try of this
  // call has made.
  Result<void> Put(std::string_view key, std::span<const std::byte> bytes, Existing existing,
                   const std::string& etag = {}) const;

  // Makes the object `to` of the bytes of `from`, which do not travel. Fails with kNotFound if
  // there is none, with kConflict if it is another object than `etag`, and as the store does for
  // objects that are too large for that (Amazon's: 5 GiB) or if it copies none. After kUnavailable
  // and kDeadlineExceeded the store may make the copy yet.
  Result<void> Copy(std::string_view from, const std::string& etag, std::string_view to) const;

  // No failure if there is none.
  Result<void> Delete(std::string_view key) const;

  // An object in parts; none of it is there before FinishParts().
  struct Part {
    std::uint32_t number = 0;  // From 1.
    std::uint64_t size_bytes = 0;
    std::string etag;      // As the store names it, with its quotes.
    std::string checksum;  // SHA-256 in base 64; empty if the store has forgotten it.
  };
  Result<std::string> BeginParts(std::string_view key) const;
  Result<Part> PutPart(std::string_view key, std::string_view upload, std::uint32_t number,
                       std::span<const std::byte> bytes) const;
  // With kRefuse as Put().
  Result<void> FinishParts(std::string_view key, std::string_view upload,
                           std::span<const Part> parts,
                           Existing existing = Existing::kReplace) const;
  Result<void> AbortParts(std::string_view key, std::string_view upload) const;

  // An upload that an earlier process has begun and not finished.
  struct PendingUpload {
    std::string key;
    std::string id;
  };
  Result<std::vector<PendingUpload>> PendingUploads(std::string_view prefix) const;
  Result<std::vector<Part>> PartsOf(std::string_view key, std::string_view upload) const;

 private:
  struct Impl;
  explicit S3Bucket(std::unique_ptr<Impl> impl) noexcept;
  std::unique_ptr<Impl> impl_;
};

}  // namespace ffrecord::object_store
