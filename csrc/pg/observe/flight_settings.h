// The settings of the flight recorder, from the environment (docs/profiling.md).
#pragma once

#include <cstddef>
#include <string>

namespace occl::pg {

struct FlightSettings {
  std::size_t entries = 0;  // 0: no recorder
  bool stacks = true, cpp_stacks = false, only_active = false, on_error = true;
  std::string pipe;  // up to the rank

  static FlightSettings of_environment();
};

}  // namespace occl::pg
