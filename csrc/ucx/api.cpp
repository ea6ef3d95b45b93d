#include "ucx/api.h"

#include <dlfcn.h>

#include <array>
#include <csignal>
#include <memory>
#include <type_traits>

#include "base/error.h"
#include "base/fork.h"

namespace occl::ucx {
namespace {

// The library of the process is a deliberate global, as the library itself is.
std::unique_ptr<Api> the_api;
ForkMutex api_mutex;

/// UCX's initializers take these signals over, unless the environment says otherwise. They come back at once.
class KeptSignals {
 public:
  KeptSignals() {
    for (std::size_t i = 0; i < kSignals.size(); ++i) sigaction(kSignals[i], nullptr, &before_[i]);
  }
  ~KeptSignals() {
    for (std::size_t i = 0; i < kSignals.size(); ++i) sigaction(kSignals[i], &before_[i], nullptr);
  }
  KeptSignals(const KeptSignals&) = delete;
  KeptSignals& operator=(const KeptSignals&) = delete;

 private:
  static constexpr std::array kSignals{SIGILL, SIGSEGV, SIGBUS, SIGFPE, SIGHUP, SIGUSR1, SIGUSR2, SIGALRM};
  std::array<struct sigaction, kSignals.size()> before_{};
};

void* open_library(const Settings& settings) {
  const KeptSignals kept;
  std::string why;
  for (const std::string& name : settings.libraries) {
    if (void* library = dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL)) return library;
    why = dlerror();
  }
  fail(
      Errc::system, "UCX cannot be opened (", why, "): install version ", abi::kLeastMajor, ".",
      abi::kLeastMinor,
      " or later (pip install libucx-cu12; Debian: libucx0), or use TCP between nodes (OCCL_INTER_NODE=tcp)");
}

}  // namespace

const Api& api(const Settings& settings) {
  std::lock_guard lock(api_mutex);
  if (the_api) return *the_api;
  void* library = open_library(settings);
  auto made = std::make_unique<Api>();
  abi::for_each_function(static_cast<abi::Functions&>(*made), [&](auto& function, const char* name) {
    function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(dlsym(library, name));
    if (!function) fail(Errc::system, "UCX's library has no function ", name, ": install another version");
  });
  unsigned major = 0, minor = 0, release = 0;
  made->get_version(&major, &minor, &release);
  made->version = concat(major, ".", minor, ".", release);
  made->name = "UCX " + made->version;
  if (major != abi::kLeastMajor || minor < abi::kLeastMinor)
    fail(Errc::system, "UCX ", made->version, " cannot be used: install version ", abi::kLeastMajor, ".",
         abi::kLeastMinor, " or later, below ", abi::kLeastMajor + 1, ".0");
  for (const auto& [name, value] : settings.process) made->set_global(name.c_str(), value.c_str());
  the_api = std::move(made);
  return *the_api;
}

}  // namespace occl::ucx
