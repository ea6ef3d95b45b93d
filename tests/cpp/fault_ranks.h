// Ranks as processes that live through one script while one of them is struck by a fault at a named step.
//
//     test program ──fork──▶ rank 0 .. n - 1: each with its endpoint and engine, all looking at one Board
//
//     the script:   join the group │ every collective on every path, messages, a window │ a second group of
//     the odd or
//                   even ranks │ everything again │ the victim leaves, the others find out
//     aftermath:    survivors destroy their groups, make a new one, and count what is left in their process
#pragma once

#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "base/fault_point.h"
#include "coll/group/subgroup.h"
#include "coll/windows/window.h"
#include "collective_cases.h"

namespace occl::test {

inline constexpr int kMost = 8;  // ranks
inline constexpr std::size_t kText = 1000;

enum class Strike : int {
  none,
  kill,     // SIGKILL
  abort,    // SIGABRT
  stop,     // SIGSTOP, until the others have given up
  pause,    // SIGSTOP for a moment
  slow,     // late at this and at the following steps
  give_up,  // another thread of it aborts the group
  fail,     // the step throws, as running out of memory does
};
inline constexpr std::array<const char*, 8> kStrikeName = {"none",  "kill", "abort",   "stop",
                                                           "pause", "slow", "give_up", "fail"};

struct Fault {
  int size = 2;
  int victim = 0;
  Strike strike = Strike::none;
  std::string point;
  int occurrence = 1;
  std::uint64_t seed = 0;

  bool deadly() const { return strike == Strike::kill || strike == Strike::abort; }
  /// The others work on as if nothing had happened.
  bool harmless() const {
    return strike == Strike::none || strike == Strike::pause || strike == Strike::slow;
  }
  std::string describe() const {
    return concat(kStrikeName[static_cast<int>(strike)], " rank ", victim, " of ", size, " at ", point, " (",
                  occurrence, "), seed ", seed);
  }
};

/// What a rank tells. Written by it alone, read by the test once `stage` says so.
struct Report {
  enum Stage : int { running, ended, finished };
  std::atomic<int> stage = running;   // release/acquire
  std::array<char, kText> error{};    // that ended the script; "" if there was none
  std::array<char, kText> failure{};  // what is wrong
  std::array<char, 2 * kText> census{};
  bool joined = false;                   // it has not left the first group
  bool able = false;                     // it has an endpoint: it can take part in the last round
  std::int64_t began = 0;                // the current operation: steady clock, nanoseconds
  std::int64_t pending = 0, failed = 0;  // the operation that failed
};

struct Seat {
  std::atomic<bool> taken = false;  // release/acquire
  coll::Invitation invitation;
};

/// Shared by the test and its ranks.
struct Board {
  enum Round { first, second, last, alone, rounds };
  std::array<std::array<Seat, kMost>, rounds> seats;
  std::array<Report, kMost> reports;
  std::array<std::atomic<bool>, kMost> dead{};
  std::array<std::atomic<int>, kMost> pids{};
  std::atomic<std::int64_t> struck = 0;  // when
  std::atomic<unsigned> survivors = 0;   // bits; 0: not known yet
  std::atomic<unsigned> members = 0;     // of the first group, those that live; known before survivors
  std::atomic<int> closed = 0;           // survivors that have destroyed their last group
};

inline std::int64_t now() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

inline void copy_text(auto& to, const std::string& text) {
  std::strncpy(to.data(), text.c_str(), to.size() - 1);
}

/// The fault of this process, counted down by the hook on whichever thread gets there.
class Trap {
 public:
  Trap(Board& board, const Fault& fault, bool victim) : board_(board), fault_(fault), victim_(victim) {
    self() = this;
    fault::hook = [](const char* name) { self()->reached(name); };
  }
  std::string census() {
    std::lock_guard lock(mutex_);
    std::string text;
    for (const auto& [name, count] : counts_) text += concat(name, " ", count, "\n");
    return text;
  }
  void disarm() { armed_ = false; }

  enum class Word { none, give_up, over };
  /// What the thread that gives up is told, once. It sleeps until then: threads that yield in loops, many
  /// at a time, can keep everything else off the cores for a minute.
  void tell(Word word) {
    Word none = Word::none;
    word_.compare_exchange_strong(none, word);
    word_.notify_all();
  }
  Word hear() {
    word_.wait(Word::none);
    return word_;
  }

 private:
  static Trap*& self() {
    static Trap* trap = nullptr;
    return trap;
  }
  void reached(const char* name) {
    bool strike = false, late = false;
    {
      std::lock_guard lock(mutex_);
      const int count = ++counts_[name];
      strike = victim_ && armed_ && count == fault_.occurrence && fault_.point == name;
      if (strike && fault_.strike == Strike::slow) late_ = 40;
      late = late_ > 0 && late_-- > 0;
    }
    if (late) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    if (!strike) return;
    board_.struck = now();
    switch (fault_.strike) {
      case Strike::kill:
        kill(getpid(), SIGKILL);
        break;
      case Strike::abort:
        std::abort();
      case Strike::stop:
      case Strike::pause:
        kill(getpid(), SIGSTOP);
        break;
      case Strike::give_up:
        tell(Word::give_up);
        break;
      case Strike::fail:
        fail(Errc::out_of_memory, "no memory, says the test");
      case Strike::none:
      case Strike::slow:
        break;
    }
  }

  Board& board_;
  const Fault fault_;
  const bool victim_;
  std::atomic<bool> armed_ = true;
  std::atomic<Word> word_ = Word::none;
  int late_ = 0;
  std::mutex mutex_;
  std::map<std::string, int> counts_;
};

/// One rank's process: the script, and what comes after.
class RankProcess {
 public:
  RankProcess(Board& board, const Fault& fault, int rank)
      : board_(board),
        fault_(fault),
        me_(rank),
        report_(board.reports[rank]),
        trap_(board, fault, rank == fault.victim) {}

  /// Never returns. Only a wrong result, not an error, is a failure.
  [[noreturn]] void live() {
    board_.pids[me_] = getpid();
    try {
      live_through();
    } catch (const std::exception& error) {
      copy_text(report_.failure, error.what());
    }
    report_.stage.store(Report::finished, std::memory_order_release);  // pairs with Trial
    for (;;) pause();                                                  // until the test has looked
  }

 private:
  using Ranks = std::vector<int>;

  void live_through() {
    std::optional<std::thread> quitter;
    int before = 0;
    try {
      open();
      before = descriptors() - static_cast<int>(main_.regions->size());
      report_.able = true;
      if (fault_.strike == Strike::give_up && me_ == fault_.victim)
        quitter.emplace([this] {
          const bool gives_up = trap_.hear() == Trap::Word::give_up;
          std::lock_guard lock(mutex_);
          if (gives_up && main_.group) main_.group->abort("the test says so");
        });
      script();
    } catch (const Error& error) {
      report_.failed = now();
      report_.pending = report_.began;
      copy_text(report_.error, error.what());
    }
    trap_.disarm();
    trap_.tell(Trap::Word::over);
    if (quitter) quitter->join();
    close(part_);
    // Others may wait here for what this rank will not do any more; they learn why.
    if (main_.group && report_.error[0]) main_.group->abort(report_.error.data());
    report_.joined = main_.group != nullptr;
    copy_text(report_.census, trap_.census());
    report_.stage.store(Report::ended, std::memory_order_release);  // pairs with Trial
    while (!board_.survivors) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    if (!report_.able) return;
    Ranks survivors, members;
    for (int i = 0; i < fault_.size; ++i) {
      if (board_.survivors >> i & 1) survivors.push_back(i);
      if (board_.members >> i & 1) members.push_back(i);
    }
    main_.patience = std::chrono::seconds(50);
    if (main_.group) shrink(members);
    close(main_);
    if (std::find(survivors.begin(), survivors.end(), me_) == survivors.end()) return;
    join(main_, Board::last, survivors);
    mix(main_, 3);
    close(main_);
    ++board_.closed;
    while (board_.closed < static_cast<int>(survivors.size()))
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    // What others may have been reading when a group was destroyed is given back when the next one is made.
    join(main_, Board::alone, {me_});
    close(main_);
    check_leftovers(before + static_cast<int>(main_.regions->size()), survivors);
  }

  void open() {
    main_.number = part_.number = me_;
    main_.regions = part_.regions = std::make_shared<shm::RegionTable>();
    main_.endpoint = part_.endpoint =
        std::make_shared<shm::Endpoint>(main_.regions, shm::Endpoint::Config{std::size_t{256} << 20, 0});
    main_.engine = std::make_unique<coll::Engine>(main_.endpoint);
    part_.engine_of_another = main_.engine.get();
    if (fault_.strike == Strike::stop) main_.patience = part_.patience = std::chrono::seconds(2);
  }

  void script() {
    Ranks all;
    for (int i = 0; i < fault_.size; ++i) all.push_back(i);
    join(main_, Board::first, all);
    mix(main_, 1);
    Ranks half;
    for (int i = fault_.victim % 2; i<fault_.size; i += fault_.size> 2 ? 2 : 1) half.push_back(i);
    if (fault_.size == 2) half = all;
    if (std::find(half.begin(), half.end(), me_) != half.end()) {
      join(part_, Board::second, half);
      mix(part_, 2);
      close(part_);
    }
    mix(main_, 2);
    if (me_ == fault_.victim) return close(main_);
    for (;;) collective(main_, coll::Kind::all_reduce, 1, false, 7);  // until the error
  }

  /// The ranks that are members of the first group still make a smaller one of it, without the store's part.
  void shrink(const Ranks& members) {
    const auto at = std::find(members.begin(), members.end(), me_) - members.begin();
    Rank smaller;
    smaller.number = me_;
    smaller.rank = static_cast<int>(at);
    smaller.size = static_cast<int>(members.size());
    smaller.regions = main_.regions;
    smaller.endpoint = main_.endpoint;
    smaller.engine_of_another = main_.engine.get();
    smaller.patience = main_.patience;
    smaller.group = coll::make_subgroup(*main_.group, {members, "smaller", coll::Subgroup::Purpose::shrink},
                                        [&] { return main_.group->mesh().tuning(); },
                                        Deadline::after(main_.patience), {});
    mix(smaller, 4);
    close(smaller);
  }

  void join(Rank& rank, Board::Round round, const Ranks& ranks) {
    const auto at = std::find(ranks.begin(), ranks.end(), me_) - ranks.begin();
    rank.rank = static_cast<int>(at);
    rank.size = static_cast<int>(ranks.size());
    Tuning tuning;
    tuning.one_shot_bytes = 256, tuning.direct_bytes = 64, tuning.slot_bytes = 1024;
    tuning.area_bytes = 0;
    tuning.eager_bytes = 256, tuning.both_ends_bytes = 4096;
    auto mesh = std::make_unique<coll::Mesh>(rank.endpoint, concat("group", int{round}), rank.rank, rank.size,
                                             tuning);
    Seat& mine = board_.seats[round][me_];
    mine.invitation = mesh->invitation();
    mine.taken.store(true, std::memory_order_release);  // pairs with the load below
    const auto deadline = Deadline::after(rank.patience);
    std::vector<coll::Invitation> invitations;
    for (std::size_t i = 0; i < ranks.size(); ++i) {
      const int number = ranks[i];
      while (!board_.seats[round][number].taken.load(std::memory_order_acquire)) {
        const bool ended = round != Board::last &&
                           board_.reports[number].stage.load(std::memory_order_acquire) != Report::running;
        const bool there = board_.seats[round][number].taken;
        if ((board_.dead[number] || ended || deadline.passed()) && !there)
          fail(Errc::timeout, "rank ", i, " (pid ", board_.pids[number],
               ") did not come");  // the store's part
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
      }
      invitations.push_back(board_.seats[round][number].invitation);
    }
    mesh->join(invitations, deadline);
    auto group = coll::Group::open(rank.any_engine(), std::move(mesh), deadline, {});
    std::lock_guard lock(mutex_);
    rank.group = std::move(group);
  }

  void close(Rank& rank) {
    std::shared_ptr<coll::Group> group;
    {
      std::lock_guard lock(mutex_);
      group.swap(rank.group);
    }
    if (!group) return;
    group->close();
    group.reset();
    rank.forget_calls();
  }

  void collective(Rank& rank, coll::Kind kind, std::size_t count, bool mapped, int round) {
    report_.began = now();
    Case c{kind, round % rank.size, {}, false, round};
    c.counts.assign(rank.size, count);
    const coll::Traits& t = coll::traits(kind);
    c.listed = round % 2 && !coll::rooted(kind) && (t.in_per_rank || t.out_per_rank);
    run(rank, c, mapped);
  }

  /// Every kind on every path: beside the sequence number, in the payload, staged, direct; and messages.
  void mix(Rank& rank, int round) {
    std::mt19937_64 random(fault_.seed * 7 + round);
    for (int kind = 0; kind < coll::kKinds; ++kind)
      for (const std::size_t count : {1, 20, 700})
        collective(rank, static_cast<coll::Kind>(kind), count, count > 1 && random() % 2, round);
    for (const std::size_t count : {3, 700, 9000})
      for (const bool mapped : {false, true}) messages(rank, count, mapped, round);
    window(rank, round);
  }

  /// Each rank puts into the memory of the next one, and signals it on two channels.
  void window(Rank& rank, int round) {
    if (rank.size == 1) return;
    report_.began = now();
    constexpr std::size_t kCount = 9000;
    const int to = (rank.rank + 1) % rank.size, from = (rank.rank + rank.size - 1) % rank.size;
    auto* memory = new Memory(rank, kCount, true);  // as for messages
    auto* out = new Memory(rank, kCount, false);
    for (std::size_t i = 0; i < kCount; ++i) out->data[i] = value_of(rank.rank, 0, i, round);
    const auto deadline = Deadline::after(rank.patience);
    rank.windows.push_back(rank.group->make_window(rank.group, 2));
    coll::Window& window = *rank.windows.back();
    const shm::Ref at = *rank.regions->find(memory->data, kCount * 8);
    window.connect(all_handles(rank, window.handle(at, kCount * 8)), memory->bytes(), deadline);
    const auto call = [&](coll::Access access, std::uint32_t channel, const coll::Block& data) -> Call& {
      const bool send = access != coll::Access::wait_signal;
      const coll::Transfer t{send, send ? to : from, channel, DType::i64, data, 0, access, &window, 0};
      rank.calls.push_back(std::make_unique<Call>(t, deadline));
      rank.submit(*rank.calls.back());
      return *rank.calls.back();
    };
    std::vector<Call*> calls;
    for (const std::uint32_t channel : {1, 0}) {
      calls.push_back(&call(coll::Access::put, 0, {out->bytes(), kCount}));
      calls.push_back(&call(coll::Access::signal, channel, {}));
    }
    for (const std::uint32_t channel : {0, 1}) calls.push_back(&call(coll::Access::wait_signal, channel, {}));
    for (Call* each : calls) rank.wait(*each);
    for (std::size_t i = 0; i < kCount; ++i)
      CHECK(memory->data[i] == value_of(from, 0, i, round), "put by ", from, " element ", i);
    rank.calls.resize(rank.calls.size() - calls.size());
    rank.windows.pop_back();
    collective(rank, coll::Kind::barrier, 1, false, round);  // no rank writes into the memory any more
    delete out;
    delete memory;
  }

  /// What all ranks announce of a window, by an all_gather.
  std::vector<coll::WindowHandle> all_handles(Rank& rank, const coll::WindowHandle& own) {
    constexpr std::size_t kBytes = sizeof(coll::WindowHandle);
    // For good, too.
    auto* all = new std::vector<coll::WindowHandle>(rank.size + 1, own);
    auto* const bytes = reinterpret_cast<std::byte*>(all->data());
    coll::Collective c;
    c.kind = coll::Kind::all_gather;
    c.in = {bytes + rank.size * kBytes, kBytes, 1, nullptr};
    c.out = {bytes, kBytes, static_cast<std::uint32_t>(rank.size), nullptr};
    c.largest = c.volume = kBytes;
    rank.run(c);
    std::vector<coll::WindowHandle> handles(all->begin(), all->end() - 1);
    delete all;
    return handles;
  }

  void messages(Rank& rank, std::size_t count, bool mapped, int round) {
    if (rank.size == 1) return;
    report_.began = now();
    const int to = (rank.rank + 1) % rank.size, from = (rank.rank + rank.size - 1) % rank.size;
    // On the heap for good: after an error the operations live as long as the group.
    auto* out = new Memory(rank, count, mapped);
    auto* in = new Memory(rank, count, mapped);
    for (std::size_t i = 0; i < count; ++i) out->data[i] = value_of(rank.rank, 0, i, round);
    const auto deadline = Deadline::after(rank.patience);
    const auto call = [&](bool send) -> Call& {
      coll::Transfer t{send, send ? to : from, 5, DType::i64, {(send ? out : in)->bytes(), count}};
      rank.calls.push_back(std::make_unique<Call>(t, deadline));
      rank.submit(*rank.calls.back());
      return *rank.calls.back();
    };
    Call& receive = call(false);
    Call& send = call(true);
    rank.wait(receive);
    rank.wait(send);
    for (std::size_t i = 0; i < count; ++i)
      CHECK(in->data[i] == value_of(from, 0, i, round), "message from ", from, " element ", i);
    rank.calls.pop_back();
    rank.calls.pop_back();
    delete in;
    delete out;
  }

  static int descriptors() {
    const std::filesystem::directory_iterator fds("/proc/self/fd"), end;
    return static_cast<int>(std::distance(fds, end));
  }

  /// Of the dead nothing is left; of the living only that they are known: a descriptor, and their memory.
  void check_leftovers(int own_descriptors, const Ranks& survivors) {
    const int live = static_cast<int>(survivors.size()) - 1;
    const auto deadline =
        Deadline::after(std::chrono::seconds(20));  // the endpoint may be hanging up just now
    while (descriptors() != own_descriptors + live)
      CHECK(!deadline.passed(), descriptors(), " descriptors: ", own_descriptors, " own, and ", live,
            " others live");
    std::ifstream maps("/proc/self/maps");
    int control = 0;
    for (std::string line; std::getline(maps, line);) {
      control += line.find("/memfd:occl-control") != line.npos;
      for (int i = 0; i < fault_.size; ++i)
        if (std::find(survivors.begin(), survivors.end(), i) == survivors.end())
          CHECK(line.find(concat("/memfd:test-", i, " ")) == line.npos, "memory of the dead: ", line);
    }
    CHECK(control == 1 + live, control, " control regions where ", live, " others live");
    const std::filesystem::directory_iterator tasks("/proc/self/task"), end;
    const auto threads = std::distance(tasks, end);
    CHECK(threads <= 3, threads, " threads");  // this one, the endpoint's, the engine's
  }

  Board& board_;
  const Fault fault_;
  const int me_;
  Report& report_;
  Trap trap_;
  std::mutex mutex_;  // guards the pointers to groups: the quitter looks
  Rank main_, part_;
};

}  // namespace occl::test
