// modes: plain
// A process that ends as soon as its own operation has ended: every other rank still gets the right result,
// although nothing answers in that process any more.
//
//     rank `slow` waits at each step of the protocol, by name, until the other ranks have ended or a moment
//     has passed, while all others run freely and end with _exit(0)
//
// The moment only bounds how long a case takes where the others cannot end before the slow rank.
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <csignal>
#include <cstring>

#include "base/fault_point.h"
#include "collective_cases.h"
#include "end_with.h"
#include "shm/process_status.h"

using namespace occl;
using namespace occl::test;

namespace {

constexpr int kMost = 4;
constexpr auto kPatience = std::chrono::seconds(60);
constexpr auto kMoment = std::chrono::milliseconds(4);
constexpr auto kPause = std::chrono::microseconds(100);

/// Shared by the test and its ranks.
struct Board {
  std::array<coll::Invitation, kMost> invitations;
  std::array<std::atomic<bool>, kMost> come{}, done{};
  std::atomic<int> slow_steps = 0;
};

struct Scene {
  int size = 2;
  int slow = 0;
  coll::Kind kind{};
  std::size_t count = 1;
  bool mapped = false, message = false, warm = false;

  std::string describe() const {
    return concat(message ? "message" : coll::traits(kind).name, " of ", count, " elements, ", size,
                  " ranks, ", mapped ? "mapped, " : "private, ", "rank ", slow, " slow, ",
                  warm ? "later" : "first");
  }
};

Board* board = nullptr;
const Scene* scene = nullptr;
bool slowed = false;

/// At every step of the slow rank's last operation.
void hold(const char*) {
  if (!slowed) return;
  ++board->slow_steps;
  const auto moment = Deadline::after(kMoment);
  const auto ended = [](int rank) { return rank == scene->slow || board->done[rank]; };
  for (;;) {
    bool all = true;
    for (int i = 0; i < scene->size; ++i) all = all && ended(i);
    if (all || moment.passed()) return;
    std::this_thread::sleep_for(kPause);
  }
}

class Process {
 public:
  explicit Process(int rank) {
    rank_.rank = rank_.number = rank;
    rank_.size = scene->size;
    rank_.patience = kPatience;
    rank_.regions = std::make_shared<shm::RegionTable>();
    rank_.endpoint =
        std::make_shared<shm::Endpoint>(rank_.regions, shm::Endpoint::Config{std::size_t{256} << 20, 0});
    rank_.engine = std::make_unique<coll::Engine>(rank_.endpoint);
  }

  void live() {
    join();
    if (scene->warm) operation(1);
    if (rank_.rank == scene->slow) slowed = true;
    operation(2);
  }

 private:
  void join() {
    auto mesh = std::make_unique<coll::Mesh>(rank_.endpoint, "test", rank_.rank, rank_.size, Tuning{});
    board->invitations[rank_.rank] = mesh->invitation();
    board->come[rank_.rank].store(true, std::memory_order_release);  // pairs with the load below
    const auto deadline = Deadline::after(kPatience);
    for (int i = 0; i < rank_.size; ++i)
      while (!board->come[i].load(std::memory_order_acquire)) {
        CHECK(!deadline.passed(), "rank ", i, " did not come");
        std::this_thread::sleep_for(kPause);
      }
    mesh->join({board->invitations.begin(), board->invitations.begin() + rank_.size}, deadline);
    rank_.group = coll::Group::open(*rank_.engine, std::move(mesh), deadline, {});
  }

  void operation(int round) {
    if (scene->message) return message(round);
    Case c{scene->kind, round % rank_.size, {}, false, round};
    c.counts.assign(rank_.size, scene->count);
    run(rank_, c, scene->mapped);
  }

  /// From the last rank to rank 0, and on to the next one: a rank ends when it has passed the message on.
  void message(int round) {
    Memory memory(rank_, scene->count, scene->mapped);
    const auto pass = [&](bool send, int peer) {
      rank_.run(coll::Transfer{send, peer, 5, DType::i64, {memory.bytes(), scene->count}});
    };
    const int last = rank_.size - 1;
    if (rank_.rank == last)
      for (std::size_t i = 0; i < scene->count; ++i) memory.data[i] = value_of(last, 0, i, round);
    else
      pass(false, rank_.rank == 0 ? last : rank_.rank - 1);
    for (std::size_t i = 0; i < scene->count; ++i)
      CHECK(memory.data[i] == value_of(last, 0, i, round), "element ", i);
    if (rank_.rank != last - 1) pass(true, rank_.rank == last ? 0 : rank_.rank + 1);
  }

  Rank rank_;
};

[[noreturn]] void live(int rank, pid_t parent) {
  end_with(parent);
  fault::hook = hold;
  try {
    auto* process = new Process(rank);  // never destroyed: that would leave the group
    process->live();
  } catch (const std::exception& error) {
    std::fprintf(stderr, "rank %d: %s\n", rank, error.what());
    _exit(1);
  }
  _exit(0);
}

/// Whether the kernel says how a process ended after its parent has waited for it: Linux does from 6.15 on.
/// Otherwise ranks learn that from a process that its parent has not waited for.
bool tells_of_reaped() {
  const pid_t pid = fork();
  if (pid == 0) _exit(0);
  const shm::UniqueFd pidfd(static_cast<int>(syscall(SYS_pidfd_open, pid, 0)));
  waitpid(pid, nullptr, 0);
  return shm::exit_status(pidfd.get()).has_value();
}

void play(const Scene& played) {
  scene = &played;
  void* memory = mmap(nullptr, sizeof(Board), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  CHECK(memory != MAP_FAILED);
  board = new (memory) Board;
  const pid_t parent = getpid();
  std::vector<pid_t> pids;
  for (int rank = 0; rank < played.size; ++rank) {
    pids.push_back(fork());
    if (pids.back() == 0) live(rank, parent);
  }
  static const int keep = tells_of_reaped() ? 0 : WNOWAIT;
  std::string bad;
  for (int left = played.size; left > 0; std::this_thread::sleep_for(kPause))
    for (int rank = 0; rank < played.size; ++rank) {
      siginfo_t info{};
      if (board->done[rank] || waitid(P_PID, pids[rank], &info, WEXITED | WNOHANG | keep) != 0) continue;
      if (info.si_pid == 0) continue;
      board->done[rank] = true;
      --left;
      if (info.si_status != 0) bad += concat(" rank ", rank, " ended with status ", info.si_status, ";");
    }
  if (keep)
    for (const pid_t pid : pids) waitpid(pid, nullptr, 0);
  const int steps = board->slow_steps;
  munmap(memory, sizeof(Board));
  CHECK(bad.empty(), played.describe(), ":", bad);
  CHECK(steps > 0, played.describe(), ": the slow rank was never held");
}

}  // namespace

TEST("ranks that end after a collective leave the right result to a slow one") {
  int at = 0;
  for (int kind = 0; kind < coll::kKinds; ++kind)
    for (const std::size_t count : {1, 12, 50, 700, 9000, 200000})
      for (const int size : {2, 3, 4})
        for (const bool mapped : {false, true}) {
          ++at;  // the slow rank, and whether the group has worked before, take turns
          if (check::thinned(at, 5)) continue;
          play({size, at % size, static_cast<coll::Kind>(kind), count, mapped, false, at / 2 % 3 == 0});
        }
}

TEST("ranks that end after they have passed a message on leave it to a slow one") {
  for (const std::size_t count : {2, 100, 900, 3000, 200000})
    for (const int size : {2, 3})
      for (const bool mapped : {false, true})
        for (int slow = 0; slow < size; ++slow) play({size, slow, {}, count, mapped, true, slow == 1});
}
