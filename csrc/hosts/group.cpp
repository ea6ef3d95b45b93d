#include "hosts/group.h"

#include <algorithm>
#include <cstdio>
#include <utility>

#include "base/error.h"
#include "coll/progress/engine.h"
#include "hosts/cost.h"
#include "kernels/convert.h"
#include "kernels/kernels.h"

namespace occl::hosts {
namespace {

/// After the deadline of an operation, a rank that does not know what is missing waits this part of the
/// timeout (within the limits kLeastGrace and kLingerTime) for a rank that knows; a leader waits half of it.
constexpr int kGracePart = 20;
constexpr std::chrono::nanoseconds kLeastGrace = std::chrono::milliseconds(400);

/// Most messages arrive within the first time. After the second one the user is told what a rank waits for.
constexpr auto kPromptly = std::chrono::milliseconds(100);
constexpr auto kSilently = std::chrono::seconds(5);

/// Linger limit when leaving a subgroup: its messages can still arrive later over the shared link.
constexpr auto kSubgroupLinger = std::chrono::seconds(5);

/// CallHeader::number of what a leader sends to other leaders between collectives.
enum Notice : std::uint64_t { ended = 1, left = 2 };

coll::Blocks blocks_of(const std::vector<coll::Block>& list) {
  if (list.empty()) return {};
  std::size_t largest = 0;
  for (const coll::Block& block : list) largest = std::max(largest, block.count);
  return {list.front().data, largest, static_cast<std::uint32_t>(list.size()), nullptr};
}

}  // namespace

Group::Group(GroupInfo info, std::shared_ptr<coll::Group> node, std::shared_ptr<Link> link)
    : Communicator(node->engine(),
                   {info.name, info.group, info.rank, info.topology.size(), 0, 0, coll::kSpansNodes}, *this,
                   *this),
      info_(std::move(info)),
      node_number_(info_.topology.node_of(info_.rank)),
      node_(std::move(node)),
      link_(std::move(link)),
      unacknowledged_(info_, *link_),
      programs_(info_.topology, info_.rank),
      headers_(engine().endpoint()),
      work_(engine().endpoint()),
      rounds_(bruck_rounds(info_.topology.nodes())),
      p2p_(info_, *node_, *link_, unacknowledged_, activity()),
      monitored_barrier_(info_, *link_, unacknowledged_),
      control_messages_(info_, *link_, unacknowledged_) {
  node_->be_part_of_another();
  headers_.reserve((2 + node_->size()) * kCallHeaderBytes);
  if (!leads()) return;
  for (const auto& round : rounds_)
    for (const HeaderExchange& exchange : round) {
      PendingNotice& pending = expected_notices_.emplace_back();
      pending.node = node_after(exchange.distance);
      receive_object(*link_, info_.topology.leader(pending.node), info_.channel(Channel::notices), pending);
    }
}

// ---- the preamble

void Group::start(coll::Operation& op) {
  if (loss_) fail_for_loss(op);
  op_ = &op;
  phase_ = Phase::gather;
  write_header(own(), op.collective(), op.sequence(), info_.rank);
  start_node_collective(coll::Kind::gather, &own(), leads() ? of_node().data() : nullptr);
  if (leads()) return;
  phase_ = Phase::spread;  // the leader broadcasts the agreement
  start_node_collective(coll::Kind::broadcast, nullptr, &agreement());
}

/// Starts a collective of the node on call headers: a broadcast of one, or a gather of one from each rank.
void Group::start_node_collective(coll::Kind kind, CallHeader* from, CallHeader* to) {
  coll::Collective c;
  c.kind = kind;
  if (from) c.in = {from->bytes(), kCallHeaderBytes, 1, nullptr};
  const auto blocks = kind == coll::Kind::gather ? static_cast<std::uint32_t>(node_->size()) : 1;
  if (to) c.out = {to->bytes(), kCallHeaderBytes, blocks, nullptr};
  c.largest = c.volume = kCallHeaderBytes;
  in_flight_.add(*node_, std::make_unique<InFlight::NodeOperation>(c), 0);
}

/// The leader has the headers of its node.
void Group::begin_exchange() {
  of_leaders_ = std::make_shared<std::vector<CallHeader>>(info_.topology.nodes());
  of_leaders_->front() = header_of_node(op_->collective(), of_node(), info_.topology, node_number_,
                                        [this](int r) { return info_.describe(r); });
  round_ = 0;
  exchange_headers();
}

void Group::exchange_headers() {
  const auto channel = info_.channel(Channel::preamble);
  for (const auto& [distance, headers] : rounds_[round_]) {
    const int to = info_.topology.leader(node_after(-distance)),
              from = info_.topology.leader(node_after(distance));
    const std::size_t bytes = headers * kCallHeaderBytes;
    // The receive comes first: an engine that sends once the peer has posted its receive has then sent this
    // rank's headers by the time the peer's arrive.
    in_flight_.add(link_->receive(from, channel, (*of_leaders_)[distance].bytes(), bytes, of_leaders_), from,
                   0);
    unacknowledged_.keep(to, Channel::preamble,
                         link_->send(to, channel, of_leaders_->front().bytes(), bytes, of_leaders_),
                         op_->deadline());
  }
}

/// The leader has the headers of all nodes.
CallHeader Group::find_agreement() const {
  std::vector<CallHeader> all(of_leaders_->size());
  for (std::size_t i = 0; i < all.size(); ++i) all[node_after(static_cast<int>(i))] = (*of_leaders_)[i];
  return hosts::agreement(op_->collective(), all, info_.topology, node_number_,
                          [this](int r) { return info_.describe(r); });
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
      if (++round_ < rounds_.size()) {
        exchange_headers();
        return true;
      }
      agreement() = find_agreement();
      start_node_collective(coll::Kind::broadcast, &agreement(), &agreement());
      phase_ = Phase::spread;
      return true;
    case Phase::spread:
      activity().met(-1);
      if (agreement().refused) return false;
      if (fits_header(c)) {
        read_result(agreement(), c, info_.rank);
        return false;
      }
      program_ = &programs_.get({c, info_.window_bytes, agreement().pairwise != 0});
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
  moved |= collect_ended(awaited());
  if (moved && loss_) patience_ = Deadline::after(kLingerTime);
  if (phase_ == Phase::run) {
    moved |= run_program();
    if (!schedule_->done() || !in_flight_.empty())
      return moved ? coll::Outcome::advanced : coll::Outcome::blocked;
  } else if (!in_flight_.empty()) {
    return moved ? coll::Outcome::advanced : coll::Outcome::blocked;
  }
  if (next_phase()) return coll::Outcome::advanced;
  phase_ = Phase::close;
  if (!unacknowledged_.arrived(Channel::preamble))
    return moved ? coll::Outcome::advanced : coll::Outcome::blocked;
  return agreement().refused ? coll::Outcome::mismatch : coll::Outcome::finished;
}

bool Group::collect_ended(int place) {
  return in_flight_.collect_ended(
      place,
      [this](int ended) {
        if (phase_ == Phase::run) --open_[ended];
      },
      [this](int peer, const Error& error) { throw info_.lost(peer, *link_, error); });
}

// ---- the program

/// The slot whose operations block the next stage.
int Group::awaited() const {
  if (phase_ != Phase::run || schedule_->done()) return InFlight::kEverywhere;
  const auto needed = schedule_->needs(schedule_->item());
  return needed ? place(needed->stage, needed->window) : InFlight::kEverywhere;
}

/// Starts the stages that can start; true if there was one.
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

void Group::carry_out(const NodeCollective& step, std::uint64_t window, int place) {
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
  in_flight_.add(*node_, std::make_unique<InFlight::NodeOperation>(c, std::move(in), std::move(out)), place);
}

void Group::carry_out(const Step& step, std::uint64_t window, int place) {
  if (const auto* node_collective = std::get_if<NodeCollective>(&step)) {
    carry_out(*node_collective, window, place);
  } else if (const auto* message = std::get_if<SendRecv>(&step)) {
    const Piece& piece = message->piece;
    const auto s = info_.channel(Channel::data);
    ++open_[place];
    in_flight_.add(message->send ? link_->send(message->peer, s, at(piece, window), piece.bytes())
                                 : link_->receive(message->peer, s, at(piece, window), piece.bytes()),
                   message->peer, place);
  } else if (const auto* reduce = std::get_if<Reduce>(&step)) {
    std::vector<const void*> from;
    for (const Piece& src : reduce->srcs) from.push_back(at(src, window));
    void* const to[] = {at(reduce->dst, window)};
    kernels::reduce(reduce->dtype, reduce->op, to, from, reduce->dst.count, kernels::Store::cached);
  } else if (const auto* cast = std::get_if<Cast>(&step)) {
    void* const to = at(cast->dst, window);
    const void* const from = at(cast->src, window);
    if (cast->widen)
      kernels::widen(cast->narrow, cast->wide, to, from, cast->src.count);
    else
      kernels::narrow(cast->narrow, cast->wide, to, from, cast->src.count, cast->divisor);
  } else if (const auto* write_count = std::get_if<WriteCount>(&step)) {
    const auto count = static_cast<std::int64_t>(write_count->count);
    std::copy_n(reinterpret_cast<const std::byte*>(&count), sizeof(count), at(write_count->to, window));
  } else if (const auto* check_count = std::get_if<CheckCount>(&step)) {
    std::int64_t count;
    std::copy_n(at(check_count->received, window), sizeof(count), reinterpret_cast<std::byte*>(&count));
    if (count != static_cast<std::int64_t>(check_count->expected))
      fail(Errc::mismatch, info_.describe(check_count->peer), " sends ", count, " elements to rank ",
           info_.rank, ", which expects ", check_count->expected, ", in ", op_->describe(), " #",
           op_->sequence(), " of group ", info_.name);
  }
}

bool Group::advance_messages(coll::OperationList& done) {
  if (p2p_.empty() && !leaving_) return false;
  const bool moved = node_->drive(false);
  return p2p_.advance(done) || moved;
}

// ---- trouble

void Group::check(coll::OperationList&) {
  check_node();
  collect_ended(InFlight::kEverywhere);  // a message that nothing waits for yet can have failed
  read_notices();
  for (const coll::Operation* op = collectives().begin(); op; op = coll::OperationList::next(*op))
    if (op->deadline().passed_by(grace(*op))) time_out(*op);
  if (const coll::Operation* message = p2p_.overdue()) time_out(*message);
}

/// How long after the deadline of an operation this rank waits for one that knows what is missing.
std::chrono::nanoseconds Group::grace(const coll::Operation& op) const {
  if (leads() && phase_ == Phase::gather) return {};
  const std::chrono::nanoseconds part = op.deadline().span() / kGracePart;
  const std::chrono::nanoseconds most = std::clamp(part, kLeastGrace, kLingerTime);
  return leads() ? most / 2 : most;
}

void Group::time_out(const coll::Operation& op) const {
  if (!op.ready())
    fail(Errc::timeout, "occl: Timed out waiting ", op.deadline().span().count(), "ms for ", op.describe(),
         " #", op.sequence(), " of group ", info_.name, " on ", info_.describe(info_.rank), ": ",
         op.why_on_hold());
  std::string missing;
  if (op.is_transfer()) {
    const int peer = op.transfer().peer;
    missing = peer < 0 ? "a message" : info_.describe(peer);
  } else if (op_ && phase_ == Phase::exchange) {
    missing = concat("the other nodes, of which at least one has not answered through ", link_->describe());
  } else {
    for (const int local : node_->missing())
      enlist(missing, info_.describe(info_.topology.members(node_number_)[local]));
    if (missing.empty()) missing = concat("messages through ", link_->describe());
  }
  fail(Errc::timeout, "occl: Timed out waiting ", op.deadline().span().count(), "ms for ", op.describe(),
       " #", op.sequence(), " of group ", info_.name, " on ", info_.describe(info_.rank), ": it waits for ",
       missing);
}

void Group::read_notices() {
  for (PendingNotice& pending : expected_notices_) {
    if (!pending.message || !pending.message->ended()) continue;
    const int peer = info_.topology.leader(pending.node);
    const auto broken = pending.message->error();
    pending.message.reset();
    if (broken) {
      tolerate(info_.lost(peer, *link_, *broken));
      continue;
    }
    if (pending.content->number == Notice::ended) {
      remote_failure_ = pending.content->text();
      fail(Errc::aborted, remote_failure_);
    }
    if (pending.content->number != Notice::left)
      throw info_.malformed(peer, "message about the end of the group");
    tolerate(Error(Errc::peer_left, concat(info_.describe(peer), " has left group ", info_.name)));
  }
  if (!loss_) return;
  if (!collectives().empty() && patience_.passed()) fail_for_loss(collectives().front());
  if (collectives().empty() && loss_->code() != Errc::peer_left) throw *loss_;
}

void Group::fail_for_loss(const coll::Operation& op) const {
  if (loss_->code() != Errc::peer_left) throw *loss_;
  fail(Errc::peer_left, loss_->what(), " during ", op.describe(), " #", op.sequence(), " of group ",
       info_.name);
}

/// A rank can exit when its part of a collective has ended. The others can still complete the collective, if
/// what they need of that rank is in flight; otherwise a failed message, or a rank that needs the lost one,
/// ends it. So the collective goes on for as long as it moves.
void Group::tolerate(const Error& loss) {
  if (loss.code() != Errc::peer_left && collectives().empty()) throw loss;
  if (loss_) return;
  loss_ = loss;
  patience_ = Deadline::after(kLingerTime);
}

/// Throws if the node's group has failed. A dead rank does not fail a collective that no longer needs it.
void Group::check_node() {
  auto error = node_->trouble();
  if (!error) return;
  if (node_->error() || error->code() != Errc::peer_exited) throw *error;
  node_->drive(false);  // what the rank wrote before it died can be seen now
  for (const int local : node_->missing())
    if (node_->mesh().member(local).died()) throw *error;
  tolerate(*error);
}

void Group::send_notices(std::uint64_t kind, const std::string& text) {
  if (!leads() || silent_) return;
  for (const auto& round : rounds_)
    for (const HeaderExchange& exchange : round) {
      const auto notice = std::make_shared<CallHeader>();
      notice->number = kind;
      notice->refuse(text);
      unacknowledged_.post(info_.topology.leader(node_after(-exchange.distance)), Channel::notices, notice,
                           Deadline::after(kLingerTime));
    }
}

void Group::give_up(const Error& error) {
  if (!silent_) {
    node_->end(error);
    unacknowledged_.clear();
  }
  send_notices(Notice::ended, !remote_failure_.empty() ? remote_failure_
                                                       : concat(info_.describe(info_.rank), " ended group ",
                                                                info_.name, ": ", error.what()));
  silent_ = true;
  in_flight_.cancel();  // after the notices, because it can take a moment
}

void Group::deliver(const std::function<void()>& interrupted) {
  const auto delivered = [this] { return error() || unacknowledged_.empty(); };
  if (engine().wait_until(delivered, Deadline::after(kPromptly), interrupted)) return;
  {
    const DrivingLock lock(*this);
    leaving_ = true;
    p2p_.listen_to_all();
    set_answers_due(true);
  }
  if (engine().wait_until(delivered, Deadline::after(kSilently), interrupted)) return;
  UnacknowledgedSends::Outstanding outstanding = unacknowledged_.outstanding();
  if (info_.number != kFirstGroupNumber)
    outstanding.until = std::min(outstanding.until, Deadline::after(kSubgroupLinger));
  std::fprintf(
      stderr,
      "torch_occl: %s waits to leave group %s until what it sent has been received by %s, for at most "
      "%lld ms\n",
      info_.describe(info_.rank).c_str(), info_.name.c_str(), outstanding.peers.c_str(),
      static_cast<long long>(outstanding.until.span().count()));
  engine().wait_until(delivered, outstanding.until, interrupted);
}

void Group::part() {
  {
    const DrivingLock lock(*this);
    send_notices(Notice::left, "");
    silent_ = true;
  }
  const auto until = Deadline::after(kLingerTime);
  while (!until.passed() && !unacknowledged_.empty())
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
}

void Group::leave() {
  unacknowledged_.clear();
  expected_notices_.clear();
  in_flight_.cancel();
  node_->close();
  in_flight_.clear();
  p2p_.clear();
  link_->end_group(info_.number);
  if (link_->stuck()) work_.abandon();
}

coll::Communicator::Memory Group::memory_held() const {
  const Memory node = node_->memory();
  return {node.blocks, node.staging + headers_.bytes() + work_.bytes()};
}

double Group::seconds(const coll::Task& task, bool mapped) const {
  return hosts::seconds(info_.topology, info_.rank, task, info_.window_bytes, mapped, node_->mesh().tuning());
}

}  // namespace occl::hosts
