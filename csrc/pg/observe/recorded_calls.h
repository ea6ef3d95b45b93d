// The flight recorder's entries: groups, calls, and the sizes of their tensors.
#pragma once

#include <c10/util/ApproximateClock.h>
#include <torch/csrc/profiler/combined_traceback.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "coll/progress/communicator.h"
#include "pg/request/request.h"

namespace occl::pg {

/// The sizes and types of a call's inputs, or outputs.
struct RecordedSide {
  std::vector<std::vector<std::int64_t>> sizes;
  std::vector<std::string> dtypes;

  void add(std::vector<std::int64_t> size, const at::Tensor& of);
  void add(const RecordedSide& other);
};

struct RecordedGroup {
  std::size_t id = 0;
  std::weak_ptr<coll::Communicator> communicator;
  // Guarded by the recorder's mutex:
  std::string name, description;
  std::vector<std::uint64_t> ranks;  // empty: nothing was recorded
  int rank = 0;
  std::uint64_t collectives = 0, messages = 0;               // the last numbers of recorded operations
  std::uint64_t operations = 0;                              // recorded so far
  std::int64_t enqueued = -1, started = -1, completed = -1;  // the last collective
  bool written = false;                                      // the file was written for the group's end
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
  bool numbered = false;  // `collective` and `message` are known
  std::string thread, thread_name;
};

struct RecordedSizes {
  RecordedSide in, out;
  const char* name = nullptr;  // of the call; null: the usual one
};

/// In the form in which the analyser compares them between ranks.
RecordedSizes recorded_sizes(const Request& request);

}  // namespace occl::pg
