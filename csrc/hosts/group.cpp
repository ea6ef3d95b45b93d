#include "hosts/group.h"

#include <algorithm>
#include <cstdio>
#include <utility>

#include "base/error.h"
#include "coll/progress/engine.h"
#include "hosts/cost.h"

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

std::pair<int, int> ranks_and_cores_of(const GroupInfo& info, const coll::Group& node) {
  if (info.cores.empty()) return node.ranks_and_cores();
  std::vector<coll::CoreSet> here;
  for (const auto& cores : info.cores)
    if (cores) here.push_back(*cores);
  return {static_cast<int>(here.size()), coll::count_cores(here)};
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
      ranks_and_cores_(ranks_and_cores_of(info_, *node_)),
      unacknowledged_(info_, *link_),
      programs_(info_.topology, info_.rank),
      run_(info_, *node_, *link_, in_flight_),
      headers_(engine().endpoint()),
      rounds_(bruck_rounds(info_.topology.nodes())),
      p2p_(info_, *node_, *link_, unacknowledged_, activity()),
      accesses_(info_, *node_, *link_, unacknowledged_, activity()),
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
  if (node_->size() == 1) {
    if (from != to) *to = *from;
    return;
  }
  coll::Collective c;
  c.kind = kind;
  if (from) c.in = {from->bytes(), kCallHeaderBytes, 1, nullptr};
  const auto blocks = kind == coll::Kind::gather ? static_cast<std::uint32_t>(node_->size()) : 1;
  if (to) c.out = {to->bytes(), kCallHeaderBytes, blocks, nullptr};
  c.largest = c.volume = kCallHeaderBytes;
  in_flight_.add(*node_, std::make_unique<InFlight::NodeOperation>(c), 0, *op_);
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
      run_.begin(*op_, programs_.get({c, info_.window_bytes, agreement().pairwise != 0}));
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
  moved |= collect_ended(phase_ == Phase::run ? run_.awaited() : InFlight::kEverywhere);
  if (moved && loss_) patience_ = Deadline::after(kLingerTime);
  if (phase_ == Phase::run) {
    moved |= run_.advance();
    if (!run_.done() || !in_flight_.empty()) return moved ? coll::Outcome::advanced : coll::Outcome::blocked;
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
        if (phase_ == Phase::run) run_.ended(ended);
      },
      [this](int peer, const Error& error) { throw info_.lost(peer, *link_, error); });
}

bool Group::advance_messages(coll::OperationList& done) {
  if (p2p_.empty() && !leaving_ && !accesses_.serving()) return false;
  bool moved = node_->drive(false);
  moved |= p2p_.advance(done);
  return (accesses_.serving() && accesses_.advance(done)) || moved;
}

// ---- windows

std::shared_ptr<coll::Window> Group::make_window(std::shared_ptr<void> self, int channels) {
  auto window = node_->make_window(node_, channels);
  {
    const DrivingLock lock(*this);
    accesses_.add(*window, window->handle().number, channels);
    set_answers_due(accesses_.serving());
  }
  engine().hand_over();
  coll::Window* const pointer = window.get();
  return {pointer, [this, self = std::move(self), window = std::move(window)](coll::Window*) mutable {
            {
              const DrivingLock lock(*this);
              accesses_.forget(*window);
            }
            window.reset();
          }};
}

coll::WindowHandle Group::show_window(coll::Window& window, shm::Ref memory, std::byte* own,
                                      std::size_t bytes) {
  const DrivingLock lock(*this);
  accesses_.show(window, own, bytes);
  return window.handle(memory, bytes);
}

void Group::connect_window(coll::Window& window, const std::vector<coll::WindowHandle>& handles,
                           std::byte* own, Deadline deadline) {
  std::vector<coll::WindowHandle> of_node;
  for (const int rank : info_.topology.members(node_number_)) of_node.push_back(handles[rank]);
  window.connect(of_node, own, deadline);
  const DrivingLock lock(*this);
  accesses_.connect(window, handles);
}

std::byte* Group::window_memory(const coll::Window& window, int rank) const {
  return info_.topology.node_of(rank) == node_number_ ? window.memory(info_.topology.local_rank(rank))
                                                      : nullptr;
}

// ---- trouble

void Group::check(coll::OperationList&) {
  if (completing()) return check_deadlines();  // it waits for no peer
  check_node();
  collect_ended(InFlight::kEverywhere);  // a message that nothing waits for yet can have failed
  read_notices();
  check_deadlines();
}

void Group::check_deadlines() {
  for (const coll::Operation* op = collectives().begin(); op; op = coll::OperationList::next(*op))
    if (op->deadline().passed_by(grace(*op))) time_out(*op, collectives().front());
  if (const auto [message, held] = overdue_on_hold(); message) time_out(*message, *held);
  for (const coll::Operation* message : {p2p_.overdue(), accesses_.overdue()})
    if (message) time_out(*message, *message);
}

/// How long after the deadline of an operation this rank waits for one that knows what is missing.
std::chrono::nanoseconds Group::grace(const coll::Operation& op) const {
  if (leads() && phase_ == Phase::gather) return {};
  const std::chrono::nanoseconds part = op.deadline().span() / kGracePart;
  const std::chrono::nanoseconds most = std::clamp(part, kLeastGrace, kLingerTime);
  return leads() ? most / 2 : most;
}

/// `current`: the first operation of its kind, which may be on hold.
void Group::time_out(const coll::Operation& op, const coll::Operation& current) const {
  for (const coll::Operation* held : {&op, &current})
    if (!held->ready())
      fail(Errc::timeout, "occl: Timed out waiting ", op.deadline().span().count(), "ms for ", op.describe(),
           " #", op.sequence(), " of group ", info_.name, " on ", info_.describe(info_.rank), ": ",
           held->why_on_hold_of(op));
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
  accesses_.clear();
  link_->end_group(info_.number);
  if (link_->stuck()) run_.work().abandon();
}

coll::Communicator::Memory Group::memory_held() const {
  const Memory node = node_->memory();
  return {node.blocks, node.staging + headers_.bytes() + run_.work().bytes()};
}

double Group::seconds(const coll::Task& task, bool mapped) const {
  return hosts::seconds(info_.topology, info_.rank, task, info_.window_bytes, mapped, node_->mesh().tuning());
}

}  // namespace occl::hosts
