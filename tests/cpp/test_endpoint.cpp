// modes: plain asan
// Processes that meet: which may connect, what they get, and how a death is noticed.
#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <fstream>
#include <functional>
#include <string>
#include <thread>

#include "base/fault_point.h"
#include "check.h"
#include "shm/endpoint.h"
#include "shm/process_status.h"
#include "shm/socket.h"

using namespace occl;
using namespace occl::shm;

namespace {

constexpr auto kPatience = std::chrono::seconds(20);
const Endpoint::Config kConfig{std::size_t{64} << 20, 0};
constexpr std::uint16_t kFirstAdded = 1;  // number 0 is the endpoint's staging region

/// For how many descriptors this process has room, as the kernel says.
int table_of_descriptors() {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);)
    if (line.starts_with("FDSize:")) return std::stoi(line.substr(7));
  return 0;
}

/// A child process with an endpoint, that runs `body` and then waits to be killed.
class Child {
 public:
  explicit Child(const std::function<void(Endpoint&)>& body = [](Endpoint&) {}) {
    int pipe_fds[2];
    CHECK(pipe(pipe_fds) == 0);
    pid_ = fork();
    if (pid_ == 0) {
      Endpoint endpoint(std::make_shared<RegionTable>(), kConfig);
      body(endpoint);
      const Address address = endpoint.address();
      if (write(pipe_fds[1], &address, sizeof(address)) != sizeof(address)) _exit(1);
      for (;;) pause();
    }
    close(pipe_fds[1]);
    CHECK(read(pipe_fds[0], &address, sizeof(address)) == sizeof(address));
    close(pipe_fds[0]);
  }
  ~Child() { end(); }
  void end() {
    if (pid_ > 0) {
      kill(pid_, SIGKILL);
      waitpid(pid_, nullptr, 0);
    }
    pid_ = -1;
  }
  pid_t pid() const { return pid_; }
  Address address;

 private:
  pid_t pid_ = -1;
};

Errc code_of(const std::function<void()>& body) {
  try {
    body();
  } catch (const Error& error) {
    return error.code();
  }
  throw std::runtime_error("expected an error, there was none");
}

}  // namespace

TEST("an endpoint makes room for the descriptors of its peers, however many threads the process has") {
  rlimit limit{};
  CHECK(getrlimit(RLIMIT_NOFILE, &limit) == 0);
  const auto room = static_cast<int>(std::min<rlim_t>(limit.rlim_cur, 1024));
  for (const bool alone : {true, false}) {
    const pid_t pid = fork();
    if (pid == 0) {
      if (table_of_descriptors() >= room) _exit(2);
      if (!alone) std::thread([] { pause(); }).detach();
      const Endpoint endpoint(std::make_shared<RegionTable>(), kConfig);
      const auto end = Deadline::after(alone ? std::chrono::seconds(0) : kPatience);
      while (table_of_descriptors() < room && !end.passed()) std::this_thread::yield();
      _exit(table_of_descriptors() < room);
    }
    int status = 0;
    CHECK(waitpid(pid, &status, 0) == pid && WIFEXITED(status));
    CHECK(WEXITSTATUS(status) != 2, "the table is large already, so this test shows nothing");
    CHECK(WEXITSTATUS(status) == 0, alone ? "with one thread" : "with two threads");
  }
}

TEST("a process reads and writes the memory of another, and the other sees it") {
  Child child([](Endpoint& endpoint) {
    auto region = std::make_shared<Region>(Region::create("test", 1 << 20, Access::read_write));
    region->commit(0, 1 << 20);
    std::strcpy(reinterpret_cast<char*>(region->base()) + 4096, "hello");
    CHECK(endpoint.regions().add(region) == kFirstAdded);
  });
  Endpoint endpoint(std::make_shared<RegionTable>(), kConfig);
  auto peer = endpoint.peer(child.address, Deadline::after(kPatience));
  const auto deadline = Deadline::after(kPatience);
  auto* text = reinterpret_cast<char*>(peer->resolve(Ref{kFirstAdded, 4096}, 100, deadline));
  CHECK(std::strcmp(text, "hello") == 0);
  std::strcpy(text, "changed");
  // A second endpoint maps the same memory anew.
  Endpoint other(std::make_shared<RegionTable>(), kConfig);
  const auto* again = other.peer(child.address, deadline)->resolve(Ref{kFirstAdded, 4096}, 100, deadline);
  CHECK(std::strcmp(reinterpret_cast<const char*>(again), "changed") == 0);
  CHECK(endpoint.peer(child.address, deadline) == peer, "connected twice");
}

TEST("addresses outside of a peer's memory are refused") {
  Child child([](Endpoint& endpoint) {
    auto region = std::make_shared<Region>(Region::create("test", 1 << 16, Access::read_write));
    endpoint.regions().add(region);
  });
  Endpoint endpoint(std::make_shared<RegionTable>(), kConfig);
  auto peer = endpoint.peer(child.address, Deadline::after(kPatience));
  const auto deadline = Deadline::after(kPatience);
  peer->resolve(Ref{kFirstAdded, 0}, 1 << 16, deadline);
  CHECK(code_of([&] { peer->resolve(Ref{kFirstAdded, 1}, 1 << 16, deadline); }) == Errc::protocol);
  CHECK(code_of([&] {
          peer->resolve(Ref{kFirstAdded, ~std::uint64_t{0} >> 16}, 2, deadline);
        }) == Errc::protocol);
  CHECK(code_of([&] { peer->resolve(Ref{kFirstAdded, 8}, ~std::size_t{0}, deadline); }) == Errc::protocol);
  CHECK(code_of([&] { peer->resolve(Ref{7, 0}, 1, deadline); }) == Errc::protocol);
  CHECK(code_of([&] { peer->control(kConfig.control_bytes - 1, 2); }) == Errc::protocol);
  CHECK(code_of([&] { peer->control(~std::uint64_t{0}, 2); }) == Errc::protocol);
}

TEST("a death is noticed, even while a forked child of the dead lives on") {
  int grandchild_pipe[2];
  CHECK(pipe(grandchild_pipe) == 0);
  Child child([&](Endpoint&) {
    const pid_t pid = fork();
    if (pid == 0)
      for (;;) pause();
    if (write(grandchild_pipe[1], &pid, sizeof(pid)) != sizeof(pid)) _exit(1);
  });
  pid_t grandchild = 0;
  CHECK(read(grandchild_pipe[0], &grandchild, sizeof(grandchild)) == sizeof(grandchild));
  Endpoint endpoint(std::make_shared<RegionTable>(), kConfig);
  auto peer = endpoint.peer(child.address, Deadline::after(kPatience));
  CHECK(!peer->exited());
  child.end();
  const auto deadline = Deadline::after(kPatience);
  while (!peer->exited()) CHECK(!deadline.passed(), "the death was not noticed");
  CHECK(kill(grandchild, 0) == 0);
  kill(grandchild, SIGKILL);
  close(grandchild_pipe[0]);
  close(grandchild_pipe[1]);
}

TEST("a process that is gone is an error that says so") {
  Child child;
  child.end();
  Endpoint endpoint(std::make_shared<RegionTable>(), kConfig);
  CHECK(code_of([&] { endpoint.peer(child.address, Deadline::after(kPatience)); }) == Errc::peer_exited);
}

TEST("any process learns how another one has ended, before and after its parent has waited for it") {
  for (const int status : {0, 3, -SIGKILL}) {
    int pipe_fds[2];
    CHECK(pipe(pipe_fds) == 0);
    const pid_t pid = fork();
    if (pid == 0) {
      char go;
      if (read(pipe_fds[0], &go, 1) != 1) _exit(100);
      if (status < 0) kill(getpid(), -status);
      _exit(status);
    }
    const UniqueFd pidfd(static_cast<int>(syscall(SYS_pidfd_open, pid, 0)));
    CHECK(!exit_status(pidfd.get()), "it lives");
    CHECK(write(pipe_fds[1], "x", 1) == 1);
    siginfo_t ended{};
    CHECK(waitid(P_PID, static_cast<id_t>(pid), &ended, WEXITED | WNOWAIT) == 0);
    const int expected = status < 0 ? -status : status << 8;
    CHECK(exit_status(pidfd.get()) == expected, "before its parent has waited: ", status);
    CHECK(waitpid(pid, nullptr, 0) == pid);
    const auto after = exit_status(pidfd.get());
    CHECK(!after || *after == expected, "after its parent has waited: ", status);
    close(pipe_fds[0]), close(pipe_fds[1]);
  }
}

TEST("a process that does not know the secret gets nothing") {
  Child child;
  Endpoint endpoint(std::make_shared<RegionTable>(), kConfig);
  Address guess = child.address;
  guess.secret[0] ^= 1;
  CHECK(code_of([&] { Peer::connect(guess, Deadline::after(kPatience)); }) == Errc::peer_exited);
}

TEST("a process that shares other memory than it announced is refused") {
  Child child;
  Address lie = child.address;
  lie.nonce ^= 1;
  CHECK(code_of([&] { Peer::connect(lie, Deadline::after(kPatience)); }) == Errc::protocol);
}

TEST("silent and babbling clients do not keep others out") {
  Child child;
  std::vector<UniqueFd> silent;
  for (int i = 0; i < 300; ++i) {
    int error = 0;
    silent.push_back(connect_to(child.address.socket, Deadline::after(kPatience), error));
    CHECK(silent.back(), "connection ", i, ": ", std::strerror(error));
    if (i % 3 == 0) send_packet(silent.back().get(), bytes_of(child.address), {});  // not a request
  }
  Endpoint endpoint(std::make_shared<RegionTable>(), kConfig);
  CHECK(endpoint.peer(child.address, Deadline::after(kPatience)) != nullptr);
}

TEST("a stopped process is given up at the deadline") {
  Child child;
  kill(child.pid(), SIGSTOP);
  CHECK(waitpid(child.pid(), nullptr, WUNTRACED) == child.pid());  // it has really stopped
  CHECK(code_of([&] { Peer::connect(child.address, Deadline::after(std::chrono::milliseconds(100))); }) ==
        Errc::timeout);
  const UniqueFd pidfd(static_cast<int>(syscall(SYS_pidfd_open, child.pid(), 0)));
  CHECK(is_stopped(pidfd.get()));
  kill(child.pid(), SIGCONT);
  CHECK(Peer::connect(child.address, Deadline::after(kPatience)) != nullptr);
  CHECK(!is_stopped(pidfd.get()));
}

TEST("only sealed regions are mapped, and read-only ones only for reading") {
  UniqueFd plain(memfd_create("plain", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  CHECK(ftruncate(plain.get(), 8192) == 0);
  CHECK(code_of([&] { Region::attach(UniqueFd(dup(plain.get())), Access::read); }) == Errc::protocol);
  CHECK(fcntl(plain.get(), F_ADD_SEALS, F_SEAL_SHRINK) == 0);
  CHECK(code_of([&] { Region::attach(UniqueFd(dup(plain.get())), Access::read); }) == Errc::protocol);

  const Region owned = Region::create("owned", 8192, Access::read);
  CHECK(ftruncate(owned.fd(), 0) != 0 && ftruncate(owned.fd(), 1 << 20) != 0, "the size can be changed");
  CHECK(code_of([&] { Region::attach(UniqueFd(dup(owned.fd())), Access::read_write); }) == Errc::system);
  const Region reader = Region::attach(UniqueFd(dup(owned.fd())), Access::read);
  std::memcpy(owned.base(), "seen", 5);
  CHECK(std::memcmp(reader.base(), "seen", 5) == 0);
}

TEST("decommitted memory goes back to the system and reads as zero") {
  Region region = Region::create("test", 1 << 22, Access::read_write);
  region.commit(0, 1 << 22);
  std::memset(region.base(), 1, 1 << 22);
  const auto blocks = [&] {
    struct stat status {};
    CHECK(fstat(region.fd(), &status) == 0);
    return status.st_blocks;
  };
  const auto before = blocks();
  region.decommit(100, (1 << 22) - 200);  // the first and last page stay
  CHECK(blocks() < before / 100, blocks(), " of ", before);
  CHECK(region.base()[0] == std::byte{1} && region.base()[2 << 20] == std::byte{0});
}

TEST("memory is taken by the commit, or by the first store where that is asked for") {
  std::ifstream file("/proc/sys/vm/overcommit_memory");
  const bool strict = file.peek() == '2';
  for (const Pages pages : {Pages::reserved, Pages::when_touched}) {
    Region region = Region::create("test", 1 << 22, Access::read_write);
    const auto taken = [&] {
      struct stat status {};
      CHECK(fstat(region.fd(), &status) == 0);
      return status.st_blocks * 512;
    };
    region.commit(0, 1 << 22, pages);
    CHECK(taken() == (pages == Pages::reserved || strict ? 1 << 22 : 0), taken());
    std::memset(region.base(), 1, 1 << 22);
    CHECK(taken() == 1 << 22, taken());
  }
}

TEST("memory that cannot be had is an error, not a signal") {
  Region region =
      Region::create("test", std::size_t{1} << 44, Access::read_write);  // more than any machine has
  for (const Pages pages : {Pages::reserved, Pages::when_touched})
    CHECK(code_of([&] { region.commit(0, std::size_t{1} << 44, pages); }) == Errc::out_of_memory);
}

TEST("blocks are used again only when no peer reads them any more") {
  Arena arena("test", 16 << 20, 64, Access::read);
  const auto first = arena.allocate(5000);
  CHECK(first.bytes == round_up_to_pages(5000) && first.offset % page_size() == 0);
  bool unread = false;
  std::memset(arena.at(first.offset), 1, first.bytes);
  arena.retire({first}, [&] { return unread; });
  const auto second = arena.allocate(5000);
  CHECK(second.offset != first.offset);
  unread = true;
  const auto third = arena.allocate(5000);
  CHECK(third.offset == first.offset && arena.at(third.offset)[10] == std::byte{0});
  CHECK(code_of([&] { arena.allocate(64 << 20); }) == Errc::out_of_memory);
}

TEST("a process that connects to a dead one is told, although a child of it keeps its socket open") {
  auto* orphan = static_cast<pid_t*>(
      mmap(nullptr, sizeof(pid_t), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
  CHECK(orphan != MAP_FAILED);
  Child child([&](Endpoint&) {
    const pid_t pid = fork();
    if (pid == 0)
      for (;;) pause();  // it has the listening socket, and answers no call
    *orphan = pid;
  });
  const Address address = child.address;
  Endpoint endpoint(std::make_shared<RegionTable>(), kConfig);
  const auto known = endpoint.peer(address, Deadline::after(kPatience));
  child.end();
  // Never heard of before, and known: neither waits for the answer that will not come.
  const auto before = std::chrono::steady_clock::now();
  Endpoint another(std::make_shared<RegionTable>(), kConfig);
  CHECK(code_of([&] { another.peer(address, Deadline::after(kPatience)); }) == Errc::peer_exited);
  CHECK(code_of([&] { known->resolve(Ref{7, 0}, 1, Deadline::after(kPatience)); }) == Errc::peer_exited);
  CHECK(std::chrono::steady_clock::now() - before < kPatience, "it waited for its deadline");
  kill(*orphan, SIGKILL);
  munmap(orphan, sizeof(pid_t));
}

#ifdef OCCL_FAULT_POINTS

namespace {

std::atomic<bool> holding = false, held = false, asked = false;

/// Holds the thread of an endpoint that has taken the event of a death and not handled it yet.
void hold_at_death(const char* point) {
  if (std::strcmp(point, "endpoint.death") != 0 || !holding) return;
  held = true;
  while (holding) std::this_thread::yield();
}

}  // namespace

TEST("a death that is handled late is not taken for one of the peer with the same descriptor") {
  fault::hook = hold_at_death;
  Endpoint endpoint(std::make_shared<RegionTable>(), kConfig);
  const auto deadline = Deadline::after(kPatience);
  Child first, second, third;
  const int descriptor = endpoint.peer(first.address, deadline)->pidfd();
  holding = true;
  first.end();
  while (!held) CHECK(!deadline.passed(), "the death was not noticed");
  const auto living = endpoint.peer(second.address, deadline);  // the first one is forgotten here
  CHECK(living->pidfd() == descriptor, "it has another descriptor, so this test shows nothing");
  const auto later = endpoint.peer(third.address, deadline);
  holding = false;
  third.end();
  while (!later->exited()) CHECK(!deadline.passed(), "the later death was not noticed");
  CHECK(!living->exited(), "a living peer was taken for dead");
  fault::hook = nullptr;
}

TEST("a thread that waits for a region of a stopped process keeps no other thread waiting") {
  Child child([](Endpoint& endpoint) {
    for (int i = 0; i < 3; ++i)
      endpoint.regions().add(std::make_shared<Region>(Region::create("test", 4096, Access::read_write)));
  });
  Endpoint endpoint(std::make_shared<RegionTable>(), kConfig);
  const auto peer = endpoint.peer(child.address, Deadline::after(kPatience));
  const auto at = [&](int i) { return Ref{static_cast<std::uint16_t>(kFirstAdded + i), 0}; };
  const auto* known = peer->resolve(at(0), 4096, Deadline::after(kPatience));
  kill(child.pid(), SIGSTOP);
  CHECK(waitpid(child.pid(), nullptr, WUNTRACED) == child.pid());
  asked = false;
  fault::hook = [](const char* point) { asked = asked || std::strcmp(point, "peer.asked") == 0; };
  std::atomic<bool> answered = false;
  std::thread waits([&] {
    peer->resolve(at(1), 4096, Deadline::after(kPatience));
    answered = true;
  });
  while (!asked) std::this_thread::yield();
  fault::hook = nullptr;
  CHECK(peer->resolve(at(0), 4096, Deadline::after(kPatience)) == known);
  const auto soon = Deadline::after(std::chrono::milliseconds(50));
  CHECK(code_of([&] { peer->resolve(at(2), 4096, soon); }) == Errc::timeout);
  CHECK(!answered, "the thread did not wait, so this test shows nothing");
  kill(child.pid(), SIGCONT);
  waits.join();
  CHECK(answered);
}

#endif
