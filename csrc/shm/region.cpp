#include "shm/region.h"

#include <fcntl.h>
#include <linux/magic.h>
#include <linux/memfd.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <utility>

#include "base/errno_hint.h"
#include "base/error.h"
#include "base/fault_point.h"
#include "shm/address_space.h"
#include "shm/available_memory.h"

namespace occl::shm {
namespace {

#ifndef F_SEAL_FUTURE_WRITE
constexpr int F_SEAL_FUTURE_WRITE = 0x0010;
#endif
#ifndef MFD_NOEXEC_SEAL
constexpr unsigned MFD_NOEXEC_SEAL = 0x0008U;
#endif

/// From this size on a commit asks what is free. Any malloc takes less than this unasked.
constexpr std::size_t kWorthAsking = std::size_t{1} << 20;

constexpr int kSizeSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;

int new_memfd(const char* name) {
  // MFD_NOEXEC_SEAL came with Linux 6.3; older kernels answer EINVAL to a flag they do not know.
  int fd = memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING | MFD_NOEXEC_SEAL);
  if (fd < 0 && errno == EINVAL) fd = memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING);
  return fd;
}

/// Whether the system counts every page that it has promised (vm.overcommit_memory=2).
bool promises_only_what_it_has() {
  static const bool strict = [] {
    std::ifstream file("/proc/sys/vm/overcommit_memory");
    return file.peek() == '2';
  }();
  return strict;
}

std::byte* map(int fd, std::size_t bytes, bool writable) {
  void* p = mmap(nullptr, bytes, PROT_READ | (writable ? PROT_WRITE : 0), MAP_SHARED | MAP_NORESERVE, fd, 0);
  return p == MAP_FAILED ? nullptr : static_cast<std::byte*>(p);
}

}  // namespace

UniqueFd& UniqueFd::operator=(UniqueFd&& other) noexcept {
  if (this != &other) {
    reset();
    fd_ = other.release();
  }
  return *this;
}

int UniqueFd::release() { return std::exchange(fd_, -1); }

void UniqueFd::reset() {
  if (fd_ >= 0) close(std::exchange(fd_, -1));
}

std::size_t page_size() {
  static const auto size = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  return size;
}

std::size_t round_up_to_pages(std::size_t bytes) {
  const std::size_t mask = page_size() - 1;
  return (bytes + mask) & ~mask;
}

void populate([[maybe_unused]] const void* begin, [[maybe_unused]] std::size_t bytes,
              [[maybe_unused]] bool write) noexcept {
#ifdef MADV_POPULATE_WRITE
  const auto at = reinterpret_cast<std::uintptr_t>(begin), first = at / page_size() * page_size();
  madvise(reinterpret_cast<void*>(first), at + bytes - first,
          write ? MADV_POPULATE_WRITE : MADV_POPULATE_READ);
#endif
}

Region Region::create(const char* name, std::size_t bytes, Access peers) {
  OCCL_FAULT_POINT("region.create");
  Region region;
  region.size_ = round_up_to_pages(bytes);
  region.fd_ = UniqueFd(new_memfd(name));
  if (!region.fd_) fail_errno("memfd_create(\"", name, "\") failed", errno_hint());
  if (ftruncate(region.fd(), static_cast<off_t>(region.size_)) != 0)
    fail_errno("cannot make the shared memory region \"", name, "\" ", region.size_, " bytes large",
               errno_hint());
  region.base_ = map(region.fd(), region.size_, true);
  if (!region.base_)
    fail_errno("cannot map the shared memory region \"", name, "\" of ", region.size_, " bytes",
               address_space_hint());
  // After the owner's writable mapping: FUTURE_WRITE refuses every later one.
  const int seals = kSizeSeals | (peers == Access::read ? F_SEAL_FUTURE_WRITE : 0);
  if (fcntl(region.fd(), F_ADD_SEALS, seals) != 0)
    fail_errno("cannot seal the shared memory region \"", name, "\" (Linux 5.1 or newer is needed)");
  return region;
}

Region Region::attach(UniqueFd fd, Access access) {
  OCCL_FAULT_POINT("region.attach");
  const int seals = fcntl(fd.get(), F_GET_SEALS);
  if (seals < 0 || (seals & kSizeSeals) != kSizeSeals)
    fail(Errc::protocol, "a peer sent a descriptor that is not a sealed shared memory region");
  struct statfs file_system {};
  if (fstatfs(fd.get(), &file_system) != 0) fail_errno("fstatfs on a peer's region failed");
  // The size of a region of huge pages reserves none: reading where the system has no more is a SIGBUS.
  if (file_system.f_type == HUGETLBFS_MAGIC)
    fail(Errc::protocol, "a peer sent a shared memory region of huge pages");
  struct stat status {};
  if (fstat(fd.get(), &status) != 0) fail_errno("fstat on a peer's region failed");
  if (status.st_size <= 0 || static_cast<std::size_t>(status.st_size) % page_size() != 0)
    fail(Errc::protocol, "a peer sent a shared memory region of ", status.st_size, " bytes");
  Region region;
  region.size_ = static_cast<std::size_t>(status.st_size);
  region.base_ = map(fd.get(), region.size_, access == Access::read_write);
  if (!region.base_)
    fail_errno("cannot map a peer's shared memory region of ", region.size_, " bytes", address_space_hint());
  return region;  // the mapping keeps the memory; the descriptor is not needed any more
}

Region::Region(Region&& other) noexcept
    : fd_(std::move(other.fd_)),
      base_(std::exchange(other.base_, nullptr)),
      size_(std::exchange(other.size_, 0)) {}

Region& Region::operator=(Region&& other) noexcept {
  if (this != &other) {
    this->~Region();
    new (this) Region(std::move(other));
  }
  return *this;
}

Region::~Region() {
  if (base_) munmap(base_, size_);
}

bool Region::contains(const void* p, std::size_t bytes) const {
  const auto* b = static_cast<const std::byte*>(p);
  return b >= base_ && bytes <= size_ && static_cast<std::size_t>(b - base_) <= size_ - bytes;
}

void Region::commit(std::size_t offset, std::size_t bytes, Pages pages) {
  OCCL_FAULT_POINT("region.commit");
  const std::size_t first = offset & ~(page_size() - 1);
  const std::size_t last = round_up_to_pages(offset + bytes);
  // fallocate reserves page by page, and would wake the out-of-memory killer before it fails.
  const std::size_t size = last - first;
  if (size >= kWorthAsking)
    if (const std::size_t free = available_memory(size).free; size > free)
      fail(Errc::out_of_memory, "cannot reserve ", size, " bytes of shared memory: ", free,
           " are free on this machine, or in this container: give it more, or allocate less");
  if (pages == Pages::when_touched && !promises_only_what_it_has()) return;
  int rc = 0;
  do {
    rc = fallocate(fd(), 0, static_cast<off_t>(first), static_cast<off_t>(size));
  } while (rc != 0 && errno == EINTR);
  if (rc != 0) fail_errno("cannot reserve ", size, " bytes of shared memory", errno_hint());
}

void Region::decommit(std::size_t offset, std::size_t bytes) {
  const std::size_t first = round_up_to_pages(offset);
  const std::size_t last = (offset + bytes) & ~(page_size() - 1);
  if (last <= first) return;
  if (fallocate(fd(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, static_cast<off_t>(first),
                static_cast<off_t>(last - first)) != 0)
    fail_errno("cannot give back ", last - first, " bytes of shared memory");
}

void Region::make_private() const {
  const int flags = MAP_PRIVATE | MAP_FIXED | MAP_NORESERVE;
  if (mmap(base_, size_, PROT_READ | PROT_WRITE, flags, fd(), 0) != MAP_FAILED) return;
  std::fprintf(stderr, "torch_occl: forked child %d cannot have private memory: %s\n", getpid(),
               std::strerror(errno));
  std::abort();  // its writes would be seen by its parent
}

}  // namespace occl::shm
