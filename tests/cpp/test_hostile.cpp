// modes: plain asan
// Processes that should not get in, and peers that lie. What each test defends is in docs/security.md.
#include <fcntl.h>
#include <grp.h>
#include <poll.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <set>
#include <string>

#include "check.h"
#include "end_with.h"
#include "shm/endpoint.h"
#include "shm/socket.h"

using namespace occl;
using namespace occl::shm;
using occl::test::end_with;

namespace {

const Endpoint::Config kConfig{std::size_t{64} << 20, 0};

Deadline patience() { return Deadline::after(std::chrono::seconds(60)); }

std::unique_ptr<Endpoint> make_endpoint() {
  return std::make_unique<Endpoint>(std::make_shared<RegionTable>(), kConfig);
}

/// A child process that runs `body`, whose result is its exit status; killed if it still runs at the end.
class Child {
 public:
  explicit Child(const std::function<int()>& body) {
    std::fflush(stdout);
    const pid_t parent = getpid();
    pid_ = fork();
    if (pid_ != 0) return;
    end_with(parent);
    try {
      _exit(body());
    } catch (const Error& error) {
      std::fprintf(stderr, "a child process: %s\n", error.what());
      _exit(99);
    }
  }
  ~Child() {
    if (pid_ > 0) kill(pid_, SIGKILL), waitpid(pid_, nullptr, 0);
  }
  Child(Child&& other) noexcept : pid_(std::exchange(other.pid_, -1)) {}
  int status() {
    int status = 0;
    CHECK(waitpid(std::exchange(pid_, -1), &status, 0) > 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  }

 private:
  pid_t pid_ = -1;
};

/// What is written to stderr while this lives.
class Log {
 public:
  Log() : saved_(dup(2)), file_(memfd_create("log", MFD_CLOEXEC)) { dup2(file_.get(), 2); }
  ~Log() { dup2(saved_.get(), 2); }
  std::size_t lines() const {
    char text[4096];
    const ssize_t n = pread(file_.get(), text, sizeof(text), 0);
    return static_cast<std::size_t>(std::count(text, text + std::max<ssize_t>(n, 0), '\n'));
  }

 private:
  UniqueFd saved_, file_;
};

/// Asks with or without the secret. True if there was an answer.
bool ask(const Address& address, const Token& secret) {
  int error = 0;
  const UniqueFd socket = connect_to(address.socket, patience(), error);
  if (!socket) return false;
  Request request;
  request.secret = secret;
  send_packet(socket.get(), bytes_of(request), {});
  Reply reply;
  std::vector<UniqueFd> descriptors;
  return receive_packet(socket.get(), writable_bytes_of(reply), descriptors, patience());
}

/// The error of connecting to a process that answers with these descriptors (and then hangs up).
std::string error_of(const std::vector<int>& descriptors, std::uint64_t nonce, Errc& code,
                     bool hang_up = false) {
  Address address;
  address.socket = random_token();
  address.nonce = nonce;
  const UniqueFd listener = listen_on(address.socket);
  const Child server([&] {
    for (;;) {
      pollfd ready{listener.get(), POLLIN, 0};
      poll(&ready, 1, -1);
      const UniqueFd client(accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
      char request[256];
      if (recv(client.get(), request, sizeof(request), 0) < 0) return 1;
      if (!hang_up) send_packet(client.get(), bytes_of(Reply{}), descriptors);
    }
    return 0;
  });
  const auto endpoint = make_endpoint();
  try {
    endpoint->peer(address, patience());
  } catch (const Error& error) {
    code = error.code();
    return error.what();
  }
  code = Errc::invalid_argument;
  return "";
}

/// A region as an honest process would send it, with this nonce.
Region control_region(std::uint64_t nonce, std::size_t bytes = 8192) {
  Region region = Region::create("test", bytes, Access::read_write);
  std::memcpy(region.base(), &nonce, sizeof(nonce));
  return region;
}

int own_pidfd() { return static_cast<int>(syscall(SYS_pidfd_open, getpid(), 0)); }

std::set<std::string> names_in(const char* folder) {
  std::set<std::string> names;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(folder, error)) names.insert(entry.path());
  return names;
}

/// As /proc/net/unix shows it.
std::string socket_name(const Token& token) {
  std::string text = "@occl-";
  for (const auto byte : token) text += concat("0123456789abcdef"[byte >> 4], "0123456789abcdef"[byte & 15]);
  return text;
}

/// The names of all Unix sockets of this network namespace.
std::set<std::string> socket_names() {
  std::set<std::string> names;
  std::ifstream file("/proc/net/unix");
  for (std::string line; std::getline(file, line);)
    if (const auto at = line.find_first_of("@/"); at != line.npos) names.insert(line.substr(at));
  return names;
}

}  // namespace

TEST("a process of another user is refused, even with the secret, and that is logged once") {
  if (geteuid() != 0) return std::puts("  skipped: only root can become another user"), void();
  const Log log;
  const auto endpoint = make_endpoint();
  const Address address = endpoint->address();
  Child stranger([&] {
    if (setgroups(0, nullptr) != 0 || setgid(65534) != 0 || setuid(65534) != 0) return 2;
    for (int i = 0; i < 20; ++i)
      if (ask(address, address.secret)) return 1;
    return 0;
  });
  CHECK(stranger.status() == 0);
  CHECK(ask(address, address.secret), "its own user is still answered");
  CHECK(log.lines() == 1, log.lines());
}

TEST("a process does not talk to one of another user that took its peer's name") {
  if (geteuid() != 0) return std::puts("  skipped: only root can become another user"), void();
  const auto endpoint = make_endpoint();
  Address address = endpoint->address();
  address.socket = random_token();
  address.nonce ^= 1;
  int ready[2];
  CHECK(pipe(ready) == 0);
  const Child impostor([&] {
    if (setgid(65534) != 0 || setuid(65534) != 0) return 2;
    const UniqueFd listener = listen_on(address.socket);
    if (write(ready[1], "x", 1) != 1) return 2;
    for (;;) pause();
    return 0;
  });
  char byte;
  CHECK(read(ready[0], &byte, 1) == 1);
  try {
    endpoint->peer(address, patience());
    CHECK(false, "connected");
  } catch (const Error& error) {
    CHECK(error.code() == Errc::protocol && std::strstr(error.what(), "another user"), error.what());
  }
  close(ready[0]), close(ready[1]);
}

TEST("without the secret there is no answer, whatever else is right, and that is logged once") {
  const Log log;
  const auto endpoint = make_endpoint();
  for (int i = 0; i < 16; ++i) {
    Token guess = endpoint->address().secret;
    guess[i] ^= 0x80;
    CHECK(!ask(endpoint->address(), guess));
  }
  CHECK(!ask(endpoint->address(), Token{}));
  CHECK(ask(endpoint->address(), endpoint->address().secret));
  CHECK(log.lines() == 1, log.lines());
}

TEST("processes that flood the socket do not keep a rank from joining") {
  for (const bool strangers : {false, true}) {
    if (strangers && geteuid() != 0) continue;
    const auto endpoint = make_endpoint();
    const Address address = endpoint->address();
    sockaddr_un name{};
    name.sun_family = AF_UNIX;
    const std::string text = socket_name(address.socket);
    std::copy(text.begin() + 1, text.end(), name.sun_path + 1);  // abstract: it begins with a zero
    const auto length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + text.size());
    const pid_t parent = getpid();
    std::vector<Child> flood;
    for (int i = 0; i < 3; ++i)
      flood.emplace_back([&, i] {
        if (strangers && setuid(65534) != 0) return 1;
        end_with(parent);
        rlimit limit{4000, 4000};
        setrlimit(RLIMIT_NOFILE, &limit);
        std::vector<UniqueFd> open(1000);
        for (std::size_t n = 0;; ++n) {  // connections that stay, and say nothing or nonsense
          UniqueFd& fd = open[n % open.size()];
          fd = UniqueFd(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
          const bool connected = connect(fd.get(), reinterpret_cast<const sockaddr*>(&name), length) == 0;
          if (connected && i == 0) send_packet(fd.get(), bytes_of(n), {});
        }
        return 0;
      });
    for (int i = 0; i < 5; ++i) {
      Child rank([&] {
        const auto other = make_endpoint();
        return other->peer(address, patience()) ? 0 : 1;
      });
      CHECK(rank.status() == 0, "could not join");
    }
  }
}

TEST("a process without free descriptors goes on answering when it has some again") {
  int pipes[2];
  CHECK(pipe(pipes) == 0);
  std::vector<int> to_parent(1);
  const auto other = make_endpoint();
  int addresses[2], go[2];
  CHECK(pipe(addresses) == 0 && pipe(go) == 0);
  const Child child([&] {
    const auto endpoint = make_endpoint();
    rlimit limit{};
    getrlimit(RLIMIT_NOFILE, &limit);
    std::vector<UniqueFd> all;
    rlimit low{128, limit.rlim_max};
    setrlimit(RLIMIT_NOFILE, &low);
    for (int fd = 0; fd >= 0;) all.emplace_back(fd = dup(1));
    const Address address = endpoint->address();
    if (write(addresses[1], &address, sizeof(address)) < 0) return 1;
    char byte;
    if (read(go[0], &byte, 1) != 1) return 1;
    all.clear();
    for (;;) pause();
    return 0;
  });
  Address address;
  CHECK(read(addresses[0], &address, sizeof(address)) == sizeof(address));
  int error = 0;
  const UniqueFd early = connect_to(address.socket, patience(), error);  // waits in the listener's queue
  CHECK(early);
  CHECK(write(go[1], "x", 1) == 1);
  CHECK(other->peer(address, patience()) != nullptr);
  for (const int fd : {pipes[0], pipes[1], addresses[0], addresses[1], go[0], go[1]}) close(fd);
}

TEST("wrong descriptors are an error that says so, and nothing of them is mapped") {
  constexpr std::uint64_t kNonce = 7;
  const Region good = control_region(kNonce), bell = control_region(0, 4096), other = control_region(9),
               slots = Region::create("slots", 1 << 16, Access::read_write);
  const UniqueFd pidfd(own_pidfd()), null(open("/dev/null", O_RDWR)), file(open("/proc/self/exe", O_RDONLY));
  int pipes[2];
  CHECK(pipe(pipes) == 0);
  const auto unsealed = [](unsigned flags, int seals, off_t size) {
    UniqueFd fd(memfd_create("bad", flags | MFD_CLOEXEC | MFD_ALLOW_SEALING));
    if (!fd || ftruncate(fd.get(), size) != 0) return UniqueFd();
    fcntl(fd.get(), F_ADD_SEALS, seals);
    return fd;
  };
  constexpr int kSize = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;
  const UniqueFd plain = unsealed(0, 0, 8192), growing = unsealed(0, F_SEAL_SHRINK | F_SEAL_SEAL, 8192),
                 shrinking = unsealed(0, F_SEAL_GROW | F_SEAL_SEAL, 8192),
                 loose = unsealed(0, F_SEAL_GROW | F_SEAL_SHRINK, 8192), empty = unsealed(0, kSize, 0),
                 odd = unsealed(0, kSize, 100), endless = unsealed(0, kSize, off_t{1} << 62),
                 frozen = unsealed(0, kSize | F_SEAL_WRITE, 4096),
                 huge = unsealed(MFD_HUGETLB, kSize, off_t{2} << 20);

  Errc code{};
  CHECK(error_of({good.fd(), bell.fd(), slots.fd(), pidfd.get()}, kNonce, code).empty(),
        "the honest one connects");
  struct Case {
    std::vector<int> descriptors;
    Errc code;
    const char* text;
  };
  const std::vector<Case> cases = {
      {{}, Errc::protocol, "refused"},
      {{good.fd()}, Errc::protocol, "refused"},
      {{good.fd(), bell.fd(), pidfd.get()}, Errc::protocol, "refused"},
      {{pipes[0], bell.fd(), slots.fd(), pidfd.get()}, Errc::protocol, "not a sealed"},
      {{file.get(), bell.fd(), slots.fd(), pidfd.get()}, Errc::protocol, "not a sealed"},
      {{null.get(), bell.fd(), slots.fd(), pidfd.get()}, Errc::protocol, "not a sealed"},
      {{plain.get(), bell.fd(), slots.fd(), pidfd.get()}, Errc::protocol, "not a sealed"},
      {{growing.get(), bell.fd(), slots.fd(), pidfd.get()}, Errc::protocol, "not a sealed"},
      {{shrinking.get(), bell.fd(), slots.fd(), pidfd.get()}, Errc::protocol, "not a sealed"},
      {{loose.get(), bell.fd(), slots.fd(), pidfd.get()}, Errc::protocol, "not a sealed"},
      {{empty.get(), bell.fd(), slots.fd(), pidfd.get()}, Errc::protocol, "of 0 bytes"},
      {{odd.get(), bell.fd(), slots.fd(), pidfd.get()}, Errc::protocol, "of 100 bytes"},
      {{endless.get(), bell.fd(), slots.fd(), pidfd.get()}, Errc::out_of_memory, "cannot map"},
      {{good.fd(), bell.fd(), plain.get(), pidfd.get()}, Errc::protocol, "not a sealed"},
      {{good.fd(), bell.fd(), pidfd.get(), pidfd.get()}, Errc::protocol, "not a sealed"},
      {{good.fd(), bell.fd(), frozen.get(), pidfd.get()}, Errc::system, "cannot map"},
      {{good.fd(), frozen.get(), slots.fd(), pidfd.get()}, Errc::system, "cannot map"},
      {{good.fd(), pipes[1], slots.fd(), pidfd.get()}, Errc::protocol, "not a sealed"},
      {{other.fd(), bell.fd(), slots.fd(), pidfd.get()},
       Errc::protocol,
       "does not share the memory that it announced"},
      {{good.fd(), bell.fd(), slots.fd(), pipes[0]}, Errc::protocol, "something else than its pidfd"},
      {{good.fd(), bell.fd(), slots.fd(), good.fd()}, Errc::protocol, "something else than its pidfd"},
      {{good.fd(), bell.fd(), slots.fd(), file.get()}, Errc::protocol, "something else than its pidfd"},
  };
  for (std::size_t i = 0; i < cases.size(); ++i) {
    const std::string error = error_of(cases[i].descriptors, kNonce, code);
    CHECK(code == cases[i].code && error.find(cases[i].text) != error.npos, "case ", i, ": ", error);
  }
  if (huge)
    CHECK(error_of({huge.get(), bell.fd(), slots.fd(), pidfd.get()}, kNonce, code).find("huge pages") !=
          std::string::npos);
  close(pipes[0]), close(pipes[1]);
}

TEST("a peer that dies or hangs up within the handshake is an error that names it") {
  Errc code{};
  const std::string error = error_of({}, 1, code, true);
  CHECK(code == Errc::peer_exited && error.find("hung up while connecting") != error.npos, error);
}

TEST("what a peer may only read it cannot make writable, resize, or empty") {
  const auto endpoint = make_endpoint();
  int error = 0;
  const UniqueFd socket = connect_to(endpoint->address().socket, patience(), error);
  Request request;
  request.secret = endpoint->address().secret;
  send_packet(socket.get(), bytes_of(request), {});
  Reply reply;
  std::vector<UniqueFd> got;
  CHECK(receive_packet(socket.get(), writable_bytes_of(reply), got, patience()) && got.size() == 4);
  const int control = got[0].get(), bell = got[1].get();
  void* read_only = mmap(nullptr, 4096, PROT_READ, MAP_SHARED, control, 0);
  CHECK(read_only != MAP_FAILED);
  CHECK(mprotect(read_only, 4096, PROT_READ | PROT_WRITE) != 0, "made writable");
  CHECK(mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, control, 0) == MAP_FAILED, "mapped writable");
  const UniqueFd again(open(concat("/proc/self/fd/", control).c_str(), O_RDWR | O_CLOEXEC));
  CHECK(pwrite(again ? again.get() : control, "x", 1, 0) < 0, "written through the descriptor");
  for (const int fd : {control, bell}) CHECK(ftruncate(fd, 0) != 0 && ftruncate(fd, 1 << 30) != 0, "resized");
  CHECK(fallocate(control, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, 4096) != 0, "emptied");
  munmap(read_only, 4096);
}

TEST("no name appears that could be guessed: no file, no segment, one socket of 128 random bits") {
  const auto files = names_in("/tmp"), segments = names_in("/dev/shm"), sockets = socket_names();
  const auto a = make_endpoint(), b = make_endpoint();
  const auto region = std::make_shared<Region>(Region::create("test", 1 << 20, Access::read_write));
  const std::uint16_t number = a->regions().add(region);
  CHECK(b->peer(a->address(), patience())->resolve(Ref{number, 0}, 4096, patience()) != nullptr);
  // Other programs make names too; none of the new ones may speak of us.
  for (const char* folder : {"/tmp", "/dev/shm"})
    for (const auto& name : names_in(folder)) {
      const bool is_new = !files.contains(name) && !segments.contains(name);
      CHECK(!is_new || name.find("occl") == name.npos, name);
    }
  const auto now = socket_names();
  for (const auto* endpoint : {a.get(), b.get()}) {
    const std::string name = socket_name(endpoint->address().socket);
    CHECK(now.contains(name) && !sockets.contains(name), name);
    // What all processes may read there helps none of them: the secret is another number.
    CHECK(endpoint->address().socket != endpoint->address().secret);
  }
  CHECK(a->address().socket != b->address().socket && a->address().secret != b->address().secret);
}

TEST("text of a peer is printed without what would garble a terminal or is not UTF-8") {
  const auto shown = [](std::string_view text) { return printable(text.data(), text.size()); };
  CHECK(shown("rank 3 died\n") == "rank 3 died\n");
  CHECK(shown("gr\xc3\xbc\xc3\x9f \xe2\x82\xac \xf0\x9f\x98\x80") ==
        "gr\xc3\xbc\xc3\x9f \xe2\x82\xac \xf0\x9f\x98\x80");
  CHECK(shown(std::string_view("end\0 not", 8)) == "end");
  CHECK(shown("\x1b[2J\x7f") == "?[2J?");
  CHECK(shown("\xff\xc3") == "??" && shown("\xc3(") == "?(" && shown("\xe2\x82") == "??");
  CHECK(shown("\xc0\xaf") == "??" && shown("\xed\xa0\x80") == "???" && shown("\xf5\x80\x80\x80") == "????");
}
