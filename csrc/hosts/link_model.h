// The assumed cost of the network between nodes, one for the choice of an algorithm
// (hosts/algorithm_choice.h) and for estimates of time (hosts/cost.h).
#pragma once

#include <cmath>

namespace occl::hosts {

struct LinkModel {
  double message_seconds = 39.3216e-6;  // of a message that must arrive before the next one can be sent
  double message_beside = 6.5536e-6;    // of a message beside others
  double bytes_per_second = 1.25e9;     // of each node, in each direction

  bool operator==(const LinkModel&) const = default;

  /// The bytes that pass in the time of a message. Whole, so that sums of costs are exact and ties break
  /// alike on every rank.
  double message_bytes() const { return std::round(message_seconds * bytes_per_second); }
  double beside_bytes() const { return std::round(message_beside * bytes_per_second); }
};

}  // namespace occl::hosts
