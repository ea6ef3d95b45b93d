#include "shm/process.h"

#include <pthread.h>

#include "base/error.h"

namespace occl::shm {

std::shared_ptr<RegionTable> process_regions() {
  static auto* table = [] {
    auto* made = new std::shared_ptr<RegionTable>(std::make_shared<RegionTable>());
    const int status = pthread_atfork([] { process_regions()->before_fork(); },
                                      [] { process_regions()->after_fork_in_parent(); },
                                      [] { process_regions()->after_fork_in_child(); });
    if (status != 0) fail(Errc::out_of_memory, "the C library has no memory for handlers of fork");
    return made;
  }();
  return *table;
}

}  // namespace occl::shm
