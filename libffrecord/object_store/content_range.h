#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include <ffrecord/result.h>

#include "libffrecord/net/http/http.h"
#include "libffrecord/object_store/object_store.h"

namespace ffrecord::object_store {

// The version that a response is about. The size is that of the whole object; of a response that
// names none, 0.
ObjectVersion VersionIn(const net::HttpResponse& response);

// Whether a response to the first byte of an object says that the object has none.
bool IsEmptyObject(const net::HttpResponse& response);

// Checks a 2xx response to a request for `size_bytes` at `offset_bytes` of `version` (null: of
// any): kInvalidArgument if the server knows no ranges or encodes the content, kConflict if it is
// another version's, or names none although this one has a name. Nothing if it is right, its body
// apart.
std::optional<Error> ComplaintAbout(const net::HttpResponse& response, std::uint64_t offset_bytes,
                                    std::uint64_t size_bytes, const ObjectVersion* version,
                                    const std::string& described);

// The error for a response of 412 or 416 to a request for a version.
Error IsAnother(const std::string& described, const net::HttpResponse& response);

}  // namespace ffrecord::object_store
