// Point-to-point messages with a rank that writes any records, in any order, and any positions.
#include "fuzz/target.h"
#include "fuzz/victim.h"

namespace fuzz {

void one(Input& in) {
  Tuning tuning;
  tuning.eager_bytes = 64;
  tuning.both_ends_bytes = 256;
  Victim victim(static_cast<int>(in.below(2)), 2, tuning);
  const int me = victim.hostile[0] ? 1 : 0, other = 1 - me;
  Hostile& hostile = *victim.hostile[other];
  SendLine& line = hostile.block.send(me);
  for (int turn = 0; turn < 40 && !in.empty(); ++turn) {
    switch (in.below(8)) {
      case 0:
      case 1: {
        const bool send = in.below(2);
        const std::size_t count = in.below(4) ? in.byte() : in.take<std::uint16_t>() % 5000;
        const int peer = !send && in.below(4) == 0 ? Transfer::kAnyRank : other;
        const DType dtype = in.below(2) ? DType::u8 : DType::f64;
        victim.submit(Transfer{send,
                               peer,
                               static_cast<std::uint32_t>(in.below(3)),
                               dtype,
                               {victim.memory(count * size_of(dtype), in.below(2)), count}});
        break;
      }
      case 2:
      case 3:
      case 4: {  // a record
        Envelope e;
        e.record = static_cast<Record>(in.below(9));
        e.tag = static_cast<std::uint32_t>(in.below(3));
        e.id = in.below(8) ? 1 + in.below(4) : in.number();
        e.dtype = in.below(4) ? static_cast<std::uint8_t>(DType::u8) : in.byte();
        e.count = in.number();
        e.bytes =
            static_cast<std::uint32_t>(in.below(8) ? std::min<std::uint64_t>(e.count, 2000) : in.number());
        e.ref = in.below(2) ? in.below(200) : in.number() << in.below(64);
        hostile.write(me, e);
        break;
      }
      case 5:
        hostile.block.recv(me).tail.store(in.below(2) ? in.take<std::uint16_t>() * 64 : in.number());
        break;
      case 6:
        if (in.below(4) == 0) line.ring.store(in.number());
        if (in.below(4) == 0) hostile.position = in.number() / kLine * kLine;
        if (in.below(8) == 0) hostile.scribble(in);
        break;
      default:
        victim.group->drive(in.below(2));
    }
    victim.group->drive(true);
  }
}

}  // namespace fuzz
