#include "coll/windows/window.h"

#include <algorithm>
#include <functional>
#include <new>
#include <utility>

#include "base/error.h"

namespace occl::coll {

/// Followed by a counter for each rank, on a line of its own.
struct alignas(kLine) Window::Row {
  explicit Row(int size) {
    for (int i = 0; i < size; ++i) new (&signals(i)) Signals;
  }

  Atomic<std::uint64_t> number = 0;

  struct alignas(kLine) Signals {
    Atomic<std::uint64_t> count = 0;
  };
  Signals& signals(int rank) const { return reinterpret_cast<Signals*>(const_cast<Row*>(this) + 1)[rank]; }

  static std::size_t bytes(int size) { return sizeof(Row) + size * sizeof(Signals); }
};

/// What outlives the window, because peers do not close it at the same time.
struct Window::State {
  /// The row of another rank, and what this rank has taken from it.
  struct Peer {
    const Row* row = nullptr;
    std::uint64_t number = 0;
    std::uint64_t taken = 0;
    std::uint64_t pass = 0, seen = 0;  // the last look, and how many signals there were
    bool closed = false;               // at the last look

    // sync: window-number
    bool has_closed() const { return row->number.load(std::memory_order_seq_cst) != number; }
  };

  Row* row = nullptr;
  std::uint64_t number = 0;
  bool announced = false;   // other ranks may know the row
  std::vector<Peer> peers;  // by rank; empty before they are connected
  std::shared_ptr<void> kept;

  /// Whether no rank has it open any more. Where it was announced and not connected, this rank cannot know.
  bool over() const {
    // sync: window-number
    if (row->number.load(std::memory_order_acquire) != 0) return false;
    if (!announced) return true;
    return !peers.empty() && std::all_of(peers.begin(), peers.end(), std::mem_fn(&Peer::has_closed));
  }
};

// ---- Window

Window::Window(std::shared_ptr<void> group, Mesh& mesh, std::shared_ptr<State> state)
    : group_(std::move(group)), mesh_(mesh), state_(std::move(state)), memory_(mesh.size()) {}

Window::~Window() {
  own().number.store(0, std::memory_order_release);  // sync: window-number
}

Window::Row& Window::own() const { return *state_->row; }

WindowHandle Window::handle(shm::Ref memory, std::size_t bytes) const {
  state_->announced = true;
  return {mesh_.offset_of(state_->row), state_->number, bytes ? memory.pack() : kUnmapped, bytes};
}

void Window::connect(const std::vector<WindowHandle>& handles, std::byte* own, Deadline deadline) {
  std::vector<State::Peer> peers(handles.size());
  std::vector<std::byte*> memory(handles.size());
  for (int i = 0; i < mesh_.size(); ++i) {
    const WindowHandle& it = handles[i];
    if (it.row % kLine != 0)
      fail(Errc::protocol, mesh_.describe(i), " of group ", mesh_.name(),
           " announced a misaligned row of a window");
    const std::byte* row = mesh_.member(i).peer->control(it.row, Row::bytes(mesh_.size()));
    peers[i].row = reinterpret_cast<const Row*>(row);
    peers[i].number = it.number;
    if (i == mesh_.rank())
      memory[i] = own;
    else if (it.bytes)
      memory[i] = mesh_.reach(i, shm::Ref::unpack(it.ref), it.bytes, deadline);
  }
  memory_ = std::move(memory);
  if (state_->peers.empty()) state_->peers = std::move(peers);  // with new memory, signals go on
}

void Window::keep(std::shared_ptr<void> memory) { state_->kept = std::move(memory); }

void Window::signal(int rank) {
  auto& count = own().signals(rank).count;
  const std::uint64_t sent = count.load(std::memory_order_relaxed);  // own write
  count.store(sent + 1, std::memory_order_release);                  // sync: window-signal
}

bool Window::take(int rank, std::uint64_t pass) {
  State::Peer& peer = state_->peers[rank];
  if (peer.pass != pass) {
    peer.pass = pass;
    peer.closed = peer.has_closed();  // before the signals: what it has sent before it closed still counts
    // sync: window-signal. A thread that goes to sleep must not have missed it (bell.h).
    peer.seen = peer.row->signals(mesh_.rank()).count.load(std::memory_order_seq_cst);
  }
  if (peer.taken == peer.seen) return false;
  ++peer.taken;
  return true;
}

bool Window::closed(int rank) const { return state_->peers[rank].closed; }

// ---- Windows

std::shared_ptr<Window> Windows::make(std::shared_ptr<void> group) {
  const std::shared_ptr<Window::State> state = free_row();
  state->number = ++made_;
  for (int i = 0; i < mesh_.size(); ++i)
    state->row->signals(i).count.store(0, std::memory_order_relaxed);  // no peer knows of the new window
  state->row->number.store(state->number, std::memory_order_release);  // sync: window-number
  return std::make_shared<Window>(std::move(group), mesh_, state);
}

std::vector<std::shared_ptr<void>> Windows::collect() {
  std::vector<std::shared_ptr<void>> kept;
  for (const auto& state : rows_)
    if (state->over() && state->kept) kept.push_back(std::move(state->kept));
  return kept;
}

/// One that is over, or a new one. Rows come in whole pages.
std::shared_ptr<Window::State> Windows::free_row() {
  const auto found = [this] {
    return std::find_if(rows_.begin(), rows_.end(),
                        [](const auto& state) { return state->over() && !state->kept; });
  };
  if (const auto row = found(); row != rows_.end()) {
    *row = std::make_shared<Window::State>(Window::State{(*row)->row, 0, false, {}, nullptr});
    return *row;
  }
  const std::size_t bytes = Window::Row::bytes(mesh_.size());
  const shm::Arena::Block block = mesh_.allocate(bytes);
  for (std::size_t at = 0; at + bytes <= block.bytes; at += bytes) {
    auto state = std::make_shared<Window::State>();
    state->row = new (mesh_.endpoint().arena().at(block.offset + at)) Window::Row(mesh_.size());
    rows_.push_back(std::move(state));
  }
  return *found();
}

}  // namespace occl::coll
