#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include <ffrecord/result.h>

#include "server/config/settings.h"

namespace ffrecord::server {

// One key of the settings file, which is also a flag: io_engine and --io-engine.
struct Setting {
  using Path = std::filesystem::path Settings::*;
  using Paths = std::vector<std::filesystem::path> Settings::*;
  using Text = std::string Settings::*;
  using Number = std::uint32_t Settings::*;

  std::string_view key;
  std::variant<Path, Paths, Text, Number> member;
  std::string_view shape;  // The form of its value: DIR, HOST:PORT.
  std::string_view help;
  std::span<const std::string_view> choices = {};  // For a text; empty: any.
  std::uint32_t min = 0;                           // For a number.
  std::uint32_t max = 0;

  bool has_many() const noexcept { return std::holds_alternative<Paths>(member); }
};

// All of them, in the order in which they are printed.
std::span<const Setting> SettingTable() noexcept;

// The setting called `key`, or null.
const Setting* FindSetting(std::string_view key) noexcept;

// Sets one. Fails with kInvalidArgument, naming the key and what is wanted, if `value` is of the
// wrong kind, not one of the choices, or out of range.
using SettingValue = std::variant<std::string, std::int64_t, std::vector<std::string>>;
Result<void> Assign(Settings& settings, const Setting& setting, const SettingValue& value);
// Assigns texts: a number may be given as text, and a list by several.
Result<void> AssignTexts(Settings& settings, const Setting& setting,
                         const std::vector<std::string>& texts);

// The value as the file would have it: 4, "auto", or ["/mnt/a", "/mnt/b"].
std::string PrintValue(const Settings& settings, const Setting& setting);

}  // namespace ffrecord::server
