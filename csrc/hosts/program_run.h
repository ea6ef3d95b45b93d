// The run of a program (hosts/program.h) for one collective: the steps of a stage start when the operations
// that they depend on have ended (hosts/schedule.h). Kernels run at once; operations of the node's group and
// messages go to the group's InFlight.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "coll/group/group.h"
#include "hosts/group_info.h"
#include "hosts/in_flight.h"
#include "hosts/link.h"
#include "hosts/program.h"
#include "hosts/schedule.h"
#include "hosts/scratch.h"

namespace occl::hosts {

class ProgramRun {
 public:
  ProgramRun(const GroupInfo& info, coll::Group& node, Link& link, InFlight& in_flight);

  /// Both must live until the run is done. Nothing of the previous run may be in flight.
  void begin(const coll::Operation& op, Program& program);
  /// Whether all stages have started. Their operations can still be in flight.
  bool done() const { return schedule_->done(); }
  /// Starts the stages that can start; true if there was one.
  bool advance();
  /// The place in InFlight whose operations block the next stage.
  int awaited() const;
  /// An operation at a place in InFlight has ended.
  void ended(int place) { --open_[place]; }

  Scratch& work() { return work_; }
  const Scratch& work() const { return work_; }

 private:
  int place(int stage, std::uint64_t window) const {
    return stage * program_->stages() + static_cast<int>(window % program_->stages());
  }
  void carry_out(const Step& step, std::uint64_t window, int place);
  void carry_out(const NodeCollective& step, std::uint64_t window, int place);
  std::byte* at(const Piece& piece, std::uint64_t window) const;

  const GroupInfo& info_;
  coll::Group& node_;
  Link& link_;
  InFlight& in_flight_;
  Scratch work_;

  const coll::Operation* op_ = nullptr;
  Program* program_ = nullptr;
  std::optional<Schedule> schedule_;
  std::vector<int> open_;  // steps that have not ended, by place
};

}  // namespace occl::hosts
