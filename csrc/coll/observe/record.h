// The record that a rank publishes about one of its groups: which operation it is in, since when, and what
// all operations so far have cost. It lies in the control region, so every process that may map that can read
// it, and no reader can disturb the writer (docs/security.md).
//
//     ProcessHeader::records ─▶ ActivityRecord ─next─▶ ActivityRecord ─next─▶ ... 0
//
// The list only grows. The record of a group that has ended is used again for another group: until then its
// `state` says that it shows the last moments of a group.
//
// There is one writer, the thread that drives the group, and any number of readers that it does not know.
// The words of monitored barriers are written by the thread that calls one.
// `version` is odd while the lines below it are written. A reader copies them between two looks at `version`,
// and tries again unless both show the same even number. The writer may have been stopped or killed in
// between, so a reader gives up after some attempts and says that it did.
//
// occl/tools/top/layout.py reads this: change both, and shm::kProtocolVersion.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

#include "base/limits.h"
#include "coll/task/collective.h"

namespace occl::coll {

/// A word of a record. Not occl::Atomic, because nothing that a test of interleavings looks at depends on it.
/// Stored with release and loaded with acquire: on x86-64 these are plain moves.
class RecordWord {
 public:
  std::uint64_t get() const { return value_.load(std::memory_order_acquire); }       // sync: record-word
  void set(std::uint64_t value) { value_.store(value, std::memory_order_release); }  // sync: record-word
  /// There is only one writer.
  void add(std::uint64_t n) { set(value_.load(std::memory_order_relaxed) + n); }

 private:
  std::atomic<std::uint64_t> value_ = 0;
};

enum class RecordState : std::uint64_t { unused = 0, open = 1, ended = 2 };

/// Bits of ActivityRecord::flags: the group spans nodes; it is the node's part of such a group.
inline constexpr std::uint64_t kSpansNodes = 1, kPartOfAnother = 2;

enum class Stage : std::uint64_t {
  idle,     // no collective: the rank computes
  held,     // the next collective waits for the stream in which it was called
  meeting,  // posted; the rank waits for the posts of others
  moving,   // met; the rank moves bytes
  syncing,  // it waits for others between two steps, or at the end
};

inline constexpr int kSendKind = kKinds, kRecvKind = kKinds + 1, kRecordKinds = kKinds + 2;
inline constexpr std::uint32_t kRecordMagic = 0x61636c6f;

struct alignas(kLine) ActivityRecord {
  // ---- Written before `state`.
  std::uint32_t magic = kRecordMagic;
  std::uint32_t bytes = sizeof(ActivityRecord);
  std::atomic<std::uint64_t> next = 0;  // offset in the control region
  RecordWord state;                     // RecordState
  std::uint64_t group = 0;              // the same number on all ranks of the group, and of no other group
  std::int32_t rank = 0, size = 0;
  std::uint64_t block = 0;   // offset of the rank's SharedBlock, which begins with its Tick; 0: none
  std::uint64_t wanted = 0;  // offset of its RecvLine[0]; 0: none
  RecordWord flags;
  std::array<char, 2 * kLine> name{};

  // ---- Written now and then; the anchors are guarded by `version`.
  RecordWord first_ticks, first_ns;    // an anchor (base/ticks.h), from when the process made its endpoint
  RecordWord recent_ticks, recent_ns;  // another one, at most a second older than the newest time below
  RecordWord memory;                   // bytes of shared memory that the rank holds for the group
  RecordWord message_deadline;         // of the last message: steady_ns. Guarded by `version`
  RecordWord barriers;                 // monitored barriers that the rank has come to
  RecordWord barrier_since;            // when it came to the one that it is in: steady_ns; 0: it is in none

  // ---- Guarded by `version`. Times are ticks.
  alignas(kLine) RecordWord version;
  RecordWord stage;      // Stage
  RecordWord number;     // of the collective that the rank is in, or was in last; 0: none yet
  RecordWord signature;  // of it: coll::Signature
  RecordWord volume;     // bytes of it: the larger of what this rank gives and of what it gets
  RecordWord posted;     // when this rank arrived in it
  RecordWord since;      // when it began to wait, in the stage `syncing`
  RecordWord deadline;   // of it: steady_ns, or the largest number for none

  RecordWord submitted;    // collectives called so far
  RecordWord last;         // 1 + the rank that arrived last in the last collective that met, 0: unknown
  RecordWord collectives;  // posted so far: the stamp of the last post (coll/mesh/layout.h)
  // The last message that this rank posted.
  RecordWord message;  // its number; 0: none yet
  // peer + 1 in 16 bits (0: any), 1 bit: a send, 14 bits: dtype, 1 bit: an access of a window, 32 bits: tag,
  // or which Access
  RecordWord message_envelope;
  RecordWord message_volume;  // bytes
  RecordWord message_posted;
  RecordWord messages_open;  // messages that have not ended

  struct alignas(kLine) Counters {
    RecordWord operations, bytes;  // that succeeded
    RecordWord meeting;            // time between this rank's arrival and the last one's
    RecordWord syncing;            // time that it waited after that
    RecordWord moving;             // the rest of the time
    RecordWord failed;             // operations
    std::array<std::uint64_t, 2> reserved{};
  };
  std::array<Counters, kRecordKinds> counters;  // by Kind; then sends and receives
};
static_assert(offsetof(ActivityRecord, name) == kLine && offsetof(ActivityRecord, first_ticks) == 3 * kLine &&
              offsetof(ActivityRecord, version) == 4 * kLine &&
              offsetof(ActivityRecord, counters) == 6 * kLine &&
              sizeof(ActivityRecord) == (6 + kRecordKinds) * kLine);

}  // namespace occl::coll
