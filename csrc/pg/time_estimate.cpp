#include "pg/time_estimate.h"

#include <algorithm>

#include "coll/cost.h"
#include "coll/plan.h"
#include "pg/errors.h"

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

void TimeEstimate::add(const Request& request, const coll::Mesh& mesh) {
  coll::Shape shape;
  shape.size = mesh.size();
  if (const coll::Transfer* message = request.transfer()) {  // as a broadcast to one other rank
    shape.kind = coll::Kind::broadcast;
    shape.size = std::min(2, mesh.size());
    shape.element_size = size_of(message->dtype);
    shape.largest = message->buffer.count;
  } else {
    const coll::Collective& c = request.collective();
    shape.kind = c.kind;
    shape.root = c.root;
    shape.element_size = size_of(c.dtype);
    shape.largest = c.largest;
  }
  const bool mapped = std::all_of(request.inputs.begin(), request.inputs.end(),
                                  [](const at::Tensor& t) { return t.is_privateuseone(); });
  *seconds_ += coll::seconds(shape, coll::make_plan(shape, mesh.tuning(), mapped), coll::this_machine());
}

}  // namespace occl::pg
