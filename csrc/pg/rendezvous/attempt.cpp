#include "pg/rendezvous/attempt.h"

#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <type_traits>

#include "base/limits.h"
#include "shm/socket.h"

namespace occl::pg {
namespace {

/// A waiting rank checks this often for reasons why the group cannot be made; in a large group, once in
/// kTroubleLookForEach times the number of ranks.
constexpr std::chrono::milliseconds kTroubleLook{20}, kTroubleLookForEach{2};
/// Limit for the replacement of a rank that announced itself and exited. Its announcement can be from an
/// earlier run, whose ranks are all being started again now.
constexpr std::chrono::seconds kReplacement{3};

/// Begins the value under the key of each rank; what the others must know follows.
struct Announcement {
  std::uint64_t attempt = 0;   // random
  std::uint64_t accepted = 0;  // the last round that this attempt has accepted
  std::uint64_t heard = 0;     // the last failure that an attempt of this rank ended with
  std::int32_t rank = 0, size = 0;
  std::uint32_t first = 1;  // 1: this rank has announced nothing before
  std::uint32_t ended = 0;  // 1: the attempt has failed
  std::uint64_t pids = 0;   // the namespace in which `pid` counts
  std::int64_t pid = 0;
  std::array<char, 96> process{};
};

/// Begins the round that rank 0 offers; the attempts of all ranks follow.
struct Offered {
  std::uint64_t number = 0;
  std::uint32_t complete = 0;
  std::int32_t size = 0;
};

/// Begins a failure; its text follows. It is out of date once its rank has begun another attempt.
struct Failure {
  std::uint64_t number = 0;  // random
  std::uint64_t attempt = 0;
  std::int64_t rank = 0;
};

/// A rank has seen the announcement of another size. If the attempt is still waiting, both contradict each
/// other.
struct Claim {
  std::uint64_t about = 0;  // an attempt
  Announcement by;
};

constexpr const char* kOffered = "occl/round";
constexpr const char* kFailure = "occl/failure";
constexpr const char* kClaim = "occl/claim";
std::string key_of(int rank) { return concat("occl/attempt/", rank); }
std::string key_of_given(std::uint64_t round) { return concat("occl/", round, "/given"); }

template <class T>
Bytes to_bytes(const T& head, const void* rest, std::size_t size) {
  static_assert(std::is_trivially_copyable_v<T>);
  Bytes bytes(sizeof(T) + size);
  std::memcpy(bytes.data(), &head, sizeof(T));
  if (size > 0) std::memcpy(bytes.data() + sizeof(T), rest, size);
  return bytes;
}

class Search {
 public:
  Search(c10d::Store& store, const Attempt& attempt, Deadline deadline, const Atomic<bool>& ended)
      : store_(store), attempt_(attempt), deadline_(deadline), ended_(ended), naps_(attempt.size) {
    mine_.attempt = shm::random_number();
    mine_.rank = attempt.rank;
    mine_.size = attempt.size;
    mine_.pids = attempt.pids;
    mine_.pid = getpid();
    attempt.process.copy(mine_.process.data(), mine_.process.size() - 1);
  }

  Round find() {
    Round round;
    try {
      announce();
      if (attempt_.rank == 0) recall();
      while (!(attempt_.rank == 0 ? offer(round) : accept(round))) {
        if (deadline_.passed() || ended_.load(std::memory_order_relaxed)) {
          round.missing = missing();
          give_up();
          return round;
        }
        if (naps_.are_long() && next_look_.passed()) look_for_trouble();
        naps_.sleep();
      }
    } catch (const Error& error) {
      round.error = error;
      give_up();
    }
    return round;
  }

  void refuse(const std::string& why) {
    mine_.ended = 1;
    announce();
    tell(mine_.rank, mine_.attempt, why);
    store_mine();  // with the failure's number: this rank has heard of it
  }

 private:
  template <class T>
  T head_of(const std::string& key, const Bytes& bytes) const {
    T head;
    if (bytes.size() < sizeof(T)) fail_on(key, bytes);
    std::memcpy(&head, bytes.data(), sizeof(T));
    return head;
  }
  [[noreturn]] void fail_on(const std::string& key, const Bytes& bytes) const {
    fail_on_value(attempt_.group, attempt_.size, key, bytes);
  }

  void store_mine() {
    store_.set(key_of(mine_.rank), to_bytes(mine_, attempt_.given.data(), attempt_.given.size()));
  }

  void announce() {
    const std::string key = key_of(mine_.rank);
    const Bytes wanted = to_bytes(mine_, attempt_.given.data(), attempt_.given.size());
    const Bytes found = store_.compareSet(key, {}, wanted);
    if (found == wanted) return;
    mine_.first = 0;
    mine_.heard = head_of<Announcement>(key, found).heard;
    store_mine();
  }

  /// Changes nothing if another process has announced itself under this rank since.
  void give_up() {
    const std::string key = key_of(mine_.rank);
    if (replaced_ || head_of<Announcement>(key, store_.get(key)).attempt != mine_.attempt) return;
    mine_.ended = 1;
    store_.set(key, to_bytes(mine_, nullptr, 0));
  }

  /// The round that rank 0 has offered last, and its attempts by rank; nothing if it is of another size.
  struct Seen {
    Offered head;
    std::vector<std::uint64_t> attempts;
    bool has(std::size_t rank, std::uint64_t attempt) const {
      return rank < attempts.size() && attempts[rank] == attempt;
    }
  };
  Seen look_at_round() const {
    Seen seen;
    const auto bytes = look_up(store_, kOffered);
    if (!bytes) return seen;
    seen.head = head_of<Offered>(kOffered, *bytes);
    if (seen.head.size != mine_.size) return {};
    if (bytes->size() != sizeof(Offered) + mine_.size * sizeof(std::uint64_t)) fail_on(kOffered, *bytes);
    seen.attempts.resize(mine_.size);
    std::memcpy(seen.attempts.data(), bytes->data() + sizeof(Offered), bytes->size() - sizeof(Offered));
    return seen;
  }

  // ---- Rank 0

  /// Attempts of a round that is complete have ended, whether or not they made the group.
  void recall() {
    if (mine_.first) return;
    Seen last = look_at_round();
    if (last.head.complete) used_ = std::move(last.attempts);
  }

  bool is_waiting(const Announcement& it) const {
    const auto rank = static_cast<std::size_t>(it.rank);
    return !it.ended && it.size == mine_.size && !(rank < used_.size() && used_[rank] == it.attempt) &&
           !was_killed(it);
  }
  bool was_killed(const Announcement& it) const {
    return it.pids != 0 && it.pids == mine_.pids && kill(static_cast<pid_t>(it.pid), 0) != 0 &&
           errno == ESRCH;
  }

  bool offer(Round& round) {
    if (keys_.empty())
      for (int rank = 0; rank < mine_.size; ++rank) keys_.push_back(key_of(rank));
    if (!store_.check(keys_)) return false;
    const std::vector<Bytes> values = store_.multiGet(keys_);
    bool all_first = true, all_accepted = true;
    std::vector<std::uint64_t> attempts;
    for (int rank = 0; rank < mine_.size; ++rank) {
      const auto it = head_of<Announcement>(keys_[rank], values[rank]);
      if (it.rank != rank) fail_on(keys_[rank], values[rank]);
      if (rank == 0 && it.attempt != mine_.attempt) return false;  // look_for_trouble says what is wrong
      if (!is_waiting(it)) return false;
      attempts.push_back(it.attempt);
      all_first &= it.first == 1;
      all_accepted &= rank == 0 || (offered_.number != 0 && it.accepted == offered_.number);
    }
    if (attempts != attempts_) {
      round.given.clear();
      Bytes bundle;
      for (const Bytes& value : values) {
        append_to_bundle(bundle, round.given.emplace_back(value.begin() + sizeof(Announcement), value.end()));
      }
      attempts_ = std::move(attempts);
      offered_ = {shm::random_number(), all_first ? 1u : 0u, mine_.size};
      store_.set(key_of_given(offered_.number), bundle);
      naps_.reset();
    } else if (all_accepted) {
      offered_.complete = 1;
    } else {
      return false;
    }
    store_.set(kOffered, to_bytes(offered_, attempts_.data(), attempts_.size() * sizeof(std::uint64_t)));
    if (offered_.complete) round.number = offered_.number;
    return offered_.complete == 1;
  }

  // ---- The others

  bool accept(Round& round) {
    const Seen seen = look_at_round();
    if (!seen.has(mine_.rank, mine_.attempt)) return false;
    if (!seen.head.complete) {
      if (seen.head.number == mine_.accepted) return false;
      mine_.accepted = seen.head.number;
      store_mine();
      naps_.reset();
      return false;
    }
    const std::string key = key_of_given(seen.head.number);
    const Bytes bundle = store_.get(key);
    auto given = unpack(bundle, mine_.size);
    if (!given) fail_on(key, bundle);
    round.given = *std::move(given);
    round.number = seen.head.number;
    return true;
  }

  // ---- Trouble

  void tell(int rank, std::uint64_t attempt, const std::string& why) {
    const Failure failure{shm::random_number(), attempt, rank};
    mine_.heard = failure.number;
    store_.set(kFailure, to_bytes(failure, why.data(), why.size()));
  }

  static std::string process_of(const Announcement& it) {
    return printable(it.process.data(), it.process.size());
  }
  static std::string describe(const Announcement& it) {
    return concat("rank ", it.rank, " (", process_of(it), ")");
  }

  void look_for_trouble() {
    next_look_ = next_look();
    hear_failure();
    const std::string key = key_of(mine_.rank);
    const auto own = head_of<Announcement>(key, store_.get(key));
    if (own.attempt != mine_.attempt) {
      replaced_ = true;
      contradict(own, concat("group ", attempt_.group, ": two processes are rank ", mine_.rank, ": ",
                             process_of(mine_), " and ", process_of(own),
                             ": give each process a rank of its own (RANK)"));
    }
    if (const auto bytes = look_up(store_, kClaim))
      if (const auto claim = head_of<Claim>(kClaim, *bytes); claim.about == mine_.attempt)
        contradict(mine_, concat("group ", attempt_.group, ": ", describe(mine_), " is one of ", mine_.size,
                                 " ranks, and ", describe(claim.by), " is one of ", claim.by.size,
                                 " ranks: give all processes one number of ranks (WORLD_SIZE)"));
    look_at_next();
  }

  [[noreturn]] void contradict(const Announcement& shown, const std::string& why) {
    tell(shown.rank, shown.attempt, why);
    throw Error(Errc::protocol, why);
  }

  void hear_failure() {
    const auto bytes = look_up(store_, kFailure);
    if (!bytes) return;
    const auto failure = head_of<Failure>(kFailure, *bytes);
    if (failure.number == mine_.heard || failure.rank < 0 || failure.rank >= kMaxRanks) return;
    const std::string key = key_of(static_cast<int>(failure.rank));
    const auto now = look_up(store_, key);
    if (!now || head_of<Announcement>(key, *now).attempt != failure.attempt) return;
    mine_.heard = failure.number;
    const char* const text = reinterpret_cast<const char*>(bytes->data()) + sizeof(Failure);
    fail(Errc::aborted, printable(text, bytes->size() - sizeof(Failure)));
  }

  /// Checks one other rank in each turn, so that the store is not asked N^2 times.
  void look_at_next() {
    if (dead_ == 0) {
      probed_ = (probed_ + 1) % mine_.size;
      if (probed_ == mine_.rank) probed_ = (probed_ + 1) % mine_.size;
    }
    const std::string key = key_of(probed_);
    const auto bytes = look_up(store_, key);
    if (!bytes) return;
    const auto it = head_of<Announcement>(key, *bytes);
    if (!it.ended && it.size != mine_.size)
      store_.set(kClaim, to_bytes(Claim{it.attempt, mine_}, nullptr, 0));
    if (it.ended || it.size != mine_.size || !was_killed(it) || has_been_in_a_group(it)) {
      dead_ = 0;
    } else if (dead_ != it.attempt) {
      dead_ = it.attempt;
      replacement_ = Deadline::after(kReplacement);
    } else if (replacement_.passed()) {
      const std::string why = concat(describe(it), " was gone before it had joined group ", attempt_.group);
      tell(it.rank, it.attempt, why);
      throw Error(Errc::peer_exited, why);
    }
  }
  bool has_been_in_a_group(const Announcement& it) const {
    const Seen seen = look_at_round();
    return seen.head.complete == 1 && seen.has(static_cast<std::size_t>(it.rank), it.attempt);
  }

  std::vector<std::pair<int, std::string>> missing() const {
    const Seen seen = look_at_round();
    const bool in_it = seen.has(mine_.rank, mine_.attempt);
    std::vector<std::pair<int, std::string>> absent, missing;
    for (int rank = 0; rank < mine_.size; ++rank) {
      if (rank == mine_.rank) continue;
      const auto bytes = look_up(store_, key_of(rank));
      if (!bytes) {
        absent.emplace_back(rank, "");
        continue;
      }
      const auto it = head_of<Announcement>(key_of(rank), *bytes);
      const bool used = seen.head.complete && !in_it && seen.has(rank, it.attempt);
      const bool silent = in_it && rank != 0 && it.accepted != seen.head.number;
      if (used || silent || !is_waiting(it)) missing.emplace_back(rank, process_of(it));
    }
    if (!absent.empty()) return absent;  // the others can have given up because of these
    // All are there: this rank waits for rank 0's answer, or rank 0 for its own next poll.
    if (missing.empty()) missing.emplace_back(mine_.rank == 0 ? 1 : 0, "");
    return missing;
  }

  Deadline next_look() const {
    return Deadline::after(std::max(kTroubleLook, attempt_.size * kTroubleLookForEach));
  }

  c10d::Store& store_;
  const Attempt& attempt_;
  const Deadline deadline_;
  const Atomic<bool>& ended_;
  Naps naps_;
  Announcement mine_;
  bool replaced_ = false;
  int probed_ = 0;
  std::uint64_t dead_ = 0;  // the attempt of the probed rank, if its process has exited; otherwise 0
  Deadline replacement_ = Deadline::never();  // until then another process can replace it
  Deadline next_look_ = next_look();

  // Rank 0 only.
  std::vector<std::string> keys_;
  std::vector<std::uint64_t> used_, attempts_;
  Offered offered_;
};

}  // namespace

Round find_round(c10d::Store& store, const Attempt& attempt, Deadline deadline, const Atomic<bool>& ended) {
  return Search(store, attempt, deadline, ended).find();
}

void refuse_round(c10d::Store& store, const Attempt& attempt, const std::string& why) {
  static const Atomic<bool> never = false;
  Search(store, attempt, Deadline::never(), never).refuse(why);
}

}  // namespace occl::pg
