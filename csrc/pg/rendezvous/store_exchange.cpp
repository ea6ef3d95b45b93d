#include "pg/rendezvous/store_exchange.h"

#include <string_view>

#include "pg/request/errors.h"

namespace occl::pg {
namespace {

/// Begins the reason that a rank stores in place of what it could not make.
constexpr std::string_view kFailed = "failed: ";

/// Throws Error(aborted) if these bytes are the reason of a rank that failed.
void check_bytes(const std::optional<Bytes>& bytes) {
  if (!bytes) return;
  const std::string_view text(reinterpret_cast<const char*>(bytes->data()), bytes->size());
  if (text.starts_with(kFailed)) fail(Errc::aborted, text.substr(kFailed.size()));
}

}  // namespace

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
}

Board::~Board() { ended_->store(true, std::memory_order_relaxed); }

std::vector<Bytes> Board::meet(const Bytes& own) {
  const auto find = [attempt = attempt(own), deadline = deadline_, ended = ended_](c10d::Store& s) {
    return find_round(s, attempt, deadline, *ended);
  };
  Round found = in_store(find, kStoreGrace);
  if (found.error) throw Error(*found.error);
  std::string missing;
  for (auto& [rank, process] : found.missing) {
    processes_[rank] = std::move(process);
    enlist(missing, describe(rank));
  }
  if (!missing.empty()) fail_waiting(missing);
  round_ = found.number;
  return std::move(found.given);
}

void Board::refuse(const std::exception& error) noexcept try {
  in_store([attempt = attempt({}), why = reason(error)](c10d::Store& s) { refuse_round(s, attempt, why); });
} catch (const std::exception&) {
}

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
  set_failed(kind, reason(error));
} catch (const std::exception&) {
}

/// An error that begins with a rank is passed on unchanged.
std::string Board::reason(const std::exception& error) const {
  const std::string why = first_line(error), own = concat(describe(rank_), " could not take part in group ");
  return concat(why.starts_with("rank ") ? "" : concat(own, name_, ": "), why);
}

/// In all keys that others wait for: those above in the tree pass it on.
void Board::set_failed(const std::string& kind, const std::string& why) {
  const std::string text = concat(kFailed, why);
  const Bytes bytes(text.begin(), text.end());
  for (int width = 1; width <= width_of(rank_); width *= kSpread) set(key(kind, rank_, width), bytes);
  set(prefix("failure"), bytes);
}

std::vector<Bytes> Board::read(const std::string& kind, std::chrono::milliseconds grace) {
  if (size_ > kSpread)
    if (auto all = read_tree(kind, grace)) return *std::move(all);
  return read_each(kind, grace);  // and if the tree is not complete in time, this finds out which ranks miss
}

std::vector<std::optional<Bytes>> Board::take(const std::vector<std::string>& keys,
                                              std::chrono::milliseconds grace) {
  using Found = std::vector<std::optional<Bytes>>;
  // Polls. Store::wait is of no use: it notices no interrupt, and two clients of a TCPStore whose waits time
  // out at the same moment can both hang for seconds.
  const auto poll = [keys, grace, failure = prefix("failure"), deadline = deadline_, size = size_,
                     ended = ended_](c10d::Store& s) -> Found {
    Naps naps(size);
    while (!s.check(keys)) {
      if (naps.are_long())
        if (auto why = look_up(s, failure)) return {std::move(why)};
      if (deadline.passed_by(grace) || ended->load(std::memory_order_relaxed)) {
        Found found;
        for (const std::string& key : keys) found.push_back(look_up(s, key));
        return found;
      }
      naps.sleep();
    }
    const std::vector<Bytes> all = s.multiGet(keys);
    return {all.begin(), all.end()};
  };
  Found found = in_store(poll, grace + kStoreGrace);
  for (const auto& bytes : found) check_bytes(bytes);
  return found;
}

std::vector<Bytes> Board::read_each(const std::string& kind, std::chrono::milliseconds grace) {
  std::vector<std::string> keys;
  for (int rank = 0; rank < size_; ++rank) keys.push_back(key(kind, rank));
  std::vector<Bytes> all;
  std::string missing;
  for (auto& bytes : take(keys, grace)) {
    const auto rank = static_cast<int>(all.size());
    if (!bytes) enlist(missing, describe(rank));
    all.push_back(std::move(bytes).value_or(Bytes()));
  }
  if (!missing.empty()) fail_waiting(missing);
  return all;
}

void Board::fail_waiting(const std::string& missing) const {
  fail(Errc::timeout, "occl: Timed out after ", deadline_.span().count(), " ms on ", describe(rank_),
       " of group ", name_, " waiting for ", missing, " of ", size_,
       " ranks to create the group: see what they print, and whether they have started");
}

int Board::width_of(int rank) const {
  int width = 1;
  while (size_ > kSpread && width < size_ && rank % (width * kSpread) == 0) width *= kSpread;
  return width;
}

/// Nothing if something does not come in time.
std::optional<std::vector<Bytes>> Board::read_tree(const std::string& kind, std::chrono::milliseconds grace) {
  for (int width = 1; width < width_of(rank_); width *= kSpread) {
    std::vector<std::string> below;
    for (int rank = rank_; rank < std::min(rank_ + width * kSpread, size_); rank += width)
      below.push_back(key(kind, rank, width));
    Bytes bundle;
    try {
      for (const auto& bytes : take(below, grace)) {
        if (!bytes) return {};
        if (width == 1)
          append_to_bundle(bundle, *bytes);
        else
          bundle.insert(bundle.end(), bytes->begin(), bytes->end());
      }
    } catch (const Error& error) {
      if (error.code() == Errc::aborted) set_failed(kind, error.what());
      throw;
    }
    set(key(kind, rank_, width * kSpread), bundle);
  }
  const std::string top = key(kind, 0, width_of(0));
  const auto everything = take({top}, grace).front();
  if (!everything) return {};
  auto all = unpack(*everything, size_);
  if (!all) fail_on_value(name_, size_, top, *everything);
  return all;
}

void Board::check_failure() {
  check_bytes(in_store([key = prefix("failure")](c10d::Store& s) { return look_up(s, key); }));
}

bool Board::has(const std::string& kind) {
  return in_store([key = prefix(kind)](c10d::Store& s) { return s.check({key}); });
}

void Board::leave_store() {
  constexpr const char* kDone = "done";
  if (!store_host_) return;
  if (*store_host_ != rank_) return put(kDone, {});
  std::vector<std::string> keys;
  for (int rank = 0; rank < size_; ++rank)
    if (rank != rank_) keys.push_back(key(kDone, rank));
  in_store(
      [keys, size = size_, until = Deadline::after(kStoreGrace), ended = ended_](c10d::Store& s) {
        for (Naps naps(size); !s.check(keys) && !until.passed() && !ended->load(std::memory_order_relaxed);)
          naps.sleep();
      },
      kStoreGrace);
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
