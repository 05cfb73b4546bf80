#pragma once

#include <functional>
#include <string>
#include <string_view>

namespace ffrecord::object_store {

// As much XML as a store's answers need: elements by name, no attributes, one level at a time.

// Calls `take` with the content of each element called `name` in `text`, in order. Elements of that
// name do not contain each other.
void ForEachElement(std::string_view text, std::string_view name,
                    const std::function<void(std::string_view)>& take);

// The text of the first element called `name`, its entities replaced; empty if there is none.
std::string TextOfElement(std::string_view text, std::string_view name);

// Whether `text` is a document whose root is called `name`, to its end: neither a page of something
// else nor the beginning of a document.
bool IsDocument(std::string_view text, std::string_view name);

std::string EscapeXml(std::string_view text);

}  // namespace ffrecord::object_store
