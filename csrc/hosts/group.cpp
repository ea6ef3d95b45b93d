#include "hosts/group.h"

#include <algorithm>
#include <cstdio>
#include <utility>

#include "base/error.h"
#include "base/thread.h"
#include "coll/progress/engine.h"
#include "hosts/cost.h"
#include "kernels/convert.h"
#include "kernels/kernels.h"

namespace occl::hosts {
namespace {

/// After the deadline of an operation, a rank that does not know what is missing waits this part of the
/// timeout (within the limits kLeastGrace and kPartingTime) for a rank that knows; a leader waits half of it.
constexpr int kGracePart = 20;
constexpr std::chrono::nanoseconds kLeastGrace = std::chrono::milliseconds(400);

/// Most messages arrive within the first time. After the second one the user is told what a rank waits for.
constexpr auto kPromptly = std::chrono::milliseconds(100);
constexpr auto kSilently = std::chrono::seconds(5);

/// How much longer a rank waits that leaves a subgroup. What it sent may also arrive later, while the link
/// lives; and a peer that has left the subgroup, and so will not receive it, keeps its connection.
constexpr auto kFromSubgroup = std::chrono::seconds(5);

/// How often a leader looks for trouble of its node while it computes.
constexpr auto kWatch = std::chrono::milliseconds(200);

/// What a leader tells other leaders between collectives: Note::number.
enum News : std::uint64_t { ended = 1, left = 2 };

coll::Blocks blocks_of(const std::vector<coll::Block>& list) {
  if (list.empty()) return {};
  std::size_t largest = 0;
  for (const coll::Block& block : list) largest = std::max(largest, block.count);
  return {list.front().data, largest, static_cast<std::uint32_t>(list.size()), nullptr};
}

}  // namespace

Group::Group(Membership membership, std::shared_ptr<coll::Group> node, std::shared_ptr<Link> link)
    : Communicator(node->engine(), {membership.name, membership.group, membership.rank,
                                    membership.partition.size(), 0, 0, coll::kSpansNodes}),
      m_(std::move(membership)),
      node_number_(m_.partition.node_of(m_.rank)),
      node_(std::move(node)),
      link_(std::move(link)),
      outbox_(m_, *link_),
      notes_(engine().endpoint()),
      work_(engine().endpoint()),
      exchanges_(exchanges(m_.partition.nodes())),
      messenger_(m_, *node_, *link_, outbox_, activity()),
      roll_call_(m_, *link_, outbox_),
      mail_(m_, *link_, outbox_) {
  node_->be_part_of_another();
  notes_.reserve((2 + node_->size()) * kNoteBytes);
  if (!leads()) return;
  for (const auto& round : exchanges_)
    for (const Exchange& exchange : round) {
      Report& report = expected_.emplace_back();
      report.node = node_after(exchange.distance);
      receive_object(*link_, m_.partition.leader(report.node), m_.stream(Stream::news), report);
    }
  watch_ = start_thread<std::thread>("that watches over the ranks of this node", [this] { watch(); });
}

Group::~Group() {
  if (watch_.joinable()) watch_.join();  // part() has told it to end
}

void Group::watch() {
  std::unique_lock lock(watch_mutex_);
  while (!watch_wake_.wait_for(lock, kWatch, [this] { return watch_ends_; })) {
    lock.unlock();
    look();
    lock.lock();
  }
}

// ---- the council

void Group::start(coll::Operation& op) {
  if (loss_) fail_for_loss(op);
  op_ = &op;
  phase_ = Phase::gather;
  write_note(own(), op.collective(), op.sequence(), m_.rank);
  meet_inside(coll::Kind::gather, &own(), leads() ? of_node().data() : nullptr);
  if (leads()) return;
  phase_ = Phase::spread;  // the leader broadcasts what all nodes found
  meet_inside(coll::Kind::broadcast, nullptr, &verdict());
}

/// Starts a collective of the node on notes: a broadcast of one, or a gather of one from each rank.
void Group::meet_inside(coll::Kind kind, Note* from, Note* to) {
  coll::Collective c;
  c.kind = kind;
  if (from) c.in = {from->bytes(), kNoteBytes, 1, nullptr};
  const auto blocks = kind == coll::Kind::gather ? static_cast<std::uint32_t>(node_->size()) : 1;
  if (to) c.out = {to->bytes(), kNoteBytes, blocks, nullptr};
  c.largest = c.volume = kNoteBytes;
  under_way_.add(*node_, std::make_unique<UnderWay::Nested>(c), 0);
}

/// The leader has the notes of its node.
void Group::begin_exchange() {
  of_leaders_ = std::make_shared<std::vector<Note>>(m_.partition.nodes());
  of_leaders_->front() = note_of_node(op_->collective(), of_node(), m_.partition, node_number_,
                                      [this](int r) { return m_.describe(r); });
  round_ = 0;
  exchange_notes();
}

void Group::exchange_notes() {
  const auto stream = m_.stream(Stream::notes);
  for (const auto& [distance, notes] : exchanges_[round_]) {
    const int to = m_.partition.leader(node_after(-distance)),
              from = m_.partition.leader(node_after(distance));
    const std::size_t bytes = notes * kNoteBytes;
    // First the receive: an engine that sends when it knows of the peer's receive then has sent this rank's
    // notes when those of the peer have come.
    under_way_.add(link_->receive(from, stream, (*of_leaders_)[distance].bytes(), bytes, of_leaders_), from,
                   0);
    outbox_.keep(to, Stream::notes, link_->send(to, stream, of_leaders_->front().bytes(), bytes, of_leaders_),
                 op_->deadline());
  }
}

/// The leader has the notes of all nodes.
Note Group::find_verdict() const {
  std::vector<Note> all(of_leaders_->size());
  for (std::size_t i = 0; i < all.size(); ++i) all[node_after(static_cast<int>(i))] = (*of_leaders_)[i];
  return hosts::verdict(op_->collective(), all, m_.partition, node_number_,
                        [this](int r) { return m_.describe(r); });
}

/// Everything of this phase has ended. False if the collective is at its end.
bool Group::next_phase() {
  const coll::Collective& c = op_->collective();
  switch (phase_) {
    case Phase::gather:
      begin_exchange();
      phase_ = Phase::exchange;
      return true;
    case Phase::exchange:
      if (++round_ < exchanges_.size()) {
        exchange_notes();
        return true;
      }
      verdict() = find_verdict();
      meet_inside(coll::Kind::broadcast, &verdict(), &verdict());
      phase_ = Phase::spread;
      return true;
    case Phase::spread:
      activity().met(-1);
      if (verdict().refused) return false;
      if (fits_note(c)) {
        read_result(verdict(), c, m_.rank);
        return false;
      }
      program_ = Program::make(m_.partition, m_.rank, c, m_.window_bytes, verdict().pairwise);
      schedule_ = std::make_unique<Schedule>(program_->stages(), program_->windows());
      open_.assign(program_->stages() * program_->stages(), 0);
      work_.reserve(program_->stages() * program_->work_bytes());
      phase_ = Phase::run;
      return true;
    case Phase::run:
    case Phase::close:
      return false;
  }
  return false;
}

coll::Outcome Group::advance() {
  bool moved = node_->drive(false);
  moved |= reap(awaited());
  if (moved && loss_) patience_ = Deadline::after(kPartingTime);
  if (phase_ == Phase::run) {
    moved |= run_program();
    if (!schedule_->done() || !under_way_.empty())
      return moved ? coll::Outcome::advanced : coll::Outcome::blocked;
  } else if (!under_way_.empty()) {
    return moved ? coll::Outcome::advanced : coll::Outcome::blocked;
  }
  if (next_phase()) return coll::Outcome::advanced;
  phase_ = Phase::close;
  if (!outbox_.arrived(Stream::notes)) return moved ? coll::Outcome::advanced : coll::Outcome::blocked;
  return verdict().refused ? coll::Outcome::mismatch : coll::Outcome::finished;
}

bool Group::reap(int place) {
  return under_way_.reap(
      place,
      [this](int ended) {
        if (phase_ == Phase::run) --open_[ended];
      },
      [this](int peer, const Error& error) { throw m_.lost(peer, *link_, error); });
}

// ---- the program

/// Where the steps are that must end before anything else can start.
int Group::awaited() const {
  if (phase_ != Phase::run || schedule_->done()) return UnderWay::kEverywhere;
  const auto needed = schedule_->needs(schedule_->item());
  return needed ? place(needed->stage, needed->window) : UnderWay::kEverywhere;
}

/// Starts the stages that may start; true if there was one.
bool Group::run_program() {
  bool any = false;
  for (; !schedule_->done(); schedule_->next()) {
    const auto item = schedule_->item();
    const auto needed = schedule_->needs(item);
    if (needed && open_[place(needed->stage, needed->window)] > 0) return any;
    for (const Step& step : program_->steps(item.stage, item.window))
      carry_out(step, item.window, place(program_->ends_with(step, item.stage), item.window));
    any = true;
  }
  return any;
}

std::byte* Group::at(const Piece& piece, std::uint64_t window) const {
  if (piece.count == 0) return nullptr;
  if (piece.where == Where::work)
    return work_.data() + (window % program_->stages()) * program_->work_bytes() + piece.offset;
  const coll::Collective& c = op_->collective();
  return (piece.where == Where::in ? c.in : c.out).at(piece.block, size_of(c.dtype)).data + piece.offset;
}

void Group::carry_out(const Inside& step, std::uint64_t window, int place) {
  const auto blocks = [&](const std::vector<Piece>& pieces) {
    std::vector<coll::Block> list;
    for (const Piece& piece : pieces) list.push_back({at(piece, window), piece.count});
    return list;
  };
  std::vector<coll::Block> in = blocks(step.in), out = blocks(step.out);
  coll::Collective c;
  c.kind = step.kind;
  c.dtype = step.dtype;
  c.op = step.op;
  c.root = step.root;
  c.in = blocks_of(in);
  c.out = blocks_of(out);
  if (step.counts.empty()) {
    c.largest = c.count();
    c.volume = coll::kUneven;
  } else {
    coll::set_sizes(c, step.counts);
  }
  c.factor = op_->collective().factor;
  ++open_[place];
  under_way_.add(*node_, std::make_unique<UnderWay::Nested>(c, std::move(in), std::move(out)), place);
}

void Group::carry_out(const Step& step, std::uint64_t window, int place) {
  if (const auto* inside = std::get_if<Inside>(&step)) {
    carry_out(*inside, window, place);
  } else if (const auto* message = std::get_if<Message>(&step)) {
    const Piece& piece = message->piece;
    const auto s = m_.stream(Stream::data);
    ++open_[place];
    under_way_.add(message->send ? link_->send(message->peer, s, at(piece, window), piece.bytes())
                                 : link_->receive(message->peer, s, at(piece, window), piece.bytes()),
                   message->peer, place);
  } else if (const auto* combine = std::get_if<Combine>(&step)) {
    std::vector<const void*> from;
    for (const Piece& src : combine->srcs) from.push_back(at(src, window));
    void* const to[] = {at(combine->dst, window)};
    kernels::reduce(combine->dtype, combine->op, to, from, combine->dst.count, kernels::Store::cached);
  } else if (const auto* convert = std::get_if<Convert>(&step)) {
    void* const to = at(convert->dst, window);
    const void* const from = at(convert->src, window);
    if (convert->widen)
      kernels::widen(convert->narrow, convert->wide, to, from, convert->src.count);
    else
      kernels::narrow(convert->narrow, convert->wide, to, from, convert->src.count, convert->divisor);
  } else if (const auto* announce = std::get_if<Announce>(&step)) {
    const auto count = static_cast<std::int64_t>(announce->count);
    std::copy_n(reinterpret_cast<const std::byte*>(&count), sizeof(count), at(announce->to, window));
  } else if (const auto* compare = std::get_if<Compare>(&step)) {
    std::int64_t count;
    std::copy_n(at(compare->received, window), sizeof(count), reinterpret_cast<std::byte*>(&count));
    if (count != static_cast<std::int64_t>(compare->expected))
      fail(Errc::mismatch, m_.describe(compare->peer), " sends ", count, " elements to rank ", m_.rank,
           ", which expects ", compare->expected, ", in ", op_->describe(), " #", op_->sequence(),
           " of group ", m_.name);
  }
}

bool Group::advance_messages(coll::OperationList& done) {
  if (messenger_.empty() && !parting_) return false;
  const bool moved = node_->drive(false);
  return messenger_.advance(done) || moved;
}

// ---- trouble

void Group::check(coll::OperationList&) {
  check_node();
  reap(UnderWay::kEverywhere);  // a message may have failed that nothing waits for yet
  read_news();
  for (const coll::Operation* op = collectives().begin(); op; op = coll::OperationList::next(*op))
    if (op->deadline().passed_by(grace(*op))) time_out(*op);
  if (const coll::Operation* message = messenger_.overdue()) time_out(*message);
}

/// How long after the deadline of an operation this rank waits for one that knows what is missing.
std::chrono::nanoseconds Group::grace(const coll::Operation& op) const {
  if (leads() && phase_ == Phase::gather) return {};
  const std::chrono::nanoseconds part = op.deadline().span() / kGracePart;
  const std::chrono::nanoseconds most = std::clamp(part, kLeastGrace, kPartingTime);
  return leads() ? most / 2 : most;
}

void Group::time_out(const coll::Operation& op) const {
  std::string missing;
  if (op.is_transfer()) {
    const int peer = op.transfer().peer;
    missing = peer < 0 ? "a message" : m_.describe(peer);
  } else if (op_ && phase_ == Phase::exchange) {
    missing = concat("the other nodes, of which at least one has not answered through ", link_->describe());
  } else {
    for (const int local : node_->missing())
      enlist(missing, m_.describe(m_.partition.members(node_number_)[local]));
    if (missing.empty()) missing = concat("messages through ", link_->describe());
  }
  fail(Errc::timeout, "occl: Timed out waiting ", op.deadline().span().count(), "ms for ", op.describe(),
       " #", op.sequence(), " of group ", m_.name, " on ", m_.describe(m_.rank), ": it waits for ", missing);
}

void Group::read_news() {
  for (Report& report : expected_) {
    if (!report.message || !report.message->ended()) continue;
    const int peer = m_.partition.leader(report.node);
    const auto broken = report.message->error();
    report.message.reset();
    if (broken) {
      bear(m_.lost(peer, *link_, *broken));
      continue;
    }
    if (report.content->number == News::ended) {
      heard_ = report.content->text();
      fail(Errc::aborted, heard_);
    }
    if (report.content->number != News::left) throw m_.malformed(peer, "message about the end of the group");
    bear(Error(Errc::peer_left, concat(m_.describe(peer), " has left group ", m_.name)));
  }
  if (!loss_) return;
  if (!collectives().empty() && patience_.passed()) fail_for_loss(collectives().front());
  if (collectives().empty() && loss_->code() != Errc::peer_left) throw *loss_;
}

void Group::fail_for_loss(const coll::Operation& op) const {
  if (loss_->code() != Errc::peer_left) throw *loss_;
  fail(Errc::peer_left, loss_->what(), " during ", op.describe(), " #", op.sequence(), " of group ", m_.name);
}

/// A rank may end when its part of a collective has ended. What others still need of it may be on its way, or
/// they need only each other: a message from it that fails, or a rank that needs it, ends the collective. So
/// the collective goes on for as long as it moves.
void Group::bear(const Error& loss) {
  if (loss.code() != Errc::peer_left && collectives().empty()) throw loss;
  if (loss_) return;
  loss_ = loss;
  patience_ = Deadline::after(kPartingTime);
}

/// Looks for trouble in the node: a rank that has died is none for a collective that does not wait for it.
void Group::check_node() {
  auto error = node_->trouble();
  if (!error) return;
  if (node_->error() || error->code() != Errc::peer_exited) throw *error;
  node_->drive(false);  // what the rank wrote before it died can be seen now
  for (const int local : node_->missing())
    if (node_->mesh().member(local).died()) throw *error;
  bear(*error);
}

void Group::send_news(std::uint64_t kind, const std::string& text) {
  if (!leads() || silent_) return;
  for (const auto& round : exchanges_)
    for (const Exchange& exchange : round) {
      const auto note = std::make_shared<Note>();
      note->number = kind;
      note->refuse(text);
      outbox_.post(m_.partition.leader(node_after(-exchange.distance)), Stream::news, note,
                   Deadline::after(kPartingTime));
    }
}

void Group::give_up(const Error& error) {
  if (!silent_) {
    node_->end(error);
    outbox_.clear();
  }
  send_news(News::ended, !heard_.empty()
                             ? heard_
                             : concat(m_.describe(m_.rank), " ended group ", m_.name, ": ", error.what()));
  silent_ = true;
  under_way_.cancel();  // after the news, because it can take a moment
}

void Group::deliver(const std::function<void()>& interrupted) {
  const auto delivered = [this] { return error() || outbox_.empty(); };
  if (engine().wait_until(delivered, Deadline::after(kPromptly), interrupted)) return;
  {
    const Held held(*this);
    parting_ = true;
    messenger_.listen_to_all();
    set_answers_due(true);
  }
  if (engine().wait_until(delivered, Deadline::after(kSilently), interrupted)) return;
  Outbox::Debt debt = outbox_.debt();
  if (m_.channel != kFirstChannel) debt.until = std::min(debt.until, Deadline::after(kFromSubgroup));
  std::fprintf(
      stderr,
      "torch_occl: %s waits to leave group %s until what it sent has been received by %s, for at most "
      "%lld ms\n",
      m_.describe(m_.rank).c_str(), m_.name.c_str(), debt.peers.c_str(),
      static_cast<long long>(debt.until.span().count()));
  engine().wait_until(delivered, debt.until, interrupted);
}

void Group::part() {
  {
    std::lock_guard lock(watch_mutex_);
    watch_ends_ = true;
  }
  watch_wake_.notify_all();
  {
    const Held held(*this);
    send_news(News::left, "");
    silent_ = true;
  }
  const auto until = Deadline::after(kPartingTime);
  while (!until.passed() && !outbox_.empty()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
}

void Group::leave() {
  outbox_.clear();
  expected_.clear();
  under_way_.cancel();
  node_->close();
  under_way_.clear();
  messenger_.clear();
  if (link_->stuck()) work_.abandon();
}

coll::Communicator::Memory Group::memory_held() const {
  const Memory node = node_->memory();
  return {node.blocks, node.staging + notes_.bytes() + work_.bytes()};
}

double Group::seconds(const coll::Task& task, bool mapped) const {
  return hosts::seconds(m_.partition, m_.rank, task, m_.window_bytes, mapped, node_->mesh().tuning());
}

}  // namespace occl::hosts
