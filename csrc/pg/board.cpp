#include "pg/board.h"

#include <string_view>
#include <thread>

#include "pg/nodes.h"

namespace occl::pg {
namespace {

/// Begins the reason that a rank stores in place of what it could not make.
constexpr std::string_view kFailed = "failed: ";

/// In a bundle each rank's bytes follow their number.
void append_length(std::vector<uint8_t>& bundle, std::size_t length) {
  for (int shift = 0; shift < 32; shift += 8) bundle.push_back(static_cast<uint8_t>(length >> shift));
}

std::vector<std::vector<uint8_t>> unpack(const std::vector<uint8_t>& bundle) {
  std::vector<std::vector<uint8_t>> all;
  for (auto at = bundle.begin(); at != bundle.end();) {
    std::ptrdiff_t length = 0;
    for (int shift = 0; shift < 32; shift += 8) length |= std::ptrdiff_t{*at++} << shift;
    all.emplace_back(at, at + length);
    at += length;
  }
  return all;
}

std::optional<Board::Bytes> look_up(c10d::Store& store, const std::string& key) {
  return store.check({key}) ? std::optional(store.get(key)) : std::nullopt;
}

/// Throws Error(aborted) if these bytes are the reason of a rank that failed.
void check_bytes(const std::optional<Board::Bytes>& bytes) {
  if (!bytes) return;
  const std::string_view text(reinterpret_cast<const char*>(bytes->data()), bytes->size());
  if (text.starts_with(kFailed)) fail(Errc::aborted, text.substr(kFailed.size()));
}

}  // namespace

std::string first_line(const std::exception& error) {
  const std::string text = error.what();
  return text.substr(0, text.find('\n'));
}

Board::Board(const c10::intrusive_ptr<c10d::Store>& store, std::string name, int rank, int size,
             Deadline deadline)
    : store_(store),
      name_(std::move(name)),
      rank_(rank),
      size_(size),
      deadline_(deadline),
      processes_(size),
      ended_(std::make_shared<Atomic<bool>>(false)) {
  processes_[rank] = this_process();
  // One store can serve one name several times (init, destroy, init; or fewer ranks after a shrink, when
  // PyTorch counts names from the start again), so each round of `size` ranks has keys of its own.
  const auto join = [key = concat("occl/", size, "/joined")](c10d::Store& s) { return s.add(key, 1); };
  round_ = (in_store(join) - 1) / size;
}

Board::~Board() { ended_->store(true, std::memory_order_relaxed); }

void Board::introduce(std::vector<std::string> processes, std::optional<int> store_host) {
  processes_ = std::move(processes);
  store_host_ = store_host;
}

std::string Board::describe(int rank) const {
  return processes_[rank].empty() ? concat("rank ", rank)
                                  : concat("rank ", rank, " (", processes_[rank], ")");
}

void Board::set(const std::string& key, const Bytes& bytes) {
  in_store([key, bytes](c10d::Store& s) { s.set(key, bytes); });
}

void Board::put_failure(const std::string& kind, const std::exception& error) noexcept try {
  // An error that begins with a rank is passed on as it is.
  const std::string why = first_line(error), own = concat(describe(rank_), " could not take part in group ");
  set_failed(kind, concat(why.starts_with("rank ") ? "" : concat(own, name_, ": "), why));
} catch (const std::exception&) {
}

/// In all keys that others wait for: those above in the tree pass it on.
void Board::set_failed(const std::string& kind, const std::string& why) {
  const std::string text = concat(kFailed, why);
  const Bytes bytes(text.begin(), text.end());
  for (int width = 1; width <= width_of(rank_); width *= kSpread) set(key(kind, rank_, width), bytes);
  set(prefix("failure"), bytes);
}

std::vector<Board::Bytes> Board::read(const std::string& kind, std::chrono::milliseconds grace) {
  if (size_ > kSpread)
    if (auto all = read_tree(kind, grace)) return *std::move(all);
  return read_each(kind, grace);  // and if the tree is not complete in time, this finds out which ranks miss
}

std::vector<std::optional<Board::Bytes>> Board::take(const std::vector<std::string>& keys,
                                                     std::chrono::milliseconds grace) {
  using Found = std::vector<std::optional<Bytes>>;
  // Polls. Store::wait is of no use: it notices no interrupt, and two clients of a TCPStore whose waits time
  // out at the same moment can both hang for seconds.
  const auto poll = [keys, grace, failure = prefix("failure"), deadline = deadline_,
                     ended = ended_](c10d::Store& s) -> Found {
    constexpr std::chrono::microseconds kFirstNap{100}, kLongestNap{50'000}, kLookForFailure{1'000};
    std::chrono::nanoseconds nap = kFirstNap;
    while (!s.check(keys)) {
      if (nap > kLookForFailure)
        if (auto why = look_up(s, failure)) return {std::move(why)};
      if (deadline.passed_by(grace) || ended->load(std::memory_order_relaxed)) {
        Found found;
        for (const std::string& key : keys) found.push_back(look_up(s, key));
        return found;
      }
      std::this_thread::sleep_for(nap);
      nap = std::min<std::chrono::nanoseconds>(nap * 3 / 2, kLongestNap);
    }
    const std::vector<Bytes> all = s.multiGet(keys);
    return {all.begin(), all.end()};
  };
  Found found = in_store(poll, grace + kStoreGrace);
  for (const auto& bytes : found) check_bytes(bytes);
  return found;
}

std::vector<Board::Bytes> Board::read_each(const std::string& kind, std::chrono::milliseconds grace) {
  std::vector<std::string> keys;
  for (int rank = 0; rank < size_; ++rank) keys.push_back(key(kind, rank));
  std::vector<Bytes> all;
  std::string missing;
  for (auto& bytes : take(keys, grace)) {
    const auto rank = static_cast<int>(all.size());
    if (!bytes) enlist(missing, describe(rank));
    all.push_back(std::move(bytes).value_or(Bytes()));
  }
  if (!missing.empty())
    fail(Errc::timeout, "occl: Timed out after ", deadline_.span().count(), " ms on ", describe(rank_),
         " of group ", name_, " waiting for ", missing, " of ", size_,
         " ranks to create the group: see what they print, and whether they have started");
  return all;
}

int Board::width_of(int rank) const {
  int width = 1;
  while (size_ > kSpread && width < size_ && rank % (width * kSpread) == 0) width *= kSpread;
  return width;
}

/// Nothing if something does not come in time.
std::optional<std::vector<Board::Bytes>> Board::read_tree(const std::string& kind,
                                                          std::chrono::milliseconds grace) {
  for (int width = 1; width < width_of(rank_); width *= kSpread) {
    std::vector<std::string> below;
    for (int rank = rank_; rank < std::min(rank_ + width * kSpread, size_); rank += width)
      below.push_back(key(kind, rank, width));
    Bytes bundle;
    try {
      for (const auto& bytes : take(below, grace)) {
        if (!bytes) return {};
        if (width == 1) append_length(bundle, bytes->size());
        bundle.insert(bundle.end(), bytes->begin(), bytes->end());
      }
    } catch (const Error& error) {
      if (error.code() == Errc::aborted) set_failed(kind, error.what());
      throw;
    }
    set(key(kind, rank_, width * kSpread), bundle);
  }
  const auto everything = take({key(kind, 0, width_of(0))}, grace);
  if (!everything.front()) return {};
  return unpack(*everything.front());
}

void Board::check_failure() {
  check_bytes(in_store([key = prefix("failure")](c10d::Store& s) { return look_up(s, key); }));
}

void Board::compare(const std::vector<std::string>& texts, const char* what, const char* remedy) const {
  for (int i = 1; i < size_; ++i)
    if (texts[i] != texts[0])
      fail(Errc::protocol, "group ", name_, ": ", describe(0), " ", what, " ", texts[0], ", and ",
           describe(i), " ", what, " ", texts[i], ": ", remedy);
}

void Board::lost_store(const std::string& why) const {
  fail(Errc::system, describe(rank_), " lost the store while it made group ", name_, ": ",
       why.substr(0, why.find('\n')), ". The store is served by ",
       store_host_ ? describe(*store_host_) : "the process at MASTER_ADDR or of the launcher",
       ": see what it prints, and whether this host reaches it");
}

}  // namespace occl::pg
