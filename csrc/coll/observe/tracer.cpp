#include "coll/observe/tracer.h"

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "coll/observe/activity.h"

namespace occl::coll {
namespace {

using What = Event::What;

/// In the notes of an activity: the group is the node's part of another one.
constexpr std::uint64_t kLeftOut = 0x10000;

float after(const TraceRecord& record, Ticks at) {
  return at > record.submitted ? static_cast<float>(at - record.submitted) : 0.0F;
}

}  // namespace

Tracer& Tracer::make(const std::string& directory, std::size_t max_bytes) {
  return *new Tracer(TraceFile::create(directory, max_bytes));
}

void Tracer::record(const Activity& of, const Event& event) noexcept {
  if (event.what == What::submitted) return begin(of, event);
  const Notes& notes = event.operation.notes();
  auto* const record = static_cast<TraceRecord*>(notes.place);
  // It is another operation's once so many have been called that the file is full.
  if (!record || record->stamp.load(std::memory_order_relaxed) != notes.number) return;
  const auto progress = [record](Progress reached) {
    record->progress.store(reached, std::memory_order_release);  // sync: trace-progress
  };
  switch (event.what) {
    case What::submitted:
    case What::started:
      return;
    case What::posted:
      if (record->arrived >= 0) return;  // of a call that consists of several collectives: the first
      record->arrived = after(*record, event.at);
      return progress(Progress::arrived);
    case What::met:
      if (record->met >= 0) return;
      record->met = after(*record, event.at);
      record->peer = static_cast<std::int16_t>(event.peer);
      return progress(Progress::met);
    case What::moved:
      record->moved = after(*record, event.at);
      return;
    case What::waited:
      if (record->waited < 0) record->waited = after(*record, event.at);
      return;
    case What::has_future:
      record->has_future = 1;
      return;
    case What::finished:
    case What::failed:
      record->ended = after(*record, event.at);
      if (event.operation.is_transfer() && event.peer >= 0)
        record->peer = static_cast<std::int16_t>(event.peer);
      return progress(event.what == What::failed ? Progress::failed : Progress::ended);
  }
}

void Tracer::begin(const Activity& of, const Event& event) {
  Notes& notes = event.operation.notes();
  notes = {};
  const Operation& op = event.operation;
  if (op.is_transfer() && op.transfer().access != Access::none) return;  // it has no counterpart to show
  const std::uint16_t number = group(of);
  if (of.notes().number == kLeftOut) return;
  std::uint64_t stamp = 0;
  TraceRecord* const record = file_->begin(stamp);
  if (!record) return;
  record->has_future = 0;
  record->submitted = event.at;
  record->number = op.sequence();
  record->group = number;
  record->progress.store(Progress::submitted, std::memory_order_relaxed);  // `publish` follows
  record->arrived = record->met = record->moved = record->ended = record->waited = -1;
  if (op.is_transfer()) {
    const Transfer& t = op.transfer();
    record->bytes = t.bytes();
    record->kind = t.send ? TraceRecord::kSend : TraceRecord::kReceive;
    record->dtype = static_cast<std::uint8_t>(t.dtype);
    record->peer = static_cast<std::int16_t>(t.peer);
    record->detail = t.tag;
  } else {
    const Collective& c = op.collective();
    record->bytes = bytes_of(c);
    record->kind = static_cast<std::uint8_t>(c.kind);
    record->dtype = static_cast<std::uint8_t>(c.dtype);
    record->peer = -1;
    record->detail = static_cast<std::uint32_t>(c.op) | static_cast<std::uint32_t>(c.root) << 8;
  }
  TraceFile::publish(*record, stamp);
  notes = {record, stamp};
}

/// The number of a group in the file, which learns of it at its first operation. Under the group's submission
/// lock, as all of `begin`.
std::uint16_t Tracer::group(const Activity& of) {
  Notes& notes = of.notes();
  if (notes.place != this) {
    const Activity::Identity& identity = of.identity();
    const std::uint64_t flags = of.record().flags.get();
    notes.place = this;
    notes.number = flags & kPartOfAnother
                       ? kLeftOut
                       : file_->add_group({identity.name, identity.group, (flags & kSpansNodes) != 0,
                                           identity.rank, identity.size});
  }
  return static_cast<std::uint16_t>(notes.number);
}

}  // namespace occl::coll
