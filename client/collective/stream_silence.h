#pragma once

#include <chrono>

namespace ffrecord::client {

// The kernel's knowledge of a TCP connection's other end. Over other transports: nothing.

// Lets the kernel ask once a second whether the other end of an idle connection is there: all that
// was sent may be acknowledged, and only the word that it was taken be lost.
void ProbeWhenIdle(int fd);

// How long the other machine has been silent though it had something to acknowledge: data, or
// probes of the kernel, of which one may be under way. Else 0.
std::chrono::milliseconds SilenceOf(int fd);

// Whether something was sent that the other machine has not acknowledged, for which it may have no
// room yet.
bool HasUnacknowledged(int fd);

}  // namespace ffrecord::client
