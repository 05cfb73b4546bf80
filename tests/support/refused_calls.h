#pragma once

#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

#include <cstddef>
#include <cstdint>
#include <vector>

namespace ffrecord::test {

// A system call that a kernel or container is made to refuse: always, or if one of the `mask` bits
// is set in the low half of argument `argument`.
struct RefusedCall {
  int number;
  int system_errno;
  std::uint32_t argument = 0;
  std::uint32_t mask = 0;
};

// From here on this process and its children get these errors. For good: do it in a child. False if
// this is itself refused. Operations inside an io_uring are not system calls and pass.
inline bool RefuseCalls(const std::vector<RefusedCall>& calls) {
  std::vector<sock_filter> program;
  const auto load = [&](std::size_t offset) {
    program.push_back(BPF_STMT(BPF_LD | BPF_W | BPF_ABS, static_cast<std::uint32_t>(offset)));
  };
  for (const RefusedCall& call : calls) {
    const auto number = static_cast<std::uint32_t>(call.number);
    const auto error = static_cast<std::uint32_t>(call.system_errno);
    load(offsetof(seccomp_data, nr));
    if (call.mask != 0) {
      program.push_back(BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, number, 0, 3));
      load(offsetof(seccomp_data, args) + call.argument * sizeof(std::uint64_t));
      program.push_back(BPF_JUMP(BPF_JMP | BPF_JSET | BPF_K, call.mask, 0, 1));
    } else {
      program.push_back(BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, number, 0, 1));
    }
    program.push_back(BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | error));
  }
  program.push_back(BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW));
  const sock_fprog filter{static_cast<unsigned short>(program.size()), program.data()};
  return ::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
         ::prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter) == 0;
}

}  // namespace ffrecord::test
