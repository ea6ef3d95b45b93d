// modes: plain asan
// One honest rank, and others that break the protocol: the group ends with an error that names it.
#include <optional>

#include "check.h"
#include "fuzz/victim.h"

using namespace fuzz;

namespace {

/// Where the slots of the other rank are, in its only region.
const std::uint64_t kSlots = shm::Ref{0, 4096}.pack();

/// Two ranks; rank 0 is honest and has submitted `c`.
struct Game {
  explicit Game(std::size_t one_shot_bytes = 0) : victim(0, 2, tuning(one_shot_bytes)) {}
  static Tuning tuning(std::size_t one_shot_bytes) {
    Tuning t;
    t.one_shot_bytes = static_cast<std::uint32_t>(one_shot_bytes);
    t.slot_bytes = 512;
    t.area_bytes = 0;
    t.eager_bytes = 256;
    t.both_ends_bytes = 256;
    return t;
  }
  Hostile& peer() { return *victim.hostile[1]; }
  SharedBlock& block() { return peer().block; }
  Post& post() { return block().post(1); }
  void arrive() { post().stamp.store(1); }
  SendLine& line() { return block().send(0); }
  void send(const Envelope& e) { peer().write(0, e); }

  /// Drives until the group has ended. Fails if that takes long: only this thread does anything.
  std::string error(Errc expected) {
    for (int i = 0; i < 1000; ++i) {
      victim.group->drive(true);
      if (const auto error = victim.group->error()) {
        CHECK(error->code() == expected, error->what());
        CHECK(!victim.group->pending());
        return error->what();
      }
    }
    throw std::runtime_error("the group goes on");
  }

  Victim victim;
};

bool contains(const std::string& text, const char* part) { return text.find(part) != text.npos; }

/// An all_reduce of so many bytes, with memory that peers can reach or not.
Collective all_reduce(Victim& victim, std::size_t count, bool mapped) {
  Collective c;
  c.kind = Kind::all_reduce, c.dtype = DType::u8, c.op = ReduceOp::sum;
  c.in = c.out = {victim.memory(count, mapped), count, 1, nullptr};
  c.largest = c.volume = count;
  return c;
}

}  // namespace

TEST("a synchronisation that cannot be is an error: a rank does not run through its steps alone") {
  Game game;
  const auto c = all_reduce(game.victim, 5000, false);
  game.victim.submit(c);
  game.post().signature = Signature::of(c).word;
  game.post().staging = kSlots;
  game.block().tick().store(std::uint64_t{1} << 40);
  game.arrive();
  const auto text = game.error(Errc::protocol);
  CHECK(contains(text, "rank 1 (") && contains(text, "claims synchronisation 1099511627776"), text);
}

TEST("a rank that is one synchronisation ahead is no error") {
  Game game;
  const auto c = all_reduce(game.victim, 700, false);  // two windows
  game.victim.submit(c);
  game.post().signature = Signature::of(c).word;
  game.post().staging = kSlots;
  game.block().tick().store(2);
  game.arrive();
  for (int i = 0; i < 10; ++i) game.victim.group->drive(true);
  CHECK(!game.victim.group->error());
}

TEST("an operation from the future is an error") {
  Game game;
  game.victim.submit(all_reduce(game.victim, 8, false));
  game.post().stamp.store(3);
  CHECK(contains(game.error(Errc::protocol),
                 "is at operation #0, collective 3, where this rank is at operation #1, collective 1"));
}

TEST("a block that no process can have is an error") {
  for (const std::uint64_t largest : {std::uint64_t{1} << 44, std::uint64_t{1} << 61, ~std::uint64_t{0}}) {
    Game game;
    std::vector<Block> ins, outs;
    for (auto* list : {&ins, &outs})
      for (int i = 0; i < 2; ++i) list->push_back({game.victim.memory(80, false), 10});
    Collective c;
    c.kind = Kind::all_to_all, c.dtype = DType::f64, c.largest = 10, c.volume = kUneven;
    c.in = {nullptr, 10, 2, ins.data()}, c.out = {nullptr, 10, 2, outs.data()};
    game.victim.submit(c);
    game.post().signature = Signature::of(c).word;
    for (int i = 0; i < 2; ++i) game.block().listed(1)[i] = {kUnmapped, 10};
    game.post().largest = (std::uint64_t{1} << 47) / 8 + largest % 8 + 1;
    if (largest > std::uint64_t{1} << 47) game.post().largest = largest;
    game.arrive();
    CHECK(contains(game.error(Errc::protocol), "announced a block of "));
  }
}

TEST("slots and tensors outside of the peer's memory are an error") {
  for (const std::uint64_t wild : {std::uint64_t{1} << 40, ~std::uint64_t{63}, std::uint64_t{1} << 20}) {
    Game game;
    const auto c = all_reduce(game.victim, 5000, false);
    game.victim.submit(c);
    game.post().signature = Signature::of(c).word;
    game.post().staging = wild;
    game.arrive();
    game.block().tick().store(1);
    CHECK(contains(game.error(Errc::protocol), "pointed outside of its memory region"));
  }
  for (const std::uint64_t wild : {std::uint64_t{1} << 16, (std::uint64_t{1} << 48) - 8,
                                   std::uint64_t{65536 - 4999}, std::uint64_t{7} << 48, ~std::uint64_t{0}}) {
    Game game;
    const auto c = all_reduce(game.victim, 5000, true);
    game.victim.submit(c);
    game.post().signature = Signature::of(c).word;
    game.post().in = game.post().out = wild;
    game.post().mapped = 1;
    game.arrive();
    CHECK(contains(game.error(Errc::protocol), "pointed outside of its memory region"), wild);
  }
}

TEST("a signature that no rank can have made is told as that") {
  Game game;
  game.victim.submit(all_reduce(game.victim, 8, false));
  game.post().signature = ~std::uint64_t{0};
  game.arrive();
  game.victim.group->drive(true);
  const Error* error = game.victim.calls[0]->operation.error();
  CHECK(error && error->code() == Errc::mismatch && contains(error->what(), "an unknown operation"));
}

TEST("message rings and records that make no sense are an error") {
  const auto with = [](const std::function<void(Game&, SendLine&, Envelope&)>& breaks) {
    Game game;
    const Transfer t{false, 1, 0, DType::u8, {game.victim.memory(16, false), 16}};
    game.victim.submit(t);
    Envelope e;
    e.count = e.bytes = 16;
    game.send(e);
    game.peer().position = 0;  // the record once more, after it was broken
    breaks(game, game.line(), e);
    if (game.line().ring.load() == game.peer().extra()) game.send(e);
    return game.error(Errc::protocol);
  };
  CHECK(contains(with([](Game&, SendLine& line, Envelope&) { line.ring.store(std::uint64_t{1} << 40); }),
                 "pointed outside of its control region"));
  CHECK(
      contains(with([](Game& g, SendLine& line, Envelope&) { line.ring.store(g.peer().control_bytes - 64); }),
               "pointed outside of its control region"));
  CHECK(contains(with([](Game& g, SendLine& line, Envelope&) { line.ring.store(g.peer().extra() + 8); }),
                 "broken message record"));
  for (const std::uint32_t bytes : {ring_bytes_by_ranks(2) - 63, ring_bytes_by_ranks(2), ~0u})
    CHECK(
        contains(with([bytes](Game&, SendLine&, Envelope& e) { e.bytes = bytes; }), "broken message record"),
        bytes);
  for (const std::uint16_t cell : {1, 257, 65535})  // this rank has mapped none
    CHECK(contains(with([cell](Game&, SendLine&, Envelope& e) { e.cell = cell; }), "broken message record"));
  for (const std::uint32_t record : {0u, 9u, 255u})
    CHECK(contains(with([record](Game&, SendLine&, Envelope& e) { e.record = static_cast<Record>(record); }),
                   "record of unknown kind"));
  CHECK(contains(with([](Game&, SendLine&, Envelope& e) { e.record = Record::data; }),
                 "data of an unknown message"));
}

TEST("a record names a cell that its writer has, or is an error") {
  // The peer's records name these cells, one after the other. Cells 1 to 8 were this rank's, 9 to 16 the
  // peer's, and this rank has sent a message in cell 1.
  const auto naming = [](std::vector<std::uint16_t> cells) {
    auto game = std::make_unique<Game>();
    const auto transfer = [&](bool send) {
      return Transfer{send, 1, 0, DType::u8, {game->victim.memory(600, false), 600}};
    };
    game->line().cells.store(shm::Ref{0, 0}.pack());
    game->line().maps_cells.store(1);
    game->victim.submit(transfer(true));
    game->victim.group->drive(true);
    for (const std::uint16_t cell : cells) {
      game->victim.submit(transfer(false));
      Envelope e;
      e.count = e.bytes = 600;
      e.cell = cell;
      game->send(e);
      game->victim.group->drive(true);
    }
    return game;
  };
  CHECK(!naming({9, 16, 1})->victim.group->error());
  CHECK(!naming({9})->victim.calls.back()->operation.error());
  for (const auto& cells : {std::vector<std::uint16_t>{9, 9}, {2}, {8}, {17}, {1, 1}})
    CHECK(contains(naming(cells)->error(Errc::protocol), "broken message record"), cells[0]);
}

TEST("what arrives of a message is not more than the whole") {
  // The first record carries `first` bytes, and a second one `more`.
  const auto received = [](Record record, std::uint32_t first, std::uint32_t more) -> std::string {
    Game game;
    constexpr std::size_t kBytes = 80;
    game.victim.submit(Transfer{false, 1, 0, DType::u8, {game.victim.memory(kBytes, false), kBytes}});
    Envelope e;
    e.record = record;
    e.count = kBytes;
    e.bytes = first;
    game.send(e);
    e.record = Record::data;
    e.bytes = more;
    if (more) game.send(e);
    game.victim.group->drive(true);
    const coll::Operation& receive = game.victim.calls[0]->operation;
    return !receive.finished() ? "waits" : receive.error() ? receive.error()->what() : "ended";
  };
  for (const Record record : {Record::eager, Record::stream}) {
    CHECK(received(record, 80, 0) == "ended");
    CHECK(received(record, 79, 0) == "waits");
    CHECK(received(record, 79, 1) == "ended");
    CHECK(contains(received(record, 79, 2), "data of an unknown message"));
    for (const std::uint32_t first : {81u, 4096u})
      CHECK(contains(received(record, first, 0), "sent uint8[80]"), first);
  }
}

TEST("what arrives of a message without a receive is not more than a rank may send unasked") {
  Game game;
  Envelope e;
  e.record = Record::stream;
  e.count = 5000;
  e.tag = 9;
  e.bytes = 4000;
  game.victim.submit(Transfer{false, 1, 0, DType::u8, {game.victim.memory(16, false), 16}});
  game.send(e);
  e.record = Record::data;
  for (int i = 0; i < 20; ++i) game.send(e);
  CHECK(contains(game.error(Errc::protocol), "data of an unknown message"));
}

TEST("what a message that did not fit still sends is dropped") {
  Game game;
  game.victim.submit(Transfer{false, 1, 0, DType::u8, {game.victim.memory(16, false), 16}});
  Envelope e;
  e.record = Record::stream;
  e.id = 3;
  e.count = 5000;
  e.bytes = 1000;
  game.send(e);
  e.record = Record::data;
  game.send(e);
  game.victim.group->drive(true);
  const Error* error = game.victim.calls[0]->operation.error();
  CHECK(error && contains(error->what(), "sent uint8[5000]"));
  CHECK(!game.victim.group->error());
  e.id = 4;
  game.send(e);
  game.victim.submit(Transfer{false, 1, 0, DType::u8, {game.victim.memory(16, false), 16}});
  CHECK(contains(game.error(Errc::protocol), "data of an unknown message"));
}

/// The honest rank receives 1000 bytes in 16 pieces, in message 7, of which the peer's word says `claimed`.
struct DirectGame : Game {
  explicit DirectGame(std::uint64_t claimed) {
    victim.submit(Transfer{false, 1, 0, DType::u8, {victim.memory(1000, true), 1000}});
    line().taken.store(claimed);
    Envelope e;
    e.record = Record::direct;
    e.id = 7;
    e.count = 1000;
    send(e);
    victim.group->drive(true);
  }
  void say_rest(std::uint64_t pieces) {
    Envelope e;
    e.record = Record::rest;
    e.id = 7;
    e.count = pieces;
    send(e);
  }
  const coll::Operation& receive() const { return victim.calls[0]->operation; }
};
constexpr std::uint64_t kJob = std::uint64_t{7} << 32, kPieces = 16;

TEST("a rank that copies the other end of a message says how much, and not more than there is") {
  const auto received = [](std::uint64_t claimed, std::optional<std::uint64_t> said) -> std::string {
    DirectGame game(claimed);
    if (said) {
      game.say_rest(*said);
      game.victim.group->drive(true);
    }
    const coll::Operation& receive = game.receive();
    return !receive.finished() ? "waits" : receive.error() ? receive.error()->what() : "ended";
  };
  CHECK(received(0, {}) == "ended");                             // the peer never came
  CHECK(received((std::uint64_t{6} << 32) + 3, {}) == "ended");  // it did to the last message
  for (const std::uint64_t claimed : {std::uint64_t{1}, std::uint64_t{9}, kPieces, kPieces + 1}) {
    CHECK(received(kJob + claimed, {}) == "waits", claimed);
    CHECK(received(kJob + claimed, claimed - 1) == "ended", claimed);
  }
  for (const std::uint64_t said : {kPieces, ~std::uint64_t{0}})
    CHECK(contains(received(kJob + 9, said), "copied more of a message than there is"), said);
}

TEST("what was copied from a rank that has given up meanwhile is not its message") {
  DirectGame game(kJob + kPieces);  // it has them all, it says: the honest rank waits
  game.block().header().presence.store(kAborted);
  game.say_rest(0);
  CHECK(!game.error(Errc::aborted).empty());
  CHECK(game.receive().error());
}

TEST("a rank that gives up a receive lets no peer begin to write into its buffer") {
  DirectGame game(kJob + 2);  // the honest rank takes the others, and waits
  CHECK(!game.receive().finished());
  game.victim.group->abort("enough");
  shm::Taker back(shm::Taker::End::back, 7, kPieces, &game.line().taken,
                  &game.victim.group->mesh().own().recv(1).taken);
  CHECK(!back.take());
}

TEST("the other end of a message is nowhere but in the receiver's memory") {
  for (const std::uint64_t wild : {std::uint64_t{1} << 16, std::uint64_t{65536 - 999}, ~std::uint64_t{0}}) {
    Game game;
    game.victim.submit(Transfer{true, 1, 0, DType::u8, {game.victim.memory(1000, true), 1000}});
    game.victim.group->drive(true);
    Envelope e;
    e.record = Record::grant;
    e.id = 1;
    e.ref = wild;
    game.send(e);
    CHECK(contains(game.error(Errc::protocol), "pointed outside of its memory region"), wild);
  }
}

TEST("positions of a reader that are nonsense harm only the reader") {
  for (const std::uint64_t tail : {std::uint64_t{1} << 40, ~std::uint64_t{0}}) {
    Game game;
    game.block().recv(0).tail.store(tail);
    for (int i = 0; i < 100; ++i)
      game.victim.submit(Transfer{true, 1, 0, DType::u8, {game.victim.memory(5000, false), 5000}});
    for (int i = 0; i < 200; ++i) game.victim.group->drive(true);
    CHECK(!game.victim.group->error());
  }
}

TEST("the reason that a peer gives is printed up to its end, and without what garbles") {
  Game game;
  game.victim.submit(all_reduce(game.victim, 8, false));
  game.block().header().reason.fill('\x1b');
  game.block().header().presence.store(kAborted);
  const auto text = game.error(Errc::aborted);
  CHECK(contains(text, "ended group fuzz: ????") && !contains(text, "\x1b"), text);
  CHECK(text.size() < 1000);
}
