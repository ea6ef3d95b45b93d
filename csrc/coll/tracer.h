// Writes what a process does in its operations into a TraceFile, from the events of a Recorder.
#pragma once

#include <memory>
#include <string>

#include "coll/recorder.h"
#include "coll/trace_file.h"

namespace occl::coll {

class Engine;

class Tracer final : public Recorder {
 public:
  /// Makes a file in `directory` and records all operations that are called from now on, of all groups of
  /// the engine. Throws what TraceFile::create throws, and Error(invalid_argument) while another one records.
  /// The tracer lives as long as the process.
  static Tracer& start(Engine& engine, const std::string& directory, std::size_t max_bytes);
  /// Ends the recording. Operations in flight show how far they have come. Idempotent; any thread.
  void stop(Engine& engine);

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
