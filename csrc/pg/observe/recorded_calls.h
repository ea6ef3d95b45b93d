// What the flight recorder keeps of groups and of calls.
#pragma once

#include <c10/util/ApproximateClock.h>
#include <torch/csrc/profiler/combined_traceback.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "coll/progress/communicator.h"
#include "pg/observe/recorded_sizes.h"

namespace occl::pg {

struct RecordedGroup {
  std::size_t id = 0;
  std::weak_ptr<coll::Communicator> communicator;
  // Guarded by the recorder's mutex:
  std::string name, description;
  std::vector<std::uint64_t> ranks;  // empty: nothing was recorded
  int rank = 0;
  std::uint64_t collectives = 0, messages = 0, operations = 0;  // recorded so far
  std::int64_t enqueued = -1, started = -1, completed = -1;     // the last collective
  bool written = false;                                         // the file was written for the group's end
};

struct RecordedCall {
  std::uint64_t id = 0;
  std::shared_ptr<RecordedGroup> group;
  std::uint64_t collective = 0, message = 0, operation = 0;
  std::string name;
  RecordedSide in, out;
  std::shared_ptr<torch::CapturedTraceback> stack;
  c10::time_t created = 0;
  std::optional<c10::time_t> started, completed;
  std::int64_t timeout = 0;
  bool is_message = false, any_source = false, retired = false;
  std::string thread, thread_name;
};

}  // namespace occl::pg
