#include "pg/process/engine.h"

#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <mutex>
#include <utility>

#include "base/environment.h"
#include "base/error.h"
#include "base/fork.h"
#include "base/hash.h"
#include "coll/observe/tracer.h"
#include "pg/process/environment.h"
#include "pg/process/python_hooks.h"
#include "pg/request/errors.h"
#include "shm/process.h"
#include "ucx/caretaker.h"

namespace occl::pg {
namespace {

// The progress engine of the process is a deliberate global, as is its region table (shm/process.h).
std::atomic<coll::Engine*> the_engine = nullptr;
ForkMutex engine_mutex;
std::string the_node;                // of the_engine
coll::Tracer* the_tracer = nullptr;  // under engine_mutex

void forget_parent() {
  the_engine.store(nullptr, std::memory_order_relaxed);  // one thread only: this is a child just forked
  the_tracer = nullptr;
}

void start_tracer(coll::Engine& engine, const std::string& directory, std::size_t max_bytes) {
  the_tracer = &coll::Tracer::make(directory, max_bytes);
  engine.set_recorder(the_tracer);
}

void trace_as_environment_says(coll::Engine& engine) {
  const std::string directory = environment::get(environment::kTrace);
  if (directory.empty()) return;
  try {
    start_tracer(engine, directory, kTraceBytes);
  } catch (const Error& error) {
    std::fprintf(stderr, "torch_occl: pid %d records no trace (%s): %s\n", getpid(), environment::kTrace,
                 error.what());
  }
}

}  // namespace

coll::Engine& engine() {
  if (auto* made = the_engine.load(std::memory_order_acquire)) return *made;  // pairs with the release below
  std::lock_guard lock(engine_mutex);
  if (auto* made = the_engine.load(std::memory_order_relaxed)) return *made;  // the lock orders it
  in_child_after_fork<forget_parent>();
  shm::Endpoint::Config config;
  the_node = node_from_environment();
  config.node = static_cast<std::uint32_t>(hash_of(the_node));
  auto* made = new coll::Engine(std::make_shared<shm::Endpoint>(shm::process_regions(), config));
  trace_as_environment_says(*made);
  the_engine.store(made, std::memory_order_release);
  return *made;
}

std::string start_trace(const std::string& directory, std::size_t max_bytes) {
  coll::Engine& now = engine();
  std::lock_guard lock(engine_mutex);
  if (the_tracer)
    fail(Errc::invalid_argument, "this process records a trace already, in ", the_tracer->path(),
         ": end that one first");
  start_tracer(now, directory, max_bytes);
  return the_tracer->path();
}

void stop_trace() {
  std::lock_guard lock(engine_mutex);
  if (!the_tracer) return;
  the_engine.load(std::memory_order_relaxed)->set_recorder(nullptr);  // the lock orders it
  std::exchange(the_tracer, nullptr)->close();
}

coll::Engine* engine_if_made() { return the_engine.load(std::memory_order_acquire); }  // pairs with engine()

const std::string& node_name() { return the_node; }

void stop_background() {
  if (auto* made = the_engine.load(std::memory_order_acquire))
    made->stop_background();  // pairs with engine()
  ucx::Caretaker::stop_all();
  stop_trace();
}

void announce_end() {
  auto* made = the_engine.load(std::memory_order_acquire);  // pairs with engine()
  if (!made) return;
  made->deliver(interrupt_check());
  made->endpoint()->announce_end();
}

bool is_forked_from(const coll::Communicator& group) {
  return the_engine.load(std::memory_order_relaxed) != &group.engine();  // changes only in a new process
}

void check_not_forked(const coll::Communicator& group) {
  if (is_forked_from(group))
    raise(Error(Errc::closed,
                concat("group ", group.name(), " of rank ", group.rank(),
                       " was created before this process was forked, and belongs to the parent: create "
                       "process groups in the process that uses them, or start it with 'spawn'")));
}

}  // namespace occl::pg
