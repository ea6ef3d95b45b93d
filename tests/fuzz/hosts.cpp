// Ranks of other nodes that send any bytes where call headers, notices, envelopes, acks, payloads, barrier
// reports and messages are expected, in any order, and whose connections break.
#include <map>
#include <string>
#include <thread>

#include "fuzz/target.h"
#include "fuzz/victim.h"
#include "hosts/group.h"
#include "hosts/subgroup_handshake.h"

namespace fuzz {
namespace {

using namespace occl::hosts;
using hosts::Channel;

constexpr std::chrono::hours kLong{1};

/// What a rank sends ends at once, unless the connection is broken. What it receives comes when it asks: the
/// input says what, and when; at the end of the input all connections break.
class HostileLink final : public Link {
 public:
  HostileLink(Input& in, Engine& engine) : in_(in), engine_(engine) {}

  std::unique_ptr<Message> send(int, std::uint32_t channel, const std::byte* data, std::size_t bytes,
                                Owner) override {
    sent_[channel].assign(data, data + bytes);
    return std::make_unique<Sent>(in_.below(64) == 63);
  }
  std::unique_ptr<Message> receive(int, std::uint32_t channel, std::byte* data, std::size_t bytes,
                                   Owner owner) override {
    return std::make_unique<Received>(*this, channel, std::span(data, bytes), std::move(owner));
  }
  std::shared_ptr<Link> for_ranks(const std::vector<int>&, const std::string&) const override {
    return nullptr;  // no group of these is made smaller
  }
  std::uint32_t new_group_number() override { return 7; }
  bool can_come_from(int, std::uint32_t number) const override { return number < 100; }
  void end_group(std::uint32_t) override {}
  bool stuck() const override { return false; }
  const std::string& describe() const override { return name_; }

  Transfer wanted;  // the last receive of the program

 private:
  struct Sent final : Message {
    explicit Sent(bool broken) : broken(broken) {}
    bool ended() const override { return true; }
    std::optional<Error> error() const override {
      return broken ? std::optional(Error(Errc::system, "closed")) : std::nullopt;
    }
    const bool broken;
  };

  struct Received final : Message {
    Received(HostileLink& link, std::uint32_t channel, std::span<std::byte> to, Owner owner)
        : link(link), channel(channel), to(to), owner(std::move(owner)) {}
    bool ended() const override {
      if (!over) over = link.give(channel, to, broken);
      return over;
    }
    std::optional<Error> error() const override {
      return broken ? std::optional(Error(Errc::system, "closed")) : std::nullopt;
    }
    HostileLink& link;
    const std::uint32_t channel;
    const std::span<std::byte> to;
    const Owner owner;
    mutable bool over = false, broken = false;
  };

  /// Whether a message ends now.
  bool give(std::uint32_t channel, std::span<std::byte> to, bool& broken) {
    if (std::this_thread::get_id() != main_) return false;  // the group's thread that watches
    const std::size_t how = in_.below(32);
    broken = in_.empty() || how == 31;
    if (broken) return true;
    if (how < 6) {
      engine_.ring();  // the next look may find more
      return false;
    }
    fill(channel, to);
    return true;
  }

  /// What a correct rank might send, with some numbers replaced; or anything.
  void fill(std::uint32_t channel, std::span<std::byte> to) {
    std::fill(to.begin(), to.end(), std::byte{0});
    if (in_.below(8) == 0) return in_.fill(to.data(), std::min<std::size_t>(to.size(), in_.byte()));
    const auto put = [&](const auto& object) {
      std::memcpy(to.data(), &object, std::min(sizeof(object), to.size()));
    };
    switch (static_cast<Channel>(channel % kChannels)) {
      case Channel::envelopes: {
        hosts::PointToPoint::Envelope e;
        e.id = in_.byte();
        e.count = wanted.buffer.count;
        e.tag = wanted.tag;
        e.dtype = static_cast<std::uint32_t>(wanted.dtype);
        put(e);
        break;
      }
      case Channel::acks: {
        hosts::PointToPoint::Envelope e;
        const auto& sent = sent_[channel - 1];  // Channel::envelopes
        std::memcpy(&e, sent.data(), std::min(sizeof(e), sent.size()));
        hosts::PointToPoint::Ack a;
        a.id = e.id, a.count = e.count, a.tag = e.tag, a.dtype = e.dtype, a.order = e.order;
        a.good = static_cast<std::uint32_t>(in_.below(2));
        put(a);
        break;
      }
      case Channel::notices: {
        CallHeader header;
        if (in_.below(2)) header.refuse("rank 1 is tired");
        header.number = 1 + in_.below(3);
        put(header);
        break;
      }
      default: {  // the same as this rank has sent
        const auto& sent = sent_[channel];
        for (std::size_t at = 0; !sent.empty() && at < to.size(); at += sent.size())
          std::memcpy(to.data() + at, sent.data(), std::min(sent.size(), to.size() - at));
      }
    }
    for (std::size_t patches = in_.below(4); patches > 0; --patches) {
      const std::uint64_t number = in_.number();
      const std::size_t at = in_.below(16) * 4;
      if (at < to.size())
        std::memcpy(to.data() + at, &number, std::min<std::size_t>(in_.below(2) ? 8 : 4, to.size() - at));
    }
  }

  Input& in_;
  Engine& engine_;
  const std::thread::id main_ = std::this_thread::get_id();
  const std::string name_ = "fuzz";
  std::map<std::uint32_t, std::vector<std::byte>> sent_;  // by channel: the last message
};

/// Whether it ended with an error that says what.
template <class F>
bool fails(F&& f) {
  try {
    f();
    return false;
  } catch (const Error& error) {
    require(*error.what() != 0, "an error says what");
    return true;
  }
}

struct Operations {
  std::byte* memory(std::size_t bytes) {
    heap.push_back(std::make_unique<std::byte[]>(bytes));
    return heap.back().get();
  }

  void submit(Input& in, hosts::Group& group, HostileLink& link) {
    const int size = group.size(), other = group.rank() == 0 ? size - 1 : 0;
    const std::size_t count = in.below(4) ? in.byte() : in.take<std::uint16_t>() % 20000;
    const DType dtype = std::array{DType::u8, DType::i64, DType::bf16, DType::f32}[in.below(4)];
    if (in.below(2)) {
      const bool send = in.below(2);
      const int peer = !send && in.below(4) == 0 ? Transfer::kAnyRank : other;
      const Transfer t{send,
                       peer,
                       static_cast<std::uint32_t>(in.below(3)),
                       dtype,
                       {memory(count * size_of(dtype)), count}};
      if (!send) link.wanted = t;
      calls.push_back(std::make_unique<Call>(t));
    } else {
      Collective c;
      c.kind = static_cast<Kind>(in.below(kKinds));
      const Traits& t = traits(c.kind);
      c.dtype = dtype;
      c.op =
          t.reduces ? std::array{ReduceOp::sum, ReduceOp::max, ReduceOp::avg}[in.below(3)] : ReduceOp::none;
      if (c.op == ReduceOp::avg) c.dtype = DType::f32;
      c.root = rooted(c.kind) ? static_cast<int>(in.below(size)) : 0;
      const auto blocks = [&](bool per_rank) {
        const std::uint32_t n = per_rank ? size : 1;
        return Blocks{memory(n * count * size_of(c.dtype)), count, n, nullptr};
      };
      if (!t.in_root_only || group.rank() == c.root) c.in = blocks(t.in_per_rank);
      if (!t.out_root_only || group.rank() == c.root) c.out = blocks(t.out_per_rank);
      if (c.kind == Kind::broadcast && group.rank() == c.root) c.out = c.in;
      c.largest = c.volume = count;
      if (c.kind == Kind::barrier) c = Collective{};
      calls.push_back(std::make_unique<Call>(c));
    }
    group.submit(calls.back()->operation);
  }

  std::vector<std::unique_ptr<std::byte[]>> heap;
  std::vector<std::unique_ptr<Call>> calls;
};

void shake_hands(Input& in, hosts::Group& group) {
  const GroupInfo& m = group.info();
  std::vector<int> ranks, node_of;
  for (int i = 0; i < group.size(); ++i) ranks.push_back(i), node_of.push_back(i);
  const Subgroup wanted{ranks, "new"};
  SubgroupHandshake handshake(m, group.control_messages(), wanted, Topology(node_of), m.rank,
                              Deadline::after(kLong));
  const bool failed = fails([&] {
    handshake.begin();
    for (int turn = 0; turn < 40; ++turn)
      if (m.rank == 0 ? handshake.all_here() : handshake.await_ids().has_value()) break;
    if (m.rank == 0) handshake.announce({1, 2});
  });
  if (failed || in.below(2)) handshake.fail_with(Error(Errc::aborted, "enough"));
}

}  // namespace

void one(Input& in) {
  static World world;
  const int size = std::array{2, 3, 10}[in.below(3)], rank = in.below(2) ? 0 : size - 1;
  auto mesh = std::make_unique<Mesh>(world.endpoint, "fuzz", 0, 1, Tuning{});
  mesh->join({mesh->invitation()}, Deadline::after(kLong));
  std::vector<int> node_of;
  std::vector<std::string> processes;
  for (int i = 0; i < size; ++i) node_of.push_back(i), processes.push_back(concat("pid ", i));
  auto link = std::make_shared<HostileLink>(in, *world.engine);
  Operations operations;
  hosts::Group group({"fuzz", rank, Topology(node_of), processes, kFirstGroupNumber, 4096},
                     std::make_shared<coll::Group>(*world.engine, std::move(mesh)), link);
  switch (in.below(4)) {
    case 0:
      shake_hands(in, group);
      break;
    case 1:
      fails([&] { group.monitored_barrier(kLong, in.below(2), [] {}); });
      break;
    default:
      for (int turn = 0; turn < 60 && !in.empty(); ++turn) {
        if (in.below(3) == 0) operations.submit(in, group, *link);
        group.drive(in.below(2));
      }
  }
  for (int turn = 0; turn < 8; ++turn) group.drive(true);  // the connections are broken, or the input goes on
  group.close();
  for (const auto& call : operations.calls) {
    require(call->is_released, "close releases every operation");
    const Error* error = call->operation.error();
    require(!error || *error->what() != 0, "an error says what");
  }
}

}  // namespace fuzz
