#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>

#include "libffrecord/base/event_log.h"

namespace ffrecord::net {

// The names of daemons and their disks in the profile. A daemon may tell any name for a disk, and
// as many as it likes: of each, characters that mean nothing elsewhere are kept, and they are few.
// Thread-bound.
class ProfiledPlaces {
 public:
  static constexpr std::size_t kPlacesMax = 256;
  static constexpr std::size_t kDiskNameMax = 200;

  // The number of a daemon, with the disk if it has named one; 0 if no profile is on.
  std::uint16_t Of(const std::string& daemon, const std::optional<std::string>& disk = {}) {
    if (EventLog::active() == nullptr) return 0;
    if (disk && !disk->empty()) {
      const std::string name = daemon + kBeforeDisk + Plain(*disk);
      // The profile may have no room for so many names.
      if (names_.size() < kPlacesMax || names_.contains(name))
        if (const std::uint16_t number = names_[name].Of(name); number != 0) return number;
    }
    return names_[daemon].Of(daemon);
  }

  // The name as people may read it in terminals and reports.
  static std::string Plain(std::string name) {
    if (name.size() > kDiskNameMax) name.resize(kDiskNameMax);
    for (char& c : name)
      if (c < ' ' || c > '~' || std::string_view("\"'<>&\\").find(c) != std::string_view::npos)
        c = '_';
    return name;
  }

 private:
  static constexpr const char* kBeforeDisk = " disk ";  // As python/ffrecord/_profile knows it.
  std::map<std::string, ProfiledName> names_;
};

}  // namespace ffrecord::net
