#include "pg/observe/flight_format.h"

#include <torch/csrc/distributed/c10d/FlightRecorder.hpp>

#include "base/error.h"

namespace occl::pg {
namespace {

using namespace c10d;

/// "[0, 1]". PyTorch's function for this needs a library that the wheel has no symbols of.
std::string text_of(const std::vector<std::uint64_t>& ranks) {
  std::string list;
  for (const std::uint64_t rank : ranks) enlist(list, rank);
  return concat("[", list, "]");
}

c10::IValue list_of(const std::vector<std::vector<std::int64_t>>& sizes) {
  auto list = new_list();
  for (const auto& size : sizes) {
    auto inner = new_list();
    for (const std::int64_t n : size) inner.push_back(n);
    list.push_back(inner);
  }
  return list;
}

c10::IValue time_of(const std::optional<c10::time_t>& at) {
  return at ? c10::IValue(static_cast<std::int64_t>(*at)) : c10::IValue();
}

}  // namespace

FlightDump::FlightDump() : configs_(new_dict()), statuses_(new_dict()) {}

void FlightDump::add(const RecordedGroup& group) {
  auto config = new_dict(), status = new_dict();
  config.insert("name", group.name);
  config.insert("desc", group.description);
  config.insert("ranks", text_of(group.ranks));
  configs_.insert_or_assign(group.name, config);
  status.insert("last_enqueued_collective", group.enqueued);
  status.insert("last_started_collective", group.started);
  status.insert("last_completed_collective", group.completed);
  statuses_.insert(std::to_string(group.id), status);
}

void FlightDump::add_error(const RecordedGroup& group) {
  const auto communicator = group.communicator.lock();
  const auto error = communicator ? communicator->error() : std::nullopt;
  const auto status = statuses_.find(std::to_string(group.id));
  if (error && status != statuses_.end()) status->value().toGenericDict().insert("error", error->what());
}

void FlightDump::add(const RecordedCall& call) {
  calls_.push_back(call);
  names_.emplace_back(call.group->name, call.group->description);
}

std::string FlightDump::pickled(bool calls, bool stacks) const {
  auto result = new_dict();
  result.insert(version_key, version_val);
  result.insert(pg_config_key, configs_);
  result.insert(comm_lib_version_key_str, "torch_occl");
  result.insert(pg_status_key, statuses_);
  if (!calls) return pickle_str(result);
  const std::vector<c10::IValue> frames = stacks ? this->frames() : std::vector<c10::IValue>();
  auto list = new_list();
  for (std::size_t at = 0; at < calls_.size(); ++at) list.push_back(described(at, frames));
  result.insert(entries_key, list);
  return pickle_str(result);
}

std::vector<c10::IValue> FlightDump::frames() const {
  std::vector<torch::CapturedTraceback*> tracebacks;
  for (const RecordedCall& call : calls_) tracebacks.push_back(call.stack.get());
  const torch::SymbolizedTracebacks symbols = torch::symbolize(tracebacks);
  std::vector<c10::IValue> frames;
  for (const auto& frame : symbols.all_frames) {
    auto dict = new_dict();
    dict.insert(name_key, frame.funcname);
    dict.insert(filename_key, frame.filename);
    dict.insert(line_key, static_cast<std::int64_t>(frame.lineno));
    frames.emplace_back(std::move(dict));
  }
  std::vector<c10::IValue> stacks;
  for (const auto& traceback : symbols.tracebacks) {
    auto stack = new_list();
    for (const auto frame : traceback) stack.push_back(frames[frame]);
    stacks.emplace_back(std::move(stack));
  }
  return stacks;
}

c10::IValue FlightDump::described(std::size_t at, const std::vector<c10::IValue>& frames) const {
  const RecordedCall& call = calls_[at];
  auto dict = new_dict();
  if (!frames.empty()) dict.insert(frames_key, frames[at]);
  dict.insert(record_id_key, static_cast<std::int64_t>(call.id));
  dict.insert(pg_id_key, static_cast<std::int64_t>(call.group->id));
  dict.insert(pg_name_key, names_[at]);
  dict.insert(thread_name_key, call.thread_name);
  dict.insert(thread_id_key, call.thread);
  dict.insert(collective_seq_id_key, static_cast<std::int64_t>(call.collective));
  dict.insert(p2p_seq_id_key, static_cast<std::int64_t>(call.message));
  dict.insert(op_id_key, static_cast<std::int64_t>(call.operation));
  dict.insert(profiling_name_key, call.name);
  dict.insert(time_created_key, static_cast<std::int64_t>(call.created));
  if (call.started && call.completed)
    dict.insert(duration_key, static_cast<double>(*call.completed - *call.started) / 1e6);
  dict.insert(input_sizes_key, list_of(call.in.sizes));
  dict.insert(input_dtypes_key, call.in.dtypes);
  dict.insert(output_sizes_key, list_of(call.out.sizes));
  dict.insert(output_dtypes_key, call.out.dtypes);
  dict.insert(state_key, call.completed ? completed_state : call.started ? started_state : scheduled_state);
  dict.insert(time_discovered_started_key, time_of(call.started));
  dict.insert(time_discovered_completed_key, time_of(call.completed));
  dict.insert(retired_key, call.retired);
  dict.insert(timeout_key, call.timeout);
  dict.insert(is_p2p_key, call.is_message);
  return dict;
}

}  // namespace occl::pg
