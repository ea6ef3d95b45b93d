#include "hosts/remote_accesses.h"

#include <algorithm>
#include <cstring>
#include <utility>

namespace occl::hosts {

using coll::Operation;
using coll::OperationList;
using coll::Transfer;

namespace {

/// Whether the bytes of a put travel in its envelope.
bool is_small(std::size_t bytes) { return bytes <= sizeof(RemoteAccesses::Envelope::payload); }

}  // namespace

RemoteAccesses::RemoteAccesses(const GroupInfo& info, coll::Group& node, Link& link,
                               UnacknowledgedSends& unacknowledged, coll::Activity& activity)
    : info_(info),
      node_(node),
      link_(link),
      unacknowledged_(unacknowledged),
      activity_(activity),
      node_number_(info.topology.node_of(info.rank)),
      peers_(info.topology.size()) {}

RemoteAccesses::~RemoteAccesses() = default;

// ---- windows

void RemoteAccesses::add(const coll::Window& window, std::uint64_t number, int channels) {
  const auto size = static_cast<std::size_t>(info_.topology.size());
  Window& added = windows_[number];
  added.window = &window;
  added.channels = channels;
  added.signals.assign(size, std::vector<std::uint64_t>(channels));
  added.closed.assign(size, false);
  for (int rank = 0; rank < info_.topology.size(); ++rank)
    if (!here(rank)) peer(rank).await(Channel::accesses, peer(rank).next_envelope);
}

void RemoteAccesses::show(const coll::Window& window, std::byte* memory, std::size_t bytes) {
  Window& mine = entry_of(window)->second;
  mine.memory = memory;
  mine.bytes = bytes;
}

void RemoteAccesses::connect(const coll::Window& window, const std::vector<coll::WindowHandle>& handles) {
  Window& mine = entry_of(window)->second;
  if (!mine.numbers.empty()) return;
  for (const coll::WindowHandle& handle : handles) mine.numbers.push_back(handle.number);
}

void RemoteAccesses::forget(const coll::Window& window) {
  const auto it = entry_of(window);
  Window& mine = it->second;
  mine.window = nullptr;
  for (int rank = 0; rank < info_.topology.size() && !failed_ && !mine.numbers.empty(); ++rank) {
    if (here(rank) || peer(rank).closed) continue;
    const auto envelope = std::make_shared<Envelope>();
    envelope->window = mine.numbers[rank];
    envelope->kind = Kind::closed;
    post_envelope(rank, envelope, Deadline::after(kLingerTime));
  }
  if (over(mine)) windows_.erase(it);
}

/// Whether no rank of another node has it open, so that no access of it can come.
bool RemoteAccesses::over(const Window& mine) const {
  if (failed_) return true;
  if (mine.window) return false;
  for (int rank = 0; rank < info_.topology.size() && !mine.numbers.empty(); ++rank)
    if (!here(rank) && !mine.closed[rank] && !peers_[rank]->closed) return false;
  return true;
}

/// Requires that this rank has it open, as an operation on it has.
RemoteAccesses::Windows::iterator RemoteAccesses::entry_of(const coll::Window& window) {
  return std::ranges::find_if(windows_, [&](const auto& known) { return known.second.window == &window; });
}

RemoteAccesses::Window* RemoteAccesses::find(std::uint64_t number) {
  const auto it = windows_.find(number);
  return it == windows_.end() ? nullptr : &it->second;
}

RemoteAccesses::Peer& RemoteAccesses::peer(int rank) {
  if (!peers_[rank]) peers_[rank] = std::make_unique<Peer>(info_, link_, rank);
  return *peers_[rank];
}

bool RemoteAccesses::needed(int rank) const {
  const auto with_rank = [&](const Access& access) { return access.op->transfer().peer == rank; };
  return std::ranges::any_of(sending_, with_rank) || std::ranges::any_of(waits_, with_rank);
}

void RemoteAccesses::end(Operation& op, OperationList& done) {
  activity_.message_ended(op);
  done.push(op);
}

// ---- this rank's accesses

void RemoteAccesses::post(Operation& op, OperationList& done) {
  const Transfer& t = op.transfer();
  if (!here(t.peer) && peer(t.peer).closed) {
    op.set_error(*peer(t.peer).closed);
    return end(op, done);
  }
  (t.send ? sending_ : waits_).push_back({&op, false, nullptr, nullptr, 0});
  if (t.send) {
    send(done);
    return;
  }
  if (here(t.peer)) waits_.back().local = submit_here(t);
  serve_waits(done);
}

InFlight::NodeOperation* RemoteAccesses::submit_here(const Transfer& t) {
  Transfer local = t;
  local.peer = info_.topology.local_rank(t.peer);
  node_operations_.push_back(std::make_unique<InFlight::NodeOperation>(local));
  node_.submit(node_operations_.back()->operation);
  return node_operations_.back().get();
}

/// Of what the node's group still has, the memory stays until that is closed.
void RemoteAccesses::end_local(Access& access) {
  if (!access.local) return;
  const Operation& local = access.local->operation;
  if (local.error()) access.op->set_error(*local.error());
  if (access.local->released())
    node_operations_.remove_if([&](const auto& known) { return known.get() == access.local; });
  access.local = nullptr;
}

void RemoteAccesses::post_envelope(int rank, const std::shared_ptr<Envelope>& envelope, Deadline until) {
  unacknowledged_.post(rank, Channel::accesses, envelope, until);
}

void RemoteAccesses::start(Access& access) {
  Operation& op = *access.op;
  const Transfer& t = op.transfer();
  access.started = true;
  activity_.message_met(op, t.peer);
  if (here(t.peer)) {
    access.local = submit_here(t);
    return;
  }
  const auto envelope = std::make_shared<Envelope>();
  envelope->window = entry_of(*t.window)->second.numbers.at(t.peer);
  envelope->channel = t.tag;
  if (t.access == coll::Access::signal) {
    envelope->kind = Kind::signal;
    return post_envelope(t.peer, envelope, op.deadline());
  }
  peer(t.peer).await(Channel::landed, peer(t.peer).next_landed);
  access.number = ++peer(t.peer).sent;
  envelope->offset = t.offset * size_of(t.dtype);
  envelope->bytes = t.bytes();
  if (is_small(t.bytes()) && t.bytes() > 0) std::memcpy(envelope->payload.data(), t.buffer.data, t.bytes());
  post_envelope(t.peer, envelope, op.deadline());
  if (!is_small(t.bytes()))
    access.payload = link_.send(t.peer, info_.channel(Channel::access_payloads), t.buffer.data, t.bytes());
}

bool RemoteAccesses::ended(Access& access) {
  if (!access.started) return false;
  const Transfer& t = access.op->transfer();
  if (here(t.peer)) return access.local->ended();
  if (t.access == coll::Access::signal) return true;
  if (access.payload) {
    if (!access.payload->ended()) return false;
    if (const auto error = access.payload->error()) throw info_.lost(t.peer, link_, *error);
  }
  return peer(t.peer).landed >= access.number;
}

/// Starts what may start, and ends what has ended.
bool RemoteAccesses::send(OperationList& done) {
  bool moved = false;
  std::vector<const coll::Window*> blocked;                       // their next access waits
  std::vector<std::pair<const coll::Window*, int>> on_their_way;  // windows and ranks of puts
  for (auto it = sending_.begin(); it != sending_.end();) {
    const Transfer& t = it->op->transfer();
    const bool waits_for_others =
        t.access == coll::Access::signal && std::ranges::any_of(on_their_way, [&](const auto& put) {
          return put.first == t.window && put.second != t.peer;
        });
    if (!it->started && !std::ranges::count(blocked, t.window) && !waits_for_others) start(*it), moved = true;
    if (!it->started) blocked.push_back(t.window);
    if (!ended(*it)) {
      if (t.access == coll::Access::put) on_their_way.emplace_back(t.window, t.peer);
      ++it;
      continue;
    }
    end_local(*it);
    end(*it->op, done);
    it = sending_.erase(it);
    moved = true;
  }
  return moved;
}

bool RemoteAccesses::serve_waits(OperationList& done) {
  bool moved = false;
  for (auto it = waits_.begin(); it != waits_.end();) {
    Operation& op = *it->op;
    const Transfer& t = op.transfer();
    bool over = false;
    if (it->local) {
      over = it->local->ended();
    } else {
      Window& window = entry_of(*t.window)->second;
      std::uint64_t& signals = window.signals[t.peer][t.tag];
      over = signals > 0 || window.closed[t.peer];
      if (signals > 0) {
        --signals;
        activity_.message_met(op, t.peer);
      } else if (over) {
        op.set_error(
            Error(Errc::peer_left, concat(op.describe(), " #", op.sequence(), " of group ", info_.name,
                                          " on ", info_.describe(info_.rank), ": ", info_.describe(t.peer),
                                          " has closed the window, and signals no more")));
      }
    }
    if (!over) {
      ++it;
      continue;
    }
    op.set_source(t.peer);
    end_local(*it);
    end(op, done);
    it = waits_.erase(it);
    moved = true;
  }
  return moved;
}

// ---- the peers' accesses

bool RemoteAccesses::take_envelopes(int rank) {
  Peer& from = *peers_[rank];
  bool moved = false;
  for (;;) {
    if (from.landing) {
      if (!from.landing->ended()) return moved;
      if (const auto error = from.landing->error()) throw info_.lost(rank, link_, *error);
      from.landing.reset();
      acknowledge(rank);
      moved = true;
    }
    const auto envelope = from.take(Channel::accesses, from.next_envelope, [&] { return needed(rank); });
    if (!envelope) return moved;
    moved = true;
    take(rank, *envelope);
  }
}

void RemoteAccesses::take(int rank, const Envelope& e) {
  Window* const window = find(e.window);  // null: no rank of this group can mean it
  switch (e.kind) {
    case Kind::put:
      return put(rank, e);
    case Kind::signal:
      if (window && e.channel >= static_cast<std::uint32_t>(window->channels))
        throw info_.malformed(rank, "signal of a window");
      if (window) ++window->signals[rank][e.channel];
      return;
    case Kind::closed:
      if (window) window->closed[rank] = true;
      if (window && over(*window)) windows_.erase(e.window);
      return;
  }
  throw info_.malformed(rank, "access of a window");
}

/// What a closed window gets goes nowhere.
void RemoteAccesses::put(int rank, const Envelope& e) {
  Window* window = find(e.window);
  if (window && !window->window) window = nullptr;
  if (window && (e.offset > window->bytes || e.bytes > window->bytes - e.offset))
    throw info_.malformed(rank, "put into a window");
  if (is_small(e.bytes)) {
    if (window && e.bytes > 0) std::memcpy(window->memory + e.offset, e.payload.data(), e.bytes);
    return acknowledge(rank);
  }
  const std::shared_ptr<std::byte[]> nowhere(window ? nullptr : new std::byte[e.bytes]);
  Link::Owner owner = nowhere;
  if (window) owner = window->window->kept();
  std::byte* const to = window ? window->memory + e.offset : nowhere.get();
  peers_[rank]->landing =
      link_.receive(rank, info_.channel(Channel::access_payloads), to, e.bytes, std::move(owner));
}

void RemoteAccesses::acknowledge(int rank) {
  const auto landed = std::make_shared<Landed>();
  landed->puts = ++peers_[rank]->received;
  unacknowledged_.post(rank, Channel::landed, landed, Deadline::after(kLingerTime));
}

bool RemoteAccesses::take_landed(int rank) {
  Peer& from = *peers_[rank];
  bool moved = false;
  while (const auto landed = from.take(Channel::landed, from.next_landed, [&] { return needed(rank); })) {
    if (landed->puts <= from.landed || landed->puts > from.sent)
      throw info_.malformed(rank, "acknowledgement of a put");
    from.landed = landed->puts;
    moved = true;
  }
  return moved;
}

bool RemoteAccesses::advance(OperationList& done) {
  bool moved = false;
  for (int rank = 0; rank < info_.topology.size(); ++rank) {
    if (!peers_[rank]) continue;
    moved |= take_envelopes(rank);
    moved |= take_landed(rank);
  }
  moved |= send(done);
  return serve_waits(done) || moved;
}

// ---- trouble

void RemoteAccesses::fail(const Error& error, OperationList& done) {
  failed_ = true;
  for (std::list<Access>* list : {&sending_, &waits_}) {
    for (Access& access : *list) {
      access.payload.reset();
      if (access.local || link_.stuck()) access.op->set_exposed(true);  // so that its memory stays
      access.op->set_error(error);
      end(*access.op, done);
    }
    list->clear();
  }
  for (auto& peer : peers_) peer.reset();
}

const Operation* RemoteAccesses::overdue() const {
  for (const std::list<Access>* list : {&sending_, &waits_})
    for (const Access& access : *list)
      if (access.op->deadline().passed()) return access.op;
  return nullptr;
}

}  // namespace occl::hosts
