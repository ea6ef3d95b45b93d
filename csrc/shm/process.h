// The region table of this process. Every region of a heap is registered in it, and every process group shows
// it to its peers. A forked child has none of its parent's. (A deliberate global; it is never destroyed.)
#pragma once

#include "shm/region_table.h"

namespace occl::shm {

std::shared_ptr<RegionTable> process_regions();

}  // namespace occl::shm
