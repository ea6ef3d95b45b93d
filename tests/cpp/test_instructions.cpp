// Calls of two ranks that one thread makes. Callgrind counts the instructions inside `measured`
// (tests/test_instructions.py).
// modes: plain
#include <sys/eventfd.h>
#include <sys/syscall.h>

#include <array>
#include <cerrno>
#include <cstdarg>
#include <cstdint>

#include "check.h"
#include "cluster.h"

using namespace occl;
using namespace occl::test;

namespace {

constexpr int kCalls = 1000, kWarmUp = 50;

/// Both ranks call, and are driven until both calls have ended.
void run(Cluster& ranks, Call& first, Call& second) {
  ranks[0].group->submit_and_drive(first.operation);
  ranks[1].group->submit_and_drive(second.operation);
  while (!first.operation.finished() || !second.operation.finished())
    for (int r = 0; r < 2; ++r) ranks[r].group->drive(false);
}

}  // namespace

extern "C" {
#if defined(__x86_64__)
/// In place of the C library's, because Valgrind 3.19 does not know pidfd_open. These ranks watch no process.
long syscall(long number, ...) noexcept {
  if (number == SYS_pidfd_open) return eventfd(0, EFD_CLOEXEC);
  long a[6];
  va_list list;
  va_start(list, number);
  for (long& argument : a) argument = va_arg(list, long);
  va_end(list);
  register long r10 asm("r10") = a[3], r8 asm("r8") = a[4], r9 asm("r9") = a[5];
  long result;
  asm volatile("syscall"
               : "=a"(result)
               : "a"(number), "D"(a[0]), "S"(a[1]), "d"(a[2]), "r"(r10), "r"(r8), "r"(r9)
               : "rcx", "r11", "memory");
  if (result >= 0 || result < -4095) return result;
  errno = static_cast<int>(-result);
  return -1;
}
#endif

[[gnu::noinline]] void measured(Cluster& ranks, Call& first, Call& second) { run(ranks, first, second); }
}

/// Makes kWarmUp calls and, measured, another kCalls. `task` gives a rank's.
template <class Task>
void repeat(Cluster& ranks, const Task& task) {
  for (int i = 0; i < kWarmUp + kCalls; ++i) {
    Call first(task(0), Deadline::never()), second(task(1), Deadline::never());
    i < kWarmUp ? run(ranks, first, second) : measured(ranks, first, second);
    CHECK(!first.operation.error() && !second.operation.error());
  }
}

TEST("all_reduce of 8 bytes") {
  Cluster ranks(2);
  std::array<std::int64_t, 2> data{1, 2};
  repeat(ranks, [&](int rank) { return all_reduce(&data[rank], 1); });
  CHECK(data[0] == data[1]);
}

TEST("message of 8 bytes") {
  Cluster ranks(2);
  std::array<std::int64_t, 2> data{1, 2};
  const auto task = [&](int rank) {
    coll::Transfer t;
    t.send = rank == 0;
    t.peer = 1 - rank;
    t.dtype = DType::i64;
    t.buffer = {reinterpret_cast<std::byte*>(&data[rank]), 1};
    return t;
  };
  repeat(ranks, task);
  CHECK(data[1] == 1);
}
