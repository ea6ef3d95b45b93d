#include "coll/windows/window.h"

#include <algorithm>
#include <functional>
#include <new>
#include <utility>

#include "base/error.h"

namespace occl::coll {

/// Followed by the counters for each rank, one for each channel, on lines of their own.
struct alignas(kLine) Window::Row {
  using Counter = Atomic<std::uint64_t>;
  static constexpr int kPerLine = kLine / sizeof(Counter);

  Row(int size, int channels) {
    for (int i = 0; i < size; ++i)
      for (int channel = 0; channel < channels; ++channel) new (&signals(i, channel, channels)) Counter(0);
  }

  Atomic<std::uint64_t> number = 0;

  Counter& signals(int rank, int channel, int channels) const {
    auto* const counters = reinterpret_cast<Counter*>(const_cast<Row*>(this) + 1);
    return counters[static_cast<std::ptrdiff_t>(rank) * lines(channels) * kPerLine + channel];
  }

  /// Of the counters for one rank.
  static int lines(int channels) { return (channels + kPerLine - 1) / kPerLine; }
  static std::size_t bytes(int size, int channels) {
    return sizeof(Row) + static_cast<std::size_t>(size) * lines(channels) * kLine;
  }
};

/// What outlives the window, because peers do not close it at the same time.
struct Window::State {
  /// What this rank has taken of a channel.
  struct Channel {
    std::uint64_t taken = 0;
    std::uint64_t pass = 0, seen = 0;  // the last look, and how many signals there were
    bool closed = false;               // at the last look
  };
  /// The row of another rank.
  struct Peer {
    const Row* row = nullptr;
    std::uint64_t number = 0;
    std::vector<Channel> channels;

    // sync: window-number
    bool has_closed() const { return row->number.load(std::memory_order_seq_cst) != number; }
  };

  Row* row = nullptr;
  int channels = 1;
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
    const std::byte* row = mesh_.member(i).peer->control(it.row, Row::bytes(mesh_.size(), state_->channels));
    peers[i] = {reinterpret_cast<const Row*>(row), it.number, std::vector<State::Channel>(state_->channels)};
    if (i == mesh_.rank())
      memory[i] = own;
    else if (it.bytes)
      memory[i] = mesh_.reach(i, shm::Ref::unpack(it.ref), it.bytes, deadline);
  }
  memory_ = std::move(memory);
  if (state_->peers.empty()) state_->peers = std::move(peers);  // with new memory, signals go on
}

void Window::keep(std::shared_ptr<void> memory) { state_->kept = std::move(memory); }
std::shared_ptr<void> Window::kept() const { return state_->kept; }

void Window::signal(int rank, int channel) {
  auto& count = own().signals(rank, channel, state_->channels);
  const std::uint64_t sent = count.load(std::memory_order_relaxed);  // own write
  count.store(sent + 1, std::memory_order_release);                  // sync: window-signal
}

bool Window::take(int rank, int channel, std::uint64_t pass) {
  State::Peer& peer = state_->peers[rank];
  State::Channel& taking = peer.channels[channel];
  if (taking.pass != pass) {
    taking.pass = pass;
    taking.closed = peer.has_closed();  // before the signals: what it has sent before it closed still counts
    const auto& count = peer.row->signals(mesh_.rank(), channel, state_->channels);
    // sync: window-signal. A thread that goes to sleep must not have missed it (bell.h).
    taking.seen = count.load(std::memory_order_seq_cst);
  }
  if (taking.taken == taking.seen) return false;
  ++taking.taken;
  return true;
}

bool Window::closed(int rank, int channel) const { return state_->peers[rank].channels[channel].closed; }

// ---- Windows

std::shared_ptr<Window> Windows::make(std::shared_ptr<void> group, int channels) {
  const std::shared_ptr<Window::State> state = free_row(channels);
  state->number = ++made_;
  for (int i = 0; i < mesh_.size(); ++i)
    for (int channel = 0; channel < channels; ++channel)  // no peer knows of the new window
      state->row->signals(i, channel, channels).store(0, std::memory_order_relaxed);
  state->row->number.store(state->number, std::memory_order_release);  // sync: window-number
  return std::make_shared<Window>(std::move(group), mesh_, state);
}

std::vector<std::shared_ptr<void>> Windows::collect() {
  std::vector<std::shared_ptr<void>> kept;
  for (const auto& state : rows_)
    if (state->over() && state->kept) kept.push_back(std::move(state->kept));
  return kept;
}

/// One of as many channels that is over, or a new one. Rows come in whole pages.
std::shared_ptr<Window::State> Windows::free_row(int channels) {
  const auto found = [&] {
    return std::find_if(rows_.begin(), rows_.end(), [&](const auto& state) {
      return state->channels == channels && state->over() && !state->kept;
    });
  };
  if (const auto row = found(); row != rows_.end()) {
    *row = std::make_shared<Window::State>(Window::State{(*row)->row, channels, 0, false, {}, nullptr});
    return *row;
  }
  const std::size_t bytes = Window::Row::bytes(mesh_.size(), channels);
  const shm::Arena::Block block = mesh_.allocate(bytes);
  for (std::size_t at = 0; at + bytes <= block.bytes; at += bytes) {
    auto state = std::make_shared<Window::State>();
    state->row = new (mesh_.endpoint().arena().at(block.offset + at)) Window::Row(mesh_.size(), channels);
    state->channels = channels;
    rows_.push_back(std::move(state));
  }
  return *found();
}

}  // namespace occl::coll
