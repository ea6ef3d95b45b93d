#include "device/runtime/device.h"

#include <ATen/Parallel.h>
#include <c10/core/AutogradState.h>
#include <c10/util/Exception.h>

#include <atomic>
#include <cstdlib>
#include <fstream>
#include <string>

#include "base/environment.h"
#include "base/fork.h"

namespace occl::device {
namespace {

thread_local c10::DeviceIndex t_current = 0;
// relaxed everywhere: set by the first use, before that use hands anything to another thread; and in a forked
// child, which has one thread.
std::atomic<bool> g_used{false};
std::atomic<bool> g_bad_fork{false};

c10::DeviceIndex count_from_environment() {
  const std::string text = environment::get(environment::kDeviceCount);
  if (text.empty()) return 8;
  char* end = nullptr;
  const long n = std::strtol(text.c_str(), &end, 10);
  TORCH_CHECK_VALUE(!*end && n >= 1 && n <= kMaxDevices, environment::kDeviceCount,
                    " must be a number from 1 to ", static_cast<int>(kMaxDevices), ", not \"", text, "\"");
  return static_cast<c10::DeviceIndex>(n);
}

/// Whether this process was forked and has not begun another program since. False if /proc does not say.
bool is_forked() {
  std::ifstream file("/proc/self/stat");
  std::string text;
  std::getline(file, text);
  std::size_t at = text.rfind(')');  // the end of the name, which can contain anything
  for (int field = 3; field <= 9 && at != text.npos; ++field) at = text.find(' ', at + 1);
  constexpr unsigned long kForkedWithoutExec = 0x40;  // PF_FORKNOEXEC in the kernel's flags
  return at != text.npos && (std::strtoul(text.c_str() + at, nullptr, 10) & kForkedWithoutExec) != 0;
}

/// PyTorch drops the thread pool of the parent at the first use in a forked child, without a lock. Autograd's
/// threads for the devices would be the first, all at once ("Invalid thread pool!"), so this thread is.
void make_thread_pool_anew() { at::set_num_threads(at::get_num_threads()); }

void note_fork() {
  if (g_used.load(std::memory_order_relaxed)) g_bad_fork.store(true, std::memory_order_relaxed);
}

}  // namespace

c10::DeviceIndex count() {
  static const c10::DeviceIndex n = count_from_environment();
  return n;
}

c10::DeviceIndex current() { return t_current; }

bool exists(int index) { return index >= 0 && index < count(); }

c10::DeviceIndex resolve(int index) {
  if (index == -1) return t_current;
  TORCH_CHECK(exists(index), "invalid device index ", index, ": there are ", static_cast<int>(count()),
              " devices, dev:0 to dev:", static_cast<int>(count()) - 1, " (OCCL_DEVICE_COUNT changes that)");
  return static_cast<c10::DeviceIndex>(index);
}

void set_current(int index) { t_current = resolve(index); }

c10::DeviceIndex exchange_current(int index) {
  const auto previous = t_current;
  set_current(index);
  return previous;
}

bool in_bad_fork() { return g_bad_fork.load(std::memory_order_relaxed); }

void check_fork() {
  TORCH_CHECK(
      !in_bad_fork(),
      "Cannot re-initialize dev in forked subprocess. To use dev with multiprocessing, you must use the "
      "'spawn' start method");
}

bool used() { return g_used.load(std::memory_order_relaxed); }

void mark_used() {
  check_fork();
  if (used()) return;
  in_child_after_fork<note_fork>();
  // dev computes on the cores of the calling thread: in autograd's own thread for a device, the backward pass
  // would have a second team of OpenMP threads, and both teams would share the cores.
  c10::AutogradState::get_tls_state().set_multithreading_enabled(false);
  if (is_forked()) make_thread_pool_anew();
  g_used.store(true, std::memory_order_relaxed);
}

}  // namespace occl::device
