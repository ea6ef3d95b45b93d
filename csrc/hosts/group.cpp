#include "hosts/group.h"

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "base/thread.h"
#include "coll/engine.h"
#include "kernels/convert.h"
#include "kernels/kernels.h"

namespace occl::hosts {
namespace {

/// A rank names what is missing when an operation's deadline has passed. One that knows less about it waits
/// so much longer, or half of it. A rank that leaves waits as long until the others know, and they wait as
/// long for what it sent before.
constexpr std::chrono::nanoseconds kGrace = std::chrono::seconds(1);

/// How often a leader looks for trouble of its node while it computes.
constexpr auto kWatch = std::chrono::milliseconds(200);

/// What a leader tells other leaders between collectives: Note::number.
enum News : std::uint64_t { ended = 1, left = 2 };

/// No deadline: the group's own is checked by Group::check, which can name what is missing.
Deadline none() { return Deadline::never(); }

coll::Blocks blocks_of(const std::vector<coll::Block>& list) {
  if (list.empty()) return {};
  std::size_t largest = 0;
  for (const coll::Block& block : list) largest = std::max(largest, block.count);
  return {list.front().data, largest, static_cast<std::uint32_t>(list.size()), nullptr};
}

/// What all ranks must agree on, for blocks of these sizes.
std::uint64_t volume_of(const std::vector<std::size_t>& counts) {
  if (std::all_of(counts.begin(), counts.end(), [&](std::size_t n) { return n == counts.front(); }))
    return counts.front();
  std::uint64_t hash = 0;
  for (const std::size_t n : counts) hash = (hash ^ n) * 0x9e3779b97f4a7c15u;
  return coll::kUneven | (hash & (coll::kUneven - 1));
}

}  // namespace

Group::Group(Membership membership, std::shared_ptr<coll::Group> node, std::shared_ptr<Link> link)
    : Communicator(node->engine()),
      m_(std::move(membership)),
      node_number_(m_.partition.node_of(m_.rank)),
      node_(std::move(node)),
      link_(std::move(link)),
      notes_(engine().endpoint()),
      work_(engine().endpoint()),
      messenger_(m_, *node_, *link_),
      roll_call_(m_, *link_) {
  notes_.reserve((2 + node_->size()) * kNoteBytes);
  if (!leads()) return;
  for (int m = 0; m < m_.partition.nodes(); ++m) {
    if (m == node_number_) continue;
    Ear ear{m, std::make_shared<Note>(), nullptr};
    ear.message = link_->receive(m_.partition.leader(m), m_.stream(Stream::news),
                                 reinterpret_cast<std::byte*>(ear.note.get()), kNoteBytes, ear.note);
    ears_.push_back(std::move(ear));
  }
  watch_ = start_thread<std::thread>("that watches over the ranks of this node", [this] { watch(); });
}

Group::~Group() {
  if (watch_.joinable()) watch_.join();  // leave() has told it to end
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
  if (!left_.empty())
    fail(Errc::peer_left, left_, " during ", op.describe(), " #", op.sequence(), " of group ", m_.name);
  op_ = &op;
  phase_ = Phase::gather;
  write_note(own(), op.collective(), op.sequence(), m_.rank);
  const auto inside = [&](coll::Kind kind, Note* from, Note* to, int blocks) {
    coll::Collective c;
    c.kind = kind;
    if (from) c.in = {reinterpret_cast<std::byte*>(from), kNoteBytes, 1, nullptr};
    if (to)
      c.out = {reinterpret_cast<std::byte*>(to), kNoteBytes, static_cast<std::uint32_t>(blocks), nullptr};
    c.largest = c.volume = kNoteBytes;
    under_way_.add(
        *node_,
        std::make_unique<UnderWay::Nested>(c, std::vector<coll::Block>{}, std::vector<coll::Block>{}, none()),
        0);
  };
  inside(coll::Kind::gather, &own(), leads() ? of_node().data() : nullptr, node_->size());
  if (leads()) return;
  phase_ = Phase::spread;  // whoever leads broadcasts what all nodes found
  inside(coll::Kind::broadcast, nullptr, &verdict(), 1);
}

/// The leader has the notes of its node.
void Group::exchange_notes() {
  const Describe describe = [this](int r) { return m_.describe(r); };
  of_leaders_.assign(m_.partition.nodes(), nullptr);
  for (auto& note : of_leaders_) note = std::make_shared<Note>();
  const auto& mine = of_leaders_[node_number_];
  *mine = note_of_node(op_->collective(), of_node(), m_.partition, node_number_, describe);
  const auto bytes_of = [](Note& note) { return reinterpret_cast<std::byte*>(&note); };
  for (int m = 0; m < m_.partition.nodes(); ++m) {
    if (m == node_number_) continue;
    const int peer = m_.partition.leader(m);
    const auto& theirs = of_leaders_[m];
    const auto stream = m_.stream(Stream::notes);
    under_way_.add(link_->send(peer, stream, bytes_of(*mine), kNoteBytes, mine), peer, 0);
    under_way_.add(link_->receive(peer, stream, bytes_of(*theirs), kNoteBytes, theirs), peer, 0);
  }
}

/// Everything of this phase has ended. False if the collective is at its end.
bool Group::next_phase() {
  const Describe describe = [this](int r) { return m_.describe(r); };
  const coll::Collective& c = op_->collective();
  switch (phase_) {
    case Phase::gather:
      exchange_notes();
      phase_ = Phase::exchange;
      return true;
    case Phase::exchange: {
      std::vector<Note> all;
      for (const auto& note : of_leaders_) all.push_back(*note);
      verdict() = hosts::verdict(c, all, m_.partition, node_number_, describe);
      coll::Collective told;
      told.kind = coll::Kind::broadcast;
      told.in = told.out = {reinterpret_cast<std::byte*>(&verdict()), kNoteBytes, 1, nullptr};
      told.largest = told.volume = kNoteBytes;
      under_way_.add(*node_,
                     std::make_unique<UnderWay::Nested>(told, std::vector<coll::Block>{},
                                                        std::vector<coll::Block>{}, none()),
                     0);
      phase_ = Phase::spread;
      return true;
    }
    case Phase::spread:
      if (verdict().refused) return false;
      if (fits_note(c)) {
        read_result(verdict(), c, m_.rank);
        return false;
      }
      program_ = std::make_unique<Program>(m_.partition, m_.rank, c, m_.window_bytes, verdict().pairwise);
      schedule_ = std::make_unique<Schedule>(program_->stages(), program_->windows());
      open_.assign(program_->stages() * program_->stages(), 0);
      work_.reserve(program_->stages() * program_->work_bytes());
      phase_ = Phase::run;
      return true;
    case Phase::run:
      return false;
  }
  return false;
}

coll::Outcome Group::advance() {
  bool moved = node_->drive(false);
  moved |= under_way_.reap(
      [this](int place) {
        if (phase_ == Phase::run) --open_[place];
      },
      [this](int peer, const Error& error) { throw m_.lost(peer, *link_, error); });
  if (phase_ == Phase::run) {
    moved |= run_program();
    if (!schedule_->done() || !under_way_.empty())
      return moved ? coll::Outcome::advanced : coll::Outcome::blocked;
  } else if (!under_way_.empty()) {
    return moved ? coll::Outcome::advanced : coll::Outcome::blocked;
  }
  if (next_phase()) return coll::Outcome::advanced;
  return verdict().refused ? coll::Outcome::mismatch : coll::Outcome::finished;
}

// ---- the program

/// Starts the stages that may start; true if there was one.
bool Group::run_program() {
  bool any = false;
  const int stages = program_->stages();
  const auto place = [&](Schedule::Item item) {
    return item.stage * stages + static_cast<int>(item.window % stages);
  };
  for (; !schedule_->done(); schedule_->next()) {
    const auto item = schedule_->item();
    const auto needed = schedule_->needs(item);
    if (needed && open_[place(*needed)] > 0) return any;
    for (const Step& step : program_->steps(item.stage, item.window))
      carry_out(step, item.window, place(item));
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
  c.largest = std::max(c.in.count, c.out.count);
  for (const std::size_t n : step.counts) c.largest = std::max(c.largest, n);
  c.volume = step.counts.empty() ? coll::kUneven : volume_of(step.counts);
  c.factor = op_->collective().factor;
  ++open_[place];
  under_way_.add(*node_, std::make_unique<UnderWay::Nested>(c, std::move(in), std::move(out), none()), place);
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
  if (messenger_.empty()) return false;
  const bool moved = node_->drive(false);
  return messenger_.advance(done) || moved;
}

// ---- trouble

void Group::check(coll::OperationList&) {
  if (const auto error = node_->trouble()) throw *error;
  read_news();
  for (const coll::Operation* op = collectives().begin(); op; op = coll::OperationList::next(*op))
    if (op->deadline().passed_by(grace())) time_out(*op);
  if (const coll::Operation* message = messenger_.overdue()) time_out(*message);
}

/// How long after its deadline this rank waits for one that knows more about what is missing.
std::chrono::nanoseconds Group::grace() const {
  if (!leads()) return kGrace;
  return phase_ == Phase::gather ? std::chrono::nanoseconds(0) : kGrace / 2;
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
  for (Ear& ear : ears_) {
    if (!ear.message || !ear.message->ended()) continue;
    const int peer = m_.partition.leader(ear.node);
    const auto broken = ear.message->error();
    ear.message.reset();
    if (broken) throw m_.lost(peer, *link_, *broken);
    if (ear.note->number == News::ended)
      fail(Errc::aborted, m_.describe(peer), " ended group ", m_.name, ": ", ear.note->text());
    left_ = concat(m_.describe(peer), " has left group ", m_.name);
    patience_ = Deadline::after(kGrace);  // what it sent before may still be on its way
  }
  if (!left_.empty() && !collectives().empty() && patience_.passed())
    fail(Errc::peer_left, left_, " during ", collectives().front().describe());
}

void Group::send_news(std::uint64_t kind, const std::string& text) {
  if (!leads() || silent_) return;
  for (int m = 0; m < m_.partition.nodes(); ++m) {
    if (m == node_number_) continue;
    Ear mouth{m, std::make_shared<Note>(), nullptr};
    mouth.note->number = kind;
    mouth.note->refuse(text);
    mouth.message = link_->send(m_.partition.leader(m), m_.stream(Stream::news),
                                reinterpret_cast<std::byte*>(mouth.note.get()), kNoteBytes, mouth.note);
    told_.push_back(std::move(mouth));
  }
}

void Group::give_up(const Error& error) {
  if (!silent_) node_->end(error);
  send_news(News::ended, error.what());
  silent_ = true;
  under_way_.cancel();  // after the news, because it can take a moment
}

void Group::leave() {
  {
    std::lock_guard lock(watch_mutex_);
    watch_ends_ = true;
  }
  watch_wake_.notify_all();
  send_news(News::left, "");
  silent_ = true;
  const auto until = Deadline::after(kGrace);
  const auto waits = [this](const Ear& told) {
    const auto ear =
        std::find_if(ears_.begin(), ears_.end(), [&](const Ear& e) { return e.node == told.node; });
    const bool gone = !ear->message || ear->message->ended();  // it has left as well
    return !gone && !told.message->ended();
  };
  while (!until.passed() && std::any_of(told_.begin(), told_.end(), waits))
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  told_.clear();
  ears_.clear();
  under_way_.cancel();
  node_->close();
  under_way_.clear();
  messenger_.clear();
}

coll::Communicator::Memory Group::memory_held() const {
  const Memory node = node_->memory();
  return {node.blocks, node.staging + notes_.bytes() + work_.bytes()};
}

}  // namespace occl::hosts
