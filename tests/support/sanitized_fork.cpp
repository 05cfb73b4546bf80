// Lets a test fork while other threads allocate, in programs under AddressSanitizer.
//
// A child inherits the locks of the sanitizer's allocator, thread registry and stack depot as they
// are: where a thread held one at that moment, the child waits for it for ever, at its next
// allocation or in the leak check at its exit. The C library takes its own such locks around fork;
// the runtime of clang 14 does not (that of later versions does), so it is done here.
#include <pthread.h>

namespace __lsan {
void LockThreadRegistry();
void UnlockThreadRegistry();
void LockAllocator();
void UnlockAllocator();
}  // namespace __lsan

namespace __sanitizer {
void StackDepotLockAll();
void StackDepotUnlockAll();
}  // namespace __sanitizer

namespace {

void Lock() {
  __lsan::LockThreadRegistry();
  __lsan::LockAllocator();
  __sanitizer::StackDepotLockAll();
}

void Unlock() {
  __sanitizer::StackDepotUnlockAll();
  __lsan::UnlockAllocator();
  __lsan::UnlockThreadRegistry();
}

// Registered before all others: handlers that allocate run outside of these.
__attribute__((constructor(101))) void LockAroundFork() { ::pthread_atfork(Lock, Unlock, Unlock); }

}  // namespace
