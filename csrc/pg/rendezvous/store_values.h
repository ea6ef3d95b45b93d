// Values in a store that several ranks write: how they are looked up, how often, and bundles of them.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <torch/csrc/distributed/c10d/Store.hpp>

namespace occl::pg {

using Bytes = std::vector<uint8_t>;

/// Pauses between polls of the store. They grow, up to a limit that is higher for more ranks, because one
/// server answers all of them.
class Naps {
 public:
  explicit Naps(int size);
  void sleep();
  /// The next one is short again.
  void reset() { nap_ = kFirst; }
  bool are_long() const { return nap_ > kLong; }

 private:
  static constexpr std::chrono::nanoseconds kFirst = std::chrono::microseconds(100),
                                            kLong = std::chrono::milliseconds(1);
  const std::chrono::nanoseconds longest_;
  std::chrono::nanoseconds nap_ = kFirst;
};

/// The bytes of several ranks in one value: each rank's bytes follow their number.
void append_to_bundle(Bytes& bundle, const Bytes& bytes);
/// Nothing unless it holds the bytes of exactly `count` ranks.
std::optional<std::vector<Bytes>> unpack(const Bytes& bundle, std::size_t count);

/// The store has a value that no rank can have stored.
[[noreturn]] void fail_on_value(const std::string& group, int size, const std::string& key,
                                const Bytes& value);

/// The value under a key; nothing if there is none.
std::optional<Bytes> look_up(c10d::Store& store, const std::string& key);

}  // namespace occl::pg
