// What all process groups of this process share: the endpoint and the progress engine.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "coll/plan/tuning.h"
#include "coll/progress/engine.h"

namespace occl::pg {

/// Made at first use and never destroyed, because its threads may run until the process ends. A forked child
/// has none of these threads, so it makes an engine of its own.
coll::Engine& engine();
/// The same, or null while there has been no use.
coll::Engine* engine_if_made();

/// Records what this process does from now on, in a new file in `directory` (coll/observe/tracer.h), whose
/// path it returns. The engine does the same when it is made, if OCCL_TRACE names a directory; what is wrong
/// with that is printed. Throws what Tracer::make throws, and Error(invalid_argument) while a trace is
/// recorded.
inline constexpr std::size_t kTraceBytes = std::size_t{64} << 20;
std::string start_trace(const std::string& directory, std::size_t max_bytes);
/// Idempotent.
void stop_trace();

/// Ends the background threads and the trace, if there are any. Called at the interpreter's exit, because
/// such a thread can drop the last reference to a tensor, and so to a Python object.
void stop_background();
/// Waits until peers on other nodes have what this process sent, and tells peers that it is about to exit
/// cleanly, so that they do not report a death.
void announce_end();

/// Whether this process was forked after the group was made. Such a group belongs to the parent process:
/// driving it here would act on the parent's behalf.
bool is_forked_from(const coll::Communicator& group);
/// Raises DistBackendError, from Error(closed), if is_forked_from.
void check_not_forked(const coll::Communicator& group);

/// Called now and then by a waiting thread; an exception that it throws ends the wait. The Python module sets
/// it to check for Ctrl-C.
void set_interrupt_check(std::function<void()> check);
const std::function<void()>& interrupt_check();

/// Called by a thread that is about to return from Work.wait, with or without an error; null: nothing is
/// called. The Python module sets it to hold threads back once the interpreter ends.
void set_return_check(std::function<void()> check);
const std::function<void()>& return_check();

/// OCCL_NODE, as it was when the engine was made; empty if it was not set.
inline constexpr std::size_t kLongestNode = 63;
const std::string& node_name();

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
void set_prepare_inter_node(PrepareInterNode prepare);
PreparedInterNode prepare_inter_node(bool one_network);

/// The defaults, overridden by OCCL_TUNING. Throws Error(invalid_argument) for an unknown name, or what is no
/// number.
Tuning tuning_from_environment();

}  // namespace occl::pg
