// modes: plain
// A rank is killed, stopped, slowed or fails at every step of the protocol by name: the others get the error
// that names it, no wrong data, have nothing of it left, and work on in a new group.
//
// OCCL_TEST_FAULTS=N makes N random faults instead of 8, as far as OCCL_TEST_SECONDS go, and
// OCCL_TEST_SEED=S chooses them; every one of them has a seed of its own, which is printed where it fails:
// OCCL_TEST_FAULTS=1 OCCL_TEST_SEED=S makes it again.

#include <optional>
#include <set>

#include "end_with.h"
#include "fault_ranks.h"

using namespace occl;
using namespace occl::test;

namespace {

constexpr auto kPatience = std::chrono::seconds(200);  // the machine may be busy with other things

/// What happened in all trials, for the table at the end.
struct Tally {
  std::map<std::string, int> struck;                    // by kind
  std::map<std::string, std::set<std::string>> points;  // by kind
  std::map<std::string, std::vector<double>> milliseconds;
  int not_reached = 0;

  void print(const char* title) {
    std::printf("%s\n", title);
    for (const auto& [kind, count] : struck)
      std::printf("%8d  %s, at %zu steps\n", count, kind.c_str(), points[kind].size());
    if (not_reached) std::printf("%8d  did not get to their step\n", not_reached);
    for (auto& [kind, values] : milliseconds) {
      std::sort(values.begin(), values.end());
      const auto at = [&sorted = values](double q) {
        return sorted[static_cast<std::size_t>(q * double(sorted.size() - 1))];
      };
      std::printf("          ms from %s to the error: %.1f median, %.1f of 95 %%, %.1f most, %zu values\n",
                  kind.c_str(), at(0.5), at(0.95), at(1), values.size());
    }
    std::fflush(stdout);
  }
};

/// One fault: the ranks are started, and `finish` judges how they ended.
class Trial {
 public:
  explicit Trial(const Fault& fault) : fault_(fault) {
    void* memory = mmap(nullptr, sizeof(Board), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(memory != MAP_FAILED);
    board_ = new (memory) Board;
    const pid_t parent = getpid();
    for (int i = 0; i < fault.size; ++i) {
      pids_.push_back(fork());
      if (pids_.back() != 0) continue;
      end_with(parent);
      const rlimit none{0, 0};
      setrlimit(RLIMIT_CORE, &none);
      RankProcess(*board_, fault, i).live();
    }
  }
  Trial(const Trial&) = delete;
  Trial& operator=(const Trial&) = delete;
  ~Trial() {
    for (int i = 0; i < fault_.size; ++i)
      if (!board_->dead[i]) {
        kill(pids_[i], SIGKILL);
        waitpid(pids_[i], nullptr, 0);
      }
    munmap(board_, sizeof(Board));
  }

  void finish(Tally& tally) {
    const auto deadline = Deadline::after(kPatience);
    wait_until(Report::ended, deadline, false);
    if (stopped_) resume();
    wait_until(Report::ended, deadline, true);
    unsigned survivors = 0, members = 0;
    for (int i = 0; i < fault_.size; ++i) {
      const Report& report = board_->reports[i];
      if (!board_->dead[i] && report.able) survivors |= 1u << i;
      if (!board_->dead[i] && report.joined) members |= 1u << i;
    }
    board_->members = members;
    board_->survivors = survivors;
    wait_until(Report::finished, deadline, true);
    for (int i = 0; i < fault_.size; ++i)
      if (!board_->dead[i]) judge(i, tally);
    const char* kind = kStrikeName[static_cast<int>(fault_.strike)];
    if (fault_.strike != Strike::none && !board_->struck) ++tally.not_reached;
    if (!board_->struck) return;
    ++tally.struck[kind];
    tally.points[kind].insert(fault_.point);
  }

  std::map<std::string, int> census(int rank) const {
    std::istringstream text(board_->reports[rank].census.data());
    std::map<std::string, int> counts;
    int count = 0;
    for (std::string name; text >> name >> count;) counts[name] = count;
    return counts;
  }

 private:
  /// Until all ranks that live (and, unless `stopped_too`, go on) are at this stage.
  void wait_until(Report::Stage stage, Deadline deadline, bool stopped_too) {
    for (;;) {
      look();
      int late = -1;
      for (int i = 0; i < fault_.size; ++i)
        if (!board_->dead[i] && !(stopped_ && i == fault_.victim && !stopped_too) &&
            board_->reports[i].stage.load(std::memory_order_acquire) < stage)  // pairs with RankProcess
          late = i;
      if (late < 0) return;
      CHECK(!deadline.passed(), "rank ", late, " hangs: ", fault_.describe(), all_told());
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
    }
  }
  void look() {
    for (int i = 0; i < fault_.size; ++i) {
      int status = 0;
      if (board_->dead[i] || waitpid(pids_[i], &status, WNOHANG | WUNTRACED) == 0) continue;
      if (WIFSTOPPED(status)) {
        stopped_ = true;
        if (fault_.strike == Strike::pause) resume();
        continue;
      }
      board_->dead[i] = true;
      const bool meant = i == fault_.victim && fault_.deadly();
      CHECK(meant && WIFSIGNALED(status), "rank ", i, " died with status ", status, ": ", fault_.describe(),
            "; ", board_->reports[i].failure.data());
    }
  }
  void resume() {
    std::this_thread::sleep_for(std::chrono::milliseconds(3));  // what a moment is
    kill(pids_[fault_.victim], SIGCONT);
    stopped_ = false;
  }

  std::string all_told() const {
    const auto ago = [](std::int64_t when) {
      return when ? concat((now() - when) / 1'000'000, " ms ago") : "never";
    };
    std::string text = concat("\n  struck ", ago(board_->struck));
    for (int i = 0; i < fault_.size; ++i)
      text += concat("\n  rank ", i, board_->dead[i] ? " is dead" : "", ", last operation begun ",
                     ago(board_->reports[i].began), "; ", board_->reports[i].error.data(), "; ",
                     board_->reports[i].failure.data());
    return text;
  }

  bool names_victim(const std::string& text) const {
    return text.find(concat("(pid ", pids_[fault_.victim])) != text.npos && text.find("rank ") != text.npos;
  }

  bool anybody_names_victim() const {
    return std::any_of(board_->reports.begin(), board_->reports.end(),
                       [&](const Report& report) { return names_victim(report.error.data()); });
  }

  void judge(int rank, Tally& tally) const {
    const Report& report = board_->reports[rank];
    CHECK(!report.failure[0], "rank ", rank, ": ", report.failure.data(), "; ", fault_.describe());
    const std::string error = report.error.data();
    const auto wrong = [&](const char* what) {
      CHECK(false, "rank ", rank, what, ": '", error, "'; ", fault_.describe());
    };
    const auto has = [&](const char* text) { return error.find(text) != error.npos; };
    const bool struck = board_->struck != 0;
    if (rank == fault_.victim) {
      // The control region is tried again, smaller; a receiver copies its message alone; rings do without
      // cells.
      const std::string census = report.census.data();
      const bool without = census.find("message.alone") != std::string::npos ||
                           census.find("message.without_cells") != std::string::npos;
      const bool another_try = error.empty() && (fault_.point == "region.create" || without);
      if (struck && fault_.strike == Strike::fail && !has("no memory, says the test") && !another_try)
        wrong(" lost its error");
      if ((!struck || fault_.harmless()) && !error.empty()) wrong(" has an error");
      return;
    }
    if (error.empty()) wrong(" has no error");
    const bool ended_well = names_victim(error) && has("left the group");
    if (!struck || fault_.harmless()) {
      if (!ended_well) wrong(" has another error than that the victim left");
      return;
    }
    switch (fault_.strike) {
      case Strike::give_up:
        if (!has("the test says so") && !names_victim(error) && !has("did not come"))
          wrong(" has not the reason");
        break;
      case Strike::fail:
        // Where the victim's own code had no memory it just leaves, and so does a rank that waits for it.
        if (!has("no memory, says the test") && !has("left the group") && !names_victim(error) &&
            !has("did not come"))
          wrong(" has not the reason");
        break;
      case Strike::stop: {
        // A rank that gave the victim up in one group leaves the other, and that is what its members see
        // there. One that waits for its memory cannot come to the next operation. And a message, or the
        // making of a group, knows only the rank that it waits for, which may itself wait for the victim.
        const bool next_in_line = has("it waits for rank") || has("did not come");
        const bool indirectly = has("left the group") || has("has not arrived");
        if (!names_victim(error) && !next_in_line && !(indirectly && anybody_names_victim()))
          wrong(" has not the reason");
        break;
      }
      default:
        // A rank that waits for the others to come to a new group sees only that one does not.
        if (!names_victim(error) && !(has("did not come") && anybody_names_victim()))
          wrong(" does not name the victim");
    }
    if (!fault_.deadly()) return;
    const double ms = double(report.failed - std::max(board_->struck.load(), report.pending)) / 1e6;
    if (has("exited")) tally.milliseconds[kStrikeName[static_cast<int>(fault_.strike)]].push_back(ms);
  }

  const Fault fault_;
  Board* board_;
  std::vector<pid_t> pids_;
  bool stopped_ = false;
};

/// How often each rank passes each step when nothing happens.
const std::map<std::string, int>& census(int size, int rank) {
  static std::map<std::pair<int, int>, std::map<std::string, int>> known;
  auto& counts = known[{size, rank}];
  if (counts.empty()) {
    Fault none;
    none.size = size;
    none.victim = rank;
    Tally tally;
    Trial trial(none);
    trial.finish(tally);
    counts = trial.census(rank);
  }
  return counts;
}

bool may_fail(const std::string& point) {
  return point == "region.create" || point == "region.commit" || point == "arena.allocate" ||
         point == "peer.connect" || point == "region.attach";
}

/// Trials side by side: most of their time they wait.
void run_all(const std::vector<Fault>& faults, std::size_t at_once, Tally& tally) {
  for (std::size_t begin = 0; begin < faults.size(); begin += at_once) {
    std::vector<std::unique_ptr<Trial>> trials;
    for (std::size_t i = begin; i < std::min(begin + at_once, faults.size()); ++i)
      trials.push_back(std::make_unique<Trial>(faults[i]));
    for (auto& trial : trials) trial->finish(tally);
  }
}

Fault random_fault(std::uint64_t seed, std::optional<Strike> strike = {}) {
  std::mt19937_64 random(seed);
  Fault fault;
  fault.seed = seed;
  fault.size = 2 + static_cast<int>(random() % 7);
  fault.victim = static_cast<int>(random() % fault.size);
  fault.strike = strike.value_or(static_cast<Strike>(1 + random() % 7));
  std::vector<std::pair<std::string, int>> steps;
  for (const auto& [name, count] : census(fault.size, fault.victim))
    if (fault.strike != Strike::fail || may_fail(name)) steps.emplace_back(name, count);
  const auto& [name, count] = steps[random() % steps.size()];
  fault.point = name;
  fault.occurrence = 1 + static_cast<int>(random() % count);
  return fault;
}

std::uint64_t from_environment(const char* name, std::uint64_t otherwise) {
  const char* text = std::getenv(name);
  return text ? std::strtoull(text, nullptr, 10) : otherwise;
}

}  // namespace

TEST("a rank killed at each step: the others name it and work on without it") {
  Tally tally;
  std::vector<Fault> faults;
  std::uint64_t seed = 1;
  int turn = 0;
  for (const int size : {2, 3, 5}) {
    int at = turn++;  // where cases are left out, a step stays in one size
    for (const auto& [name, count] : census(size, 1)) {
      std::mt19937_64 random(seed);
      if (!check::thinned(at++, 3))
        faults.push_back({size, 1, Strike::kill, name, 1 + static_cast<int>(random() % count), seed});
      ++seed;
    }
  }
  run_all(faults, 4, tally);
  tally.print("killed at each step");
}

TEST("a rank stopped at each step: the others time out and name it; in time it goes on as if nothing was") {
  Tally tally;
  std::vector<Fault> faults;
  std::uint64_t seed = 1000;
  int turn = 0;
  for (const Strike strike : {Strike::stop, Strike::pause, Strike::give_up}) {
    int at = turn++;  // where cases are left out, a step stays with one strike
    for (const auto& [name, count] : census(3, 0)) {
      std::mt19937_64 random(seed);
      if (!check::thinned(at++, 3))
        faults.push_back({3, 0, strike, name, 1 + static_cast<int>(random() % count), seed});
      ++seed;
    }
  }
  run_all(faults, 16, tally);
  tally.print("stopped at each step");
}

TEST("memory or connections that cannot be had, at each place: an error on every rank that says so") {
  Tally tally;
  std::vector<Fault> faults;
  std::uint64_t seed = 2000;
  int at = 0;
  for (const auto& [name, count] : census(3, 2))
    for (int occurrence = 1; may_fail(name) && occurrence <= count; occurrence += 1 + count / 12, ++seed)
      if (!check::thinned(at++, 3)) faults.push_back({3, 2, Strike::fail, name, occurrence, seed});
  run_all(faults, 2, tally);
  tally.print("failed at each place");
}

TEST("random faults") {
  Tally tally;
  const auto seed = from_environment("OCCL_TEST_SEED", 12345);
  const auto count = from_environment("OCCL_TEST_FAULTS", 8);
  const auto end = Deadline::after(std::chrono::seconds(from_environment("OCCL_TEST_SECONDS", 3600)));
  for (std::uint64_t i = 0; i < count && !end.passed(); i += 8) {
    std::vector<Fault> faults;
    for (std::uint64_t k = i; k < std::min(i + 8, count); ++k) faults.push_back(random_fault(seed + k));
    run_all(faults, faults.size(), tally);
  }
  tally.print(concat("random faults from seed ", seed).c_str());
}
