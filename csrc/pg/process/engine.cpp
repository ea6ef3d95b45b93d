#include "pg/process/engine.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <charconv>
#include <cstdio>
#include <mutex>
#include <string_view>

#include "base/environment.h"
#include "base/error.h"
#include "base/fork.h"
#include "base/hash.h"
#include "coll/observe/tracer.h"
#include "pg/request/errors.h"
#include "shm/process.h"

namespace occl::pg {
namespace {

// The progress engine of the process is a deliberate global, as is its region table (shm/process.h).
std::atomic<coll::Engine*> the_engine = nullptr;
ForkMutex engine_mutex;
std::function<void()> the_interrupt_check = [] {};
std::function<void()> the_return_check;
PrepareInterNode the_prepare_inter_node;
std::string the_node;                // of the_engine
coll::Tracer* the_tracer = nullptr;  // under engine_mutex

void forget_parent() {
  the_engine.store(nullptr, std::memory_order_relaxed);  // one thread only: this is a child just forked
  the_tracer = nullptr;
}

/// OCCL_NODE, empty if it is not set. Throws Error(invalid_argument) for what users would not see in a text.
std::string node_from_environment() {
  const std::string node = environment::get(environment::kNode);
  const bool visible = std::all_of(node.begin(), node.end(), [](char c) { return c >= ' ' && c <= '~'; });
  if (!visible || node.size() > kLongestNode || node.starts_with(' ') || node.ends_with(' '))
    fail(Errc::invalid_argument, environment::kNode, " is \"", printable(node.c_str(), kLongestNode + 1),
         "\": set it to at most ", kLongestNode,
         " printable ASCII characters without spaces at the ends, or unset it");
  return node;
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
  stop_trace();
}

void announce_end() {
  auto* made = the_engine.load(std::memory_order_acquire);  // pairs with engine()
  if (!made) return;
  made->deliver(the_interrupt_check);
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

void set_interrupt_check(std::function<void()> check) { the_interrupt_check = std::move(check); }
const std::function<void()>& interrupt_check() { return the_interrupt_check; }

void set_return_check(std::function<void()> check) { the_return_check = std::move(check); }
const std::function<void()>& return_check() { return the_return_check; }

void set_prepare_inter_node(PrepareInterNode prepare) { the_prepare_inter_node = std::move(prepare); }
PreparedInterNode prepare_inter_node(bool one_network) { return the_prepare_inter_node(one_network); }

Tuning tuning_from_environment() {
  Tuning tuning;
  const std::string text = environment::get(environment::kTuning);
  std::string_view rest = text;
  while (!rest.empty()) {
    const std::string_view item = rest.substr(0, rest.find(','));
    rest.remove_prefix(std::min(rest.size(), item.size() + 1));
    const auto equals = item.find('=');
    std::uint64_t number = 0;
    const char* end = item.data() + item.size();
    const char* begin = equals == item.npos ? end : item.data() + equals + 1;
    const auto parsed = std::from_chars(begin, end, number);
    try {
      if (begin == end || parsed.ec != std::errc{} || parsed.ptr != end)
        fail(Errc::invalid_argument, "\"", item,
             "\" is not a name and a number of bytes, as in slot_bytes=262144");
      set(tuning, item.substr(0, equals), number);
    } catch (const Error& error) {
      fail(error.code(), environment::kTuning, "=\"", text, "\": ", error.what());
    }
  }
  return tuning;
}

}  // namespace occl::pg
