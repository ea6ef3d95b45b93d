// A Recorder that writes the operations of a process into a TraceFile.
#pragma once

#include <memory>
#include <string>

#include "coll/observe/trace_file.h"
#include "coll/task/recorder.h"

namespace occl::coll {

class Tracer final : public Recorder {
 public:
  /// Makes a file in `directory`. The tracer records once it is given to Engine::set_recorder, and lives as
  /// long as the process. Throws what TraceFile::create throws.
  static Tracer& make(const std::string& directory, std::size_t max_bytes);
  /// Closes the file, after the engine has let go of the tracer. Operations in flight show how far they have
  /// come. Idempotent; any thread.
  void close() { file_->close(); }

  const std::string& path() const { return file_->path(); }

  void record(const Activity& of, const Event& event) noexcept override;

 private:
  explicit Tracer(std::unique_ptr<TraceFile> file) : file_(std::move(file)) {}
  ~Tracer() = default;
  void begin(const Activity& of, const Event& event);
  std::uint16_t group(const Activity& of);

  const std::unique_ptr<TraceFile> file_;
};

}  // namespace occl::coll
