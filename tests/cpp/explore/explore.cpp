#include "explore/explore.h"

#include <sched.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <memory>
#include <random>
#include <semaphore>
#include <unordered_map>

namespace explore {
namespace {

/// By atomic: the index of a value in its history.
using View = std::vector<std::uint32_t>;

std::uint32_t at(const View& view, std::uint32_t id) { return id < view.size() ? view[id] : 0; }
void raise(View& view, std::uint32_t id, std::uint32_t index) {
  if (id >= view.size()) view.resize(id + 1);
  view[id] = std::max(view[id], index);
}
void join(View& view, const View& other) {
  for (std::uint32_t id = 0; id < other.size(); ++id) raise(view, id, other[id]);
}
bool acquires(std::memory_order o) {
  return o != std::memory_order_relaxed && o != std::memory_order_release;
}
bool releases(std::memory_order o) {
  return o == std::memory_order_release || o == std::memory_order_acq_rel || o == std::memory_order_seq_cst;
}

struct Value {
  std::uint64_t word = 0;
  View handed;  // the view that a thread that acquires this value takes over
};
struct History {
  std::deque<Value> values;
  std::uint32_t first = 0;    // index of values[0]
  std::uint32_t seq_cst = 0;  // no seq_cst load sees an older one
  std::uint32_t newest() const { return first + static_cast<std::uint32_t>(values.size()) - 1; }
};
struct PlainState {  // counted by view entries of their own
  std::uint32_t write_id = 0, writes = 0;
  std::vector<std::uint32_t> read_ids, reads;  // by thread
};

/// Where choices come from. The first option is always the usual one: to go on, to see the newest value.
class Choices {
 public:
  virtual ~Choices() = default;
  virtual std::size_t thread(
      std::size_t options) = 0;  // of those that could run instead of the current one, + 1
  virtual std::size_t successor(std::size_t options) = 0;  // of a thread that cannot go on
  virtual std::size_t value(std::size_t options) = 0;
};

class Exhaustive : public Choices {
 public:
  explicit Exhaustive(Options options) : left_(options), options_(options) {}
  std::size_t thread(std::size_t options) override {
    if (left_.preemptions == 0) return 0;
    const std::size_t choice = successor(options);
    left_.preemptions -= choice != 0;
    return choice;
  }
  std::size_t successor(std::size_t options) override {
    if (options < 2) return 0;
    if (depth_ == path_.size()) path_.emplace_back(0, options);
    return path_[depth_++].first;
  }
  std::size_t value(std::size_t options) override {
    if (left_.old_values == 0) return 0;
    const std::size_t choice = successor(options);
    left_.old_values -= choice != 0;
    return choice;
  }
  bool next() {
    depth_ = 0, left_ = options_;
    while (!path_.empty() && ++path_.back().first == path_.back().second) path_.pop_back();
    return !path_.empty();
  }

 private:
  Options left_;
  const Options options_;
  std::vector<std::pair<std::size_t, std::size_t>> path_;
  std::size_t depth_ = 0;
};

/// In some runs threads change seldom: then one goes far while another stands still in a bad place. In some,
/// old values are seen often: a store that is on its way stays there for many loads.
class Random : public Choices {
 public:
  explicit Random(std::uint64_t seed) : random_(seed), stay_(4 << 2 * (seed % 3)), fresh_(seed % 2 ? 4 : 1) {}
  std::size_t thread(std::size_t options) override { return random_() % stay_ ? 0 : successor(options); }
  std::size_t successor(std::size_t options) override { return options < 2 ? 0 : random_() % options; }
  std::size_t value(std::size_t options) override { return random_() % fresh_ ? 0 : successor(options); }

 private:
  std::mt19937_64 random_;
  const unsigned stay_, fresh_;  // one time in so many it is otherwise
};

struct Task {
  std::function<void()> body;
  std::thread thread;
  std::binary_semaphore go{0};
  View view;
  const void* blocked = nullptr;
  bool timed = false, finished = false;
};

struct Run {
  Choices& choices;
  std::vector<std::unique_ptr<Task>> tasks;
  std::unordered_map<const void*, std::uint32_t> ids;
  std::unordered_map<std::uint32_t, History> histories;
  std::unordered_map<const void*, PlainState> plains;
  std::unordered_map<const void*, View> mutexes;
  std::uint32_t next_id = 0;
  long steps = 0, in_a_row = 0;
  std::string failure;
  std::binary_semaphore over{0};
};

Run* run = nullptr;
thread_local int self = -1;

[[noreturn]] void die(const char* why) {
  std::printf("explore: %s%s%s\n", why, run->failure.empty() ? "" : " after: ", run->failure.c_str());
  for (std::size_t i = 0; i < run->tasks.size(); ++i)
    std::printf("  thread %zu %s\n", i,
                run->tasks[i]->finished  ? "has ended"
                : run->tasks[i]->blocked ? "is blocked"
                                         : "runs");
  std::fflush(stdout);
  std::_Exit(1);
}

void note_failure(const std::string& what) {
  if (run->failure.empty()) run->failure = what;
}

Task& me() { return *run->tasks[self]; }

void hand_to(int next) {
  if (next == self) return;
  Task& mine = me();
  const bool finished = mine.finished;
  run->tasks[next]->go.release();  // from here on the list of tasks belongs to the next thread
  if (!finished) mine.go.acquire();
}

std::vector<int> runnable() {
  std::vector<int> list;
  for (std::size_t i = 0; i < run->tasks.size(); ++i)
    if (!run->tasks[i]->blocked && !run->tasks[i]->finished) list.push_back(static_cast<int>(i));
  return list;
}

/// This thread cannot go on: another one must.
void leave() {
  auto others = runnable();
  if (others.empty()) {
    for (const auto& task : run->tasks) {
      if (task->finished || !task->timed) continue;
      note_failure("a sleeper missed its wake-up");
      task->blocked = nullptr, task->timed = false;
    }
    others = runnable();
    if (others.empty()) {
      const bool all =
          std::all_of(run->tasks.begin(), run->tasks.end(), [](const auto& t) { return t->finished; });
      if (!all) die("deadlock");
      return run->over.release();
    }
  }
  hand_to(others[run->choices.successor(others.size())]);
}

void wake_blocked(const void* what, bool all) {
  for (const auto& task : run->tasks) {
    if (task->blocked != what) continue;
    task->blocked = nullptr, task->timed = false;
    if (!all) return;
  }
}

std::uint32_t id_of(const void* object, std::uint64_t value) {
  const auto [it, is_new] = run->ids.try_emplace(object, run->next_id);
  if (is_new) run->histories[run->next_id++].values.push_back({value, {}});
  return it->second;
}

void append(std::uint32_t id, std::uint64_t word, std::memory_order order, const View& inherited) {
  History& h = run->histories[id];
  h.values.push_back({word, inherited});
  raise(me().view, id, h.newest());
  if (releases(order)) join(h.values.back().handed, me().view);
  if (order == std::memory_order_seq_cst) h.seq_cst = h.newest();
  if (h.values.size() > 6) h.values.pop_front(), ++h.first;  // no thread is so far behind
}

/// The task is given beside its number because the list of tasks may grow before it runs.
void run_task(int id, Task& task) {
  self = id;
  task.go.acquire();
  try {
    task.body();
  } catch (const std::exception& error) {
    note_failure(error.what());
  }
  task.finished = true;
  wake_blocked(&task, true);
  leave();
}

std::string one_run(const std::function<void()>& body, Choices& choices, long& steps) {
  // With one processor a hand-over is quickest, and ranks know that they share it.
  static const bool pinned = [] {
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(sched_getcpu(), &set);
    return sched_setaffinity(0, sizeof(set), &set) == 0;
  }();
  static_cast<void>(pinned);
  Run here{.choices = choices};
  run = &here;
  here.tasks.push_back(std::make_unique<Task>());
  here.tasks[0]->body = body;
  here.tasks[0]->thread = std::thread(run_task, 0, std::ref(*here.tasks[0]));
  here.tasks[0]->go.release();
  here.over.acquire();
  for (const auto& task : here.tasks) task->thread.join();
  run = nullptr;
  steps += here.steps;
  return here.failure;
}

}  // namespace

namespace detail {

bool managed() { return self >= 0; }

void yield_point() {
  if (++run->steps > 2'000'000) die("this run does not come to an end");
  const auto all = runnable();
  std::vector<int> order{self};
  for (const int i : all)
    if (i != self) order.push_back(i);
  // A thread that goes on and on may be waiting for another thread without sleeping.
  const bool spins = ++run->in_a_row > 1000 && order.size() > 1;
  const int next =
      spins ? order[1 + run->steps % (order.size() - 1)] : order[run->choices.thread(order.size())];
  if (next != self) run->in_a_row = 0;
  hand_to(next);
}

void created(const void* object, std::uint64_t value) {
  run->ids.erase(object);  // an older one lay here
  id_of(object, value);
}

std::uint64_t load(const void* object, std::uint64_t now, std::memory_order order) {
  yield_point();
  const std::uint32_t id = id_of(object, now);
  History& h = run->histories[id];
  std::uint32_t oldest = std::max(at(me().view, id), h.first);
  if (order == std::memory_order_seq_cst) oldest = std::max(oldest, h.seq_cst);
  const auto index = h.newest() - static_cast<std::uint32_t>(run->choices.value(h.newest() - oldest + 1));
  const Value& seen = h.values[index - h.first];
  raise(me().view, id, index);
  if (acquires(order)) join(me().view, seen.handed);
  if (order == std::memory_order_seq_cst) h.seq_cst = std::max(h.seq_cst, index);
  return seen.word;
}

void store(const void* object, std::uint64_t before, std::uint64_t value, std::memory_order order) {
  yield_point();
  append(id_of(object, before), value, order, {});
}

void update(const void* object, std::uint64_t before, std::memory_order order) {
  yield_point();
  const std::uint32_t id = id_of(object, before);
  const History& h = run->histories[id];
  raise(me().view, id, h.newest());
  if (acquires(order)) join(me().view, h.values.back().handed);
}

void updated(const void* object, std::uint64_t value, std::memory_order order) {
  const std::uint32_t id = run->ids.at(object);
  append(id, value, order, View(run->histories[id].values.back().handed));  // a release sequence goes on
}

void block_on(const void* what, bool timed) {
  me().blocked = what, me().timed = timed;
  leave();
}

void wake(const void* what, bool all) {
  if (!managed()) return;
  yield_point();
  wake_blocked(what, all);
}

void read_plain(const void* object) {
  if (!managed()) return;
  PlainState& plain = run->plains[object];
  if (!plain.write_id) plain.write_id = ++run->next_id, ++run->next_id;
  if (at(me().view, plain.write_id) != plain.writes) note_failure("data race: a read beside a write");
  while (plain.reads.size() <= static_cast<std::size_t>(self))
    plain.reads.push_back(0), plain.read_ids.push_back(run->next_id++);
  raise(me().view, plain.read_ids[self], ++plain.reads[self]);
}

void write_plain(const void* object) {
  if (!managed()) return;
  PlainState& plain = run->plains[object];
  if (!plain.write_id) plain.write_id = ++run->next_id, ++run->next_id;
  bool ordered = at(me().view, plain.write_id) == plain.writes;
  for (std::size_t i = 0; i < plain.reads.size(); ++i)
    ordered &= at(me().view, plain.read_ids[i]) == plain.reads[i];
  if (!ordered) note_failure("data race: a write beside a read or write");
  raise(me().view, plain.write_id, ++plain.writes);
}

int start_thread(std::function<void()> body) {
  if (!managed()) std::abort();
  const int id = static_cast<int>(run->tasks.size());
  Task& task = *run->tasks.emplace_back(std::make_unique<Task>());
  task.body = std::move(body);
  task.view = me().view;
  task.thread = std::thread(run_task, id, std::ref(task));
  return id;
}

void join_thread(int thread) {
  Task& task = *run->tasks[thread];
  while (!task.finished) block_on(&task, false);
  join(me().view, task.view);
}

}  // namespace detail

void Mutex::lock() {
  if (!detail::managed()) return real_.lock();
  detail::yield_point();
  while (locked_) detail::block_on(this, false);
  locked_ = true;
  join(me().view, run->mutexes[this]);
}

bool Mutex::try_lock() {
  if (!detail::managed()) return real_.try_lock();
  detail::yield_point();
  if (locked_) return false;
  locked_ = true;
  join(me().view, run->mutexes[this]);
  return true;
}

void Mutex::unlock() {
  if (!detail::managed()) return real_.unlock();
  run->mutexes[this] = me().view;
  locked_ = false;
  wake_blocked(this, true);  // not a place to switch: Condition::wait depends on it
}

void SpinLock::lock() {
  while (locked_.exchange(true, std::memory_order_acquire))
    detail::managed() ? detail::block_on(this, false) : std::this_thread::yield();
}

bool SpinLock::try_lock() {
  return !locked_.load(std::memory_order_seq_cst) && !locked_.exchange(true, std::memory_order_acquire);
}

void SpinLock::unlock() {
  locked_.store(false, std::memory_order_release);
  if (detail::managed()) wake_blocked(this, true);
}

/// Seq_cst loads that follow see nothing older than what this thread has seen or stored.
void fence() {
  if (!detail::managed()) return std::atomic_thread_fence(std::memory_order_seq_cst);
  detail::yield_point();
  for (auto& [id, history] : run->histories) history.seq_cst = std::max(history.seq_cst, at(me().view, id));
}

Result exhaust(const std::function<void()>& body, Options options) {
  Result result;
  Exhaustive choices(options);
  do {
    result.failure = one_run(body, choices, result.steps);
    if (!result.failure.empty()) result.failure += ", in run " + std::to_string(result.runs);
    if (++result.runs >= options.most_runs)
      result.failure = "there are more runs than " + std::to_string(result.runs);
  } while (result.failure.empty() && choices.next());
  return result;
}

Result sample(const std::function<void()>& body, long runs, std::uint64_t seed) {
  Result result;
  for (; result.runs < runs && result.failure.empty(); ++result.runs) {
    Random choices(seed + result.runs);
    result.failure = one_run(body, choices, result.steps);
    if (!result.failure.empty()) result.failure += ", with seed " + std::to_string(seed + result.runs);
  }
  return result;
}

}  // namespace explore
