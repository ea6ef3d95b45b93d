// The one region table of this process: device memory is registered here when it is allocated, and every
// process group shows it to its peers. (A deliberate global; it is never destroyed.)
#pragma once

#include "shm/region_table.h"

namespace occl::shm {

std::shared_ptr<RegionTable> process_regions();

}  // namespace occl::shm
