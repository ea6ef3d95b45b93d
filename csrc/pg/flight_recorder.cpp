#include "pg/flight_recorder.h"

#include <c10/util/ApproximateClock.h>
#include <c10/util/thread_name.h>
#include <pthread.h>
#include <torch/csrc/distributed/c10d/FlightRecorder.hpp>

#include <algorithm>
#include <optional>
#include <utility>

#include "base/thread.h"
#include "pg/call_names.h"

namespace occl::pg {
namespace {

/// Numbers of messages begin here. The analyser takes neighbouring entries with equal numbers for one
/// coalesced call, even if one is a collective and the other a message.
constexpr std::uint64_t kMessages = 1'000'000'000;
constexpr int kDefaultEntries = 2000;  // PyTorch's
/// How often the watcher looks. torchrun ends the other processes about this long after one has failed.
constexpr std::chrono::milliseconds kLook{100};

std::mutex instance_mutex;

/// The sizes and types of a call's inputs, or outputs.
struct Side {
  std::vector<std::vector<std::int64_t>> sizes;
  std::vector<std::string> dtypes;

  void add(std::vector<std::int64_t> size, const at::Tensor& of) {
    sizes.push_back(std::move(size));
    dtypes.emplace_back(c10::toString(of.scalar_type()));
  }
  void add(const Side& other) {
    sizes.insert(sizes.end(), other.sizes.begin(), other.sizes.end());
    dtypes.insert(dtypes.end(), other.dtypes.begin(), other.dtypes.end());
  }
};

bool alike(const FewTensors& tensors) {
  return std::all_of(tensors.begin(), tensors.end(),
                     [&](const at::Tensor& t) { return t.sizes() == tensors.front().sizes(); });
}

Side each(const FewTensors& tensors) {
  Side side;
  for (const at::Tensor& t : tensors) side.add(t.sizes().vec(), t);
  return side;
}

/// A list of equal tensors as the one tensor that NCCL makes of it.
Side stacked(const FewTensors& tensors) {
  if (tensors.size() < 2) return each(tensors);
  std::vector<std::int64_t> size{static_cast<std::int64_t>(tensors.size())};
  size.insert(size.end(), tensors.front().sizes().begin(), tensors.front().sizes().end());
  Side side;
  side.add(std::move(size), tensors.front());
  return side;
}

/// All elements in one dimension.
Side joined(const FewTensors& tensors) {
  std::int64_t count = 0;
  for (const at::Tensor& t : tensors) count += t.numel();
  Side side;
  side.add({count}, tensors.front());
  return side;
}

struct Sizes {
  Side in, out;
  const char* name = nullptr;  // null: the usual one
};

/// What an entry says about sizes: in the form in which the analyser compares them between ranks.
Sizes sizes_of(const Request& request) {
  using c10d::OpType;
  const FewTensors &in = request.inputs, &out = request.outputs;
  switch (request.type) {
    case OpType::ALLGATHER:
      if (!alike(out)) return {each(out), each(out), "all_gather_v"};  // all ranks have these sizes
      return {stacked(in), stacked(out)};
    case OpType::REDUCE_SCATTER:
      if (!alike(in)) return {each(in), each(in), "reduce_scatter_v"};
      return {stacked(in), stacked(out)};
    case OpType::ALLTOALL:
      return {joined(in), joined(out)};
    default:
      return {each(in), each(out)};
  }
}

std::string profiling_name(const char* call, const Request& request, int rank, int source) {
  const coll::Transfer* message = request.transfer();
  if (!message) return concat("nccl:", call);
  return message->send ? concat("nccl:send ", rank, "->", message->peer)
                       : concat("nccl:recv ", rank, "<-", source);
}

/// "[0, 1]". PyTorch's function for this needs a library that the wheel has no symbols of.
std::string text_of(const std::vector<std::uint64_t>& ranks) {
  std::string list;
  for (const std::uint64_t rank : ranks) enlist(list, rank);
  return concat("[", list, "]");
}

c10::IValue list_of(const std::vector<std::vector<std::int64_t>>& sizes) {
  auto list = c10d::new_list();
  for (const auto& size : sizes) {
    auto inner = c10d::new_list();
    for (const std::int64_t n : size) inner.push_back(n);
    list.push_back(inner);
  }
  return list;
}

/// Errors that say nothing about the group: it was destroyed here, or the call was wrong.
bool says_little(Errc code) {
  return code == Errc::closed || code == Errc::invalid_argument || code == Errc::not_implemented;
}

}  // namespace

struct FlightRecorder::Settings {
  std::size_t entries = 0;  // 0: no recorder
  bool stacks = true, cpp_stacks = false, only_active = false, on_error = true;
  std::string pipe;  // up to the rank
};

struct FlightRecorder::Group {
  std::size_t id = 0;
  std::weak_ptr<coll::Communicator> communicator;
  // Guarded by the recorder's mutex:
  std::string name, description;
  std::vector<std::uint64_t> ranks;
  int rank = 0;
  std::uint64_t collectives = 0, messages = 0, operations = 0;  // recorded so far
  std::int64_t enqueued = -1, started = -1, completed = -1;     // the last collective
  bool written = false;                                         // the file was written for the group's end
};

struct FlightRecorder::Entry {
  std::uint64_t id = 0;
  std::shared_ptr<Group> group;
  std::uint64_t collective = 0, message = 0, operation = 0;
  std::string name;
  Side in, out;
  std::shared_ptr<torch::CapturedTraceback> stack;
  c10::time_t created = 0;
  std::optional<c10::time_t> started, completed;
  std::int64_t timeout = 0;
  bool is_message = false, any_source = false, retired = false;
  std::string thread, thread_name;
};

// ---- the instance

FlightRecorder::Settings FlightRecorder::settings() {
  using namespace c10d;
  // A file that is named asks for a recorder, too. Otherwise there is none: PyTorch's default of 2000 entries
  // would cost each call more than a small collective takes.
  const bool file =
      !getCvarString({"TORCH_FR_DUMP_TEMP_FILE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE"}, "").empty();
  Settings s;
  s.entries = static_cast<std::size_t>(std::max(
      0, getCvarInt({"TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE"}, file ? kDefaultEntries : 0)));
  s.stacks = getCvarBool(TORCH_INCLUDE_STACK_TRACE, true);
  s.cpp_stacks = getCvarBool({"TORCH_FR_CPP_STACK", "TORCH_NCCL_TRACE_CPP_STACK"}, false);
  s.only_active = getCvarBool(TORCH_INCLUDE_ONLY_ACTIVE, false);
  s.on_error = getCvarBool({"TORCH_NCCL_DUMP_ON_TIMEOUT"}, true);
  s.pipe = getCvarString({"TORCH_FR_DEBUG_INFO_PIPE_FILE", "TORCH_NCCL_DEBUG_INFO_PIPE_FILE"}, "");
  return s;
}

FlightRecorder*& FlightRecorder::instance() {
  static FlightRecorder* made = nullptr;
  return made;
}

FlightRecorder::FlightRecorder(const Settings& settings)
    : settings_(std::make_unique<const Settings>(settings)) {
  entries_.reserve(settings.entries);
}

FlightRecorder* FlightRecorder::get() {
  static bool asked = false;  // under the mutex
  static std::once_flag once;
  // A forked child has no watcher, and another thread may have held a mutex: it makes a recorder of its own.
  std::call_once(once, [] {
    pthread_atfork(nullptr, nullptr, [] {
      new (&instance_mutex) std::mutex;
      instance() = nullptr;
      asked = false;
    });
  });
  std::lock_guard lock(instance_mutex);
  if (!asked) {
    const Settings s = settings();
    if (s.entries > 0) instance() = new FlightRecorder(s);
    asked = true;
  }
  return instance();
}

void FlightRecorder::stop() {
  FlightRecorder* made = nullptr;
  {
    std::lock_guard lock(instance_mutex);
    made = instance();
  }
  if (!made) return;
  std::thread watcher;
  {
    std::lock_guard lock(made->mutex_);
    made->stop_ = true;
    watcher.swap(made->watcher_);
  }
  made->stopping_.notify_all();
  if (watcher.joinable()) watcher.join();
  made->pipe_ = {};
}

std::string FlightRecorder::dump_process(bool collectives, bool stacks, bool only_active) {
  FlightRecorder* made = nullptr;
  {
    std::lock_guard lock(instance_mutex);
    made = instance();
  }
  if (made) return made->dump(collectives, stacks, only_active);
  static auto* const none = new FlightRecorder(Settings());
  return none->dump(false, false, false);
}

// ---- recording

std::shared_ptr<FlightRecorder::Group> FlightRecorder::add(
    const std::shared_ptr<coll::Communicator>& communicator, int global_rank) {
  auto group = std::make_shared<Group>();
  group->communicator = communicator;
  group->collectives = communicator->sequence();
  std::lock_guard lock(mutex_);
  std::erase_if(groups_, [](const auto& known) { return known.use_count() == 1; });  // nothing refers to it
  group->id = groups_added_++;
  groups_.push_back(group);
  if (watcher_.joinable() || stop_) return group;
  global_rank_ = global_rank;
  if (!settings_->pipe.empty()) pipe_ = DumpPipe(concat(settings_->pipe, global_rank, ".pipe"));
  if (settings_->on_error || pipe_.open())
    watcher_ = start_thread<std::thread>("of the flight recorder", [this] { watch(); });
  return group;
}

FlightRecorder::Entry* FlightRecorder::find(std::uint64_t id) {
  Entry& entry = entries_[id % settings_->entries];
  return entry.id == id ? &entry : nullptr;  // it may have been overwritten
}

void FlightRecorder::push(Entry&& entry) {
  entry.id = recorded_++;
  if (entries_.size() < settings_->entries)
    entries_.push_back(std::move(entry));
  else
    entries_[entry.id % settings_->entries] = std::move(entry);
}

std::unique_ptr<FlightRecorder::Entries> FlightRecorder::record(const std::shared_ptr<Group>& group,
                                                                const GroupFacts& facts,
                                                                std::span<const Request> requests,
                                                                bool manager) {
  Entry made;
  if (settings_->stacks)
    made.stack = torch::CapturedTraceback::gather(true, true, settings_->cpp_stacks);  // takes the GIL
  made.created = c10::getTime();
  made.thread = c10::str(std::this_thread::get_id());
  made.thread_name = c10::getThreadName();
  made.group = group;
  const bool messages = requests.front().transfer() != nullptr;

  std::lock_guard lock(mutex_);
  if (group->ranks.empty()) {
    group->name = facts.name.empty() ? "?" : facts.name;
    group->description = facts.description.empty() ? "undefined" : facts.description;
    group->rank = facts.rank;
    group->ranks = facts.global_ranks;
    for (int rank = 0; group->ranks.size() < static_cast<std::size_t>(facts.size); ++rank)
      group->ranks.push_back(static_cast<std::uint64_t>(rank));
  }
  made.collective = group->collectives + (messages ? 0 : 1);
  made.message = kMessages + group->messages + (messages ? 1 : 0);
  made.is_message = messages;
  made.timeout = requests.front().timeout.count();
  (messages ? group->messages : group->collectives) += requests.size();
  if (!messages) group->enqueued = static_cast<std::int64_t>(group->collectives);

  const std::uint64_t first = recorded_;
  const auto add = [&](const char* name, const Request& request, Side in, Side out) {
    Entry entry = made;
    entry.operation = ++group->operations;
    entry.any_source = request.transfer() && request.transfer()->peer == coll::Transfer::kAnyRank;
    entry.name = profiling_name(name, request, facts.rank, entry.is_message ? other_side(request, 0) : 0);
    entry.in = std::move(in);
    entry.out = std::move(out);
    push(std::move(entry));
  };
  if (manager) {
    for (const Request& request : requests) {
      Sizes sizes = sizes_of(request);
      add(sizes.name ? sizes.name : names_of({&request, 1}).recorder, request, std::move(sizes.in),
          std::move(sizes.out));
    }
    made.operation = ++group->operations;
    made.name = "nccl:coalesced";
    push(std::move(made));
  } else {
    Sizes all;
    for (const Request& request : requests) {
      Sizes sizes = sizes_of(request);
      all.in.add(sizes.in);
      all.out.add(sizes.out);
      all.name = sizes.name;
    }
    const char* usual = names_of(requests).recorder;
    add(all.name && requests.size() == 1 ? all.name : usual, requests.front(), std::move(all.in),
        std::move(all.out));
  }
  return std::make_unique<Entries>(*this, group, first, recorded_ - first);
}

void FlightRecorder::Entries::begin() noexcept {
  std::lock_guard lock(recorder_.mutex_);
  for (std::uint64_t id = first_; id < first_ + count_; ++id)
    if (Entry* entry = recorder_.find(id); entry && !entry->started) {
      entry->started = c10::getTime();
      if (!entry->is_message) group_->started = static_cast<std::int64_t>(entry->collective);
    }
}

void FlightRecorder::Entries::end(const Error* error, int source) noexcept {
  if (!error) begin();  // what ends at once has begun
  bool write = error && recorder_.settings_->on_error && !says_little(error->code());
  {
    std::lock_guard lock(recorder_.mutex_);
    for (std::uint64_t id = first_; id < first_ + count_; ++id)
      if (Entry* entry = recorder_.find(id)) {
        entry->retired = true;
        if (error) continue;
        entry->completed = c10::getTime();
        if (!entry->is_message) group_->completed = static_cast<std::int64_t>(entry->collective);
        if (entry->any_source) entry->name = concat("nccl:recv ", group_->rank, "<-", source);
      }
    // The end of a group ends all its operations, and is written once.
    if (write && error->code() != Errc::mismatch && error->code() != Errc::peer_left)
      write = !std::exchange(group_->written, true);
  }
  if (write) recorder_.write();
}

// ---- dumps

std::string FlightRecorder::dump(bool collectives, bool stacks, bool only_active) {
  using namespace c10d;
  auto configs = new_dict(), statuses = new_dict();
  std::vector<Entry> entries;
  std::vector<std::tuple<std::string, std::string>> names;
  {
    std::lock_guard lock(mutex_);
    for (const auto& group : groups_) {
      if (group->ranks.empty()) continue;  // nothing was recorded
      auto config = new_dict(), status = new_dict();
      config.insert("name", group->name);
      config.insert("desc", group->description);
      config.insert("ranks", text_of(group->ranks));
      configs.insert_or_assign(group->name, config);
      status.insert("last_enqueued_collective", group->enqueued);
      status.insert("last_started_collective", group->started);
      status.insert("last_completed_collective", group->completed);
      statuses.insert(std::to_string(group->id), status);
    }
    if (collectives) {
      const std::uint64_t kept = std::min<std::uint64_t>(recorded_, settings_->entries);
      for (std::uint64_t id = recorded_ - kept; id < recorded_; ++id) {
        const Entry& entry = entries_[id % settings_->entries];
        if (only_active && entry.completed) continue;
        entries.push_back(entry);
        names.emplace_back(entry.group->name, entry.group->description);
      }
    }
  }
  auto result = new_dict();
  result.insert(version_key, version_val);
  result.insert(pg_config_key, configs);
  result.insert(comm_lib_version_key_str, "torch_occl");
  result.insert(pg_status_key, statuses);
  if (!collectives) return pickle_str(result);

  // Without the mutex: this may wait for the GIL.
  torch::SymbolizedTracebacks symbols;
  std::vector<c10::IValue> frames;
  if (stacks && settings_->stacks) {
    std::vector<torch::CapturedTraceback*> tracebacks;
    for (const Entry& entry : entries) tracebacks.push_back(entry.stack.get());
    symbols = torch::symbolize(tracebacks);
    for (const auto& frame : symbols.all_frames) {
      auto dict = new_dict();
      dict.insert(name_key, frame.funcname);
      dict.insert(filename_key, frame.filename);
      dict.insert(line_key, static_cast<std::int64_t>(frame.lineno));
      frames.emplace_back(std::move(dict));
    }
  }
  const auto time = [](const std::optional<c10::time_t>& at) {
    return at ? c10::IValue(static_cast<std::int64_t>(*at)) : c10::IValue();
  };
  auto list = new_list();
  for (std::size_t i = 0; i < entries.size(); ++i) {
    const Entry& entry = entries[i];
    auto dict = new_dict();
    if (!symbols.tracebacks.empty()) {
      auto stack = new_list();
      for (const auto frame : symbols.tracebacks[i]) stack.push_back(frames[frame]);
      dict.insert(frames_key, stack);
    }
    dict.insert(record_id_key, static_cast<std::int64_t>(entry.id));
    dict.insert(pg_id_key, static_cast<std::int64_t>(entry.group->id));
    dict.insert(pg_name_key, names[i]);
    dict.insert(thread_name_key, entry.thread_name);
    dict.insert(thread_id_key, entry.thread);
    dict.insert(collective_seq_id_key, static_cast<std::int64_t>(entry.collective));
    dict.insert(p2p_seq_id_key, static_cast<std::int64_t>(entry.message));
    dict.insert(op_id_key, static_cast<std::int64_t>(entry.operation));
    dict.insert(profiling_name_key, entry.name);
    dict.insert(time_created_key, static_cast<std::int64_t>(entry.created));
    if (entry.started && entry.completed)
      dict.insert(duration_key, static_cast<double>(*entry.completed - *entry.started) / 1e6);
    dict.insert(input_sizes_key, list_of(entry.in.sizes));
    dict.insert(input_dtypes_key, entry.in.dtypes);
    dict.insert(output_sizes_key, list_of(entry.out.sizes));
    dict.insert(output_dtypes_key, entry.out.dtypes);
    dict.insert(state_key, entry.completed ? completed_state
                           : entry.started ? started_state
                                           : scheduled_state);
    dict.insert(time_discovered_started_key, time(entry.started));
    dict.insert(time_discovered_completed_key, time(entry.completed));
    dict.insert(retired_key, entry.retired);
    dict.insert(timeout_key, entry.timeout);
    dict.insert(is_p2p_key, entry.is_message);
    list.push_back(dict);
  }
  result.insert(entries_key, list);
  return pickle_str(result);
}

void FlightRecorder::write() noexcept try {
  std::lock_guard writing(write_mutex_);
  const std::string text = dump(true, settings_->stacks, settings_->only_active);
  c10d::DebugInfoWriter::getWriter(global_rank_).write(text);
} catch (const std::exception& error) {
  TORCH_WARN("the flight recorder could not be written: ", error.what());
}

// ---- the watcher

/// A rank that is not in a call of a group does not notice that others have ended it. Its entries show what
/// it did instead, so the watcher writes them.
void FlightRecorder::watch() {
  std::unique_lock lock(mutex_);
  while (!stopping_.wait_for(lock, kLook, [this] { return stop_; })) {
    const bool asked = pipe_.asked();
    lock.unlock();
    if (asked) write();
    if (settings_->on_error) look_at_groups();
    lock.lock();
  }
}

void FlightRecorder::look_at_groups() {
  std::vector<std::shared_ptr<Group>> groups;
  {
    std::lock_guard lock(mutex_);
    groups = groups_;
  }
  bool any = false;
  for (const auto& group : groups) any |= ended_badly(*group);
  if (any) write();
}

bool FlightRecorder::ended_badly(Group& group) {
  const auto communicator = group.communicator.lock();
  if (!communicator) return false;
  if (!communicator->error()) communicator->look();
  const auto error = communicator->error();
  if (!error || says_little(error->code())) return false;
  std::lock_guard lock(mutex_);
  return !std::exchange(group.written, true);
}

}  // namespace occl::pg
