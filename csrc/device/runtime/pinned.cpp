#include "device/runtime/pinned.h"

#include <ATen/core/CachingHostAllocator.h>
#include <c10/core/Event.h>
#include <c10/core/impl/alloc_cpu.h>

#include <map>
#include <mutex>
#include <optional>

#include "device/runtime/stream.h"

namespace occl::device {
namespace {

/// The blocks that exist, by address.
struct Blocks {
  std::mutex mutex;
  std::map<const char*, std::size_t> sizes;
};
Blocks& blocks() {
  static auto* instance = new Blocks;
  return *instance;
}

using Block = at::HostBlock<c10::Stream>;

struct PinnedImpl final : at::CachingHostAllocatorImpl<c10::Stream, c10::Event, Block> {
  void allocate_host_memory(std::size_t size, void** p) override {
    check_fork();
    *p = c10::alloc_cpu(size);
    std::lock_guard lock(blocks().mutex);
    blocks().sizes[static_cast<const char*>(*p)] = size;
  }
  void free_block(Block* block) override {
    {
      std::lock_guard lock(blocks().mutex);
      blocks().sizes.erase(static_cast<const char*>(block->ptr_));
    }
    c10::free_cpu(block->ptr_);
  }
  void record_stream(std::optional<std::vector<c10::Event>>& events, c10::Stream stream) override {
    c10::Event event(kType);
    event.record(stream);
    events->push_back(std::move(event));
  }
  bool query_event(c10::Event& event) override { return event.query(); }
  c10::Stream get_current_stream() const override { return current_stream(); }
  bool stream_is_capturing(c10::Stream) const override { return false; }
};

void delete_pinned(void* context);

struct Pinned final : at::CachingHostAllocatorInterface<PinnedImpl, delete_pinned> {};

Pinned& instance() {
  static auto* allocator = new Pinned;
  return *allocator;
}

void delete_pinned(void* context) { instance().free(context); }

}  // namespace

void register_pinned_allocator() { at::setHostAllocator(kType, &instance()); }

c10::Allocator* pinned_allocator() { return &instance(); }

bool is_pinned(const void* p) {
  const auto* address = static_cast<const char*>(p);
  std::lock_guard lock(blocks().mutex);
  auto after = blocks().sizes.upper_bound(address);
  if (after == blocks().sizes.begin()) return false;
  --after;
  return address < after->first + after->second;
}

}  // namespace occl::device
