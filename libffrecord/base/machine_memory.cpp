#include "libffrecord/base/machine_memory.h"

#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <iterator>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

namespace ffrecord {
namespace {

namespace fs = std::filesystem;

// Version 1 has no word for "no limit": it says the largest multiple of a page that it can.
constexpr std::uint64_t kNoLimit = std::uint64_t{1} << 62;

bool Lists(std::string_view names, std::string_view name) {
  for (std::size_t begin = 0; begin <= names.size();) {
    const std::size_t end = std::min(names.find(',', begin), names.size());
    if (names.substr(begin, end - begin) == name) return true;
    begin = end + 1;
  }
  return false;
}

struct Group {
  int version;
  fs::path path;  // Within its file system.
};

// `HIERARCHY:CONTROLLERS:PATH`, as cgroups(7) says.
std::optional<Group> ParseGroup(std::string_view line) {
  const std::size_t first = line.find(':');
  const std::size_t second = line.find(':', first + 1);
  if (first == line.npos || second == line.npos) return std::nullopt;
  const auto controllers = line.substr(first + 1, second - first - 1);
  const fs::path path = line.substr(second + 1);
  if (line.starts_with("0::")) return Group{2, path};
  if (Lists(controllers, "memory")) return Group{1, path};
  return std::nullopt;
}

struct Mount {
  int version;
  fs::path root;  // Within the file system: what `point` shows.
  fs::path point;
};

// A line of mountinfo, as proc(5) says.
std::optional<Mount> ParseMount(const std::string& line) {
  const std::size_t dash = line.find(" - ");
  if (dash == line.npos) return std::nullopt;
  std::istringstream before(line.substr(0, dash)), after(line.substr(dash + 3));
  const std::vector<std::string> fields{std::istream_iterator<std::string>(before), {}};
  std::string kind, device, options;
  if (fields.size() < 5 || !(after >> kind >> device >> options)) return std::nullopt;
  if (kind == "cgroup2") return Mount{2, fields[3], fields[4]};
  if (kind == "cgroup" && Lists(options, "memory")) return Mount{1, fields[3], fields[4]};
  return std::nullopt;
}

template <class T>
std::vector<T> ParseLines(const fs::path& file, std::optional<T> (*parse_line)(std::string)) {
  std::vector<T> found;
  std::ifstream lines(file);
  for (std::string line; std::getline(lines, line);)
    if (auto parsed = parse_line(std::move(line))) found.push_back(*std::move(parsed));
  return found;
}

// Where a mount shows the group; its own folder if the group is of another namespace.
fs::path FolderOf(const Group& group, const Mount& mount) {
  const fs::path below = group.path.lexically_relative(mount.root);
  const bool is_below = !below.empty() && std::ranges::find(below, "..") == below.end();
  return is_below ? (mount.point / below).lexically_normal() : mount.point;
}

void TakeLimit(const fs::path& folder, std::optional<std::uint64_t>& least) {
  for (const char* const name : {"memory.max", "memory.limit_in_bytes"}) {
    std::uint64_t limit = 0;  // "max" is no number.
    if (std::ifstream file(folder / name); !(file >> limit) || limit >= kNoLimit) continue;
    least = std::min(limit, least.value_or(limit));
  }
}

}  // namespace

std::optional<std::uint64_t> GroupMemoryBytes(const fs::path& process) {
  const auto groups = ParseLines<Group>(
      process / "cgroup", +[](std::string line) { return ParseGroup(line); });
  const auto mounts = ParseLines<Mount>(
      process / "mountinfo", +[](std::string line) { return ParseMount(line); });
  std::optional<std::uint64_t> least;
  for (const Group& group : groups) {
    for (const Mount& mount : mounts) {
      if (mount.version != group.version) continue;
      fs::path folder = FolderOf(group, mount);
      // The groups that it is in have limits as well.
      for (; folder != mount.point && folder.has_relative_path(); folder = folder.parent_path())
        TakeLimit(folder, least);
      TakeLimit(mount.point, least);
    }
  }
  return least;
}

std::uint64_t MachineMemoryBytes() {
  const auto machine = static_cast<std::uint64_t>(::sysconf(_SC_PHYS_PAGES)) *
                       static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE));
  return std::min(machine, GroupMemoryBytes("/proc/self").value_or(machine));
}

}  // namespace ffrecord
