// A test program is one source file that includes this header: TEST blocks with sentences for names, and
// CHECKs in them. Run it with a part of a name to run only the tests whose names contain that.
#pragma once

#include <cstdio>
#include <cstdlib>
#include <exception>
#include <functional>
#include <stdexcept>
#include <string_view>
#include <thread>
#include <vector>

#include "base/error.h"

namespace check {

struct Test {
  const char* name;
  void (*body)();
  Test(const char* name, void (*body)()) : name(name), body(body) { all().push_back(this); }
  static std::vector<Test*>& all() {
    static std::vector<Test*> tests;
    return tests;
  }
};

/// Ends the test, or the thread of it that `in_threads` runs.
template <class... Parts>
void that(bool holds, const char* file, int line, const char* condition, const Parts&... parts) {
  if (!holds) throw std::runtime_error(occl::concat(file, ":", line, ": ", condition, "  ", parts...));
}

/// Whether this case is left out: where OCCL_TEST_THINNED is set, every n-th stays.
inline bool thinned(int at, int n) {
  static const bool all = std::getenv("OCCL_TEST_THINNED") == nullptr;
  return !all && at % n != 0;
}

/// f(0) ... f(n - 1), each in a thread of its own; fails with the first of their failures.
inline void in_threads(int n, const std::function<void(int)>& f) {
  std::vector<std::exception_ptr> failures(static_cast<std::size_t>(n));
  std::vector<std::thread> threads;
  for (int i = 0; i < n; ++i)
    threads.emplace_back([&, i] {
      try {
        f(i);
      } catch (...) {
        failures[static_cast<std::size_t>(i)] = std::current_exception();
      }
    });
  for (auto& thread : threads) thread.join();
  for (const auto& failure : failures)
    if (failure) std::rethrow_exception(failure);
}

}  // namespace check

/// TEST("reader never sees half-written slot") { ... }
#define TEST(name) TEST_AT(name, __LINE__)
#define TEST_AT(name, line) TEST_BODY(name, line)
#define TEST_BODY(name, line)                                    \
  static void test_##line();                                     \
  static const check::Test registered_##line(name, test_##line); \
  static void test_##line()
/// CHECK(count == 3, "count ", count): the parts after the condition are written where it fails.
#define CHECK(condition, ...) \
  check::that(static_cast<bool>(condition), __FILE__, __LINE__, #condition __VA_OPT__(, ) __VA_ARGS__)

int main(int argc, char** argv) {
  int passed = 0, failed = 0;
  for (const check::Test* test : check::Test::all()) {
    if (argc > 1 && std::string_view(test->name).find(argv[1]) == std::string_view::npos) continue;
    try {
      test->body();
      ++passed;
    } catch (const std::exception& e) {
      ++failed;
      std::printf("FAILED %s: %s\n", test->name, e.what());
      std::fflush(stdout);  // a later test may crash
    }
  }
  std::printf("%d passed, %d failed\n", passed, failed);
  return failed ? 1 : 0;
}
