#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include <ffrecord/record_form.h>
#include <ffrecord/result.h>
#include <ffrecord/schema.h>

namespace ffrecord {

// Turns the bytes of a sample in a file of another kind into the record that has the same columns.
// Immutable and thread-safe; any bytes may be given.
//
// The columns of a tar: "name", the key of the sample, or with "payload" the name of its file;
// "payload", the file that is no label; "label", the number in a file .cls; else the file with that
// extension. "x:valid" says whether there is a value of x. Those of MDS are in the order of the
// shard.
class FormedRecords {
 public:
  // Borrows the schema. Every form but kPlain requires columns.
  FormedRecords(RecordForm form, const Schema& schema);

  RecordForm form() const noexcept { return form_; }

  // The record. Fails with kCorruption if the bytes are no sample of these columns.
  Result<void> Form(std::span<const std::byte> stored, std::vector<std::byte>& record) const;
  // The same, into memory of exactly its size; another size is kCorruption.
  Result<void> FormInto(std::span<const std::byte> stored, std::span<std::byte> record) const;
  // The same, in the memory of the stored bytes: returns where in it the record begins. The largest
  // column keeps its place if possible, so that only small ones are copied. Requires that the
  // record is not larger than `stored`. After a failure the bytes are unchanged.
  Result<std::size_t> FormWithin(std::span<std::byte> stored,
                                 std::uint64_t record_size_bytes) const;

 private:
  static constexpr int kNone = -1;

  // The value of each column; of numbers and marks that are in no bytes, in `made`.
  struct Fields {
    bool Recycle() const noexcept {
      constexpr std::size_t kKeptBytesMax = std::size_t{4} << 20;
      return around.capacity() <= kKeptBytesMax;
    }
    std::vector<std::span<const std::byte>> values;
    std::vector<bool> is_set;
    std::vector<std::byte> made;    // One value of 8 bytes for each column.
    std::vector<std::byte> around;  // A record without one of its values.
    std::string name;
    std::string path;       // Path of the next member, if its header does not have it.
    bool has_file = false;  // That is no label.
  };
  struct Member {
    std::string_view name;
    std::span<const std::byte> content;
  };

  Result<void> Split(std::span<const std::byte> stored, Fields& fields) const;
  Result<void> SplitMds(std::span<const std::byte> stored, Fields& fields) const;
  Result<void> SplitTar(std::span<const std::byte> stored, Fields& fields) const;
  Result<void> AddMember(const Member& member, Fields& fields) const;
  Result<void> EndTar(Fields& fields) const;
  Result<void> Set(int column, std::span<const std::byte> value, Fields& fields) const;
  std::uint64_t SizeOf(const Fields& fields) const noexcept;
  std::size_t Join(const Fields& fields, std::span<std::byte> record,
                   int left_out = kNone) const noexcept;
  static int LargestIn(const Fields& fields, std::span<const std::byte> stored) noexcept;

  const RecordForm form_;
  const Schema& schema_;
  std::size_t variable_count_ = 0;
  int name_ = kNone;
  int payload_ = kNone;
  int label_ = kNone;
  std::vector<int> valid_of_;  // For each column "x:valid", the column x; else kNone.
  std::vector<int> mark_of_;   // For each column x, the column "x:valid"; else kNone.
};

}  // namespace ffrecord
