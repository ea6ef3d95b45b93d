#include "pg/symmetric/find_group.h"

#include <torch/csrc/distributed/c10d/GroupRegistry.hpp>

#include "pg/backend/process_group.h"
#include "pg/process/python_hooks.h"
#include "pg/request/checks.h"

namespace occl::pg {

c10::intrusive_ptr<ProcessGroupOCCL> find_group(const char* call, const std::string& name,
                                                c10::DeviceType device) {
  const auto group = c10d::resolve_process_group(name);
  auto backend = group->getBackend(device);
  if (!dynamic_cast<ProcessGroupOCCL*>(backend.get())) backend = unwrapped(backend);
  if (auto* const found = dynamic_cast<ProcessGroupOCCL*>(backend.get()))
    return c10::intrusive_ptr<ProcessGroupOCCL>::unsafe_reclaim_from_nonowning(found);
  invalid(call, "group ", name, " has the backend ", backend->getBackendName(), " for tensors on ",
          c10::DeviceTypeName(device, /*lower_case=*/true), ", and this symmetric memory needs occl");
}

}  // namespace occl::pg
