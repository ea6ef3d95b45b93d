#include "hosts/program_cache.h"

#include <algorithm>

namespace occl::hosts {

Program& ProgramCache::get(const ProgramShape& shape) {
  const auto known = std::find_if(programs_.begin(), programs_.end(),
                                  [&](const auto& program) { return program->shape() == shape; });
  if (known != programs_.end()) {
    programs_.splice(programs_.begin(), programs_, known);
  } else {
    programs_.push_front(Program::make(topology_, rank_, shape));
    if (programs_.size() > kPrograms) programs_.pop_back();
  }
  return *programs_.front();
}

}  // namespace occl::hosts
