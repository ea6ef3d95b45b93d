// The endpoint and the progress engine, which all process groups of this process share.
#pragma once

#include <cstddef>
#include <string>

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

/// OCCL_NODE, as it was when the engine was made; empty if it was not set.
const std::string& node_name();

}  // namespace occl::pg
