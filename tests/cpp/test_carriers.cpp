// Two workers in one process, over the loopback interface: what a link promises of its messages, over UCX and
// over plain TCP. Where UCX is not installed it is not tested, and the output says so. OCCL_TEST_UCX names
// another library.
// modes: plain asan
#include <dlfcn.h>
#include <sys/mman.h>

#include <csignal>
#include <cstring>
#include <numeric>
#include <optional>
#include <regex>
#include <thread>

#include "base/deadline.h"
#include "check.h"
#include "hosts/group_info.h"
#include "tcp/api.h"
#include "ucx/link.h"

using namespace occl;
using namespace occl::ucx;

namespace {

constexpr std::size_t kSizes[] = {1, 4, 1000, 8192, 70'000, 3'000'000};

Settings settings() {
  Settings settings;
  const char* given = std::getenv("OCCL_TEST_UCX");
  settings.libraries = {given ? given : "libucp.so.0"};
  settings.context = {{"TLS", "^sm,self,cuda,rocm,ze"}, {"NET_DEVICES", "lo"}};
  settings.wishes = {{"TCP_CONN_NB", "y"}, {"CONN_NB", "y"}};  // versions know one of the two
  settings.wishes.insert(settings.wishes.end(),
                         {{"KEEPALIVE_INTERVAL", "1s"}, {"MEMTYPE_CACHE", "n"}, {"RCACHE_ENABLE", "n"}});
  settings.process = {{"LOG_LEVEL", "fatal"}, {"WARN_UNUSED_ENV_VARS", "n"}, {"HANDLE_ERRORS", "none"}};
  return settings;
}

bool has_ucx() {
  static const bool available = [] {
    try {
      api(settings());
      return true;
    } catch (const Error& error) {
      std::printf("left out: %s\n", error.what());
      return false;
    }
  }();
  return available;
}

enum class Over { ucx, tcp };

std::shared_ptr<Carrier> carrier(Over over, int rank, std::function<void()> ring) {
  if (over == Over::ucx) return std::make_shared<Carrier>("ucx", api(settings()), settings(), rank, 2, ring);
  Settings settings;
  settings.context = {{"LISTEN", "127.0.0.1"}, {"RANK", std::to_string(rank)}};
  return std::make_shared<Carrier>("tcp", tcp::api(), settings, rank, 2, ring);
}

/// Runs a test over each of them.
void over_each(void (*test)(Over)) {
  test(Over::tcp);
  if (has_ucx()) test(Over::ucx);
}

using Bytes = std::vector<std::byte>;

Bytes pattern(std::size_t bytes, int salt) {
  Bytes data(bytes);
  for (std::size_t i = 0; i < bytes; ++i) data[i] = static_cast<std::byte>(i * 7 + salt * 13 + 1);
  return data;
}

std::string fault(const hosts::Link::Message& message) {
  const auto error = message.error();
  return error ? error->what() : "";
}

/// Two ranks, each a host of its own.
struct Pair {
  std::atomic<int> rings = 0;
  std::shared_ptr<Carrier> carriers[2];
  std::shared_ptr<hosts::Link> links[2];

  explicit Pair(Over over) {
    for (int rank = 0; rank < 2; ++rank) carriers[rank] = carrier(over, rank, [this] { ++rings; });
    const std::vector<std::string> addresses = {carriers[0]->worker().address(),
                                                carriers[1]->worker().address()};
    for (int rank = 0; rank < 2; ++rank) {
      carriers[rank]->worker().set_addresses(addresses);
      links[rank] = std::make_shared<ucx::Link>(carriers[rank], std::vector<int>{0, 1}, "0");
    }
  }
  void progress() {
    for (auto& carrier : carriers)
      if (carrier) carrier->worker().progress();
  }
  /// True if it ends in time.
  bool ends(const hosts::Link::Message& message) {
    for (const auto until = Deadline::after(std::chrono::seconds(20)); !until.passed(); progress())
      if (message.ended()) return true;
    return false;
  }
  /// The thread that ends a message rings afterwards.
  bool rings_become(int count) {
    for (const auto until = Deadline::after(std::chrono::seconds(20)); !until.passed(); progress())
      if (rings == count) return true;
    return false;
  }
};

}  // namespace

TEST("messages of every size arrive whole and in order, whether they or their receives come first") {
  over_each([](Over over) {
    Pair pair(over);
    for (const bool receives_first : {true, false})
      for (const std::size_t bytes : kSizes) {
        std::vector<Bytes> sent, arrived;
        for (int i = 0; i < 5; ++i) sent.push_back(pattern(bytes, i)), arrived.emplace_back(bytes);
        std::vector<std::unique_ptr<hosts::Link::Message>> messages;
        const auto send = [&] {
          for (const Bytes& data : sent) messages.push_back(pair.links[0]->send(1, 3, data.data(), bytes));
          for (int i = 0; i < 100; ++i) pair.progress();
        };
        const auto receive = [&] {
          for (Bytes& data : arrived) messages.push_back(pair.links[1]->receive(0, 3, data.data(), bytes));
        };
        receives_first ? (receive(), send()) : (send(), receive());
        for (const auto& message : messages) {
          CHECK(pair.ends(*message), bytes);
          CHECK(fault(*message).empty(), fault(*message));
        }
        CHECK(sent == arrived, bytes);
      }
  });
}

TEST("messages of different channels do not wait for each other") {
  over_each([](Over over) {
    Pair pair(over);
    const Bytes first = pattern(3'000'000, 1), second = pattern(3'000'000, 2);
    Bytes into_first(first.size()), into_second(second.size());
    auto sent_first = pair.links[0]->send(1, 1, first.data(), first.size());
    auto sent_second = pair.links[0]->send(1, 2, second.data(), second.size());
    auto arrives = pair.links[1]->receive(0, 2, into_second.data(), second.size());
    CHECK(pair.ends(*arrives) && pair.ends(*sent_second) && into_second == second);
    arrives = pair.links[1]->receive(0, 1, into_first.data(), first.size());
    CHECK(pair.ends(*arrives) && pair.ends(*sent_first) && into_first == first);
  });
}

TEST("a message of another length is an error of its receive, and touches nothing beyond") {
  over_each([](Over over) {
    for (const auto& [sends, expects] :
         {std::pair<std::size_t, std::size_t>{4, 8}, {8, 4}, {90'000, 80'000}}) {
      Pair pair(over);
      const Bytes data = pattern(sends, 1);
      Bytes into(std::max(sends, expects) + 100, std::byte{0xee});
      const auto sent = pair.links[0]->send(1, 1, data.data(), sends);
      const auto arrives = pair.links[1]->receive(0, 1, into.data(), expects);
      CHECK(pair.ends(*arrives));
      CHECK(arrives->error());
      for (std::size_t i = expects; i < into.size(); ++i) CHECK(into[i] == std::byte{0xee}, sends, " ", i);
      pair.ends(*sent);
    }
  });
}

TEST("a receive that is given up leaves its buffer alone, and the connection whole") {
  over_each([](Over over) {
    Pair pair(over);
    Bytes into(100, std::byte{0xee});
    pair.links[1]->receive(0, 1, into.data(), into.size()).reset();
    CHECK(!pair.links[1]->stuck());
    const Bytes data = pattern(100, 1);
    Bytes again(100);
    const auto sent = pair.links[0]->send(1, 1, data.data(), data.size());
    const auto arrives = pair.links[1]->receive(0, 1, again.data(), again.size());
    CHECK(pair.ends(*arrives) && pair.ends(*sent) && !arrives->error());
    CHECK(again == data && into == Bytes(100, std::byte{0xee}));
  });
}

TEST("a long send that is given up breaks the connection, and both sides say so") {
  over_each([](Over over) {
    Pair pair(over);
    const Bytes data = pattern(3'000'000, 1);
    Bytes small(4), into(4);
    auto first = pair.links[0]->send(1, 1, small.data(), 4);
    auto waits = pair.links[1]->receive(0, 1, into.data(), 4);
    CHECK(pair.ends(*waits) && pair.ends(*first));
    waits = pair.links[1]->receive(0, 2, into.data(), 4);
    CHECK(!waits->ended());
    pair.links[0]->send(1, 1, data.data(), data.size()).reset();  // which nothing receives
    CHECK(!pair.links[0]->stuck());
    const auto later = pair.links[0]->send(1, 1, small.data(), 4);
    CHECK(later->ended() && later->error() && later->error()->code() == Errc::closed);
    CHECK(std::strstr(later->error()->what(), "group 0 ended with a message under way"));
    CHECK(pair.ends(*waits) && waits->error() && waits->error()->code() == Errc::system);
  });
}

TEST("a rank whose peer goes gets what that had sent, and then an error without being asked") {
  over_each([](Over over) {
    Pair pair(over);
    const Bytes data = pattern(1000, 1);
    Bytes into(1000), never(4);
    auto sent = pair.links[0]->send(1, 1, data.data(), data.size());
    auto waits = pair.links[1]->receive(0, 2, never.data(), never.size());
    CHECK(pair.ends(*sent));
    for (int i = 0; i < 100; ++i) pair.progress();
    sent.reset();
    pair.links[0].reset();
    pair.carriers[0].reset();
    CHECK(pair.ends(*waits) && waits->error());
    const auto arrives = pair.links[1]->receive(0, 1, into.data(), into.size());
    CHECK(pair.ends(*arrives));
    CHECK(fault(*arrives).empty(), fault(*arrives));
    CHECK(into == data);
  });
}

TEST("the end of a message that was asked for rings, and so does an error") {
  over_each([](Over over) {
    Pair pair(over);
    const Bytes data = pattern(4, 1);
    Bytes into(4);
    auto waits = pair.links[1]->receive(0, 1, into.data(), 4);
    CHECK(!waits->ended());
    const int before = pair.rings;
    auto unasked_send = pair.links[0]->send(1, 1, data.data(), 4);
    CHECK(pair.ends(*waits) && pair.rings_become(before + 1));
    auto unasked = pair.links[1]->receive(0, 1, into.data(), 4);
    unasked_send.reset();
    pair.links[0].reset();
    pair.carriers[0].reset();
    CHECK(pair.rings_become(before + 2));
  });
}

TEST("what was sent arrives though its rank never looks again") {
  over_each([](Over over) {
    Pair pair(over);
    const Bytes data = pattern(3'000'000, 1);
    Bytes into(data.size());
    auto sent = pair.links[0]->send(1, 1, data.data(), data.size());
    const auto arrives = pair.links[1]->receive(0, 1, into.data(), into.size());
    Worker& receiver = pair.carriers[1]->worker();
    for (const auto until = Deadline::after(std::chrono::seconds(20)); !until.passed() && !arrives->ended();)
      receiver.progress();
    CHECK(arrives->ended() && into == data);
  });
}

TEST("messages for a group that has ended are thrown away, whichever side ends first") {
  over_each([](Over over) {
    for (const int first : {0, 1}) {
      Pair pair(over);
      const std::uint32_t number = 6;
      const auto link = [&](int rank) { return pair.links[rank]->for_ranks({0, 1}, "6"); };
      const std::shared_ptr<hosts::Link> links[] = {link(0), link(1)};
      const auto data = std::make_shared<Bytes>(pattern(50, 1));
      const std::uint32_t channel = number * hosts::kChannels + 2;
      const auto sent = links[0]->send(1, channel, data->data(), data->size(), data);
      Bytes into(50), probe(50);
      links[1]->receive(0, channel + 1, into.data(), into.size()).reset();
      links[first]->end_group(number);
      for (int i = 0; i < 1000; ++i) pair.progress();
      links[1 - first]->end_group(number);
      // The end of the sender's group came behind the message: once this arrives, so has that.
      const auto last = pair.links[0]->send(1, 1, probe.data(), probe.size());
      const auto arrives = pair.links[1]->receive(0, 1, into.data(), into.size());
      CHECK(pair.ends(*arrives) && pair.ends(*last));
      for (int i = 0; i < 1000; ++i) pair.progress();
      const auto late = pair.links[1]->receive(0, channel, into.data(), into.size());
      for (int i = 0; i < 1000; ++i) pair.progress();
      CHECK(!late->ended(), first, fault(*late));
    }
  });
}

TEST("an address over TCP that no rank has given is an error") {
  const auto made = carrier(Over::tcp, 0, [] {});
  std::vector<std::string> addresses(2, made->worker().address());
  addresses[1].pop_back();
  try {
    made->worker().set_addresses(addresses);
    CHECK(false);
  } catch (const Error& error) {
    CHECK(error.code() == Errc::protocol && std::strstr(error.what(), "bytes"), error.what());
  }
  addresses[1] = addresses[0];
  addresses[1][0] ^= 1;
  made->worker().set_addresses(addresses);
  ucx::Link link(made, {0, 1}, "0");
  Bytes into(4);
  const auto message = link.receive(1, 1, into.data(), into.size(), nullptr);
  CHECK(message->ended() && message->error() && std::strstr(message->error()->what(), "no rank sends"));
}

TEST("numbers of groups name the rank that gave them, and end") {
  over_each([](Over over) {
    Pair pair(over);
    CHECK(pair.links[1]->new_group_number() == 3 && pair.links[1]->new_group_number() == 5);
    CHECK(pair.links[0]->can_come_from(1, 5) && !pair.links[0]->can_come_from(0, 5));
    CHECK(!pair.links[0]->can_come_from(1, 1));
  });
}

TEST("UCX takes over no signal and no function of memory") {
  if (!has_ucx()) return;
  for (const int number : {SIGSEGV, SIGBUS, SIGILL, SIGFPE, SIGALRM}) {
    struct sigaction now {};
    sigaction(number, nullptr, &now);
#if !defined(__SANITIZE_ADDRESS__)
    CHECK(now.sa_handler == SIG_DFL, number);
#endif
  }
  const auto code = [](const char* name) {
    std::array<unsigned char, 16> begin{};
    std::memcpy(begin.data(), dlsym(RTLD_NEXT, name), begin.size());
    return begin;
  };
  const auto before = std::pair(code("mmap"), code("munmap"));
  {
    Pair pair(Over::ucx);
    const Bytes data = pattern(3'000'000, 1);
    Bytes into(data.size());
    const auto sent = pair.links[0]->send(1, 1, data.data(), data.size());
    const auto arrives = pair.links[1]->receive(0, 1, into.data(), into.size());
    CHECK(pair.ends(*arrives) && pair.ends(*sent));
  }
  CHECK(before == std::pair(code("mmap"), code("munmap")));
}

TEST("a library that is not there, or a device, is an error that says what to do") {
  if (!has_ucx()) return;
  Settings wrong = settings();
  wrong.context[1].second = "no_such_device";
  try {
    Worker worker(api(settings()), wrong, 0, 2, [] {});
    CHECK(false);
  } catch (const Error& error) {
    CHECK(error.code() == Errc::system && std::strstr(error.what(), "UCX_NET_DEVICES"), error.what());
    CHECK(std::regex_search(error.what(), std::regex("this host has [^)]*\\blo\\b")), error.what());
  }
}
