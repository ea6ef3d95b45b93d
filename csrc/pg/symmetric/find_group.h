// The group that an operator on symmetric memory names, and how it calls that.
#pragma once

#include <c10/core/Device.h>
#include <c10/util/intrusive_ptr.h>

#include <string>

namespace occl::pg {

class ProcessGroupOCCL;

/// Raises RuntimeError if no group has this name, and ValueError if its backend for the device is another's.
c10::intrusive_ptr<ProcessGroupOCCL> find_group(const char* call, const std::string& name,
                                                c10::DeviceType device);

/// Options of a collective that an operator waits for: on a side stream, the stream waits.
template <class Options>
Options blocking() {
  Options options;
  options.asyncOp = false;
  return options;
}

}  // namespace occl::pg
