#include "pg/observe/flight_recorder.h"

#include <c10/util/ApproximateClock.h>
#include <c10/util/thread_name.h>
#include <torch/csrc/distributed/c10d/FlightRecorder.hpp>

#include <algorithm>
#include <optional>
#include <utility>

#include "base/fork.h"
#include "base/thread.h"
#include "pg/observe/call_names.h"
#include "pg/observe/flight_format.h"

namespace occl::pg {
namespace {

/// Numbers of messages begin here. The analyser takes neighbouring entries with equal numbers for one
/// coalesced call, even if one is a collective and the other a message.
constexpr std::uint64_t kMessages = 1'000'000'000;
/// How often the watcher looks. torchrun ends the other processes about this long after one has failed.
constexpr std::chrono::milliseconds kLook{100};

ForkMutex instance_mutex;
bool asked = false;  // the environment was asked for the recorder; under the mutex

std::string profiling_name(const char* call, const Request& request, int rank, int source) {
  const coll::Transfer* message = request.transfer();
  if (!message) return concat("nccl:", call);
  return message->send ? concat("nccl:send ", rank, "->", message->peer)
                       : concat("nccl:recv ", rank, "<-", source);
}

/// Formatted once for each thread.
const std::string& thread_id() {
  thread_local const std::string id = c10::str(std::this_thread::get_id());
  return id;
}

/// Errors that say nothing about the group: it was destroyed here, or the call was wrong.
bool says_little(Errc code) {
  return code == Errc::closed || code == Errc::invalid_argument || code == Errc::not_implemented;
}

}  // namespace

// ---- the instance

FlightRecorder*& FlightRecorder::instance() {
  static FlightRecorder* made = nullptr;
  return made;
}

FlightRecorder::FlightRecorder(FlightSettings settings) : settings_(std::move(settings)) {
  entries_.reserve(settings_.entries);
}

/// A forked child has no watcher, and another thread may have held the recorder: it makes one of its own.
void FlightRecorder::forget_parent() {
  instance() = nullptr;
  asked = false;
}

FlightRecorder* FlightRecorder::get() {
  in_child_after_fork<forget_parent>();
  std::lock_guard lock(instance_mutex);
  if (!asked) {
    FlightSettings settings = FlightSettings::of_environment();
    if (settings.entries > 0) instance() = new FlightRecorder(std::move(settings));
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
  static auto* const none = new FlightRecorder(FlightSettings());
  return none->dump(false, false, false);
}

// ---- recording

std::shared_ptr<RecordedGroup> FlightRecorder::add(const std::shared_ptr<coll::Communicator>& communicator,
                                                   int global_rank) {
  auto group = std::make_shared<RecordedGroup>();
  group->communicator = communicator;
  group->collectives = communicator->sequence();
  std::lock_guard lock(mutex_);
  std::erase_if(groups_, [](const auto& known) { return known.use_count() == 1; });  // nothing refers to it
  group->id = groups_added_++;
  groups_.push_back(group);
  if (watcher_.joinable() || stop_) return group;
  global_rank_ = global_rank;
  if (!settings_.pipe.empty()) pipe_ = DumpPipe(concat(settings_.pipe, global_rank, ".pipe"));
  if (settings_.on_error || pipe_.open())
    watcher_ = start_thread<std::thread>("of the flight recorder", [this] { watch(); });
  return group;
}

RecordedCall* FlightRecorder::find(std::uint64_t id) {
  RecordedCall& entry = entries_[id % settings_.entries];
  return entry.id == id ? &entry : nullptr;  // it may have been overwritten
}

void FlightRecorder::push(RecordedCall&& entry) {
  entry.id = recorded_++;
  if (entries_.size() < settings_.entries)
    entries_.push_back(std::move(entry));
  else
    entries_[entry.id % settings_.entries] = std::move(entry);
}

std::unique_ptr<FlightRecorder::Entries> FlightRecorder::record(const std::shared_ptr<RecordedGroup>& group,
                                                                const GroupFacts& facts,
                                                                std::span<const Request> requests,
                                                                bool manager) {
  RecordedCall made;
  if (settings_.stacks)
    made.stack = torch::CapturedTraceback::gather(true, true, settings_.cpp_stacks);  // takes the GIL
  made.created = c10::getTime();
  made.thread = thread_id();
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
  made.is_message = messages;
  made.timeout = requests.front().timeout.count();

  const std::uint64_t first = recorded_;
  const auto add = [&](const char* name, const Request& request, RecordedSide in, RecordedSide out) {
    RecordedCall entry = made;
    entry.operation = ++group->operations;
    entry.any_source = request.transfer() && request.transfer()->peer == coll::Transfer::kAnyRank;
    entry.name = profiling_name(name, request, facts.rank, entry.is_message ? other_side(request, 0) : 0);
    entry.in = std::move(in);
    entry.out = std::move(out);
    push(std::move(entry));
  };
  if (manager) {
    for (const Request& request : requests) {
      RecordedSizes sizes = recorded_sizes(request);
      add(sizes.name ? sizes.name : names_of({&request, 1}).recorder, request, std::move(sizes.in),
          std::move(sizes.out));
    }
    made.operation = ++group->operations;
    made.name = "nccl:coalesced";
    push(std::move(made));
  } else {
    RecordedSizes all;
    for (const Request& request : requests) {
      RecordedSizes sizes = recorded_sizes(request);
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

void FlightRecorder::Entries::submitted(std::uint64_t number) noexcept {
  std::lock_guard lock(recorder_.mutex_);
  take(number);
}

void FlightRecorder::Entries::begin(std::uint64_t number) noexcept {
  std::lock_guard lock(recorder_.mutex_);
  take(number);
  start();
}

/// Under the recorder's mutex: an operation of the call has this number. That of the first is the call's. An
/// operation of a group that has ended has none, and is shown with the one that was its turn.
void FlightRecorder::Entries::take(std::uint64_t number) {
  const RecordedCall* const any = recorder_.find(first_);
  if (!any) return;
  const bool is_message = any->is_message;
  std::uint64_t& last = is_message ? group_->messages : group_->collectives;
  if (number == 0) number = last + 1;
  last = std::max(last, number);
  if (!is_message) group_->enqueued = static_cast<std::int64_t>(last);
  if (std::exchange(numbered_, true)) return;
  for (std::uint64_t id = first_; id < first_ + count_; ++id)
    if (RecordedCall* entry = recorder_.find(id)) {
      entry->numbered = true;
      entry->collective = is_message ? group_->collectives : number;
      entry->message = kMessages + (is_message ? number : group_->messages);
    }
}

/// Under the recorder's mutex.
void FlightRecorder::Entries::start() {
  for (std::uint64_t id = first_; id < first_ + count_; ++id)
    if (RecordedCall* entry = recorder_.find(id); entry && !entry->started) {
      entry->started = c10::getTime();
      if (!entry->is_message) group_->started = static_cast<std::int64_t>(entry->collective);
    }
}

void FlightRecorder::Entries::end(const CallEnd& end) noexcept {
  const Error* const error = end.error;
  bool write = error && recorder_.settings_.on_error && !says_little(error->code());
  {
    std::lock_guard lock(recorder_.mutex_);
    if (!error) start();  // what ends at once has begun
    for (std::uint64_t id = first_; id < first_ + count_; ++id)
      if (RecordedCall* entry = recorder_.find(id)) {
        entry->retired = true;
        if (error) continue;
        entry->completed = c10::getTime();
        if (!entry->is_message) group_->completed = static_cast<std::int64_t>(entry->collective);
        if (entry->any_source) entry->name = concat("nccl:recv ", group_->rank, "<-", end.source);
      }
    // The end of a group ends all its operations, and is written once.
    if (write && error->code() != Errc::mismatch && error->code() != Errc::peer_left)
      write = !std::exchange(group_->written, true);
  }
  if (write) recorder_.write();
}

// ---- dumps

void FlightRecorder::forget() {
  std::lock_guard lock(mutex_);
  forgotten_ = recorded_;
}

std::string FlightRecorder::dump(bool collectives, bool stacks, bool only_active) {
  FlightDump dump;
  std::vector<std::shared_ptr<RecordedGroup>> groups;
  {
    std::lock_guard lock(mutex_);
    groups = groups_;
    for (const auto& group : groups)
      if (!group->ranks.empty()) dump.add(*group);
    if (collectives) {
      const std::uint64_t kept = std::min<std::uint64_t>(recorded_ - forgotten_, settings_.entries);
      for (std::uint64_t id = recorded_ - kept; id < recorded_; ++id) {
        const RecordedCall& entry = entries_[id % settings_.entries];
        if (entry.numbered && (!only_active || !entry.completed)) dump.add(entry);
      }
    }
  }
  for (const auto& group : groups) dump.add_error(*group);
  return dump.pickled(collectives,
                      stacks && settings_.stacks);  // without the mutex: it may wait for the GIL
}

void FlightRecorder::write() noexcept try {
  std::lock_guard writing(write_mutex_);
  const std::string text = dump(true, settings_.stacks, settings_.only_active);
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
    if (settings_.on_error) look_at_groups();
    lock.lock();
  }
}

void FlightRecorder::look_at_groups() {
  std::vector<std::shared_ptr<RecordedGroup>> groups;
  {
    std::lock_guard lock(mutex_);
    groups = groups_;
  }
  bool any = false;
  for (const auto& group : groups) any |= ended_badly(*group);
  if (any) write();
}

bool FlightRecorder::ended_badly(RecordedGroup& group) {
  const auto communicator = group.communicator.lock();
  if (!communicator) return false;
  if (!communicator->error()) communicator->look();
  const auto error = communicator->error();
  if (!error || says_little(error->code())) return false;
  std::lock_guard lock(mutex_);
  return !std::exchange(group.written, true);
}

}  // namespace occl::pg
