// What an entry of the flight recorder says about sizes and types.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

#include "pg/request/request.h"

namespace occl::pg {

/// The sizes and types of a call's inputs, or outputs.
struct RecordedSide {
  std::vector<std::vector<std::int64_t>> sizes;
  std::vector<std::string> dtypes;

  void add(std::vector<std::int64_t> size, const at::Tensor& of);
  void add(const RecordedSide& other);
};

struct RecordedSizes {
  RecordedSide in, out;
  const char* name = nullptr;  // of the call; null: the usual one
};

/// In the form in which the analyser compares them between ranks.
RecordedSizes recorded_sizes(const Request& request);

}  // namespace occl::pg
