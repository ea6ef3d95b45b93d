// The scratch memory of a rank for data of a group over several nodes that is in transit. The ranks of its
// node can map it.
#pragma once

#include <memory>

#include "shm/endpoint.h"

namespace occl::hosts {

class Scratch {
 public:
  explicit Scratch(std::shared_ptr<shm::Endpoint> endpoint) : endpoint_(std::move(endpoint)) {}
  ~Scratch() { release(); }
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;

  /// Makes it at least this large; what was in it is lost. Nothing must be in transit. Throws
  /// Error(out_of_memory).
  void reserve(std::size_t bytes) {
    if (bytes <= block_.bytes) return;
    release();
    block_ = endpoint_->staging().allocate(bytes);
  }
  /// Leaves the memory as it is for as long as the process lives.
  void abandon() { block_ = {}; }
  std::byte* data() const { return block_.bytes ? endpoint_->staging().at(block_.offset) : nullptr; }
  std::size_t bytes() const { return block_.bytes; }

 private:
  void release() {
    if (block_.bytes) endpoint_->staging().retire({block_}, [] { return true; });
    block_ = {};
  }

  const std::shared_ptr<shm::Endpoint> endpoint_;
  shm::Arena::Block block_;
};

}  // namespace occl::hosts
