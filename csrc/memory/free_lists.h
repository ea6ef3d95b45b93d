// The free blocks of a heap in lists by size (TLSF, two-level segregated fit: Masmano, Ripoll, Crespo, Real,
// 2004). Every operation but `find_anywhere` and `each` takes constant time.
//
//   first_map_     a bit for each power of two in which there is a free block
//   second_map_    for each power of two, a bit for each of its 32 size classes
//   lists_         for each class, its free blocks
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>

#include "memory/blocks.h"

namespace occl::memory {

class FreeLists {
 public:
  /// A block of at least `size` bytes, or null. It stays in its list.
  Block* find(std::size_t size) const {
    auto [first, second] = class_of(size);
    // Blocks of the class itself may be slightly too small. Looking at a few of them finds the very block
    // that a loop freed a moment ago.
    Block* b = lists_[first][second];
    for (unsigned i = 0; b && i < kProbes; ++i, b = b->list_next)
      if (b->size >= size) return b;
    // Any block of a higher class fits.
    std::uint32_t seconds = second + 1 < kSecond ? second_map_[first] & (~0u << (second + 1)) : 0;
    if (!seconds) {
      const std::uint64_t firsts = first_map_ & (~std::uint64_t{0} << (first + 1));
      if (!firsts) return nullptr;
      first = static_cast<unsigned>(std::countr_zero(firsts));
      seconds = second_map_[first];
    }
    return lists_[first][static_cast<unsigned>(std::countr_zero(seconds))];
  }

  /// The same, and looks at every block of the class if no higher one has any. Takes as long as there are
  /// blocks in the class.
  Block* find_anywhere(std::size_t size) const {
    if (Block* b = find(size)) return b;
    const auto [first, second] = class_of(size);
    Block* b = lists_[first][second];
    while (b && b->size < size) b = b->list_next;
    return b;
  }

  void insert(Block* b) {
    const auto [first, second] = class_of(b->size);
    Block*& head = lists_[first][second];
    b->list_prev = nullptr;
    b->list_next = head;
    if (head) head->list_prev = b;
    head = b;
    second_map_[first] |= 1u << second;
    first_map_ |= std::uint64_t{1} << first;
  }

  void remove(Block* b) {
    const auto [first, second] = class_of(b->size);
    if (b->list_next) b->list_next->list_prev = b->list_prev;
    if (b->list_prev) {
      b->list_prev->list_next = b->list_next;
    } else if (!(lists_[first][second] = b->list_next)) {
      second_map_[first] &= ~(1u << second);
      if (!second_map_[first]) first_map_ &= ~(std::uint64_t{1} << first);
    }
  }

  /// Calls `f` with each block. `f` must not insert or remove any.
  template <class F>
  void each(F f) const {
    for (const auto& classes : lists_)
      for (Block* head : classes)
        for (Block* b = head; b; b = b->list_next) f(b);
  }

 private:
  static constexpr unsigned kSecondBits = 5, kSecond = 1u << kSecondBits, kFirst = 48;
  static constexpr unsigned kProbes = 16;  // blocks of the class itself to look at

  struct SizeClass {
    unsigned first, second;
  };

  // Sizes below 2 KiB have a class each; above, every power of two is cut into 32 classes.
  static SizeClass class_of(std::size_t size) {
    const std::size_t units = size / kBlockAlign;
    if (units < kSecond) return {0, static_cast<unsigned>(units)};
    const unsigned log = static_cast<unsigned>(std::bit_width(units)) - 1;
    return {log - kSecondBits + 1, static_cast<unsigned>(units >> (log - kSecondBits)) & (kSecond - 1)};
  }

  std::uint64_t first_map_ = 0;
  std::array<std::uint32_t, kFirst> second_map_{};
  std::array<std::array<Block*, kSecond>, kFirst> lists_{};
};

}  // namespace occl::memory
