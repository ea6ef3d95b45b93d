#include "pg/rendezvous/store_values.h"

#include <algorithm>
#include <thread>

#include "base/error.h"

namespace occl::pg {

Naps::Naps(int size)
    : longest_(std::clamp<std::chrono::nanoseconds>(size * std::chrono::microseconds(300),
                                                    std::chrono::milliseconds(10),
                                                    std::chrono::milliseconds(50))) {}

void Naps::sleep() {
  std::this_thread::sleep_for(nap_);
  nap_ = std::min(nap_ * 3 / 2, longest_);
}

void append_to_bundle(Bytes& bundle, const Bytes& bytes) {
  for (int shift = 0; shift < 32; shift += 8) bundle.push_back(static_cast<uint8_t>(bytes.size() >> shift));
  bundle.insert(bundle.end(), bytes.begin(), bytes.end());
}

std::optional<std::vector<Bytes>> unpack(const Bytes& bundle, std::size_t count) {
  constexpr std::ptrdiff_t kLength = 4;
  std::vector<Bytes> all;
  for (auto at = bundle.begin(); at != bundle.end();) {
    if (bundle.end() - at < kLength) return {};
    std::ptrdiff_t length = 0;
    for (int shift = 0; shift < 8 * kLength; shift += 8) length |= std::ptrdiff_t{*at++} << shift;
    if (length > bundle.end() - at || all.size() == count) return {};
    all.emplace_back(at, at + length);
    at += length;
  }
  if (all.size() != count) return {};
  return all;
}

void fail_on_value(const std::string& group, int size, const std::string& key, const Bytes& value) {
  fail(Errc::protocol, "group ", group, ": its store has ", value.size(), " bytes under ", key,
       " that none of its ", size,
       " ranks can have stored: give each program, and each group, a store or a prefix of its own");
}

std::optional<Bytes> look_up(c10d::Store& store, const std::string& key) {
  return store.check({key}) ? std::optional(store.get(key)) : std::nullopt;
}

}  // namespace occl::pg
