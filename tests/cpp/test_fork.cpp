// Forks while other threads hold locks.
#include <sys/wait.h>
#include <unistd.h>

#include <mutex>
#include <thread>

#include "base/fork.h"
#include "check.h"

using namespace occl;

namespace {

int forks = 0;
void count_fork() { ++forks; }

/// The exit status of a child that returns what `f` returns. A child that waits forever is ended by a signal.
template <class F>
int in_child(F f) {
  const pid_t child = fork();
  if (child == 0) {
    alarm(20);
    _exit(f());
  }
  int status = 0;
  waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

}  // namespace

TEST("a handler runs once in each child, however often it is registered") {
  in_child_after_fork<count_fork>();
  in_child_after_fork<count_fork>();
  CHECK(in_child([] { return forks; }) == 1);
  CHECK(in_child([] { return in_child([] { return forks; }); }) == 2);
  CHECK(forks == 0);
}

TEST("a child can use a mutex that another thread of its parent holds") {
  static ForkMutex mutex;
  static int guarded = 0;
  std::lock_guard held(mutex);
  std::thread([] {
    const auto twice = [] {
      for (int i = 0; i < 2; ++i) {
        std::lock_guard lock(mutex);
        ++guarded;
      }
      return guarded;
    };
    const int child = in_child(twice);
    CHECK(child == 2, child);
    // Also where the child forks while it holds the lock itself.
    const int grandchild = in_child([&] {
      std::lock_guard lock(mutex);
      return in_child(twice);
    });
    CHECK(grandchild == 2, grandchild);
  }).join();
}

TEST("one thread at a time holds the mutex") {
  ForkMutex mutex;
  int guarded = 0;
  check::in_threads(4, [&](int) {
    for (int i = 0; i < 20000; ++i) {
      std::lock_guard lock(mutex);
      ++guarded;
    }
  });
  CHECK(guarded == 80000, guarded);
}
