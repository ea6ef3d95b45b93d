// The memory that a rank shares with the other ranks of its group, in its control region: a header and a
// block. The rank writes all of it, and the others only read it: nothing has two writers. Block and header
// are used again when all ranks have left; the memory of a header is used for nothing but headers.
//
//     GroupHeader      which group this is, whether the rank has left or given up, and why
//
//     Tick             how many synchronisations of steps this rank has passed, and which it attends to
//     RollCall         how many monitored barriers it has come to, and rank 0's verdict on them
//     Refusal[2]       for refused collectives, used in turn
//     MessageRefusal   for refused messages
//     OfferBoard       the group that it tries to make with some of the ranks
//     Post[2]          operation q posts into Post[q % 2]: stamp, signature, small payload, addresses
//     listed[2][N]     addresses and sizes of blocks that do not lie back to back
//     SendLine[N]      point-to-point to rank j: where the ring is
//     RecvLine[N]      point-to-point from rank j: how much is read
//     payload[2]       small one-shot contributions that do not fit into Post
//
// Why two posts are enough and no exit barrier is needed: a rank writes Post[q % 2] when it starts operation
// q. It has then finished q - 1, for which it has seen every other rank's stamp q - 1; so every other rank
// has finished q - 2, the last user of the same place.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>

#include "base/limits.h"
#include "base/sync.h"
#include "coll/mesh/offer.h"
#include "coll/mesh/rank_set.h"
#include "coll/plan/tuning.h"
#include "shm/wire.h"

namespace occl::coll {

inline constexpr std::size_t kInlineBytes = 40;
/// Larger contributions of one step go into a staging area, between two ranks that exchange them sooner:
/// there an exchange (coll/plan/staging_places.h) is faster.
inline constexpr std::size_t kBesidePostBytes = 2048, kBesidePostOfTwo = 128;
inline constexpr std::uint64_t kUnmapped = ~std::uint64_t{0};

/// Bits of GroupHeader::presence.
inline constexpr std::uint32_t kLeft = 1, kAborted = 2;

struct alignas(kLine) GroupHeader {
  Atomic<std::uint64_t> incarnation = 0;  // random: invitations name it
  std::uint32_t magic = shm::kMagic;
  Atomic<std::uint32_t> presence = 0;  // bits; with kAborted, `reason` was written before
  /// 1: it has mapped the others, 2: and has seen that all others have.
  Atomic<std::uint32_t> joined = 0;
  Atomic<std::uint32_t> connecting = 0;  // 1 + the rank that it connects to. Relaxed: only for a text
  std::array<char, 8 * kLine - 28> reason{};

  /// Begins another group. All ranks of the previous one have left it. One of them may still ask whether this
  /// rank has left: it sees kLeft in `presence`, or afterwards the new incarnation.
  void begin(std::uint64_t random) {
    incarnation.store(random, std::memory_order_seq_cst);  // sync: group-incarnation
    joined.store(0, std::memory_order_relaxed);            // no rank knows of the new group yet
    connecting.store(0, std::memory_order_relaxed);
    presence.store(0, std::memory_order_seq_cst);  // sync: group-presence
  }
};
static_assert(sizeof(GroupHeader) == 8 * kLine);

struct alignas(kLine) Tick {
  Atomic<std::uint64_t> value = 0;
  /// The last large collective that a thread of the program attended to. Relaxed: for Executor::lets_by.
  Atomic<std::uint64_t> attended = 0;
};

struct alignas(kLine) RollCall {
  Atomic<std::uint64_t> arrived = 0;
  Atomic<std::uint64_t> decided = 0;  // rank 0: barriers up to here have ended, ...
  Atomic<std::uint64_t> passed = 0;   // ... and this is the last one that all ranks came to
  /// Rank 0: the ranks that did not come to the last even and the last odd barrier. A rank that is away may
  /// read it only after rank 0 has given up on later ones.
  struct Absent {
    Atomic<std::uint64_t> number = 0;  // of the barrier; 0 while `ranks` is written
    SharedRankSet ranks;
  };
  std::array<Absent, 2> absent{};
};

/// A collective of this rank that raised because of wrong arguments, so that nothing was sent. Two places are
/// used in turn, for which the argument for two posts holds. See coll/group/refusals.h.
struct alignas(kLine) Refusal {
  /// The collective that this call would have been. Stored after the text.
  Atomic<std::uint64_t> number = 0;
  std::array<char, 4 * kLine - 8> text{};
};

/// The same for messages. `text` is written while no rank is in a set and `from_any` is 0.
struct alignas(kLine) MessageRefusal {
  SharedRankSet sends, receives;       // to and from whom
  Atomic<std::uint32_t> from_any = 0;  // a receive from any rank
  std::array<char, 5 * kLine - 2 * sizeof(SharedRankSet) - 4> text{};
};
static_assert(sizeof(MessageRefusal) == 5 * kLine);

struct alignas(kLine) Post {
  Atomic<std::uint64_t> stamp = 0;
  std::uint64_t signature = 0;
  double factor = 1;  // PREMUL_SUM
  std::array<std::byte, kInlineBytes> payload{};
  // A second line, read only by operations that need more than one step.
  std::uint64_t in = kUnmapped;       // Ref of the first input block, or kUnmapped
  std::uint64_t out = kUnmapped;      // the same of outputs that others write
  std::uint64_t staging = kUnmapped;  // Ref of its slots, or kUnmapped: none yet
  std::uint64_t largest = 0;
  std::uint32_t mapped = 0;  // 1: peers can reach all that `direct` needs
  std::uint32_t listed = 0;  // 1: addresses of its blocks are in listed[]; they do not lie back to back
  /// The operation's, which may consist of several collectives. Relaxed: only for errors.
  Atomic<std::uint64_t> number = 0;
  std::array<std::byte, 16> reserved{};
};
static_assert(sizeof(Post) == 2 * kLine && offsetof(Post, in) == kLine);

struct ListedBlock {
  std::uint64_t ref = kUnmapped;
  std::uint64_t count = 0;  // elements
};

struct alignas(kLine) SendLine {
  Atomic<std::uint64_t> ring = 0;           // offset in the control region, 0: none yet; see shm/ring.h
  Atomic<std::uint64_t> taken = 0;          // pieces of a direct message, from its back: see shm/two_ends.h
  Atomic<std::uint64_t> cells = kUnmapped;  // Ref of this rank's cells, or kUnmapped: messages/cells.h
  Atomic<std::uint32_t> maps_cells = 0;     // 1: it has mapped the other rank's
};
struct alignas(kLine) RecvLine {
  Atomic<std::uint64_t> tail = 0;    // see shm/ring.h
  Atomic<std::uint64_t> taken = 0;   // pieces of a direct message, from its front: see shm/two_ends.h
  Atomic<std::uint64_t> wanted = 0;  // tag + 1 of the first receive that sleeps, 0: none. Relaxed: for texts
};

/// Finds the parts of a rank's block. Blocks of peers are mapped read-only, so a write into one crashes.
class SharedBlock {
 public:
  SharedBlock() = default;
  SharedBlock(GroupHeader* header, std::byte* base, int size) : header_(header), base_(base), size_(size) {}

  static std::size_t bytes(int size) { return offset_payload(size) + 2 * kMaxOneShotBytes; }

  /// Constructs the objects in zeroed memory. The header may have been one before.
  void construct(std::uint64_t incarnation) {
    if (header_->magic != shm::kMagic) new (header_) GroupHeader;
    header_->begin(incarnation);
    new (base_ + kTick) Tick;
    new (&roll_call()) RollCall;
    for (int i = 0; i < 2; ++i) new (refusals() + i) Refusal;
    new (&message_refusal()) MessageRefusal;
    new (&offers()) OfferBoard;
    for (int i = 0; i < 2; ++i) new (base_ + kPost + i * sizeof(Post)) Post;
    for (int i = 0; i < size_; ++i) {
      new (&send(i)) SendLine;
      new (&recv(i)) RecvLine;
    }
  }

  GroupHeader& header() const { return *header_; }
  Atomic<std::uint64_t>& tick() const { return reinterpret_cast<Tick*>(base_ + kTick)->value; }
  Atomic<std::uint64_t>& attended() const { return reinterpret_cast<Tick*>(base_ + kTick)->attended; }
  RollCall& roll_call() const { return *reinterpret_cast<RollCall*>(base_ + kRollCall); }
  Refusal& refusal(std::uint64_t q) const { return refusals()[q & 1]; }
  MessageRefusal& message_refusal() const {
    return *reinterpret_cast<MessageRefusal*>(base_ + kMessageRefusal);
  }
  OfferBoard& offers() const { return *reinterpret_cast<OfferBoard*>(base_ + kOffers); }
  Post& post(std::uint64_t q) const { return reinterpret_cast<Post*>(base_ + kPost)[q & 1]; }
  ListedBlock* listed(std::uint64_t q) const {
    return reinterpret_cast<ListedBlock*>(base_ + kListed + (q & 1) * listed_bytes(size_));
  }
  SendLine& send(int to) const { return reinterpret_cast<SendLine*>(base_ + offset_send(size_))[to]; }
  RecvLine& recv(int from) const { return reinterpret_cast<RecvLine*>(base_ + offset_recv(size_))[from]; }
  std::byte* payload(std::uint64_t q) const {
    return base_ + offset_payload(size_) + (q & 1) * kMaxOneShotBytes;
  }

 private:
  Refusal* refusals() const { return reinterpret_cast<Refusal*>(base_ + kRefusal); }

  static constexpr std::size_t kTick = 0;
  static constexpr std::size_t kRollCall = kTick + sizeof(Tick);
  static constexpr std::size_t kRefusal = kRollCall + sizeof(RollCall);
  static constexpr std::size_t kMessageRefusal = kRefusal + 2 * sizeof(Refusal);
  static constexpr std::size_t kOffers = kMessageRefusal + sizeof(MessageRefusal);
  static constexpr std::size_t kPost = kOffers + sizeof(OfferBoard);
  static constexpr std::size_t kListed = kPost + 2 * sizeof(Post);
  static constexpr std::size_t listed_bytes(int size) { return whole_lines(size * sizeof(ListedBlock)); }
  static constexpr std::size_t offset_send(int size) { return kListed + 2 * listed_bytes(size); }
  static constexpr std::size_t offset_recv(int size) { return offset_send(size) + size * sizeof(SendLine); }
  static constexpr std::size_t offset_payload(int size) {
    return offset_recv(size) + size * sizeof(RecvLine);
  }

  GroupHeader* header_ = nullptr;
  std::byte* base_ = nullptr;
  int size_ = 0;
};

}  // namespace occl::coll
