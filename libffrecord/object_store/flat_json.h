#pragma once

#include <map>
#include <optional>
#include <string>
#include <string_view>

namespace ffrecord::object_store {

// The members of a JSON object whose values are strings, as the services that give credentials
// answer; values of other kinds are skipped. Nothing if the text is not one object.
std::optional<std::map<std::string, std::string>> StringsOfJson(std::string_view text);

}  // namespace ffrecord::object_store
