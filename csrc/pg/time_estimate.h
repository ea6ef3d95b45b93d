// How long collectives would take, from a model of this machine (coll/cost.h), without carrying them out.
#pragma once

#include <optional>
#include <span>

#include "coll/mesh.h"
#include "pg/request.h"

namespace occl::pg {

class TimeEstimate {
 public:
  /// Raises ValueError if it runs already.
  void start();
  /// The durations of what was added since then, in microseconds. Raises ValueError if it does not run.
  float end();
  bool runs() const { return seconds_.has_value(); }
  void add(const Request& request, const coll::Mesh& mesh);

 private:
  std::optional<double> seconds_;
};

}  // namespace occl::pg
