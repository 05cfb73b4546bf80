#pragma once

namespace ffrecord::test {

// Whether a forked child may make threads where its parent has some. ThreadSanitizer ends a child
// that makes one where one of the parent's had its stack.
#if defined(__SANITIZE_THREAD__)
inline constexpr bool kChildMayHaveThreads = false;
#elif defined(__has_feature)
inline constexpr bool kChildMayHaveThreads = !__has_feature(thread_sanitizer);
#else
inline constexpr bool kChildMayHaveThreads = true;
#endif

}  // namespace ffrecord::test
