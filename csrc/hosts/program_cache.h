// The programs that a group has used last. Training repeats a few shapes, so most collectives make no
// program.
#pragma once

#include <cstddef>
#include <list>
#include <memory>

#include "hosts/program.h"

namespace occl::hosts {

class ProgramCache {
 public:
  static constexpr std::size_t kPrograms = 8;

  /// `topology` must live as long as the cache.
  ProgramCache(const Topology& topology, int rank) : topology_(topology), rank_(rank) {}

  /// The program of this shape. It stays until kPrograms other shapes have been asked for.
  Program& get(const ProgramShape& shape);

 private:
  const Topology& topology_;
  const int rank_;
  std::list<std::unique_ptr<Program>> programs_;  // the last one used comes first
};

}  // namespace occl::hosts
