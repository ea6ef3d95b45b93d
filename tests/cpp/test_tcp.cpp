// Messages over TCP between engines of one process, and between an engine and what is none.
// modes: plain asan
#include <poll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <numeric>
#include <optional>

#include "base/deadline.h"
#include "check.h"
#include "shm/socket.h"
#include "tcp/engine.h"

using namespace occl;
using namespace occl::tcp;

namespace {

constexpr std::uint64_t kSender = std::uint64_t{0xffffffff} << 32;
constexpr std::uint64_t tag_of(std::uint32_t sender, std::uint32_t channel) {
  return std::uint64_t{sender} << 32 | channel;
}

using Bytes = std::vector<std::byte>;

Bytes pattern(std::size_t bytes, int salt) {
  Bytes data(bytes);
  for (std::size_t i = 0; i < bytes; ++i) data[i] = static_cast<std::byte>(i * 7 + salt * 13 + 1);
  return data;
}

struct Send : Request {
  Send(const Bytes& data, std::uint64_t of_tag) {
    kind = Kind::send;
    bytes = data.size();
    from = data.data();
    tag = of_tag;
  }
};
struct Receive : Request {
  std::size_t arrived = 0;
  Receive(Bytes& data, std::uint64_t of_tag) {
    kind = Kind::receive;
    bytes = data.size();
    into = data.data();
    tag = of_tag;
    user_data = this;
    callback.receive = [](void*, Status, const ucx::abi::ReceiveInfo* info, void* self) {
      static_cast<Receive*>(self)->arrived = info->length;
    };
  }
};

std::unique_ptr<Engine> engine(std::uint32_t rank) {
  return std::make_unique<Engine>("127.0.0.1", rank, kSender);
}

bool becomes(const std::function<bool()>& done, std::initializer_list<Engine*> engines) {
  for (const auto until = Deadline::after(std::chrono::seconds(20)); !until.passed();) {
    if (done()) return true;
    for (Engine* each : engines) each->progress();
  }
  return false;
}

void exchange(Engine& a, Engine& b, Peer& to_b, Peer& to_a, std::size_t bytes) {
  const Bytes from_a = pattern(bytes, 1), from_b = pattern(bytes, 2);
  Bytes at_a(bytes), at_b(bytes);
  Receive receive_a(at_a, tag_of(1, 0)), receive_b(at_b, tag_of(0, 0));
  Send send_a(from_a, tag_of(0, 0)), send_b(from_b, tag_of(1, 0));
  bool sent_a = a.send(to_b, send_a), sent_b = b.send(to_a, send_b);
  a.receive(receive_a);
  b.receive(receive_b);
  CHECK(becomes([&] { return receive_a.status == ucx::abi::kOk && receive_b.status == ucx::abi::kOk; },
                {&a, &b}));
  CHECK(becomes(
      [&] {
        return (sent_a || send_a.status == ucx::abi::kOk) && (sent_b || send_b.status == ucx::abi::kOk);
      },
      {&a, &b}));
  CHECK(at_a == from_b && at_b == from_a);
}

/// Something that connects to an engine and is none.
struct Raw {
  int fd;
  explicit Raw(const Address& to) : fd(socket(static_cast<int>(to.family), SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    CHECK(::connect(fd, reinterpret_cast<const sockaddr*>(to.socket.data()), to.length) == 0);
  }
  ~Raw() { ::close(fd); }
  template <class T>
  void put(const T& value) {
    CHECK(::send(fd, &value, sizeof(value), MSG_NOSIGNAL) == sizeof(value));
  }
  /// Whether the engine closes the connection, or has closed it.
  bool closed(Engine& engine) {
    return becomes(
        [&] {
          char byte;
          const auto got = recv(fd, &byte, 1, MSG_DONTWAIT);
          return got == 0 || (got < 0 && errno != EAGAIN);
        },
        {&engine});
  }
};

/// The same with a greeting that the engine accepts, as rank 1.
struct Intruder : Raw {
  shm::Token key = shm::random_token();
  explicit Intruder(Engine& engine) : Raw(engine.address()) {
    put(Greeting{.to = engine.address().key, .from = key});
    Frame answer;
    CHECK(becomes([&] { return recv(fd, &answer, sizeof(answer), MSG_DONTWAIT) == sizeof(answer); },
                  {&engine}));
    CHECK(answer.kind() == Kind::accepted);
  }
  /// As another rank knows it.
  Address address(const Engine& engine) const {
    Address address = engine.address();
    address.key = key;
    address.rank = 1;
    return address;
  }
};

}  // namespace

TEST("ranks that connect to each other at the same moment agree on one connection") {
  for (int i = 0; i < 40; ++i) {
    const auto a = engine(0), b = engine(1);
    Peer& to_b = a->connect(b->address());
    for (int turn = 0; turn < i % 8; ++turn) a->progress();
    Peer& to_a = b->connect(a->address());
    for (int turn = 0; turn < i / 8; ++turn) b->progress();
    for (const std::size_t bytes : {4UL, 100'000UL, 3'000'000UL}) exchange(*a, *b, to_b, to_a, bytes);
    CHECK(to_a.connection.fd() >= 0 && to_b.connection.fd() >= 0);
  }
}

TEST("messages of one tag arrive in their order, long and short ones") {
  const auto a = engine(0), b = engine(1);
  Peer& to_b = a->connect(b->address());
  b->connect(a->address());
  const std::size_t sizes[] = {300'000, 5, 80'000, 65'536, 65'537, 1, 1, 900'000, 7};
  std::vector<Bytes> sent, arrived;
  for (const std::size_t bytes : sizes) {
    sent.push_back(pattern(bytes, static_cast<int>(sent.size())));
    arrived.emplace_back(bytes);
  }
  std::vector<std::unique_ptr<Send>> sends;
  std::vector<std::unique_ptr<Receive>> receives;
  for (const Bytes& data : sent) {
    sends.push_back(std::make_unique<Send>(data, tag_of(0, 3)));
    if (a->send(to_b, *sends.back())) sends.back()->status = ucx::abi::kOk;
  }
  for (int i = 0; i < 1000; ++i) a->progress(), b->progress();
  for (Bytes& data : arrived) {
    receives.push_back(std::make_unique<Receive>(data, tag_of(0, 3)));
    b->receive(*receives.back());
  }
  CHECK(becomes([&] { return receives.back()->status == ucx::abi::kOk; }, {a.get(), b.get()}));
  CHECK(sent == arrived);
}

TEST("a receive goes ahead of a long message that was sent just before it") {
  const auto a = engine(0);
  Intruder b(*a);
  Peer& to_b = a->connect(b.address(*a));
  b.put(Frame::of(Kind::ready, tag_of(0, 5)));
  for (int i = 0; i < 1000; ++i) a->progress();
  const Bytes data = pattern(100'000, 1);
  Bytes into(data.size());
  Send send(data, tag_of(0, 5));
  Receive receive(into, tag_of(1, 5));
  CHECK(!a->send(to_b, send));
  a->receive(receive);
  for (const Kind expected : {Kind::ready, Kind::message}) {
    Frame frame;
    CHECK(
        becomes([&] { return recv(b.fd, &frame, sizeof(frame), MSG_DONTWAIT) == sizeof(frame); }, {a.get()}));
    CHECK(frame.kind() == expected);
  }
}

TEST("for a peer on this machine the kernel holds little, once there are long messages") {
  const auto a = engine(0), b = engine(1);
  Peer& to_b = a->connect(b->address());
  Peer& to_a = b->connect(a->address());
  exchange(*a, *b, to_b, to_a, 4);
  const auto buffer = [&] {
    int bytes = 0;
    socklen_t length = sizeof(bytes);
    CHECK(getsockopt(to_b.connection.fd(), SOL_SOCKET, SO_SNDBUF, &bytes, &length) == 0);
    return bytes;
  };
  const int before = buffer();
  const auto least = [&] {
    exchange(*a, *b, to_b, to_a, 100'000);
    return buffer() != before && buffer() <= 2 * (208 << 10);
  };
  CHECK(becomes(least, {}));
  exchange(*a, *b, to_b, to_a, 3'000'000);
  CHECK(buffer() <= 2 * (208 << 10));  // the kernel does not enlarge it
}

TEST("a connection without the key, or that greets in another version, is closed unanswered") {
  const auto a = engine(0);
  for (const int wrong : {0, 1, 2}) {
    Greeting greeting{.to = a->address().key, .from = shm::random_token()};
    if (wrong == 0) ++greeting.to[15];
    if (wrong == 1) ++greeting.version;
    if (wrong == 2) ++greeting.magic;
    Raw stranger(a->address());
    stranger.put(greeting);
    CHECK(stranger.closed(*a), wrong);
  }
}

TEST("ranks that connect all at once, and greet late, keep their connections") {
  const auto a = engine(0);
  std::vector<std::unique_ptr<Engine>> others;
  std::vector<Peer*> to_a;
  std::vector<std::unique_ptr<Send>> sends;
  std::vector<std::unique_ptr<Receive>> receives;
  const Bytes data = pattern(4, 1);
  std::vector<Bytes> arrived(200, Bytes(4));
  for (std::uint32_t i = 1; i <= arrived.size(); ++i) {
    others.push_back(engine(i));
    sends.push_back(std::make_unique<Send>(data, tag_of(i, 0)));
    others.back()->send(others.back()->connect(a->address()), *sends.back());
    receives.push_back(std::make_unique<Receive>(arrived[i - 1], tag_of(i, 0)));
    a->receive(*receives.back());
  }
  for (int i = 0; i < 20; ++i) a->progress();
  const auto all = [&] {
    for (const auto& other : others) other->progress();
    return std::all_of(receives.begin(), receives.end(),
                       [](const auto& it) { return it->status != kInProgress; });
  };
  CHECK(becomes(all, {a.get()}));
  for (const auto& receive : receives) CHECK(receive->status == ucx::abi::kOk);
}

TEST("strangers that say nothing leave room for others, and are closed in the end") {
  const auto a = engine(0), b = engine(1);
  std::vector<std::unique_ptr<Raw>> silent;
  for (int i = 0; i < 500; ++i) {
    silent.push_back(std::make_unique<Raw>(a->address()));
    a->progress();
  }
  Peer& to_b = a->connect(b->address());
  exchange(*a, *b, to_b, b->connect(a->address()), 4);
  CHECK(silent.front()->closed(*a));
}

TEST("an engine without descriptors says so, and accepts connections once there are some") {
  const auto a = engine(0), b = engine(1);
  Peer& to_a = b->connect(a->address());
  rlimit before{};
  getrlimit(RLIMIT_NOFILE, &before);
  const rlimit none{3, before.rlim_max};
  setrlimit(RLIMIT_NOFILE, &none);
  int polls = 0;
  for (int i = 0; i < 1000; ++i) {
    a->progress(), b->progress();
    pollfd descriptor{a->descriptor(), POLLIN, 0};
    polls += poll(&descriptor, 1, 0);
  }
  CHECK(polls <= 2, "the descriptor is not readable for ever: ", polls);
  setrlimit(RLIMIT_NOFILE, &before);
  exchange(*a, *b, a->connect(b->address()), to_a, 4);
}

TEST("a peer with the key speaks for no rank that is known by another one") {
  const auto a = engine(0), b = engine(1);
  Peer& to_b = a->connect(b->address());
  Peer& to_a = b->connect(a->address());
  exchange(*a, *b, to_b, to_a, 4);
  Bytes into(4, std::byte{0xee});
  Receive receive(into, tag_of(1, 5));
  a->receive(receive);
  Intruder intruder(*a);
  intruder.put(Frame::of(Kind::message, tag_of(1, 5), 4));
  intruder.put(std::uint32_t{0});
  CHECK(intruder.closed(*a));
  CHECK(receive.status == kInProgress && into == Bytes(4, std::byte{0xee}));
  exchange(*a, *b, to_b, to_a, 4);
  // Nor does it become another rank once it has spoken for one.
  Intruder second(*a);
  second.put(Frame::of(Kind::message, tag_of(2, 5), 4));
  second.put(std::uint32_t{0});
  for (int i = 0; i < 100; ++i) a->progress();
  second.put(Frame::of(Kind::message, tag_of(3, 5), 4));
  CHECK(second.closed(*a));
}

TEST("frames that no engine sends end the connection with an error") {
  const Frame wrong[] = {Frame::of(Kind::accepted, 0), Frame::of(Kind::more, 5),
                         Frame::of(Kind::message, 5, 0), Frame::of(static_cast<Kind>(77), 5),
                         Frame::of(Kind::message, 5, std::size_t{1} << 55)};
  for (const Frame& frame : wrong) {
    const auto a = engine(0);
    Intruder intruder(*a);
    Peer& peer = a->connect(intruder.address(*a));
    intruder.put(frame);
    CHECK(intruder.closed(*a), static_cast<int>(frame.kind()));
    CHECK(peer.connection.state() == Connection::State::over);
    CHECK(peer.connection.status() == -EPROTO);
  }
}

TEST("a peer may send what a withdrawn receive asked for, and not more") {
  for (const std::size_t bytes : {std::size_t{100'000}, std::size_t{100'001}, std::size_t{1} << 50}) {
    const auto a = engine(0);
    Intruder intruder(*a);
    Peer& peer = a->connect(intruder.address(*a));
    Bytes into(100'000);
    Receive receive(into, tag_of(1, 5));
    a->receive(receive);
    a->cancel(receive);
    intruder.put(Frame::of(Kind::message, tag_of(1, 5), bytes));
    intruder.put(std::array<std::byte, 10>{});
    for (int i = 0; i < 100; ++i) a->progress();
    CHECK((peer.connection.state() == Connection::State::open) == (bytes == into.size()), bytes);
  }
}

TEST("a message that breaks off ends its receive with an error, and touches nothing afterwards") {
  const auto a = engine(0);
  auto intruder = std::make_unique<Intruder>(*a);
  static Status reported;
  reported = ucx::abi::kOk;
  Peer& peer = a->connect(intruder->address(*a));
  peer.on_error = [](void*, ucx::abi::Endpoint*, Status status) { reported = status; };
  Bytes into(1000, std::byte{0xee});
  Receive receive(into, tag_of(1, 5));
  a->receive(receive);
  intruder->put(Frame::of(Kind::message, tag_of(1, 5), 1000));
  intruder->put(std::array<std::byte, 10>{});
  CHECK(becomes([&] { return into[9] == std::byte{0}; }, {a.get()}));
  intruder.reset();
  CHECK(becomes([&] { return receive.status != kInProgress; }, {a.get()}));
  CHECK(receive.status == -ESHUTDOWN && reported == -ESHUTDOWN);
  CHECK(into[9] == std::byte{0} && into[10] == std::byte{0xee});
}

TEST("what waits for a connection that cannot be made ends with its error") {
  const auto a = engine(0);
  auto b = engine(1);
  const Address gone = b->address();
  b.reset();
  Peer& to_b = a->connect(gone);
  const Bytes data = pattern(100, 1);
  Send send(data, tag_of(0, 1));
  CHECK(!a->send(to_b, send));
  CHECK(becomes([&] { return send.status != kInProgress; }, {a.get()}));
  CHECK(send.status == -ECONNREFUSED, static_cast<int>(send.status));
}

TEST("a send over a connection that is over ends with its error, and in a later call") {
  const auto a = engine(0);
  auto b = engine(1);
  Peer& to_b = a->connect(b->address());
  exchange(*a, *b, to_b, b->connect(a->address()), 4);
  b.reset();
  CHECK(becomes([&] { return to_b.connection.state() == Connection::State::over; }, {a.get()}));
  const Bytes data = pattern(100, 1);
  Send send(data, tag_of(0, 1));
  CHECK(!a->send(to_b, send) && send.status == kInProgress);
  a->progress();
  CHECK(send.status == to_b.connection.status());
}

TEST("a peer learns that a process has ended though a child that it forked lives on") {
  int up[2], hold[2];
  CHECK(pipe(up) == 0 && pipe(hold) == 0);
  const pid_t process = fork();
  if (process == 0) {
    ::close(hold[1]);
    const auto a = engine(0);
    Bytes into(4);
    Receive receive(into, tag_of(1, 0));
    a->receive(receive);
    if (write(up[1], &a->address(), sizeof(Address)) != sizeof(Address)) _exit(1);
    if (!becomes([&] { return receive.status == ucx::abi::kOk; }, {a.get()})) _exit(1);
    char byte;
    if (fork() == 0) _exit(read(hold[0], &byte, 1) == 0 ? 0 : 1);
    _exit(0);
  }
  const auto b = engine(1);
  Address address;
  CHECK(read(up[0], &address, sizeof(address)) == sizeof(address));
  Peer& to_a = b->connect(address);
  const Bytes data = pattern(4, 1);
  Send send(data, tag_of(1, 0));
  const bool sent = b->send(to_a, send);
  CHECK(becomes([&] { return to_a.connection.state() == Connection::State::over; }, {b.get()}));
  CHECK(sent || send.status == ucx::abi::kOk);
  int status = 0;
  CHECK(waitpid(process, &status, 0) == process && status == 0);
  for (const int fd : {up[0], up[1], hold[0], hold[1]}) ::close(fd);
}

TEST("what was sent arrives whole though the sender ends with something unread") {
  for (int i = 0; i < 20; ++i) {
    std::vector<std::unique_ptr<Send>> more;
    auto a = engine(0);
    const auto b = engine(1);
    Peer& to_b = a->connect(b->address());
    Peer& to_a = b->connect(a->address());
    exchange(*a, *b, to_b, to_a, 4);
    const Bytes data = pattern(60'000, i), unread = pattern(50'000, 2);
    Bytes into(data.size());
    Receive receive(into, tag_of(0, 9));
    b->receive(receive);
    Send first(unread, tag_of(1, 8)), second(data, tag_of(0, 9));
    CHECK(b->send(to_a, first));
    CHECK(a->send(to_b, second));
    a.reset();
    // The kernel takes nothing more for it from the second of these on.
    for (int k = 0; k < i % 4; ++k) {
      more.push_back(std::make_unique<Send>(data, tag_of(1, 8)));
      b->send(to_a, *more.back());
    }
    CHECK(becomes([&] { return receive.status != kInProgress; }, {b.get()}));
    CHECK(receive.status == ucx::abi::kOk && into == data);
  }
}

TEST("an address that this host does not have is an error that names it") {
  for (const char* address : {"192.0.2.1", "no address"}) try {
      Engine engine(address, 0, kSender);
      CHECK(false);
    } catch (const Error& error) {
      CHECK(error.code() == Errc::system && std::strstr(error.what(), address), error.what());
    }
}
