// What a peer that knows the key may send over TCP. It writes nothing but what receives expect, and an honest
// peer is served afterwards.
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cstring>
#include <vector>

#include "fuzz/target.h"
#include "tcp/engine.h"

namespace fuzz {

using namespace occl;
using namespace occl::tcp;

namespace {

constexpr std::uint64_t kSenderMask = std::uint64_t{0xffffffff} << 32;
constexpr std::size_t kRoom = 200'000, kGuard = 64;
constexpr std::byte kUntouched{0xee};
constexpr std::size_t kSizes[] = {4, 100, kShort, kShort + 1, 150'000};

std::uint64_t tag_of(std::uint32_t sender, std::size_t channel) {
  return std::uint64_t{sender} << 32 | channel;
}

struct Receive : Request {
  std::vector<std::byte> room = std::vector<std::byte>(kRoom + kGuard, kUntouched);
  Receive(std::size_t size, std::uint64_t of_tag) {
    kind = Kind::receive;
    bytes = size;
    into = room.data();
    tag = of_tag;
  }
  void check() const {
    for (std::size_t i = bytes; i < room.size(); ++i)
      require(room[i] == kUntouched, "a receive has its room");
  }
};

int connected(const Address& to) {
  const int fd = socket(static_cast<int>(to.family), SOCK_STREAM | SOCK_CLOEXEC, 0);
  require(connect(fd, reinterpret_cast<const sockaddr*>(to.socket.data()), to.length) == 0,
          "anybody may connect");
  return fd;
}

void put(int fd, const void* data, std::size_t bytes) { send(fd, data, bytes, MSG_NOSIGNAL | MSG_DONTWAIT); }

void serve_an_honest_peer(Engine& engine) {
  Engine other("127.0.0.1", 2, kSenderMask);
  const std::array<std::byte, 4> data{std::byte{7}};
  Request message;
  message.kind = Request::Kind::send;
  message.bytes = data.size();
  message.from = data.data();
  message.tag = tag_of(2, 1);
  Receive receive(data.size(), message.tag);
  engine.receive(receive);
  other.send(other.connect(engine.address()), message);
  for (int i = 0; i < 1'000'000 && receive.status == kInProgress; ++i) engine.progress(), other.progress();
  require(receive.status == ucx::abi::kOk && receive.room[0] == data[0], "an honest peer is served");
}

}  // namespace

void one(Input& in) {
  Engine engine("127.0.0.1", 0, kSenderMask);
  const int fd = connected(engine.address());
  Greeting greeting{.to = engine.address().key};
  greeting.from[0] = 1;
  if (in.below(16) == 0) in.fill(&greeting, sizeof(greeting));
  put(fd, &greeting, in.below(16) ? sizeof(greeting) : in.below(sizeof(greeting)));
  for (int i = 0; i < 3; ++i) engine.progress();
  Address peer = engine.address();
  peer.key = greeting.from;
  peer.rank = 1;
  engine.connect(peer);

  std::vector<std::unique_ptr<Receive>> receives;
  while (!in.empty()) {
    const std::size_t what = in.below(8);
    const std::uint64_t tag = tag_of(1, in.below(4));
    if (what == 0) {
      receives.push_back(std::make_unique<Receive>(kSizes[in.below(std::size(kSizes))], tag));
      engine.receive(*receives.back());
    } else if (what == 1 && !receives.empty()) {
      engine.cancel(*receives[in.below(receives.size())]);
    } else if (what == 2) {
      std::byte bytes[64];
      in.fill(bytes, sizeof(bytes));
      put(fd, bytes, in.below(sizeof(bytes)));
    } else if (what == 3) {
      const std::vector<std::byte> content(kSizes[in.below(std::size(kSizes))]);
      put(fd, content.data(), content.size());
    } else {
      const std::size_t bytes = in.below(2) ? kSizes[in.below(std::size(kSizes))] : in.number();
      const Frame frame = Frame::of(static_cast<Kind>(in.below(8)), tag, bytes);
      put(fd, &frame, sizeof(frame));
    }
    engine.progress();
  }
  close(fd);
  for (int i = 0; i < 3; ++i) engine.progress();
  serve_an_honest_peer(engine);
  for (const auto& receive : receives) receive->check();
  for (const auto& receive : receives) engine.cancel(*receive);
}

}  // namespace fuzz
