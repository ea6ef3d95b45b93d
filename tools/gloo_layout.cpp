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
class Context;
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

struct Theirs : c10d::ProcessGroupGloo {
  static constexpr std::size_t options = offsetof(Theirs, options_);
  static constexpr std::size_t threads = offsetof(Options, threads);
};

struct Ours : occl::pg::BackendBase {
  static constexpr std::size_t options = offsetof(Ours, options_);
  static constexpr std::size_t threads = offsetof(GlooOptions, threads);
};

static_assert(Ours::options == Theirs::options);
static_assert(Ours::threads == Theirs::threads);
static_assert(sizeof(Ours::GlooOptions::threads) == sizeof(Theirs::Options::threads));
