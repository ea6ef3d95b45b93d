// A region: anonymous shared memory (memfd), sealed against shrinking and growing, mapped whole.
//
//   owner:  create -> commit(range) before first use -> ... -> decommit(range)
//   peer:   receives the descriptor over a Unix socket -> attach, which checks the seals
//
// A region is sparse: its size is address space, and only committed ranges cost memory.
#pragma once

#include <cstddef>
#include <cstdint>

namespace occl::shm {

/// A file descriptor that closes itself.
class UniqueFd {
 public:
  UniqueFd() = default;
  explicit UniqueFd(int fd) : fd_(fd) {}
  UniqueFd(UniqueFd&& other) noexcept : fd_(other.release()) {}
  UniqueFd& operator=(UniqueFd&& other) noexcept;
  ~UniqueFd() { reset(); }

  int get() const { return fd_; }
  explicit operator bool() const { return fd_ >= 0; }
  int release();
  void reset();

 private:
  int fd_ = -1;
};

/// What peers may do with a region. The owner always reads and writes.
enum class Access : std::uint8_t { read, read_write };

/// When committed memory is taken from the system.
enum class Pages : std::uint8_t {
  reserved,     // by commit, so that running out is an error there and never at some later store
  when_touched  // by the first store to each page, as with ordinary memory. Where the system refuses to
                // promise more memory than it has (vm.overcommit_memory=2), it is reserved all the same:
                // there, a store for which there is none would be a SIGBUS
};

class Region {
 public:
  /// New region of `bytes` (rounded up to whole pages), nothing committed. `name` shows in /proc/PID/maps.
  /// With Access::read the kernel refuses any writable mapping by a peer.
  /// Throws Error(out_of_memory | system).
  static Region create(const char* name, std::size_t bytes, Access peers);

  /// Maps a region that a peer sent. Throws Error(protocol) if the descriptor is not a memfd with the seals
  /// that `create` sets, or is larger than the address space can hold.
  static Region attach(UniqueFd fd, Access access);

  Region() = default;
  Region(Region&& other) noexcept;
  Region& operator=(Region&& other) noexcept;
  ~Region();

  std::byte* base() const { return base_; }
  std::size_t size() const { return size_; }
  int fd() const { return fd_.get(); }
  explicit operator bool() const { return base_ != nullptr; }
  bool contains(const void* p, std::size_t bytes) const;

  /// Memory for [offset, offset + bytes), in whole pages. Idempotent; new pages read as zero. Throws
  /// Error(out_of_memory) if less memory is free now, even for Pages::when_touched.
  void commit(std::size_t offset, std::size_t bytes, Pages pages = Pages::reserved);

  /// Gives the whole pages inside [offset, offset + bytes) back to the system; they read as zero afterwards,
  /// for peers too. Only for Access::read_write regions.
  void decommit(std::size_t offset, std::size_t bytes);

  /// In a forked child: maps the region once more, at the same address, so that no other process sees what
  /// this one writes from now on. Ends the process with a message if the system refuses.
  void make_private() const;

 private:
  UniqueFd fd_;
  std::byte* base_ = nullptr;
  std::size_t size_ = 0;
};

std::size_t page_size();
std::size_t round_up_to_pages(std::size_t bytes);
/// Pre-faults these pages in one call, for writing or for reading, which is cheaper than one fault per page.
/// Where the kernel cannot, they are faulted in one by one.
void populate(const void* begin, std::size_t bytes, bool write) noexcept;

}  // namespace occl::shm
