#include "pg/observe/flight_settings.h"

#include <torch/csrc/distributed/c10d/FlightRecorder.hpp>

#include <algorithm>

namespace occl::pg {
namespace {

constexpr int kDefaultEntries = 2000;  // PyTorch's

}  // namespace

FlightSettings FlightSettings::of_environment() {
  using namespace c10d;
  // A file that is named asks for a recorder, too. Otherwise there is none: PyTorch's default of 2000 entries
  // would cost each call more than a small collective takes.
  const bool file =
      !getCvarString({"TORCH_FR_DUMP_TEMP_FILE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE"}, "").empty();
  FlightSettings s;
  s.entries = static_cast<std::size_t>(std::max(
      0, getCvarInt({"TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE"}, file ? kDefaultEntries : 0)));
  s.stacks = getCvarBool(TORCH_INCLUDE_STACK_TRACE, true);
  s.cpp_stacks = getCvarBool({"TORCH_FR_CPP_STACK", "TORCH_NCCL_TRACE_CPP_STACK"}, false);
  s.only_active = getCvarBool(TORCH_INCLUDE_ONLY_ACTIVE, false);
  s.on_error = getCvarBool({"TORCH_NCCL_DUMP_ON_TIMEOUT"}, true);
  s.pipe = getCvarString({"TORCH_FR_DEBUG_INFO_PIPE_FILE", "TORCH_NCCL_DEBUG_INFO_PIPE_FILE"}, "");
  return s;
}

}  // namespace occl::pg
