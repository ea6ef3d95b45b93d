// A named pipe: whatever is written to it asks this process for a dump of its flight recorder.
#pragma once

#include <string>

namespace occl::pg {

class DumpPipe {
 public:
  DumpPipe() = default;
  /// Makes the pipe, in place of an older one. A failure becomes a warning, because nothing else needs it.
  explicit DumpPipe(const std::string& path);
  DumpPipe(DumpPipe&& other) noexcept;
  DumpPipe& operator=(DumpPipe&& other) noexcept;
  /// Removes it.
  ~DumpPipe();

  bool open() const { return descriptor_ >= 0; }
  /// Whether something was written since the last call.
  bool asked() const;

 private:
  std::string path_;
  int descriptor_ = -1;
};

}  // namespace occl::pg
