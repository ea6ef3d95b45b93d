#include "pg/backend/time_estimate.h"

#include <algorithm>

#include "pg/request/errors.h"

namespace occl::pg {

void TimeEstimate::start() {
  if (runs()) raise(Error(Errc::invalid_argument, "a time estimate has begun already"));
  seconds_ = 0;
}

float TimeEstimate::end() {
  if (!runs()) raise(Error(Errc::invalid_argument, "no time estimate has begun"));
  const auto microseconds = static_cast<float>(*seconds_ * 1e6);
  seconds_.reset();
  return microseconds;
}

void TimeEstimate::add(const Request& request, const coll::Communicator& group) {
  const bool mapped = std::all_of(request.inputs.begin(), request.inputs.end(),
                                  [](const at::Tensor& t) { return !t.is_cpu(); });
  *seconds_ += group.seconds(request.task, mapped);
}

}  // namespace occl::pg
