// Which message goes to which receive: the first with the same tag, in the order in which they were started.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <list>
#include <map>
#include <memory>
#include <unordered_map>

#include "tcp/request.h"

namespace occl::tcp {

/// A message of which some bytes have arrived and others have not, or that waits for its receive.
struct Incoming {
  Incoming(std::uint64_t tag, std::size_t bytes) : tag(tag), bytes(bytes) {}

  bool whole() const { return got == bytes; }
  /// Where the next bytes go; null: they are thrown away.
  std::byte* target() { return to_ ? to_ + got : nullptr; }
  /// From now on they go to a receive of the same size, as do those that have arrived.
  void claim(Request& receive);
  /// Makes room for a message without a receive. Throws std::bad_alloc.
  void keep();
  /// Throws its bytes away.
  void drop();

  const std::uint64_t tag;
  const std::size_t bytes;
  std::size_t got = 0;
  Request* receive = nullptr;

 private:
  std::byte* to_ = nullptr;
  std::unique_ptr<std::byte[]> kept_;
};

class Matching {
 public:
  /// Takes the first receive for this tag off the list; null: there is none.
  Request* take(std::uint64_t tag);
  void post(Request& receive);
  /// False if it is not posted any more.
  bool remove(Request& receive);

  /// Keeps a message for which there is no receive yet.
  void keep(std::shared_ptr<Incoming> message);
  /// The first kept message with such a tag: equal to `tag` in the bits of `mask`. Null: there is none.
  std::shared_ptr<Incoming> find(std::uint64_t tag, std::uint64_t mask) const;
  void forget(const Incoming& message);

 private:
  std::unordered_map<std::uint64_t, std::deque<Request*>> receives_;  // of one tag each
  std::list<Request*> of_many_tags_;
  std::map<std::uint64_t, std::deque<std::shared_ptr<Incoming>>> kept_;
};

}  // namespace occl::tcp
