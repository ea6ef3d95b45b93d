// Functions that the Python module sets, for what only an interpreter can do. A program without one sets
// those that say how nodes are connected, if its ranks are on several.
#pragma once

#include <chrono>
#include <functional>
#include <string>

#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "ucx/api.h"

namespace occl::pg {

/// Called now and then by a waiting thread; an exception that it throws ends the wait. The Python module sets
/// it to check for Ctrl-C.
void set_interrupt_check(std::function<void()> check);
const std::function<void()>& interrupt_check();

/// Called by a thread that is about to return from Work.wait, with or without an error; null: nothing is
/// called. The Python module sets it to hold threads back once the interpreter ends.
void set_return_check(std::function<void()> check);
const std::function<void()>& return_check();

/// Runs `f`, which may wait, without the interpreter's lock, whether or not the caller has it. The Python
/// module sets how.
void without_gil(const std::function<void()>& f);
void set_without_gil(std::function<void(const std::function<void()>& f)> how);

/// The backend in the wrapper that TORCH_DISTRIBUTED_DEBUG=DETAIL puts around backends; any other as it is.
/// The Python module sets how, because the wrapper's header is for builds with Gloo only.
using Unwrap = std::function<c10::intrusive_ptr<c10d::Backend>(const c10::intrusive_ptr<c10d::Backend>&)>;
c10::intrusive_ptr<c10d::Backend> unwrapped(const c10::intrusive_ptr<c10d::Backend>& backend);
void set_unwrap(Unwrap unwrap);

/// The backend that carries messages between nodes, before it is connected.
struct PreparedInterNode {
  std::string name;  // "gloo over eth0 (10.0.0.1)"
  /// For all ranks of a group, which must call it together.
  std::function<c10::intrusive_ptr<c10d::Backend>(const c10::intrusive_ptr<c10d::Store>& store, int rank,
                                                  int size, std::chrono::milliseconds timeout)>
      connect;
};
/// `one_network`: all ranks are in one network namespace, so that they can reach each other's loopback. The
/// Python module sets it, because that reads the environment as PyTorch does.
using PrepareInterNode = std::function<PreparedInterNode(bool one_network)>;
/// How this process uses UCX between nodes.
struct PreparedUcx {
  std::string name;  // "ucx over eth0 (10.0.0.1)"
  ucx::Settings settings;
};
/// `asked`: the program or the environment asks for this carrier, which else may say that another is better.
using PrepareUcx = std::function<PreparedUcx(bool one_network, bool asked)>;
void set_prepare_ucx(PrepareUcx prepare);
PreparedUcx prepare_ucx(bool one_network, bool asked);

/// Where this process listens for its peers on other nodes.
struct PreparedTcp {
  std::string name;     // "tcp over eth0 (10.0.0.1)"
  std::string address;  // "10.0.0.1"
};
using PrepareTcp = std::function<PreparedTcp(bool one_network, bool asked)>;
void set_prepare_tcp(PrepareTcp prepare);
PreparedTcp prepare_tcp(bool one_network, bool asked);

void set_prepare_inter_node(PrepareInterNode prepare);
PreparedInterNode prepare_inter_node(bool one_network);

}  // namespace occl::pg
