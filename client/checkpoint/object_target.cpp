#include <algorithm>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "client/checkpoint/target.h"
#include "client/checkpoint/verified.h"
#include "libffrecord/base/base64.h"
#include "libffrecord/base/cursor.h"
#include "libffrecord/base/hex.h"
#include "libffrecord/base/side_by_side.h"
#include "libffrecord/format/checkpoint_segment.h"
#include "libffrecord/object_store/digests.h"
#include "libffrecord/object_store/object_files.h"
#include "libffrecord/object_store/s3_bucket.h"

namespace ffrecord::client {
namespace {

using object_store::Md5;
using object_store::ReadAwsSettings;
using object_store::S3Bucket;
using object_store::Sha256;

// For a large file, each with a buffer of its own.
constexpr std::size_t kRequestsAtOnce = 4;
constexpr std::uint64_t kPartSizeMin = std::uint64_t{16} << 20;
constexpr std::uint64_t kPartsMax = 10'000;  // As S3 has it.
constexpr std::string_view kRootSuffix = ".root";

// A run at a store. The files of an attempt lie below a name of their own, where nobody looks
// before NAME/step-000001200.root says so: the root manifest, which is written last and only if
// there is none.
struct ObjectRun {
  std::shared_ptr<S3Bucket> bucket;
  std::string prefix;  // Empty, or with a slash behind.

  std::string RootKey(std::uint64_t step) const {
    return prefix + StepName(step) + std::string(kRootSuffix);
  }
  std::string AttemptsOf(std::uint64_t step) const { return prefix + StepName(step) + "-"; }
  std::string Folder(std::uint64_t step, const AttemptId& attempt) const {
    return AttemptsOf(step) + Hex(attempt) + "/";
  }
};

Error StepExists(const ObjectRun& run, std::uint64_t step) {
  return Error{ErrorCode::kConflict, "checkpoint: " + run.bucket->Describe(run.RootKey(step)) +
                                         " is committed already; save another step, or remove it "
                                         "first"};
}

// --- Reading -------------------------------------------------------------------------------------

class ObjectStep final : public CommittedStep {
 public:
  ObjectStep(ObjectRun run, std::uint64_t step, std::vector<std::byte> root, std::string folder)
      : run_(std::move(run)), step_(step), root_(std::move(root)), folder_(std::move(folder)) {}

  std::string Describe(std::string_view name) const override {
    return run_.bucket->Describe(name == kRootManifestName ? run_.RootKey(step_)
                                                           : folder_ + std::string(name));
  }

  Result<std::vector<std::byte>> ReadFile(std::string_view name,
                                          std::uint64_t size_bytes_max) const override {
    if (name == kRootManifestName) return root_;
    return run_.bucket->Get(folder_ + std::string(name), size_bytes_max);
  }

  Result<std::unique_ptr<RangeReader>> OpenFiles(
      std::span<const std::string> names) const override {
    return object_store::OpenObjectFiles(run_.bucket, FFR_TRY(Find(names)));
  }

  // The objects of those files. Fails with kNotFound.
  Result<std::vector<S3Bucket::Object>> Find(std::span<const std::string> names) const {
    const auto listing = FFR_TRY(run_.bucket->List(folder_, false));
    std::map<std::string_view, const S3Bucket::Object*> objects;
    for (const auto& object : listing.objects) objects[object.key] = &object;
    std::vector<S3Bucket::Object> wanted;
    for (const std::string& name : names) {
      const auto found = objects.find(folder_ + name);
      if (found == objects.end())
        return Error{ErrorCode::kNotFound, Describe(name) + ": the step has no such file"};
      wanted.push_back(*found->second);
    }
    return wanted;
  }

 private:
  ObjectRun run_;
  std::uint64_t step_;
  std::vector<std::byte> root_;
  std::string folder_;
};

// --- Writing -------------------------------------------------------------------------------------

// For a file that is sent in parts.
std::uint64_t PartSizeOf(std::uint64_t size_bytes) {
  return std::max(kPartSizeMin, (size_bytes + kPartsMax - 1) / kPartsMax);
}

// The ETag of a file that was sent in parts; empty where there is no MD5.
Result<std::string> EtagOf(std::uint64_t size_bytes, const FileSource& source) {
  std::vector<std::byte> sums;
  std::vector<std::byte> part;
  std::uint64_t count = 0;
  for (std::uint64_t begin = 0; begin < size_bytes; begin += part.size(), ++count) {
    const std::uint64_t size = std::min(PartSizeOf(size_bytes), size_bytes - begin);
    part.clear();
    while (part.size() < size) {
      const auto bytes = FFR_TRY(source(begin + part.size(), size - part.size()));
      part.insert(part.end(), bytes.begin(), bytes.end());
    }
    const auto sum = Md5(part);
    if (!sum) return std::string();
    sums.insert(sums.end(), sum->begin(), sum->end());
  }
  const auto sum_of_sums = Md5(sums);
  if (!sum_of_sums) return std::string();
  return "\"" + Hex(*sum_of_sums) + "-" + std::to_string(count) + "\"";
}

// One large file on its way, in parts that several threads send. Parts that an earlier process has
// sent are read and compared, but not sent again.
class PartsUpload {
 public:
  PartsUpload(const S3Bucket& bucket, std::string key, std::uint64_t size_bytes,
              const FileSource& source)
      : bucket_(bucket),
        key_(std::move(key)),
        size_bytes_(size_bytes),
        part_size_(PartSizeOf(size_bytes)),
        source_(source) {}

  Result<void> Run() {
    FFR_TRY(Begin());
    parts_.resize((size_bytes_ + part_size_ - 1) / part_size_);
    FFR_TRY(SideBySide::Run(std::min(parts_.size(), kRequestsAtOnce),
                            [&](const SideBySide& others) { return SendSome(others); }));
    return bucket_.FinishParts(key_, upload_, parts_);
  }

 private:
  Result<void> Begin() {
    const auto pending = FFR_TRY(bucket_.PendingUploads(key_));
    for (const auto& upload : pending)
      if (upload.key == key_) upload_ = upload.id;
    if (upload_.empty()) {
      upload_ = FFR_TRY(bucket_.BeginParts(key_));
      return {};
    }
    auto sent = FFR_TRY(bucket_.PartsOf(key_, upload_));
    for (auto& part : sent) sent_[part.number] = std::move(part);
    return {};
  }

  Result<void> SendSome(const SideBySide& others) {
    std::vector<std::byte> buffer(std::min(part_size_, size_bytes_));
    while (!others.failed()) {
      auto [index, bytes] = FFR_TRY(ReadNext(buffer));
      if (bytes.empty()) return {};
      parts_[index] = FFR_TRY(Send(static_cast<std::uint32_t>(index + 1), bytes));
    }
    return {};
  }

  struct NextPart {
    std::size_t index;
    std::span<const std::byte> bytes;  // None behind the end.
  };
  Result<NextPart> ReadNext(std::span<std::byte> buffer) {
    const std::scoped_lock lock(mutex_);
    const std::uint64_t begin = read_bytes_;
    const std::uint64_t end = std::min(begin + part_size_, size_bytes_);
    while (read_bytes_ < end) {
      const auto bytes = FFR_TRY(source_(read_bytes_, end - read_bytes_));
      std::copy(bytes.begin(), bytes.end(),
                buffer.begin() + static_cast<std::ptrdiff_t>(read_bytes_ - begin));
      read_bytes_ += bytes.size();
    }
    return NextPart{begin / part_size_, buffer.first(end - begin)};
  }

  Result<S3Bucket::Part> Send(std::uint32_t number, std::span<const std::byte> bytes) const {
    const auto sent = sent_.find(number);
    if (sent != sent_.end() && sent->second.size_bytes == bytes.size()) {
      const auto sum = Md5(bytes);
      S3Bucket::Part part = sent->second;
      part.checksum = EncodeBase64(Sha256(bytes));
      if (sum && part.etag == "\"" + Hex(*sum) + "\"") return part;
    }
    return bucket_.PutPart(key_, upload_, number, bytes);
  }

  const S3Bucket& bucket_;
  std::string key_;
  std::uint64_t size_bytes_;
  std::uint64_t part_size_;
  const FileSource& source_;
  std::string upload_;
  std::map<std::uint32_t, S3Bucket::Part> sent_;
  std::vector<S3Bucket::Part> parts_;  // Each written by one thread.
  std::mutex mutex_;                   // Guards the source and what is read of it.
  std::uint64_t read_bytes_ = 0;
};

// The root of a step that gives way.
struct ReplacedRoot {
  std::string etag;
  std::vector<std::byte> bytes;
};

class ObjectAttempt final : public CheckpointAttempt {
 public:
  ObjectAttempt(ObjectRun run, std::uint64_t step, const AttemptId& attempt,
                std::optional<ReplacedRoot> replaced = std::nullopt)
      : run_(std::move(run)),
        step_(step),
        folder_(run_.Folder(step, attempt)),
        replaced_(std::move(replaced)) {}

  Result<WrittenFile> Put(std::string_view name, std::uint64_t size_bytes,
                          const FileSource& source) override {
    const bool is_root = name == kRootManifestName;
    if (size_bytes > kPartSizeMin && !is_root) {
      FFR_TRY(PutLarge(folder_ + std::string(name), size_bytes, source));
      return Written(name, size_bytes);
    }
    std::vector<std::byte> whole;
    while (whole.size() < size_bytes) {
      const auto bytes = FFR_TRY(source(whole.size(), size_bytes - whole.size()));
      whole.insert(whole.end(), bytes.begin(), bytes.end());
    }
    if (is_root)
      root_ = std::move(whole);  // Not before Commit().
    else
      FFR_TRY(run_.bucket->Put(folder_ + std::string(name), whole, S3Bucket::Existing::kReplace));
    return Written(name, size_bytes);
  }

  Result<std::vector<WrittenFile>> PutSegments(std::span<SegmentFile> segments,
                                               const std::function<void()>& released) override {
    std::vector<WrittenFile> written;
    for (SegmentFile& segment : segments) {
      SegmentImage& image = segment.image;
      written.push_back(FFR_TRY(
          Put(segment.name, image.layout().file_size_bytes,
              [&](std::uint64_t offset, std::uint64_t size) { return image.At(offset, size); })));
    }
    if (released) released();
    return written;
  }

  // A copy that the store makes, for each step has objects of its own. It is as whole as what it is
  // made of: nobody reads it again for the next save.
  Result<std::optional<WrittenFile>> Keep(const PartManifest& base, std::uint32_t index,
                                          std::string_view name) override {
    const std::optional<WrittenFile> none;
    const SegmentInFile segment{SegmentName(base.rank, index), {&base, index}};
    const ObjectStep step(run_, base.step, {}, run_.Folder(base.step, base.attempt));
    const auto found = copies_ ? step.Find({&segment.name, 1}) : Result(FoundObjects());
    const std::uint64_t size_bytes =
        LayoutOfSegment(base.segments[index].payload_size_bytes).file_size_bytes;
    if (!found || found.value().empty() || found.value().front().size_bytes != size_bytes)
      return none;
    const auto is_whole = AreWhole(step, {&segment, 1});
    if (!is_whole || !is_whole.value()) return none;
    const S3Bucket::Object& object = found.value().front();
    const std::string copy = folder_ + std::string(name);
    const auto copied = run_.bucket->Copy(object.key, object.etag, copy);
    if (!copied && MayComeLate(copied.error())) return Unsure(copied.error());
    copies_ = static_cast<bool>(copied);
    if (!copies_) return none;
    VerifiedSegments::Process().AddCopy(base.segments[index].id, step.Describe(segment.name),
                                        run_.bucket->Describe(copy));
    return std::optional(Written(name, size_bytes));
  }

  // Removes what `folder` holds, as far as that can be done.
  void RemoveFolder(const std::string& folder) const noexcept {
    if (const auto pending = run_.bucket->PendingUploads(folder))
      for (const auto& upload : pending.value())
        static_cast<void>(run_.bucket->AbortParts(upload.key, upload.id));
    if (const auto listing = run_.bucket->List(folder, false))
      for (const auto& object : listing.value().objects)
        static_cast<void>(run_.bucket->Delete(object.key));
  }

 protected:
  // A try whose answer was lost looks like a failure, or like another save that was faster: the
  // root that is there tells.
  Result<void> MakeVisible(std::span<const WrittenFile> files) override {
    const std::string key = run_.RootKey(step_);
    const auto put = PutRoot(key);
    if (!put) {
      const auto there = run_.bucket->Get(key, kManifestSizeMax);
      if (!there) return WithoutALook(put.error(), there.error());
      // The store may still receive the bytes of this PUT.
      if (replaced_ && there.value() == replaced_->bytes)
        return WithoutALook(put.error(), put.error());
      if (there.value() != root_) return StepExists(run_, step_);
    }
    FFR_TRY(CheckThere(files));
    RemoveOthers();
    return {};
  }

  void Discard() noexcept override { RemoveFolder(folder_); }

 private:
  // In the place of the step that gives way, or of none. A store that does not compare replaces
  // whatever is there: one looks first.
  Result<void> PutRoot(const std::string& key) const {
    using Existing = S3Bucket::Existing;
    if (!replaced_) return run_.bucket->Put(key, root_, Existing::kRefuse);
    const auto there = run_.bucket->Get(key, kManifestSizeMax);
    if (!there && there.error().code == ErrorCode::kNotFound)
      return run_.bucket->Put(key, root_, Existing::kRefuse);
    if (!there) return there.error();
    if (there.value() != replaced_->bytes) return StepExists(run_, step_);
    return run_.bucket->Put(key, root_, Existing::kReplace, replaced_->etag);
  }

  // Its size travels to the coordinator.
  static WrittenFile Written(std::string_view name, std::uint64_t size_bytes) {
    ByteWriter entry;
    entry.Put(size_bytes);
    return {std::string(name), std::move(entry).Take()};
  }

  // While another save of the step stood, its owner may have removed what there was of this one,
  // and the step since then. From now on, nobody does.
  Result<void> CheckThere(std::span<const WrittenFile> files) const {
    const auto listing = FFR_TRY(run_.bucket->List(folder_, false));
    std::map<std::string_view, std::uint64_t> sizes;
    for (const auto& object : listing.objects) sizes[object.key] = object.size_bytes;
    for (const WrittenFile& file : files) {
      if (file.name == kRootManifestName) continue;
      const auto found = sizes.find(folder_ + file.name);
      ByteReader entry(file.entry);
      if (found != sizes.end() && found->second == entry.Take<std::uint64_t>()) continue;
      if (FFR_TRY(IsRootThere())) FFR_TRY(run_.bucket->Delete(run_.RootKey(step_)));
      return Error{ErrorCode::kConflict, "checkpoint: " + run_.bucket->Describe(folder_) +
                                             file.name +
                                             " was removed meanwhile, with another "
                                             "save of its step; save it again"};
    }
    return {};
  }

  // Whether the step is this save still. Somebody may have removed it, and another save have come
  // in its place.
  Result<bool> IsRootThere() const {
    const auto there = run_.bucket->Get(run_.RootKey(step_), kManifestSizeMax);
    if (!there && there.error().code == ErrorCode::kNotFound) return false;
    if (!there) return there.error();
    return there.value() == root_;
  }

  // One that an earlier process has sent is not sent again. It may have been damaged since.
  Result<void> PutLarge(const std::string& key, std::uint64_t size_bytes,
                        const FileSource& source) const {
    const std::string before = FFR_TRY(EtagAt(key, size_bytes));
    if (!before.empty() && before == FFR_TRY(EtagOf(size_bytes, source))) return {};
    auto sent = PartsUpload(*run_.bucket, key, size_bytes, source).Run();
    if (sent || sent.error().code != ErrorCode::kNotFound) return sent;
    // The end of the upload was asked for twice: its first answer was lost, and it is no more. Then
    // the object that it has made is there, whatever was there before.
    const std::string after = FFR_TRY(EtagAt(key, size_bytes));
    if (after.empty() || after == before) return sent;
    return {};
  }

  // The ETag of an object of that size; empty if there is none.
  Result<std::string> EtagAt(const std::string& key, std::uint64_t size_bytes) const {
    const auto listing = FFR_TRY(run_.bucket->List(key, false));
    for (const auto& object : listing.objects)
      if (object.key == key && object.size_bytes == size_bytes) return object.etag;
    return std::string();
  }

  // Other attempts at this step have lost: none of them can be committed while this save is the
  // step. Once it is removed, one of them may be.
  void RemoveOthers() const {
    const auto listing = run_.bucket->List(run_.AttemptsOf(step_), true);
    if (!listing) return;
    for (const std::string& folder : listing.value().folders) {
      if (folder == folder_) continue;
      const auto is_there = IsRootThere();
      if (!is_there || !is_there.value()) return;
      RemoveFolder(folder);
    }
  }

  // The store may make the copy yet, in the place of what would be sent under its name.
  static bool MayComeLate(const Error& error) {
    return error.code == ErrorCode::kUnavailable || error.code == ErrorCode::kDeadlineExceeded;
  }
  static Error Unsure(Error error) {
    error.message +=
        "; the store may make that copy yet: save the step again, or without incremental";
    return error;
  }

  using FoundObjects = std::vector<S3Bucket::Object>;

  ObjectRun run_;
  std::uint64_t step_;
  std::string folder_;
  std::optional<ReplacedRoot> replaced_;
  std::vector<std::byte> root_;
  bool copies_ = true;  // The store; false once it has refused a copy.
};

// --- The run ------------------------------------------------------------------------------------

class ObjectTarget final : public CheckpointTarget {
 public:
  ObjectTarget(ObjectRun run, std::string_view address) : run_(std::move(run)), name_(address) {}

  const std::string& name() const noexcept override { return name_; }

  Result<std::vector<std::uint64_t>> Steps() const override {
    const auto listing = FFR_TRY(run_.bucket->List(run_.prefix, true));
    std::vector<std::uint64_t> steps;
    for (const auto& object : listing.objects) {
      std::string_view name = std::string_view(object.key).substr(run_.prefix.size());
      if (!name.ends_with(kRootSuffix)) continue;
      name.remove_suffix(kRootSuffix.size());
      if (const auto step = StepOf(name)) steps.push_back(*step);
    }
    std::sort(steps.begin(), steps.end());
    return steps;
  }

  Result<std::unique_ptr<CommittedStep>> Open(std::uint64_t step) const override {
    const std::string key = run_.RootKey(step);
    auto bytes = FFR_TRY(run_.bucket->Get(key, kManifestSizeMax));
    const auto root = DecodeRootManifest(bytes);
    if (!root)
      return Error{root.error().code, run_.bucket->Describe(key) + ": " + root.error().message};
    return std::unique_ptr<CommittedStep>(
        new ObjectStep(run_, step, std::move(bytes), run_.Folder(step, root.value().attempt)));
  }

  Result<void> Remove(std::uint64_t step, const std::optional<AttemptId>& only) override {
    const std::string key = run_.RootKey(step);
    const auto bytes = FFR_TRY(run_.bucket->Get(key, kManifestSizeMax));  // Or kNotFound.
    const auto root = DecodeRootManifest(bytes);
    const auto is_another = [&](const auto& found) {
      return only && (!found || found.value().attempt != *only);
    };
    if (is_another(root)) return AnotherSave(*this, step);
    const std::string own = root ? run_.Folder(step, root.value().attempt) : "";
    const ObjectAttempt remover(run_, step, AttemptId{});
    // The others first: none of them can become the step while this one is. Without it, one may
    // at any moment, and is left alone.
    if (const auto listing = run_.bucket->List(run_.AttemptsOf(step), true))
      for (const std::string& folder : listing.value().folders)
        if (folder != own) remover.RemoveFolder(folder);
    // A store deletes by name: a save that takes the step's place from here on goes as well.
    if (only && is_another(DecodeRootManifest(FFR_TRY(run_.bucket->Get(key, kManifestSizeMax)))))
      return AnotherSave(*this, step);
    FFR_TRY(run_.bucket->Delete(key));
    if (root) remover.RemoveFolder(own);
    return {};
  }

  Result<std::unique_ptr<CheckpointAttempt>> Begin(std::uint64_t step,
                                                   const AttemptId& attempt) override {
    const auto found = run_.bucket->List(run_.RootKey(step), false);
    if (!found) return found.error();
    if (!found.value().objects.empty()) return StepExists(run_, step);
    return Join(step, attempt);
  }

  Result<std::unique_ptr<CheckpointAttempt>> Join(std::uint64_t step,
                                                  const AttemptId& attempt) override {
    return std::unique_ptr<CheckpointAttempt>(new ObjectAttempt(run_, step, attempt));
  }

  Result<std::unique_ptr<CheckpointAttempt>> BeginInPlace(std::uint64_t step,
                                                          const AttemptId& attempt,
                                                          const GivesWay& gives_way) override {
    const std::string key = run_.RootKey(step);
    const auto listing = FFR_TRY(run_.bucket->List(key, false));
    const auto bytes = run_.bucket->Get(key, kManifestSizeMax);
    if (!bytes && bytes.error().code == ErrorCode::kNotFound) return Join(step, attempt);
    if (!bytes) return bytes.error();
    if (!FFR_TRY(gives_way())) return Begin(step, attempt);
    const auto found = std::ranges::find(listing.objects, key, &S3Bucket::Object::key);
    if (found == listing.objects.end()) return Begin(step, attempt);
    return std::unique_ptr<CheckpointAttempt>(
        new ObjectAttempt(run_, step, attempt, ReplacedRoot{found->etag, bytes.value()}));
  }

  Result<std::string> Decide(std::string_view name, std::string_view answer) override {
    const std::string key = run_.prefix + std::string(name);
    const auto put =
        run_.bucket->Put(key, std::as_bytes(std::span(answer)), S3Bucket::Existing::kRefuse);
    if (put) return std::string(answer);
    if (put.error().code != ErrorCode::kConflict) return put.error();
    return Decided(name);
  }

  Result<std::vector<std::string>> Decisions(std::string_view prefix) const override {
    std::vector<std::string> names;
    for (const auto& object :
         FFR_TRY(run_.bucket->List(run_.prefix + std::string(prefix), true)).objects)
      names.push_back(object.key.substr(run_.prefix.size()));
    return names;
  }

  Result<std::string> Decided(std::string_view name) const override {
    const auto bytes = FFR_TRY(run_.bucket->Get(run_.prefix + std::string(name), kManifestSizeMax));
    return std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  }

  void Forget(std::string_view name) noexcept override {
    static_cast<void>(run_.bucket->Delete(run_.prefix + std::string(name)));
  }

 private:
  ObjectRun run_;
  std::string name_;
};

}  // namespace

Result<std::unique_ptr<CheckpointTarget>> OpenObjectTarget(std::string_view address,
                                                           const SessionOptions& options) {
  std::string_view rest = address.substr(kObjectScheme.size());
  const std::string_view bucket = rest.substr(0, rest.find('/'));
  rest.remove_prefix(std::min(bucket.size() + 1, rest.size()));
  while (rest.ends_with('/')) rest.remove_suffix(1);
  if (bucket.empty())
    return Error{ErrorCode::kInvalidArgument,
                 "checkpoint: " + std::string(address) + ": an address is s3://BUCKET/NAME"};
  ObjectRun run;
  auto settings = FFR_TRY(ReadAwsSettings());
  run.bucket = FFR_TRY(S3Bucket::Open(bucket, std::move(settings), options.timeout));
  run.prefix = rest.empty() ? "" : std::string(rest) + "/";
  return std::unique_ptr<CheckpointTarget>(new ObjectTarget(std::move(run), address));
}

}  // namespace ffrecord::client
