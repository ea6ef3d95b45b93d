// The base class of a window: c10d::Window where PyTorch has it, else the same interface.
#pragma once

#include <torch/csrc/distributed/c10d/Backend.hpp>

#ifdef C10D_BACKEND_HAS_WINDOW
#include <torch/csrc/distributed/c10d/Window.hpp>
#else
#define OCCL_OWN_WINDOW  // the classes below, which Python does not know
#include <ATen/core/Tensor.h>

#include <chrono>
#include <cstdint>
#include <string>
#include <unordered_map>
#endif

namespace occl::pg {

#ifdef C10D_BACKEND_HAS_WINDOW
using WindowBase = c10d::Window;
using c10d::PutOptions;
using c10d::SignalOptions;
using c10d::WaitSignalOptions;
using c10d::WindowAccessType;
using c10d::WindowAttr;
#else  // remove with 2.13
struct PutOptions {
  std::chrono::milliseconds timeout = c10d::kUnsetTimeout;
  std::unordered_map<std::string, std::string> hints;
};
struct SignalOptions : PutOptions {};
struct WaitSignalOptions : PutOptions {};

enum class WindowAccessType : std::uint8_t { UNIFIED, SEPARATE };
struct WindowAttr {
  WindowAccessType access_type = WindowAccessType::UNIFIED;
};

class WindowBase : public torch::CustomClassHolder {
 public:
  using WorkPtr = c10::intrusive_ptr<c10d::Work>;

  virtual void tensor_register(const at::Tensor& tensor, bool owning) = 0;
  virtual void tensor_deregister() = 0;
  virtual WorkPtr put(const at::Tensor& tensor, std::int64_t rank, std::int64_t offset, bool async,
                      const PutOptions& opts) = 0;
  virtual at::Tensor map_remote_tensor(std::int64_t rank) = 0;
  virtual WorkPtr signal(std::int64_t rank, bool async, const SignalOptions& opts) = 0;
  virtual WorkPtr wait_signal(std::int64_t rank, bool async, const WaitSignalOptions& opts) = 0;
  virtual WindowAttr get_attr(std::int64_t rank) = 0;
};
#endif

}  // namespace occl::pg
