#include "shm/process.h"

namespace occl::shm {

std::shared_ptr<RegionTable> process_regions() {
  static auto* table = new std::shared_ptr<RegionTable>(std::make_shared<RegionTable>());
  return *table;
}

}  // namespace occl::shm
