// A dump of the flight recorder: PyTorch's keys and pickler, in the format that
// torch.distributed.flight_recorder reads.
#pragma once

#include <ATen/core/ivalue.h>

#include <string>
#include <tuple>
#include <vector>

#include "pg/observe/recorded_calls.h"

namespace occl::pg {

class FlightDump {
 public:
  FlightDump();

  // Both copy, and are called under the recorder's mutex.
  void add(const RecordedGroup& group);
  void add(const RecordedCall& call);
  /// To the status of a group that was added: why it has ended, if it has. Not under that mutex, because the
  /// group's own locks come first.
  void add_error(const RecordedGroup& group);

  /// A pickled dictionary. `stacks`: calls have their tracebacks, which may wait for the GIL.
  std::string pickled(bool calls, bool stacks) const;

 private:
  /// The traceback of each call.
  std::vector<c10::IValue> frames() const;
  c10::IValue described(std::size_t at, const std::vector<c10::IValue>& frames) const;

  c10::Dict<c10::IValue, c10::IValue> configs_, statuses_;
  std::vector<RecordedCall> calls_;
  std::vector<std::tuple<std::string, std::string>> names_;  // of the calls' groups
};

}  // namespace occl::pg
