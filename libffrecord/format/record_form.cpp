#include "libffrecord/format/record_form.h"

#include <algorithm>
#include <charconv>
#include <cstring>
#include <functional>
#include <limits>
#include <optional>
#include <string_view>

#include "libffrecord/base/assert.h"
#include "libffrecord/base/endian.h"
#include "libffrecord/base/thread_scratch.h"
#include "libffrecord/base/utf8.h"

namespace ffrecord {
namespace {

constexpr std::size_t kPrefixBytes = 4;
constexpr std::size_t kMadeBytes = 8;
constexpr std::string_view kMark = ":valid";

Error Corrupt(const std::string& found) { return {ErrorCode::kCorruption, found}; }

std::string_view TextOf(std::span<const std::byte> bytes) noexcept {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

// --- Tar, as Python's tarfile reads it
// ------------------------------------------------------------

constexpr std::size_t kBlockBytes = 512;

// A header block.
struct TarHeader {
  char type = 0;
  std::uint64_t size_bytes = 0;
  std::string_view name;    // At most 100 bytes,
  std::string_view prefix;  // with those of the folder before it.
};

// A field of text that a zero byte or the field's end ends.
std::string_view TarText(std::span<const std::byte> block, std::size_t begin, std::size_t size) {
  const std::string_view field = TextOf(block.subspan(begin, size));
  return field.substr(0, field.find('\0'));
}

// A number: octal digits, or with the first bit set a big-endian one.
std::optional<std::uint64_t> TarNumber(std::span<const std::byte> block, std::size_t begin,
                                       std::size_t size) {
  std::uint64_t value = 0;
  if (block[begin] == std::byte{0x80}) {
    for (std::size_t i = begin + 1; i < begin + size; ++i) {
      if (value >> 48 != 0) return std::nullopt;
      value = value << 8 | std::to_integer<std::uint64_t>(block[i]);
    }
    return value;
  }
  std::string_view digits = TarText(block, begin, size);
  while (!digits.empty() && digits.front() == ' ') digits.remove_prefix(1);
  while (!digits.empty() && digits.back() == ' ') digits.remove_suffix(1);
  if (digits.empty()) return 0;
  const auto end = digits.data() + digits.size();
  const auto [parsed, error] = std::from_chars(digits.data(), end, value, 8);
  if (error != std::errc() || parsed != end) return std::nullopt;
  return value;
}

Result<TarHeader> DecodeTarHeader(std::span<const std::byte> block) {
  const auto size = TarNumber(block, 124, 12);
  const auto check = TarNumber(block, 148, 8);
  std::uint64_t sum = 8 * static_cast<std::uint64_t>(' ');  // The check itself counts as spaces.
  for (std::size_t i = 0; i < kBlockBytes; ++i)
    if (i < 148 || i >= 156) sum += std::to_integer<std::uint64_t>(block[i]);
  if (!size || !check || *check != sum) return Corrupt("a header of the tar is damaged");
  return TarHeader{static_cast<char>(block[156]), *size, TarText(block, 0, 100),
                   TarText(block, 345, 155)};
}

// The value of a record "SIZE KEY=VALUE\n" of a pax header; the last one of that key counts.
Result<std::optional<std::string_view>> PaxValue(std::string_view records, std::string_view key) {
  std::optional<std::string_view> found;
  while (!records.empty() && records.front() != '\0') {
    std::size_t size = 0;
    const auto end = records.data() + records.size();
    const auto [parsed, error] = std::from_chars(records.data(), end, size);
    const auto digits = static_cast<std::size_t>(parsed - records.data());
    if (error != std::errc() || size > records.size() || size < digits + 3 || *parsed != ' ' ||
        records[size - 1] != '\n')
      return Corrupt("a pax header of the tar is damaged");
    const std::string_view record = records.substr(digits + 1, size - digits - 2);
    if (const std::size_t equals = record.find('='); record.substr(0, equals) == key)
      found = equals == record.npos ? std::string_view() : record.substr(equals + 1);
    records.remove_prefix(size);
  }
  return found;
}

bool IsHidden(std::string_view name) {
  while (!name.empty()) {
    const std::string_view part = name.substr(0, name.find('/'));
    if (part.starts_with('.') && part != "." && part != "..") return true;
    name.remove_prefix(std::min(part.size() + 1, name.size()));
  }
  return false;
}

std::string_view BaseOf(std::string_view name) { return name.substr(name.rfind('/') + 1); }

// The name up to the first dot of its last part, without slashes at the front.
std::string_view KeyOf(std::string_view name) {
  const std::string_view base = BaseOf(name);
  name.remove_suffix(base.size() - base.substr(0, base.find('.')).size());
  name.remove_prefix(std::min(name.find_first_not_of('/'), name.size()));
  return name;
}

bool IsExtension(std::string_view extension, std::string_view column) {
  return std::ranges::equal(extension, column, [](char found, char wanted) {
    return (found >= 'A' && found <= 'Z' ? static_cast<char>(found - 'A' + 'a') : found) == wanted;
  });
}

// All after the first dot of the last part of a name.
std::string_view ExtensionOf(std::string_view name) {
  const std::string_view base = BaseOf(name);
  return base.substr(std::min(base.find('.'), base.size() - 1) + 1);
}

bool IsLabel(std::string_view name) { return IsExtension(ExtensionOf(name), "cls"); }

std::optional<std::int64_t> LabelOf(std::string_view text) {
  constexpr std::string_view kSpace = " \t\n\r\v\f";
  const std::size_t begin = text.find_first_not_of(kSpace);
  if (begin == text.npos) return std::nullopt;
  text = text.substr(begin, text.find_last_not_of(kSpace) + 1 - begin);
  if (text.size() > 1 && text.front() == '+' && text[1] != '-') text.remove_prefix(1);
  std::int64_t value = 0;
  const auto end = text.data() + text.size();
  const auto [parsed, error] = std::from_chars(text.data(), end, value);
  if (error != std::errc() || parsed != end) return std::nullopt;
  return value;
}

}  // namespace

FormedRecords::FormedRecords(RecordForm form, const Schema& schema) : form_(form), schema_(schema) {
  if (form == RecordForm::kPlain) return;
  const auto& columns = schema.columns();
  valid_of_.assign(columns.size(), kNone);
  mark_of_.assign(columns.size(), kNone);
  for (std::size_t i = 0; i < columns.size(); ++i) {
    if (schema.width_bytes(i) == 0) ++variable_count_;
    const std::string_view name = columns[i].name;
    if (form != RecordForm::kTar || !name.ends_with(kMark)) continue;
    valid_of_[i] = schema.Find(name.substr(0, name.size() - kMark.size()));
    if (valid_of_[i] != kNone)
      mark_of_[static_cast<std::size_t>(valid_of_[i])] = static_cast<int>(i);
  }
  if (form != RecordForm::kTar) return;
  name_ = schema.Find("name");
  payload_ = schema.Find("payload");
  label_ = schema.Find("label");
}

Result<void> FormedRecords::Form(std::span<const std::byte> stored,
                                 std::vector<std::byte>& record) const {
  if (form_ == RecordForm::kPlain) {
    record.assign(stored.begin(), stored.end());
    return {};
  }
  const ThreadScratch<Fields> fields;
  FFR_TRY(Split(stored, *fields));
  record.resize(SizeOf(*fields));
  Join(*fields, record);
  return {};
}

Result<void> FormedRecords::FormInto(std::span<const std::byte> stored,
                                     std::span<std::byte> record) const {
  if (form_ == RecordForm::kPlain)
    return Corrupt("the record is not as large as the bytes that it is");
  const ThreadScratch<Fields> fields;
  FFR_TRY(Split(stored, *fields));
  if (SizeOf(*fields) != record.size())
    return Corrupt("the record has another size than the index says");
  Join(*fields, record);
  return {};
}

Result<std::size_t> FormedRecords::FormWithin(std::span<std::byte> stored,
                                              std::uint64_t record_size_bytes) const {
  if (form_ == RecordForm::kPlain)
    return Corrupt("the record is not as large as the bytes that it is");
  FFR_ASSERT(record_size_bytes <= stored.size());
  const ThreadScratch<Fields> scratch;
  Fields& fields = *scratch;
  FFR_TRY(Split(stored, fields));
  if (SizeOf(fields) != record_size_bytes)
    return Corrupt("the record has another size than the index says");
  const int largest = LargestIn(fields, stored);
  const auto kept = largest == kNone ? std::span<const std::byte>()
                                     : fields.values[static_cast<std::size_t>(largest)];
  // The others may lie where the record will be, so they leave it first.
  fields.around.resize(record_size_bytes - kept.size());
  const std::span<const std::byte> around = fields.around;
  const std::size_t before = Join(fields, fields.around, largest);
  const std::size_t kept_begin =
      kept.empty() ? before : static_cast<std::size_t>(kept.data() - stored.data());
  const std::size_t begin = std::min<std::size_t>(kept_begin - std::min(kept_begin, before),
                                                  stored.size() - record_size_bytes);
  const std::span<std::byte> record = stored.subspan(begin, record_size_bytes);
  if (!kept.empty()) std::memmove(record.data() + before, kept.data(), kept.size());
  std::ranges::copy(around.first(before), record.begin());
  std::ranges::copy(around.subspan(before), record.subspan(before + kept.size()).begin());
  return begin;
}

// The column with the most of the stored bytes; none if all values are elsewhere or empty.
int FormedRecords::LargestIn(const Fields& fields, std::span<const std::byte> stored) noexcept {
  int found = kNone;
  std::size_t size = 0;
  for (std::size_t i = 0; i < fields.values.size(); ++i) {
    const auto value = fields.values[i];
    const bool is_stored = !std::less<>()(value.data(), stored.data()) &&
                           std::less<>()(value.data(), stored.data() + stored.size());
    if (!is_stored || value.size() <= size) continue;
    found = static_cast<int>(i);
    size = value.size();
  }
  return found;
}

Result<void> FormedRecords::Split(std::span<const std::byte> stored, Fields& fields) const {
  const std::size_t count = schema_.columns().size();
  fields.values.assign(count, {});
  fields.is_set.assign(count, false);
  fields.made.assign(kMadeBytes * count, std::byte{});
  FFR_TRY(form_ == RecordForm::kMds ? SplitMds(stored, fields) : SplitTar(stored, fields));
  std::size_t variable_left = variable_count_;
  for (std::size_t i = 0; i < count; ++i)
    if (schema_.width_bytes(i) == 0 && --variable_left > 0 &&
        fields.values[i].size() > std::numeric_limits<std::uint32_t>::max())
      return Corrupt("the column '" + schema_.columns()[i].name + "' has 4 GiB or more");
  return {};
}

// The size of each column that has no fixed one, u32 each; then all columns.
Result<void> FormedRecords::SplitMds(std::span<const std::byte> stored, Fields& fields) const {
  std::size_t at = kPrefixBytes * variable_count_;
  if (at > stored.size()) return Corrupt("it has no room for the sizes of its columns");
  std::size_t prefix = 0;
  for (std::size_t i = 0; i < schema_.columns().size(); ++i) {
    std::uint64_t size = schema_.width_bytes(i);
    if (size == 0) {
      size = LoadLittleEndian<std::uint32_t>(stored, prefix);
      prefix += kPrefixBytes;
    }
    if (size > stored.size() - at) return Corrupt("its columns are larger than it is");
    FFR_TRY(Set(static_cast<int>(i), stored.subspan(at, size), fields));
    at += size;
  }
  if (at != stored.size()) return Corrupt("its columns are smaller than it is");
  return {};
}

Result<void> FormedRecords::SplitTar(std::span<const std::byte> stored, Fields& fields) const {
  fields.name.clear();
  fields.path.clear();
  fields.has_file = false;
  std::optional<std::uint64_t> pax_size;
  bool has_path = false;
  for (std::size_t at = 0; at < stored.size();) {
    if (stored.size() - at < kBlockBytes) return Corrupt("a header of the tar is cut off");
    const TarHeader header = FFR_TRY(DecodeTarHeader(stored.subspan(at, kBlockBytes)));
    at += kBlockBytes;
    const bool describes = header.type == 'x' || header.type == 'L' || header.type == 'K';
    const std::uint64_t size = describes ? header.size_bytes : pax_size.value_or(header.size_bytes);
    const bool is_file = header.type == '0' || header.type == '\0' || header.type == '7';
    const bool has_content = describes || is_file;
    if (has_content && size > stored.size() - at) return Corrupt("a file of the tar is cut off");
    const auto content = stored.subspan(at, has_content ? size : 0);
    // The last file of a sample ends where its content ends.
    at += std::min<std::size_t>((content.size() + kBlockBytes - 1) / kBlockBytes * kBlockBytes,
                                stored.size() - at);
    // The first of several headers before a file counts.
    if (header.type == 'L' && !has_path) {
      fields.path = TarText(content, 0, content.size());
      has_path = true;
    } else if (header.type == 'x') {
      const auto path = FFR_TRY(PaxValue(TextOf(content), "path"));
      if (path && !has_path) {
        fields.path = *path;
        has_path = true;
      }
      const auto text = FFR_TRY(PaxValue(TextOf(content), "size"));
      if (text && !pax_size) {
        std::uint64_t value = 0;
        const auto end = text->data() + text->size();
        const auto [parsed, error] = std::from_chars(text->data(), end, value);
        if (error != std::errc() || parsed != end) return Corrupt("a pax header gives no size");
        pax_size = value;
      }
    }
    if (describes) continue;
    if (!is_file && (header.type < '2' || header.type > '6'))
      return Corrupt("the tar has an entry that has no bytes of its own in it");
    if (!has_path) {
      fields.path = header.prefix;
      if (!header.prefix.empty()) fields.path += '/';
      fields.path += header.name;
    }
    has_path = false;
    pax_size.reset();
    const bool is_old_folder = header.type == '\0' && header.name.ends_with('/');
    if (!is_file || is_old_folder || IsHidden(fields.path)) continue;
    FFR_TRY(AddMember({fields.path, content}, fields));
  }
  return EndTar(fields);
}

Result<void> FormedRecords::AddMember(const Member& member, Fields& fields) const {
  if (IsLabel(member.name)) {
    if (payload_ == kNone && fields.name.empty()) fields.name = KeyOf(member.name);
    if (label_ == kNone) return Corrupt("it has a label, and the first samples have none");
    const auto label = LabelOf(TextOf(member.content));
    if (!label) return Corrupt(std::string(member.name) + " is not a 64-bit integer");
    const std::span<std::byte> made(fields.made);
    StoreLittleEndian(made, kMadeBytes * static_cast<std::size_t>(label_), *label);
    return Set(label_, made.subspan(kMadeBytes * static_cast<std::size_t>(label_), kMadeBytes),
               fields);
  }
  fields.has_file = true;
  if (payload_ != kNone) {
    fields.name = member.name;
    return Set(payload_, member.content, fields);
  }
  if (fields.name.empty()) fields.name = KeyOf(member.name);
  const std::string_view extension = ExtensionOf(member.name);
  const auto& columns = schema_.columns();
  for (std::size_t i = 0; i < columns.size(); ++i)
    if (IsExtension(extension, columns[i].name) && valid_of_[i] == kNone)
      return Set(static_cast<int>(i), member.content, fields);
  return Corrupt("it has a file ." + std::string(extension) + ", and the first samples have none");
}

// Sets the name and the marks, and checks that all is there.
Result<void> FormedRecords::EndTar(Fields& fields) const {
  if (!fields.has_file) return Corrupt("it is a label without a file");
  if (name_ != kNone)
    FFR_TRY(Set(name_, std::as_bytes(std::span(fields.name.data(), fields.name.size())), fields));
  const std::span<std::byte> made(fields.made);
  for (std::size_t i = 0; i < valid_of_.size(); ++i) {
    if (valid_of_[i] == kNone) continue;
    made[kMadeBytes * i] =
        fields.is_set[static_cast<std::size_t>(valid_of_[i])] ? std::byte{1} : std::byte{0};
    FFR_TRY(Set(static_cast<int>(i), made.subspan(kMadeBytes * i, 1), fields));
  }
  for (std::size_t i = 0; i < valid_of_.size(); ++i) {
    if (fields.is_set[i]) continue;
    if (mark_of_[i] == kNone)
      return Corrupt("it has no ." + schema_.columns()[i].name +
                     ", and the first samples have one");
    fields.values[i] =
        made.subspan(kMadeBytes * i, std::min<std::size_t>(schema_.width_bytes(i), kMadeBytes));
    if (fields.values[i].size() != schema_.width_bytes(i))
      return Corrupt("the column '" + schema_.columns()[i].name + "' is not one of a tar");
  }
  return {};
}

Result<void> FormedRecords::Set(int column, std::span<const std::byte> value,
                                Fields& fields) const {
  const auto i = static_cast<std::size_t>(column);
  const Column& described = schema_.columns()[i];
  if (fields.is_set[i]) return Corrupt("it has two values of '" + described.name + "'");
  if (schema_.width_bytes(i) != 0 && schema_.width_bytes(i) != value.size())
    return Corrupt("its '" + described.name + "' does not have the size of the column");
  if (described.type == ColumnType::kUtf8 && !IsWellFormedUtf8(TextOf(value)))
    return Corrupt("its '" + described.name + "' is not UTF-8");
  fields.values[i] = value;
  fields.is_set[i] = true;
  return {};
}

std::uint64_t FormedRecords::SizeOf(const Fields& fields) const noexcept {
  std::uint64_t size = schema_.fixed_size_bytes();
  for (std::size_t i = 0; i < fields.values.size(); ++i)
    if (schema_.width_bytes(i) == 0) size += fields.values[i].size();
  return size;
}

// As Schema::Join, without the value of the column `left_out`. Returns where that belongs.
std::size_t FormedRecords::Join(const Fields& fields, std::span<std::byte> record,
                                int left_out) const noexcept {
  std::size_t at = 0;
  std::size_t gap = 0;
  const auto append = [&](std::size_t column) {
    const std::span<const std::byte> bytes = fields.values[column];
    if (static_cast<int>(column) == left_out) {
      gap = at;
      return;
    }
    if (!bytes.empty()) std::memcpy(record.data() + at, bytes.data(), bytes.size());
    at += bytes.size();
  };
  for (std::size_t i = 0; i < fields.values.size(); ++i)
    if (schema_.width_bytes(i) != 0) append(i);
  std::size_t variable_left = variable_count_;
  for (std::size_t i = 0; i < fields.values.size(); ++i) {
    if (schema_.width_bytes(i) != 0 || --variable_left == 0) continue;
    StoreLittleEndian(record, at, static_cast<std::uint32_t>(fields.values[i].size()));
    at += kPrefixBytes;
  }
  for (std::size_t i = 0; i < fields.values.size(); ++i)
    if (schema_.width_bytes(i) == 0) append(i);
  return gap;
}

}  // namespace ffrecord
