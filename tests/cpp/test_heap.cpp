// The heap of a device against a list of the blocks that it has handed out: random operations, and after each
// of them the heap's own statistics and snapshot.
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <vector>

#include "base/environment.h"
#include "check.h"
#include "memory/heap.h"
#include "memory/memory_limit.h"
#include "shm/available_memory.h"
#include "shm/process.h"

using namespace occl;
using namespace occl::memory;

namespace {

/// Heaps are never destroyed. The list keeps leak checkers from reporting them.
Heap& new_heap() {
  static auto* all = new std::vector<Heap*>;
  all->push_back(new Heap(static_cast<int>(all->size())));
  return *all->back();
}

std::size_t rounded(std::size_t n) { return (n + kBlockAlign - 1) / kBlockAlign * kBlockAlign; }

/// What the kernel has reserved for the regions of this process that hold device memory.
std::size_t resident() {
  std::size_t total = 0;
  for (std::size_t i = 0; i < shm::process_regions()->size(); ++i) {
    struct stat status;
    if (fstat(shm::process_regions()->get(static_cast<std::uint16_t>(i))->fd(), &status) == 0)
      total += static_cast<std::size_t>(status.st_blocks) * 512;
  }
  return total;
}

/// While it lives, all heaps together may reserve at most `bytes`.
struct Limit {
  explicit Limit(std::size_t bytes) {
    set_memory_fraction(static_cast<double>(bytes) / static_cast<double>(shm::available_memory().total));
  }
  ~Limit() { set_memory_fraction(0.9); }
};

/// While it lives, this process can map at most `bytes` more, so that a heap gets regions of 64 MiB.
struct AddressSpace {
  explicit AddressSpace(std::size_t bytes) {
    std::size_t pages = 0;
    std::ifstream("/proc/self/statm") >> pages;
    getrlimit(RLIMIT_AS, &before);
    rlimit now = before;
    now.rlim_cur = pages * static_cast<std::size_t>(sysconf(_SC_PAGESIZE)) + bytes;
    CHECK(setrlimit(RLIMIT_AS, &now) == 0);
  }
  ~AddressSpace() { setrlimit(RLIMIT_AS, &before); }
  /// Whether the limit holds: qemu's emulation of a process does not pass it on.
  bool holds(std::size_t more) const {
    void* memory = mmap(nullptr, more, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) return true;
    munmap(memory, more);
    std::printf("left out: the limit of the address space does not hold here\n");
    return false;
  }
  rlimit before{};
};

struct Held {
  std::size_t requested;
  unsigned char mark;
  bool held = false, freed = false;  // by a stream; by its tensor
};

/// The naive reference: every block that was handed out and must not be handed out again yet.
struct Model {
  explicit Model(Heap& h) : heap(h) {}

  void allocate(std::size_t bytes) {
    // The rule of the size classes: a free block of at least the next class is always found.
    const std::size_t sure =
        bytes < 2048 ? rounded(bytes) : rounded(bytes) + rounded(bytes) / 32 + kBlockAlign;
    const bool fits = largest_free >= sure;
    const auto committed = heap.stats().committed_bytes.current;
    void* p = heap.allocate(bytes);
    CHECK(!fits || heap.stats().committed_bytes.current == committed, "grew for ", bytes, " with ",
          largest_free, " free");
    const auto at = reinterpret_cast<std::uintptr_t>(p);
    CHECK(at % kBlockAlign == 0);
    CHECK(Heap::of(p) == &heap && Heap::of(static_cast<char*>(p) + bytes - 1) == &heap);
    const auto after = blocks.lower_bound(at);
    CHECK(after == blocks.end() || at + bytes <= after->first, "runs into the next block");
    CHECK(after == blocks.begin() || end_of(std::prev(after)) <= at, "lies in the block before");
    const auto mark = static_cast<unsigned char>(next_mark++);
    std::memset(p, mark, bytes);
    blocks[at] = {bytes, mark};
  }

  void free(std::map<std::uintptr_t, Held>::iterator block) {
    check_content(block);
    const bool given_back = heap.free(reinterpret_cast<void*>(block->first));
    CHECK(given_back == !block->second.held);
    if (given_back)
      blocks.erase(block);
    else
      block->second.freed = true;
  }

  void release(std::map<std::uintptr_t, Held>::iterator block) {
    check_content(block);
    heap.release(reinterpret_cast<void*>(block->first));
    blocks.erase(block);
  }

  void check_content(std::map<std::uintptr_t, Held>::iterator block) const {
    const auto* p = reinterpret_cast<const unsigned char*>(block->first);
    const bool same =
        std::all_of(p, p + block->second.requested, [&](auto b) { return b == block->second.mark; });
    CHECK(same, "another owner wrote into a block of ", block->second.requested, " bytes");
  }

  static std::uintptr_t end_of(std::map<std::uintptr_t, Held>::const_iterator block) {
    return block->first + rounded(block->second.requested);
  }

  /// The heap's own account, block by block and counter by counter.
  void compare() {
    std::int64_t committed = 0, free_blocks = 0, free_bytes = 0, used = 0;
    std::uintptr_t end = 0;
    const auto runs = heap.snapshot();
    largest_free = 0;
    for (const auto& run : runs) {
      CHECK(!run.empty());
      bool free_before = false;
      end = run.front().address;
      for (const auto& block : run) {
        CHECK(block.address == end && block.size > 0, "a gap within a run");
        end += block.size;
        committed += static_cast<std::int64_t>(block.size);
        if (block.used) {
          const auto ours = blocks.find(block.address);
          CHECK(ours != blocks.end(), "a block that was not handed out");
          CHECK(block.requested == ours->second.requested && block.size >= rounded(block.requested));
          CHECK(block.awaiting_stream == ours->second.freed);
          ++used;
        } else {
          CHECK(!free_before, "two free neighbours");
          ++free_blocks;
          free_bytes += static_cast<std::int64_t>(block.size);
          largest_free = std::max(largest_free, block.size);
        }
        free_before = !block.used;
      }
    }
    CHECK(used == static_cast<std::int64_t>(blocks.size()));
    std::int64_t live = 0, live_bytes = 0, requested = 0, active_bytes = 0;
    for (const auto& [at, block] : blocks) {
      active_bytes += static_cast<std::int64_t>(rounded(block.requested));
      if (block.freed) continue;
      ++live;
      live_bytes += static_cast<std::int64_t>(rounded(block.requested));
      requested += static_cast<std::int64_t>(block.requested);
    }
    const HeapStats stats = heap.stats();
    CHECK(stats.committed_bytes.current == committed);
    CHECK(stats.extents.current == static_cast<std::int64_t>(runs.size()));
    CHECK(stats.free_blocks.all.current == free_blocks && stats.free_bytes.all.current == free_bytes);
    CHECK(stats.blocks.all.current == live && stats.block_bytes.all.current == live_bytes);
    CHECK(stats.requested_bytes.all.current == requested);
    CHECK(stats.active.all.current == used && stats.active_bytes.all.current == active_bytes);
    for (const PoolCounter* pool : {&stats.blocks, &stats.block_bytes, &stats.requested_bytes, &stats.active,
                                    &stats.active_bytes, &stats.free_blocks, &stats.free_bytes}) {
      CHECK(pool->all.current == pool->small.current + pool->large.current);
      CHECK(pool->small.current >= 0 && pool->large.current >= 0);
      for (const Counter* counter : {&pool->all, &pool->small, &pool->large})
        CHECK(counter->current == counter->allocated - counter->freed && counter->peak >= counter->current);
    }
  }

  Heap& heap;
  std::map<std::uintptr_t, Held> blocks;
  std::size_t largest_free = 0;
  unsigned next_mark = 1;
};

std::size_t random_size(std::mt19937& random) {
  const std::size_t most = std::size_t{1} << (random() % 20);
  return 1 + random() % most;
}

}  // namespace

TEST("the memory fraction is read from the environment, and nonsense is refused") {
  for (const char* bad : {"0", "-1", "1.5", "half", "0.5x", "nan", "inf", " "}) {
    setenv(environment::kMemoryFraction, bad, 1);
    try {
      memory_limit();
    } catch (const Error& error) {
      CHECK(error.code() == Errc::invalid_argument);
      continue;
    }
    CHECK(false, "accepted ", bad);
  }
  setenv(environment::kMemoryFraction, "0.5", 1);
  const std::size_t half = shm::available_memory().total / 2;
  CHECK(memory_limit() >= half - 1 && memory_limit() <= half + 1);
  unsetenv(environment::kMemoryFraction);
  CHECK(memory_limit() >= half - 1 && memory_limit() <= half + 1, "read once");
  set_memory_fraction(0.25);
  CHECK(memory_limit() <= half / 2 + 1);
  set_memory_fraction(0.9);
}

TEST("random operations do what a list of blocks says") {
  for (unsigned seed = 0; seed < 3; ++seed) {
    std::mt19937 random(seed);
    Model model(new_heap());
    for (int step = 0; step < 3000; ++step) {
      const auto kind = random() % 100;
      if (model.blocks.size() < 3 || (kind < 50 && model.blocks.size() < 200)) {
        model.allocate(random_size(random));
      } else if (kind == 99) {
        model.heap.empty_cache();
      } else {
        auto block = model.blocks.begin();
        std::advance(block, random() % model.blocks.size());
        if (block->second.freed) {
          model.release(block);
        } else {
          if (kind % 8 == 0) {
            model.heap.hold(reinterpret_cast<void*>(block->first));
            block->second.held = true;
          }
          model.free(block);
        }
      }
      model.compare();
    }
    while (!model.blocks.empty()) {
      const auto block = model.blocks.begin();
      block->second.freed ? model.release(block) : model.free(block);
    }
    model.compare();
    model.heap.empty_cache();
    model.compare();
    CHECK(model.heap.stats().committed_bytes.current == 0, "a heap with no blocks keeps nothing");
  }
}

TEST("what the heap counts as committed is what the kernel has reserved") {
  const std::size_t before = resident();
  Heap& heap = new_heap();
  std::vector<void*> blocks;
  for (int i = 0; i < 40; ++i) blocks.push_back(heap.allocate(1 << 20));
  CHECK(resident() - before == static_cast<std::size_t>(heap.stats().committed_bytes.current));
  for (std::size_t i = 0; i < blocks.size(); i += 2) heap.free(blocks[i]);
  heap.empty_cache();
  CHECK(heap.stats().committed_bytes.current == 20 << 20);
  CHECK(heap.stats().extents.current == 20);
  CHECK(resident() - before == 20 << 20);
  for (std::size_t i = 1; i < blocks.size(); i += 2) heap.free(blocks[i]);
  heap.empty_cache();
  CHECK(resident() == before && heap.stats().extents.current == 0);
  void* whole = heap.allocate(40 << 20);
  CHECK(whole == blocks.front() && heap.stats().extents.current == 1, "the holes have become one again");
  CHECK(resident() - before == 40 << 20);
  heap.free(whole);
  heap.empty_cache();
}

TEST("running out leaves every block and every count as it was, and the heap usable") {
  Heap& heap = new_heap();
  Model model(heap);
  for (int i = 0; i < 20; ++i) model.allocate(100000);
  model.compare();
  const Limit limit(std::size_t{64} << 20);
  for (const std::size_t bytes : {std::size_t{70} << 20, std::size_t{63} << 20, std::size_t{1} << 62}) {
    const HeapStats before = heap.stats();
    try {
      heap.allocate(bytes);
      CHECK(false, "got ", bytes);
    } catch (const Error& error) {
      CHECK(error.code() == Errc::out_of_memory);
    }
    const HeapStats after = heap.stats();
    CHECK(after.block_bytes.all.current == before.block_bytes.all.current);
    model.compare();
  }
  model.allocate(40 << 20);  // within the limit
  model.free(std::prev(model.blocks.end()));
  model.allocate(50 << 20);  // fits only if the cache is given back first
  model.compare();
  for (auto block = model.blocks.begin(); block != model.blocks.end(); ++block) model.check_content(block);
  while (!model.blocks.empty()) model.free(model.blocks.begin());
  heap.empty_cache();
}

TEST("a heap gives its cache back before it says that no memory is left, also where it needs a new region") {
  const AddressSpace space(std::size_t{2500} << 20);
  if (!space.holds(std::size_t{2600} << 20)) return;
  Heap &other = new_heap(), &heap = new_heap();
  other.free(other.allocate(8 << 20));
  heap.free(heap.allocate(50 << 20));
  const Limit limit(std::size_t{100} << 20);
  void* whole = heap.allocate(80 << 20);
  CHECK(heap.stats().retries == 1 && heap.stats().committed_bytes.current == 80 << 20);
  CHECK(other.stats().committed_bytes.current == 8 << 20, "one's own cache comes first");
  heap.free(whole);
  heap.empty_cache();
  other.empty_cache();
}

TEST("a heap gives its cache back before it says that there is no address space for a new region") {
  const AddressSpace space(std::size_t{100} << 20);
  if (!space.holds(std::size_t{120} << 20)) return;
  Heap& heap = new_heap();
  void* blocks[4];
  for (void*& p : blocks) p = heap.allocate(15 << 20);
  heap.free(blocks[1]);
  heap.empty_cache();  // a hole of 15 MiB between what is free next
  for (const int i : {0, 2, 3}) heap.free(blocks[i]);
  CHECK(heap.allocate(50 << 20) == blocks[0] && heap.stats().retries == 1);
  heap.free(blocks[0]);
  heap.empty_cache();
}

TEST("what other heaps keep in their caches is given back before a heap says that no memory is left") {
  Heap &other = new_heap(), &heap = new_heap();
  other.free(other.allocate(60 << 20));
  const Limit limit(std::size_t{80} << 20);
  void* p = heap.allocate(70 << 20);
  CHECK(other.stats().committed_bytes.current == 0);
  heap.free(p);
  heap.empty_cache();
}

TEST("a free block that fits is used wherever it stands in its list, and the cache stays") {
  constexpr std::size_t kWanted = 67456, kTooSmall = 65536;  // of one class, of which `find` looks at 16
  for (const bool beside_a_hole : {true, false}) {
    Heap& heap = new_heap();
    std::vector<void*> small;
    void* wanted = beside_a_hole ? nullptr : heap.allocate(kWanted);
    for (int i = 0; i < 18; ++i) {
      heap.allocate(64);  // stays, so that what is free does not become one block
      small.push_back(heap.allocate(kTooSmall));
    }
    heap.allocate(kCommitStep - kWanted - 18 * (kTooSmall + 64));
    if (beside_a_hole) wanted = heap.allocate(kWanted);
    heap.free(wanted);
    for (void* p : small) heap.free(p);
    CHECK(heap.stats().committed_bytes.current == kCommitStep && heap.stats().free_blocks.all.current == 19);
    const Limit limit(kCommitStep / 2);  // the system has no more
    CHECK(heap.allocate(kWanted) == wanted);
    const HeapStats stats = heap.stats();
    CHECK(stats.decommits == 0 && stats.commits == 1 && stats.retries == 0);
  }
}

TEST("a forked child that empties caches takes nothing from its parent") {
  Heap& heap = new_heap();
  heap.free(heap.allocate(1 << 20));
  int go[2];
  CHECK(pipe(go) == 0);
  heap.before_fork();
  const pid_t child = fork();
  if (child == 0) {
    heap.after_fork_in_child();
    char byte = 0;
    const bool told = read(go[0], &byte, 1) == 1;
    heap.empty_cache();
    _exit(told ? 0 : 1);
  }
  heap.after_fork_in_parent();
  auto* p = static_cast<unsigned char*>(heap.allocate(1 << 20));
  std::memset(p, 7, 1 << 20);
  CHECK(write(go[1], "x", 1) == 1);
  int status = 1;
  CHECK(waitpid(child, &status, 0) == child && status == 0);
  CHECK(std::all_of(p, p + (1 << 20), [](auto byte) { return byte == 7; }));
  close(go[0]);
  close(go[1]);
  heap.free(p);
  heap.empty_cache();
}

TEST("peaks and totals start again when told to, and what is current stays") {
  Heap& heap = new_heap();
  void* kept = heap.allocate(1000);
  heap.free(heap.allocate(5000));
  CHECK(heap.stats().block_bytes.all.peak == 1024 + 5056);
  heap.reset_peaks();
  heap.reset_accumulated();
  const HeapStats stats = heap.stats();
  CHECK(stats.block_bytes.all.peak == 1024 && stats.block_bytes.all.current == 1024);
  CHECK(stats.block_bytes.all.allocated == 0 && stats.commits == 0 && stats.blocks.all.freed == 0);
  heap.free(kept);
}

TEST("an address outside of every heap has no heap") {
  int local = 0;
  CHECK(Heap::of(&local) == nullptr && Heap::of(nullptr) == nullptr);
}

TEST("threads allocate, hand blocks to each other and free them, and no thread sees another's bytes") {
  constexpr int kThreads = 4, kSteps = 3000;
  Heap* heaps[2] = {&new_heap(), &new_heap()};
  struct Box {
    std::mutex mutex;
    std::vector<std::pair<unsigned char*, std::size_t>> blocks;
  } box;
  check::in_threads(kThreads, [&](int thread) {
    std::mt19937 random(static_cast<unsigned>(thread));
    for (int step = 0; step < kSteps; ++step) {
      const std::size_t n = 16 + random() % 20000;
      Heap& heap = *heaps[random() % 2];
      auto* p = static_cast<unsigned char*>(heap.allocate(n));
      std::memset(p, static_cast<int>(n % 251), n);
      std::pair<unsigned char*, std::size_t> other{nullptr, 0};
      {
        std::lock_guard lock(box.mutex);
        box.blocks.emplace_back(p, n);
        if (box.blocks.size() > 30) {
          std::swap(box.blocks[random() % box.blocks.size()], box.blocks.back());
          other = box.blocks.back();
          box.blocks.pop_back();
        }
      }
      if (step % 500 == 0) heap.empty_cache();
      if (step % 100 == 0) (void)heap.snapshot();
      if (!other.first) continue;
      for (std::size_t i = 0; i < other.second; ++i) CHECK(other.first[i] == other.second % 251, "byte ", i);
      CHECK(Heap::of(other.first)->free(other.first));
    }
  });
  for (const auto& [p, n] : box.blocks) Heap::of(p)->free(p);
  for (Heap* heap : heaps) {
    CHECK(heap->stats().blocks.all.current == 0 &&
          heap->stats().free_blocks.all.current <= heap->stats().extents.current);
    heap->empty_cache();
    CHECK(heap->stats().committed_bytes.current == 0);
  }
}

TEST("addresses are looked up while other heaps get their first memory") {
  std::atomic<bool> stop = false;
  void* known = new_heap().allocate(100);
  Heap* const owner = Heap::of(known);
  std::vector<Heap*> fresh;
  for (int i = 0; i < 24; ++i) fresh.push_back(&new_heap());
  check::in_threads(4, [&](int thread) {
    if (thread == 0) {
      const std::unique_ptr<std::atomic<bool>, void (*)(std::atomic<bool>*)> end(&stop,
                                                                                 [](auto* s) { *s = true; });
      for (Heap* heap : fresh) {
        void* p = heap->allocate(64);
        CHECK(Heap::of(p) == heap);
        heap->free(p);
        heap->empty_cache();
      }
    } else {
      while (!stop) CHECK(Heap::of(known) == owner && Heap::of(&stop) == nullptr);
    }
  });
}
