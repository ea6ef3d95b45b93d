// What all process groups of this process share: the endpoint and the progress engine.
#pragma once

#include <functional>
#include <memory>

#include "base/tuning.h"
#include "coll/engine.h"

namespace occl::pg {

/// Made at first use and never destroyed: its threads may run until the process ends. A forked child has
/// none of the threads, so it makes its own.
coll::Engine& engine();

/// Ends the background thread, if there is one. (At the interpreter's exit: it may drop the last reference to
/// a tensor, and so to a Python object.)
void stop_background();
/// Tells peers that this process ends in good order, and does not die.
void announce_end();

/// Was this process forked since the group was made? Then it belongs to the parent: whoever drove it here
/// would do so in the parent's place.
bool is_forked_from(const coll::Group& group);
/// Raises Error(closed) if so.
void check_not_forked(const coll::Group& group);

/// Called now and then by a waiting thread; what it throws ends the wait. The Python module sets it to look
/// for Ctrl-C.
void set_interrupt_check(std::function<void()> check);
const std::function<void()>& interrupt_check();

/// What a thread does when it is about to return from Work.wait, whether that succeeded or not.
void set_return_check(std::function<void()> check);
const std::function<void()>& return_check();

/// Defaults, changed by OCCL_TUNING. Throws Error(invalid_argument) for a name or number it does not know.
Tuning tuning_from_environment();

}  // namespace occl::pg
