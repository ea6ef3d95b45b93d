// Compares the layout of the stand-in for Gloo with that of c10d::ProcessGroupGloo, at compile time.
//
// PyTorch's header needs those of Gloo, which do not come with PyTorch. tools/headers.py has empty ones in
// their place, and what the class names is declared here.
#define USE_C10D_GLOO

#include <chrono>
#include <cstddef>
#include <memory>
#include <string>
#include <vector>

namespace gloo {
struct Context {
  void setTimeout(std::chrono::milliseconds);
};
namespace transport {
class Device;
class UnboundBuffer {};
}  // namespace transport
namespace rendezvous {
struct Store {
  virtual ~Store() = default;
  virtual void set(const std::string&, const std::vector<char>&) = 0;
  virtual std::vector<char> get(const std::string&) = 0;
  virtual void wait(const std::vector<std::string>&) = 0;
  virtual void wait(const std::vector<std::string>&, const std::chrono::milliseconds&) = 0;
};
}  // namespace rendezvous
}  // namespace gloo

#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>

#include "pg/compat/backend_base.h"

#pragma GCC diagnostic ignored "-Winvalid-offsetof"

struct Layout {
  std::size_t options, threads, size_of_threads;
  bool operator==(const Layout&) const = default;
};

struct Theirs : c10d::ProcessGroupGloo {
  static constexpr Layout layout() {
    return {offsetof(Theirs, options_), offsetof(Options, threads), sizeof(Options::threads)};
  }
};

struct Ours : occl::pg::BackendBase {
  static constexpr Layout layout() {
    return {offsetof(Ours, options_), offsetof(GlooOptions, threads), sizeof(GlooOptions::threads)};
  }
};

static_assert(Ours::layout() == Theirs::layout());
