#include "libffrecord/base/machine_memory.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <fstream>
#include <iterator>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

#include <ffrecord/memory.h>

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

struct ControlGroup {
  int version;
  fs::path path;  // Within its file system.
};

// `HIERARCHY:CONTROLLERS:PATH`, as cgroups(7) says.
std::optional<ControlGroup> ParseGroup(std::string_view line) {
  const std::size_t first = line.find(':');
  const std::size_t second = line.find(':', first + 1);
  if (first == line.npos || second == line.npos) return std::nullopt;
  const auto controllers = line.substr(first + 1, second - first - 1);
  const fs::path path = line.substr(second + 1);
  if (line.starts_with("0::")) return ControlGroup{2, path};
  if (Lists(controllers, "memory")) return ControlGroup{1, path};
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
fs::path FolderOf(const ControlGroup& group, const Mount& mount) {
  const fs::path below = group.path.lexically_relative(mount.root);
  const bool is_below = !below.empty() && std::ranges::find(below, "..") == below.end();
  return is_below ? (mount.point / below).lexically_normal() : mount.point;
}

// Calls `visit` with the folder of each group that the process is in, which are those above as
// well.
template <class Visit>
void VisitGroups(const fs::path& process, const Visit& visit) {
  const auto groups = ParseLines<ControlGroup>(
      process / "cgroup", +[](std::string line) { return ParseGroup(line); });
  const auto mounts = ParseLines<Mount>(
      process / "mountinfo", +[](std::string line) { return ParseMount(line); });
  for (const ControlGroup& group : groups) {
    for (const Mount& mount : mounts) {
      if (mount.version != group.version) continue;
      fs::path folder = FolderOf(group, mount);
      for (; folder != mount.point && folder.has_relative_path(); folder = folder.parent_path())
        visit(folder);
      visit(mount.point);
    }
  }
}

// None if the file is absent or has no number first, such as "max".
std::optional<std::uint64_t> NumberIn(const fs::path& path) {
  std::uint64_t number = 0;
  if (std::ifstream file(path); !(file >> number)) return std::nullopt;
  return number;
}

// The names of files and of fields of memory.stat in the two versions of control groups.
struct MemoryFiles {
  const char* limit;
  const char* usage;
  std::array<std::string_view, 2> file_pages;
};
constexpr MemoryFiles kVersions[] = {
    {"memory.max", "memory.current", {"active_file", "inactive_file"}},
    {"memory.limit_in_bytes",
     "memory.usage_in_bytes",
     {"total_active_file", "total_inactive_file"}}};

std::optional<std::uint64_t> LimitOf(const fs::path& folder, const MemoryFiles& names) {
  const auto limit = NumberIn(folder / names.limit);
  return limit && *limit < kNoLimit ? limit : std::nullopt;
}

std::uint64_t FilePagesBytes(const fs::path& folder, const MemoryFiles& names) {
  std::ifstream file(folder / "memory.stat");
  std::uint64_t sum = 0, bytes = 0;
  for (std::string field; file >> field >> bytes;)
    if (std::ranges::find(names.file_pages, field) != names.file_pages.end()) sum += bytes;
  return sum;
}

std::optional<std::uint64_t> FreeIn(const fs::path& folder, const MemoryFiles& names) {
  const auto limit = LimitOf(folder, names), usage = NumberIn(folder / names.usage);
  if (!limit || !usage) return std::nullopt;
  const std::uint64_t used = *usage - std::min(*usage, FilePagesBytes(folder, names));
  return *limit - std::min(*limit, used);
}

using Measure = std::optional<std::uint64_t> (*)(const fs::path&, const MemoryFiles&);
std::optional<std::uint64_t> LeastOfGroups(const fs::path& process, Measure measure) {
  std::optional<std::uint64_t> least;
  VisitGroups(process, [&](const fs::path& folder) {
    for (const MemoryFiles& names : kVersions)
      if (const auto found = measure(folder, names))
        least = std::min(*found, least.value_or(*found));
  });
  return least;
}

std::uint64_t AvailableBytesOfMachine() {
  std::ifstream file("/proc/meminfo");
  std::string key;
  std::uint64_t kibibytes = 0;
  while (file >> key >> kibibytes && key != "MemAvailable:") file.ignore(80, '\n');
  return file ? kibibytes << 10 : 0;
}

}  // namespace

std::optional<std::uint64_t> GroupMemoryBytes(const fs::path& process) {
  return LeastOfGroups(process, LimitOf);
}

std::optional<std::uint64_t> GroupFreeBytes(const fs::path& process) {
  return LeastOfGroups(process, FreeIn);
}

std::uint64_t MachineMemoryBytes() {
  const auto machine = static_cast<std::uint64_t>(::sysconf(_SC_PHYS_PAGES)) *
                       static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE));
  return std::min(machine, GroupMemoryBytes("/proc/self").value_or(machine));
}

MemoryRoom GetMemoryRoom() { return {FreeMemoryBytes(), GroupMemoryBytes("/proc/self")}; }

std::uint64_t FreeMemoryBytes() {
  const std::uint64_t machine = AvailableBytesOfMachine();
  return std::min(machine, GroupFreeBytes("/proc/self").value_or(machine));
}

}  // namespace ffrecord
