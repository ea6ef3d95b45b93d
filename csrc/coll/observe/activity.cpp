#include "coll/observe/activity.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <new>
#include <utility>

#include "base/error.h"
#include "coll/mesh/layout.h"
#include "coll/task/collective.h"

namespace occl::coll {
namespace {

/// How long one anchor serves.
constexpr std::int64_t kAnchorNs = 500'000'000;

// An arena hands kept memory out again by its size: no record may become a header, or a header a record.
static_assert(sizeof(ActivityRecord) != sizeof(GroupHeader));

/// "barrier,broadcast,...;uint8:1,int8:1,...;SUM,AVG,...": what the numbers in signatures mean.
std::string names() {
  std::string text;
  for (const Traits& t : kTraits) text += concat(text.empty() ? "" : ",", t.name);
  for (int i = 0; i < kDTypes; ++i)
    text += concat(i ? "," : ";", kDTypeInfo[i].name, ":", kDTypeInfo[i].size);
  for (int i = 0; i <= kReduceOps; ++i) text += concat(i ? "," : ";", kReduceOpName[i]);
  return text;
}

void publish_names(shm::Endpoint& endpoint) {
  auto& header = endpoint.header();
  if (header.names.load(std::memory_order_acquire) != 0) return;  // sync: record-names
  const std::string text = names();
  const std::uint64_t at = endpoint.arena().keep(text.size() + 1);
  std::memcpy(endpoint.arena().at(at), text.c_str(), text.size() + 1);
  // sync: record-names. If two threads are here, both texts are good.
  header.names.store(at, std::memory_order_release);
}

/// The record at `offset`, which was one before or is zeroed memory: then it joins the list.
ActivityRecord& record_at(shm::Endpoint& endpoint, std::uint64_t offset) {
  std::byte* at = endpoint.arena().at(offset);
  auto* record = reinterpret_cast<ActivityRecord*>(at);
  if (record->magic == kRecordMagic) return *record;
  record = new (at) ActivityRecord;
  auto& first = endpoint.header().records;
  std::uint64_t next = first.load(std::memory_order_relaxed);
  do {
    record->next.store(next, std::memory_order_release);                            // sync: record-list
  } while (!first.compare_exchange_weak(next, offset, std::memory_order_release));  // sync: record-list
  return *record;
}

int kind_of(const Operation& op) {
  if (op.is_transfer()) return op.transfer().send ? kSendKind : kRecvKind;
  return static_cast<int>(op.collective().kind);
}

}  // namespace

std::uint64_t bytes_of(const Collective& c) {
  const auto elements = [](const Blocks& blocks) {
    if (!blocks.list) return blocks.n * blocks.count;
    std::size_t sum = 0;
    for (std::uint32_t i = 0; i < blocks.n; ++i) sum += blocks.list[i].count;
    return sum;
  };
  return std::max(elements(c.in), elements(c.out)) * size_of(c.dtype);
}

Activity::InBarrier::InBarrier(const Activity& activity, std::uint64_t number) : record_(*activity.record_) {
  record_.barriers.set(number);
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  record_.barrier_since.set(static_cast<std::uint64_t>(std::chrono::nanoseconds(now).count()));
}

/// Makes `version` odd while it lives.
class Activity::Writing {
 public:
  explicit Writing(ActivityRecord& record) : version_(record.version) { version_.add(1); }
  ~Writing() { version_.add(1); }
  Writing(const Writing&) = delete;
  Writing& operator=(const Writing&) = delete;

 private:
  RecordWord& version_;
};

Activity::Activity(std::shared_ptr<shm::Endpoint> endpoint, Identity identity,
                   const std::atomic<Recorder*>& recorder)
    : endpoint_(std::move(endpoint)),
      identity_(std::move(identity)),
      recorder_(recorder),
      offset_(endpoint_->arena().keep(sizeof(ActivityRecord))),
      record_(&record_at(*endpoint_, offset_)) {
  publish_names(*endpoint_);
  ActivityRecord& r = *record_;
  {
    const Writing writing(r);
    for (RecordWord* word :
         {&r.stage, &r.number, &r.signature, &r.volume, &r.posted, &r.since, &r.deadline, &r.submitted,
          &r.last, &r.collectives, &r.message, &r.message_envelope, &r.message_volume, &r.message_posted,
          &r.messages_open, &r.barriers, &r.barrier_since})
      word->set(0);
    for (auto& c : r.counters)
      for (RecordWord* word : {&c.operations, &c.bytes, &c.meeting, &c.syncing, &c.moving, &c.failed})
        word->set(0);
  }
  r.group = identity_.group;
  r.rank = identity_.rank;
  r.size = identity_.size;
  r.block = identity_.block;
  r.wanted = identity_.wanted;
  r.name = {};
  identity_.name.copy(r.name.data(), r.name.size() - 1);
  r.flags.set(identity_.flags);
  r.memory.set(0);
  const Anchor& first = endpoint_->first_anchor();
  {
    const Writing writing(r);
    r.first_ticks.set(first.ticks);
    r.first_ns.set(static_cast<std::uint64_t>(first.ns));
    keep_time(ticks_now());
  }
  r.state.set(static_cast<std::uint64_t>(RecordState::open));
}

Activity::~Activity() {
  end();
  endpoint_->arena().retire({{offset_, sizeof(ActivityRecord)}}, [] { return true; });
}

void Activity::end() { record_->state.set(static_cast<std::uint64_t>(RecordState::ended)); }

/// Renews the anchor, now and then. While `version` is odd.
void Activity::keep_time(Ticks now) {
  if (now < next_anchor_) return;
  const Anchor& first = endpoint_->first_anchor();
  const Anchor recent = Anchor::now();
  record_->recent_ticks.set(recent.ticks);
  record_->recent_ns.set(static_cast<std::uint64_t>(recent.ns));
  next_anchor_ = recent.ticks + static_cast<Ticks>(kAnchorNs / ns_per_tick(first, recent));
}

Ticks Activity::record(Recorder& recorder, Event::What what, const Operation& op, int peer, Ticks at) const {
  if (at == 0) at = ticks_now();
  recorder.record(*this, {what, at, op, peer});
  return at;
}

Activity::Waiting Activity::waiting() const {
  const ActivityRecord& r = *record_;
  const auto stage = static_cast<Stage>(r.stage.get());
  const bool receives = stage == Stage::idle && r.messages_open.get() > 0;
  const Ticks since = stage == Stage::meeting   ? r.posted.get()
                      : stage == Stage::syncing ? r.since.get()
                      : receives                ? r.message_posted.get()
                                                : 0;
  if (since == 0) return {};
  const Anchor now = Anchor::now();
  const double ns = static_cast<double>(now.ticks - std::min(since, now.ticks)) *
                    ns_per_tick(endpoint_->first_anchor(), now);
  Waiting waiting;
  waiting.longest = std::chrono::nanoseconds(static_cast<std::int64_t>(ns));
  const auto deadline = static_cast<std::int64_t>((receives ? r.message_deadline : r.deadline).get());
  if (deadline != Deadline::never().at_ns()) waiting.left = std::chrono::nanoseconds(deadline - now.ns);
  return waiting;
}

// ---- collectives

void Activity::held(const Operation& op) {
  ActivityRecord& r = *record_;
  if (r.stage.get() == static_cast<std::uint64_t>(Stage::held)) return;
  const Writing writing(r);
  r.stage.set(static_cast<std::uint64_t>(Stage::held));
  r.number.set(op.sequence());
  r.signature.set(op.signature().word);
  r.volume.set(bytes_of(op.collective()));
  r.posted.set(ticks_now());
  r.deadline.set(static_cast<std::uint64_t>(op.deadline().at_ns()));
}

void Activity::starting(Operation& op) {
  current_ = &op;
  kind_ = kind_of(op);
  bytes_ = bytes_of(op.collective());
  met_ = false;
  looks_ = 0;
  blocked_since_ = synced_ = 0;
  op.times() = {};
  if (bytes_ > kUntimedBytes) op.times().started = ticks_now();
  op.times().started = emit(Event::What::started, op, -1, op.times().started);
}

void Activity::posted(Operation& op) {
  const Ticks now = ticks_now();
  op.times().posted = now;
  if (op.times().started == 0) op.times().started = now;
  ActivityRecord& r = *record_;
  {
    const Writing writing(r);
    r.stage.set(static_cast<std::uint64_t>(Stage::meeting));
    r.number.set(op.sequence());
    r.signature.set(op.signature().word);
    r.volume.set(bytes_);
    r.posted.set(now);
    r.deadline.set(static_cast<std::uint64_t>(op.deadline().at_ns()));
    r.collectives.add(1);
    keep_time(now);
  }
  emit(Event::What::posted, op, -1, now);
}

void Activity::block() {
  if (!current_) return;
  looks_ = kLooks;
  blocked_since_ = met_ ? ticks_now() : current_->times().posted;
  if (!met_) return;
  record_->since.set(blocked_since_);
  record_->stage.set(static_cast<std::uint64_t>(Stage::syncing));
}

void Activity::unblock(Ticks now) {
  if (met_) {
    synced_ += now - blocked_since_;
    record_->stage.set(static_cast<std::uint64_t>(Stage::moving));
    blocked_since_ = 0;
  }
}

void Activity::met(int last) {
  if (!current_) return;
  auto& times = current_->times();
  const bool timed = blocked_since_ != 0 || recorder_.load(std::memory_order_relaxed);  // emit loads it again
  times.met = timed ? ticks_now() : times.posted;
  blocked_since_ = 0;
  met_ = true;
  if (last < 0 && looks_ == 0) last = identity_.rank;
  looks_ = 0;
  record_->stage.set(static_cast<std::uint64_t>(Stage::moving));
  record_->last.set(static_cast<std::uint64_t>(last + 1));
  emit(Event::What::met, *current_, last, times.met);
}

void Activity::ended(const Operation& op) {
  const Event::What what = op.error() ? Event::What::failed : Event::What::finished;
  if (&op != current_) {  // it failed before it began
    counters(kind_of(op)).failed.add(1);
    emit(what, op, -1);
    return;
  }
  const auto& times = op.times();
  const bool posted = times.posted != 0, met = met_;
  Ticks end = met && bytes_ <= kUntimedBytes && synced_ == 0 ? times.met : ticks_now();
  end = emit(what, op, -1, end);
  current_ = nullptr;
  ActivityRecord& r = *record_;
  auto& c = counters(kind_);
  const Writing writing(r);
  r.stage.set(static_cast<std::uint64_t>(Stage::idle));
  if (op.error())
    c.failed.add(1);
  else
    c.operations.add(1), c.bytes.add(bytes_);
  if (!posted) return;
  if (!met) return c.meeting.add(end - times.posted);
  if (blocked_since_) synced_ += end - blocked_since_;
  if (const Ticks waited = times.met - times.posted) c.meeting.add(waited);
  if (synced_) c.syncing.add(synced_);
  if (const Ticks moving = (end - times.met - synced_) + (times.posted - times.started)) c.moving.add(moving);
}

// ---- messages

void Activity::message_posted(Operation& op) {
  const Transfer& t = op.transfer();
  // Of a small send the time is taken later: when it has left, or when the thread is about to sleep.
  const bool later = t.send && t.bytes() <= kUntimedBytes && !recorder_.load(std::memory_order_relaxed);
  const Ticks now = later ? 0 : ticks_now();
  op.times() = {};
  op.times().started = op.times().posted = now;
  op.times().open = true;
  ActivityRecord& r = *record_;
  {
    const Writing writing(r);
    r.message.set(op.sequence());
    const bool one_sided = t.access != Access::none;
    const auto tag = one_sided ? static_cast<std::uint64_t>(t.access) : t.tag;
    r.message_envelope.set(static_cast<std::uint16_t>(t.peer + 1) | std::uint64_t{t.send} << 16 |
                           static_cast<std::uint64_t>(t.dtype) << 17 | std::uint64_t{one_sided} << 31 |
                           tag << 32);
    r.message_volume.set(t.bytes());
    r.message_posted.set(now);
    r.message_deadline.set(static_cast<std::uint64_t>(op.deadline().at_ns()));
    r.messages_open.add(1);
    keep_time(now);
  }
  if (!later) emit(Event::What::posted, op, t.peer, now);
}

/// The time of the last message, if that has none yet. While `version` is odd.
void Activity::time_last_message() {
  if (record_->message_posted.get() != 0) return;
  const Ticks now = ticks_now();
  record_->message_posted.set(now);
  keep_time(now);
}

void Activity::block_messages() {
  if (record_->messages_open.get() == 0) return;
  looks_for_messages_ = std::max(looks_for_messages_, kLooks);
  const Writing writing(*record_);
  time_last_message();
}

void Activity::message_met(Operation& op, int peer) {
  if (op.times().met != 0) return;
  const bool timed = op.transfer().bytes() > kUntimedBytes;
  op.times().met = emit(Event::What::met, op, peer, timed ? ticks_now() : 0);
}

void Activity::message_ended(const Operation& op) {
  const auto& times = op.times();
  const Transfer& t = op.transfer();
  const bool timed = t.bytes() > kUntimedBytes || (!t.send && looks_for_messages_ >= kLooks);
  const Ticks end = emit(op.error() ? Event::What::failed : Event::What::finished, op,
                         t.send ? t.peer : op.source(), timed ? ticks_now() : 0);
  ActivityRecord& r = *record_;
  auto& c = counters(kind_of(op));
  const Writing writing(r);
  if (times.open) {
    r.messages_open.add(~std::uint64_t{0});
    if (r.messages_open.get() == 0) looks_for_messages_ = 0;
    if (r.message.get() == op.sequence()) time_last_message();
  }
  if (op.error())
    c.failed.add(1);
  else
    c.operations.add(1), c.bytes.add(t.bytes());
  if (times.posted == 0 || end == 0) return;
  const Ticks met = times.met ? times.met : end;
  c.meeting.add(met - times.posted);
  c.moving.add(end - met);
}

}  // namespace occl::coll
