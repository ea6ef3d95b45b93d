// PyTorch's flight recorder, kept for this backend: the last operations of all groups of this process, in the
// format that torch.distributed.flight_recorder (`torchfrtrace`) reads.
//
//     record ─▶ scheduled ─(begin)─▶ started ─(end)─▶ completed, retired
//                                        └───(end with an error)─▶ started, retired
//
// PyTorch's own recorder is a template whose instance libtorch hides and whose definition needs a JSON
// library that the wheel lacks. So this class keeps the entries (pg/observe/recorded_calls.h),
// pg/observe/flight_format.h pickles them with PyTorch's keys, and PyTorch's writer writes the file.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "coll/progress/communicator.h"
#include "pg/observe/call_observer.h"
#include "pg/observe/dump_pipe.h"
#include "pg/observe/flight_settings.h"
#include "pg/observe/param_comms.h"
#include "pg/observe/recorded_calls.h"
#include "pg/request/request.h"

namespace occl::pg {

class FlightRecorder {
 public:
  /// The recorder of this process; null unless the environment asks for one (docs/profiling.md). Thread safe,
  /// as are all functions.
  static FlightRecorder* get();
  /// Ends the thread that watches groups, and removes the pipe. Called at the interpreter's exit.
  static void stop();
  /// What `dump` returns, with no entries if there is no recorder.
  static std::string dump_process(bool collectives, bool stacks, bool only_active);

  /// Notes a new group; `rank` is this process's rank in it, and `global_rank` among all.
  std::shared_ptr<RecordedGroup> add(const std::shared_ptr<coll::Communicator>& communicator,
                                     int global_rank);

  /// The entries of one Work.
  class Entries final : public CallObserver {
   public:
    Entries(FlightRecorder& recorder, std::shared_ptr<RecordedGroup> group, std::uint64_t first,
            std::size_t count)
        : recorder_(recorder), group_(std::move(group)), first_(first), count_(count) {}
    void submitted(std::uint64_t number) noexcept override;
    void begin(std::uint64_t number) noexcept override;
    /// After an error, other than the end of the group by this rank, the recorder writes its file.
    void end(const CallEnd& end) noexcept override;

   private:
    void take(std::uint64_t number);
    void start();

    FlightRecorder& recorder_;
    const std::shared_ptr<RecordedGroup> group_;
    const std::uint64_t first_;
    const std::size_t count_;
    bool numbered_ = false;  // guarded by the recorder's mutex
  };

  /// Records a call that is about to be submitted. Dumps show it from when its first operation has a number.
  /// `manager`: its requests were called one by one between startCoalescing and endCoalescing.
  std::unique_ptr<Entries> record(const std::shared_ptr<RecordedGroup>& group, const GroupFacts& facts,
                                  std::span<const Request> requests, bool manager);

  /// A pickled dictionary.
  std::string dump(bool collectives, bool stacks, bool only_active);
  /// Writes it to the file of this rank, as PyTorch's DebugInfoWriter says.
  void write() noexcept;

 private:
  explicit FlightRecorder(FlightSettings settings);
  ~FlightRecorder() = delete;  // never destroyed: threads may record until the process ends

  static FlightRecorder*& instance();
  static void forget_parent();
  RecordedCall* find(std::uint64_t id);
  void push(RecordedCall&& entry);
  void watch();
  void look_at_groups();
  bool ended_badly(RecordedGroup& group);

  const FlightSettings settings_;
  std::mutex write_mutex_;             // held while the file is written
  std::mutex mutex_;                   // guards the rest; never held while the GIL or a group is waited for
  std::vector<RecordedCall> entries_;  // a ring: entry `id` is at id % settings_.entries
  std::uint64_t recorded_ = 0;
  std::vector<std::shared_ptr<RecordedGroup>> groups_;
  std::size_t groups_added_ = 0;
  int global_rank_ = 0;  // of the first group
  DumpPipe pipe_;
  std::condition_variable stopping_;
  bool stop_ = false;
  std::thread watcher_;  // started with the first group
};

}  // namespace occl::pg
