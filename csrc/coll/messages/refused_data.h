// Messages of which more bytes are on the way although they did not fit their receive: the bytes are dropped.
// Few at a time, because each ends with its last byte, or when its sender says that no more follow.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace occl::coll {

/// Not thread safe.
class RefusedData {
 public:
  /// At most `left` bytes of message `id` follow.
  void add(std::uint64_t id, std::size_t left) {
    if (left > 0) messages_.push_back({id, left});
  }
  /// `bytes` of message `id` have arrived. False if fewer were still to come.
  bool take(std::uint64_t id, std::size_t bytes) {
    const auto it = find(id);
    if (it == messages_.end() || bytes > it->left) return false;
    it->left -= bytes;
    if (it->left == 0) messages_.erase(it);
    return true;
  }
  /// No more bytes of message `id` follow.
  void end(std::uint64_t id) {
    if (const auto it = find(id); it != messages_.end()) messages_.erase(it);
  }
  std::size_t size() const { return messages_.size(); }

 private:
  struct Message {
    std::uint64_t id;
    std::size_t left;
  };
  std::vector<Message>::iterator find(std::uint64_t id) {
    return std::find_if(messages_.begin(), messages_.end(), [id](const Message& m) { return m.id == id; });
  }

  std::vector<Message> messages_;
};

}  // namespace occl::coll
