// The sum of the durations that a model expects of operations, which are not carried out.
#pragma once

#include <optional>
#include <span>

#include "coll/progress/communicator.h"
#include "pg/request/request.h"

namespace occl::pg {

class TimeEstimate {
 public:
  /// Begins an estimate. Raises ValueError if one runs already.
  void start();
  /// Ends it. Returns the sum of the durations added since `start`, in microseconds. Raises ValueError if
  /// none runs.
  float end();
  bool runs() const { return seconds_.has_value(); }
  /// Adds the duration of a request. Requires runs().
  void add(const Request& request, const coll::Communicator& group);

 private:
  std::optional<double> seconds_;
};

}  // namespace occl::pg
