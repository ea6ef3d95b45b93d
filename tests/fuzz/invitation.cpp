// What a rank puts into the store: any bytes where an invitation is expected, from ranks that live, and lie.
#include <bit>

#include "fuzz/target.h"
#include "fuzz/victim.h"

namespace fuzz {

void one(Input& in) {
  static const auto table = std::make_shared<shm::RegionTable>();
  static std::shared_ptr<shm::Endpoint> honest;
  static std::uint64_t runs = 0;
  // Ranks that never leave keep the blocks of this one in use for ever: now and then a new process, so to
  // speak.
  if (runs++ % 500 == 0)
    honest = std::make_shared<shm::Endpoint>(table, shm::Endpoint::Config{std::size_t{1} << 30, 0});
  static const auto other =
      std::make_shared<shm::Endpoint>(table, shm::Endpoint::Config{std::size_t{64} << 20, 0});
  const int size = 1 + static_cast<int>(in.below(3)), me = static_cast<int>(in.below(size));
  auto mesh = std::make_unique<Mesh>(honest, "fuzz", me, size, Tuning{});
  std::vector<Invitation> invitations(size, mesh->invitation());
  for (int i = 0; i < size; ++i) {
    Invitation& it = invitations[i];
    it.rank = i;
    if (i != me && in.below(2)) it.address = other->address();
    if (i != me || in.below(16) == 0)
      for (std::size_t patches = in.below(4); patches > 0; --patches) {
        switch (in.below(8)) {
          case 0:
            it.header = in.number();
            break;
          case 1:
            it.block = in.number() * (in.below(2) ? 1 : 4096);
            break;
          case 2:
            it.tuning.one_shot_bytes = static_cast<std::uint32_t>(in.number());
            it.tuning.direct_bytes = static_cast<std::uint32_t>(in.number());
            it.tuning.slot_bytes = static_cast<std::uint32_t>(in.number());
            it.tuning.area_bytes = static_cast<std::uint32_t>(in.number());
            it.tuning.ring_bytes = static_cast<std::uint32_t>(in.number());
            it.tuning.streaming_bytes = in.number();
            it.tuning.eager_bytes = static_cast<std::uint32_t>(in.number());
            it.tuning.unasked_bytes = static_cast<std::uint32_t>(in.number());
            it.tuning.both_ends_bytes = in.number();
            it.tuning.far_ns = static_cast<std::uint32_t>(in.number());
            break;
          case 3:
            in.fill(it.address.host.data(), it.address.host.size());
            break;
          case 4:
            in.fill(it.address.secret.data(), 1);
            break;
          default:
            in.fill(reinterpret_cast<std::byte*>(&it) + in.take<std::uint16_t>() % sizeof(it), 1);
        }
      }
  }
  try {
    mesh->join(invitations, Deadline::after(std::chrono::seconds(10)));
    // Joined: then the tuning is one that the executor can work with, and the lines lie where they may be
    // read.
    const Tuning& t = mesh->tuning();
    require(t.one_shot_bytes <= kMaxOneShotBytes && t.eager_bytes <= kMaxEagerBytes &&
                t.unasked_bytes <= kMaxUnaskedBytes,
            "tuning has limits");
    require(t.slot_bytes >= t.one_shot_bytes && t.slot_bytes >= size * kLine && t.slot_bytes <= 64 << 20,
            "a slot has room");
    require(t.area_bytes >= 2 * t.slot_bytes && t.area_bytes <= kMaxAreaBytes, "an area has two slots");
    require(std::has_single_bit(t.ring_bytes) && t.ring_bytes >= kLeastRingBytes, "a ring has room");
    for (int i = 0; i < size; ++i) {
      const SharedBlock& block = mesh->member(i).block;
      require(block.post(1).stamp.load() + block.tick().load() + block.send(size - 1).taken.load() +
                      block.recv(size - 1).tail.load() + static_cast<unsigned char>(*block.payload(1)) <
                  ~std::uint64_t{0},
              "all of it can be read");
    }
  } catch (const Error& error) {
    require(*error.what() != 0, "an error says what");
  }
}

}  // namespace fuzz
