// The group that an operator on symmetric memory names.
#pragma once

#include <c10/core/Device.h>
#include <c10/util/intrusive_ptr.h>

#include <string>

namespace occl::pg {

class ProcessGroupOCCL;

/// Raises RuntimeError if no group has this name, and ValueError if its backend for the device is another's.
c10::intrusive_ptr<ProcessGroupOCCL> find_group(const char* call, const std::string& name,
                                                c10::DeviceType device);

}  // namespace occl::pg
