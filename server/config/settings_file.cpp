#include "server/config/settings_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <toml++/toml.h>
#include <algorithm>
#include <cerrno>
#include <cstring>
#include <numeric>
#include <optional>
#include <utility>
#include <vector>

#include "libffrecord/base/unique_fd.h"
#include "server/config/setting_table.h"

namespace ffrecord::server {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kFileSizeBytesMax = std::size_t{1} << 20;  // Real ones have a few hundred.

Error ReadError(const fs::path& path, int number) {
  const ErrorCode code = number == ENOENT                      ? ErrorCode::kNotFound
                         : number == EACCES || number == EPERM ? ErrorCode::kDenied
                                                               : ErrorCode::kIo;
  return Error{code, "cannot read the settings in " + path.string() + ": " + std::strerror(number),
               number};
}

Result<std::string> ReadText(const fs::path& path) {
  const UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!fd) return ReadError(path, errno);
  std::string text(kFileSizeBytesMax + 1, '\0');
  std::size_t size = 0;
  while (size < text.size()) {
    const ssize_t got = ::read(fd.get(), text.data() + size, text.size() - size);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return ReadError(path, errno);
    if (got == 0) break;
    size += static_cast<std::size_t>(got);
  }
  if (size > kFileSizeBytesMax) return ReadError(path, EFBIG);
  text.resize(size);
  return text;
}

std::size_t EditDistance(std::string_view a, std::string_view b) {
  std::vector<std::size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), std::size_t{0});
  for (std::size_t i = 0; i < a.size(); ++i) {
    std::size_t diagonal = std::exchange(row[0], i + 1);
    for (std::size_t j = 0; j < b.size(); ++j) {
      const std::size_t changed = diagonal + (a[i] == b[j] ? 0 : 1);
      diagonal = row[j + 1];
      row[j + 1] = std::min({changed, diagonal + 1, row[j] + 1});
    }
  }
  return row.back();
}

std::string_view Nearest(std::string_view key) {
  // Known keys are short; a key of a megabyte costs no more than its beginning.
  const std::string_view looked_for = key.substr(0, 64);
  return std::ranges::min(
             SettingTable(), {},
             [&](const Setting& setting) { return EditDistance(looked_for, setting.key); })
      .key;
}

Result<void> AssignNode(Settings& settings, std::string_view key, const toml::node& node) {
  const Setting* const setting = FindSetting(key);
  if (setting == nullptr)
    return Error{ErrorCode::kInvalidArgument, "unknown key '" + std::string(key.substr(0, 64)) +
                                                  "'; did you mean '" + std::string(Nearest(key)) +
                                                  "'?"};
  if (const auto* const text = node.as_string()) return Assign(settings, *setting, text->get());
  if (const auto* const number = node.as_integer())
    return Assign(settings, *setting, number->get());
  if (const auto* const list = node.as_array(); list != nullptr && setting->has_many()) {
    std::vector<std::string> texts;
    for (const toml::node& one : *list)
      if (const auto* const text = one.as_string()) texts.push_back(text->get());
    if (texts.size() == list->size() && !texts.empty()) return Assign(settings, *setting, texts);
    return Error{ErrorCode::kInvalidArgument, std::string(key) + ": must be a list of texts"};
  }
  return Error{ErrorCode::kInvalidArgument,
               std::string(key) + ": must be a text in quotes or a whole number"};
}

}  // namespace

Result<void> ReadSettingsFile(const fs::path& path, Settings& settings) {
  const std::string text = FFR_TRY(ReadText(path));
  const auto bad = [&](auto line, std::string_view what) {
    return Error{ErrorCode::kInvalidArgument,
                 path.string() + ":" + std::to_string(line) + ": " + std::string(what)};
  };
  std::optional<toml::table> table;
  try {
    table = toml::parse(text, path.string());
  } catch (const toml::parse_error& error) {
    return bad(error.source().begin.line, error.description());
  }
  // In the order of the lines: the error names the first mistake.
  std::vector<std::pair<toml::key, const toml::node*>> entries;
  for (const auto& [key, node] : *table) entries.emplace_back(key, &node);
  const auto line_of = [](const auto& entry) { return entry.first.source().begin.line; };
  std::ranges::sort(entries, {}, line_of);
  Settings changed = settings;
  for (const auto& entry : entries) {
    const auto assigned = AssignNode(changed, entry.first.str(), *entry.second);
    if (!assigned) return bad(line_of(entry), assigned.error().message);
  }
  settings = std::move(changed);
  return {};
}

std::string PrintSettings(const Settings& settings) {
  std::string text;
  for (const Setting& setting : SettingTable()) {
    text.append("# ").append(setting.help);
    for (const std::string_view choice : setting.choices)
      text.append(choice == setting.choices.front() ? ": " : ", ").append(choice);
    text.append("\n").append(setting.key).append(" = ");
    text.append(PrintValue(settings, setting)).append("\n");
  }
  return text;
}

}  // namespace ffrecord::server
