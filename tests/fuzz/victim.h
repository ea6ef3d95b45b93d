// One honest rank among ranks whose memory is whatever the fuzzer writes. The memory of the hostile ones lies
// on the heap, so that AddressSanitizer sees every read outside of it, and their regions between guard pages.
#pragma once

#include <sys/mman.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <new>
#include <vector>

#include "coll/group/group.h"
#include "coll/messages/pipe.h"
#include "coll/progress/engine.h"
#include "fuzz/input.h"

namespace fuzz {

using namespace occl;
using namespace occl::coll;

/// Bytes of a hostile rank's control region behind its block and its message ring.
inline constexpr std::size_t kExtra = std::size_t{64} << 10;
inline constexpr std::uint32_t kRing = kLeastRingBytes;

inline std::shared_ptr<shm::Region> guarded_region() {
  auto region = std::make_shared<shm::Region>(
      shm::Region::create("fuzz", std::size_t{64} << 10, shm::Access::read_write));
  region->commit(0, region->size());
  for (std::byte* guard : {region->base() - shm::page_size(), region->base() + region->size()})
    mmap(guard, shm::page_size(), PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
  return region;
}

/// Made once: an endpoint and an engine of the honest rank, and the regions of both sides.
struct World {
  std::shared_ptr<shm::RegionTable> regions = std::make_shared<shm::RegionTable>();
  std::shared_ptr<shm::RegionTable> hostile_regions = std::make_shared<shm::RegionTable>();
  std::shared_ptr<shm::Region> own_region = guarded_region();
  std::shared_ptr<shm::Endpoint> endpoint;
  std::unique_ptr<Engine> engine;

  World() {
    regions->add(own_region);
    hostile_regions->add(guarded_region());
    endpoint = std::make_shared<shm::Endpoint>(regions, shm::Endpoint::Config{std::size_t{1} << 30, 0});
    engine = std::make_unique<Engine>(endpoint);
  }
};

struct Hostile {
  explicit Hostile(int rank, int size, std::shared_ptr<shm::RegionTable> regions)
      : control_bytes(shm::page_size() + shm::round_up_to_pages(SharedBlock::bytes(size)) + kRing + kExtra),
        control(static_cast<std::byte*>(std::aligned_alloc(shm::page_size(), control_bytes))) {
    std::memset(control, 0, control_bytes);
    block = SharedBlock(reinterpret_cast<GroupHeader*>(control), control + shm::page_size(), size);
    block.construct(rank + 1);
    shm::Address address;
    address.nonce = rank + 1;
    peer = shm::Peer::local(address, control, control_bytes, shm::Bell(&word, &sleepers), std::move(regions));
    invitation.block = shm::page_size();
    invitation.incarnation = rank + 1;
    invitation.rank = rank;
    invitation.size = size;
  }
  ~Hostile() { std::free(control); }
  Hostile(const Hostile&) = delete;
  Hostile& operator=(const Hostile&) = delete;

  std::uint64_t extra() const { return control_bytes - kRing - kExtra; }

  /// Writes the next record of the ring to rank `to`. Its payload is whatever lies there.
  void write(int to, const Envelope& e) {
    std::byte* const line = control + extra() + position % kRing;
    std::memcpy(line + shm::kStampBytes, &e, sizeof(e));
    const std::uint64_t stamp = position + 1;
    std::memcpy(line, &stamp, sizeof(stamp));
    const std::uint64_t behind = e.bytes <= kInsideBytes || e.cell ? 0 : std::uint64_t{whole_lines(e.bytes)};
    position += kLine + std::min<std::uint64_t>(behind, kRing);
    block.send(to).ring.store(extra());
  }

  /// Writes anything anywhere in the block's first kilobytes, where the control lines are.
  void scribble(Input& in) {
    const std::size_t at = in.take<std::uint16_t>() % 2048;
    in.fill(control + shm::page_size() + at, std::min<std::size_t>(in.below(64), 2048 - at));
  }

  std::size_t control_bytes;
  std::byte* control;
  SharedBlock block;
  Invitation invitation;
  std::uint64_t position = 0;  // of the next record
  shm::FutexWord word = 0;
  shm::Bell::Sleepers sleepers = 0;
  std::shared_ptr<shm::Peer> peer;
};

/// An operation that no thread waits for.
class Call : public Listener {
 public:
  explicit Call(const Task& task)
      : task(task), operation(*this, this->task, Deadline::after(std::chrono::hours(1))) {}
  void completed(Operation&) noexcept override {}
  void released(Operation&) noexcept override { is_released = true; }
  const Task task;
  Operation operation;
  bool is_released = false;
};

/// A group of `size` ranks in which rank `rank` is honest.
class Victim {
 public:
  Victim(int rank, int size, const Tuning& tuning) {
    static World world;
    world_ = &world;
    auto mesh = std::make_unique<Mesh>(world.endpoint, "fuzz", rank, size, tuning);
    std::vector<Invitation> invitations;
    std::vector<std::shared_ptr<shm::Peer>> peers;
    for (int i = 0; i < size; ++i) {
      hostile.push_back(i == rank ? nullptr : std::make_unique<Hostile>(i, size, world.hostile_regions));
      invitations.push_back(i == rank ? mesh->invitation() : hostile[i]->invitation);
      peers.push_back(i == rank ? world.endpoint->as_local_peer() : hostile[i]->peer);
    }
    invitations.front().tuning = tuning;
    invitations.front().tuning.ring_bytes = kRing;
    mesh->join(invitations, std::move(peers));
    group = std::make_unique<Group>(*world.engine, std::move(mesh));
  }
  ~Victim() {
    group->close();
    for (const auto& call : calls) require(call->is_released, "close releases every operation");
    for (const auto& other : hostile)
      if (other) other->block.header().presence.store(kLeft);  // so that the blocks are used again
    // Before the peers' memory goes: the next group would look there whether they have left.
    group.reset();
    world_->endpoint->arena().allocate(1);
  }

  template <class What>
  void submit(const What& what) {
    calls.push_back(std::make_unique<Call>(what));
    group->submit(calls.back()->operation);
  }

  /// Memory that peers can reach, or the heap: exactly so many bytes.
  std::byte* memory(std::size_t bytes, bool mapped) {
    if (mapped && used_ + bytes <= world_->own_region->size()) {
      used_ += bytes;
      return world_->own_region->base() + used_ - bytes;
    }
    heap_.push_back(std::make_unique<std::byte[]>(bytes));
    return heap_.back().get();
  }

  std::vector<std::unique_ptr<Hostile>> hostile;  // by rank; null for the honest one
  std::unique_ptr<Group> group;
  std::vector<std::unique_ptr<Call>> calls;

 private:
  World* world_;
  std::size_t used_ = 0;
  std::vector<std::unique_ptr<std::byte[]>> heap_;
};

}  // namespace fuzz
