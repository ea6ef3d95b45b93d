#include "shm/process.h"

#include "base/fork.h"

namespace occl::shm {

std::shared_ptr<RegionTable> process_regions() {
  static auto* table = [] {
    auto* made = new std::shared_ptr<RegionTable>(std::make_shared<RegionTable>());
    around_fork([] { process_regions()->before_fork(); }, [] { process_regions()->after_fork_in_parent(); },
                [] { process_regions()->after_fork_in_child(); });
    return made;
  }();
  return *table;
}

}  // namespace occl::shm
