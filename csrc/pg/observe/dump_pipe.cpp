#include "pg/observe/dump_pipe.h"

#include <c10/util/Exception.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

namespace occl::pg {

DumpPipe::DumpPipe(const std::string& path) : path_(path) {
  ::unlink(path.c_str());
  if (::mkfifo(path.c_str(), 0600) == 0)
    // For writing too: otherwise reads return at once, as at the end of a file, after each writer has gone.
    descriptor_ = ::open(path.c_str(), O_RDWR | O_NONBLOCK | O_CLOEXEC);
  if (!open())
    TORCH_WARN("the flight recorder cannot make the pipe ", path, ": ", std::strerror(errno),
               "; dumps cannot be asked for through it");
}

DumpPipe::DumpPipe(DumpPipe&& other) noexcept
    : path_(std::move(other.path_)), descriptor_(std::exchange(other.descriptor_, -1)) {}

DumpPipe& DumpPipe::operator=(DumpPipe&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(descriptor_, other.descriptor_);
  return *this;
}

DumpPipe::~DumpPipe() {
  if (!open()) return;
  ::close(descriptor_);
  ::unlink(path_.c_str());
}

bool DumpPipe::asked() const {
  if (!open()) return false;
  bool any = false;
  char bytes[128];
  while (::read(descriptor_, bytes, sizeof(bytes)) > 0) any = true;
  return any;
}

}  // namespace occl::pg
