// The communicator whose ranks share memory: what it moves collectives and messages with, and what it watches
// to end them early.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "coll/execution/executor.h"
#include "coll/group/diagnosis.h"
#include "coll/group/refusals.h"
#include "coll/mesh/mesh.h"
#include "coll/messages/messenger.h"
#include "coll/progress/communicator.h"
#include "coll/task/operation.h"
#include "coll/windows/accesses.h"
#include "coll/windows/window.h"

namespace occl::coll {

class Group final : public Communicator, private Collectives::Machine, private Messages::Machine {
 public:
  /// Makes the group of a mesh that has joined; the engine drives it from now on. Returns when each other
  /// rank has joined too: from then on any rank may leave without keeping others from joining. Throws what
  /// wait_until_joined throws; then the other ranks make no group either.
  static std::shared_ptr<Group> open(Engine& engine, std::unique_ptr<Mesh> mesh, Deadline deadline,
                                     const std::function<void()>& interrupted);
  /// The same without waiting; the engine does not know of it.
  Group(Engine& engine, std::unique_ptr<Mesh> mesh);
  ~Group() override;

  const Mesh& mesh() const { return *mesh_; }
  const Messenger& messenger() const { return messenger_; }
  const std::string& name() const override { return mesh_->name(); }
  int rank() const override { return mesh_->rank(); }
  int size() const override { return mesh_->size(); }
  bool core_for_each() const override { return mesh_->cores_for_each(1); }
  std::pair<int, int> ranks_and_cores() const override { return {mesh_->size(), mesh_->cores()}; }
  double seconds(const Task& task, bool mapped) const override;

  void monitored_barrier(std::chrono::milliseconds timeout, bool all_ranks,
                         const std::function<void()>& interrupted) override;

  std::shared_ptr<Communicator> make_subgroup(const Subgroup& wanted, const std::function<Tuning()>& tuning,
                                              Deadline deadline,
                                              const std::function<void()>& interrupted) override;
  std::string describe() const override;

  /// Why no operation of this group can succeed any more: its own error, a rank that died, or one that ended
  /// the group. Looks even if no operation is in flight.
  std::optional<Error> trouble();
  /// Ends a receive that no message has reached yet; false if one has.
  bool withdraw(Operation& receive);
  std::shared_ptr<Window> make_window(std::shared_ptr<void> self, int channels = 1) override;
  WindowHandle show_window(Window& window, shm::Ref memory, std::byte*, std::size_t bytes) override {
    return window.handle(memory, bytes);
  }
  void connect_window(Window& window, const std::vector<WindowHandle>& handles, std::byte* own,
                      Deadline deadline) override {
    window.connect(handles, own, deadline);
  }
  std::byte* window_memory(const Window& window, int rank) const override { return window.memory(rank); }
  void collect_windows() override;
  /// The ranks that the current collective waits for.
  std::vector<int> missing() const;

  /// It is the node's part of a group that spans nodes: readers of its record leave it out.
  void be_part_of_another() { activity().set_flags(kPartOfAnother); }

  /// What make_subgroup keeps between calls for this parent. Except for `busy`, only the thread that made it
  /// true uses it.
  struct SubgroupState {
    Atomic<bool> busy = false;
    Offer::Failure failure;               // this rank's last one
    std::vector<std::uint32_t> failures;  // by rank: the last failure that this rank has read
  };
  SubgroupState& subgroup_state() { return subgroup_state_; }

 private:
  // Collectives::Machine
  void start(Operation& op) override { executor_.start(op); }
  Outcome advance() override;
  Error mismatch() const override { return executor_.mismatch(); }
  bool exposed() const override { return executor_.exposed(); }
  void note_refusal(std::uint64_t number, const std::string& text) override {
    refusals_.refuse(number, text);
  }

  // Messages::Machine
  void take_over(Operation& message, OperationList& done) override;
  bool advance_messages(OperationList& done) override {
    const bool accessed = !accesses_.idle() && accesses_.advance(done);
    return (!messenger_.idle() && messenger_.advance(done)) || accessed;
  }
  bool owes_answers() const override { return messenger_.has_answers(); }
  void fail_messages(const Error& error, OperationList& done) override {
    fail_messages_of(Transfer::kAnyRank, error, done);
  }
  void note_refused_message(int peer, bool send, const std::string& text) override {
    refusals_.refuse_message(peer, send, text);
  }
  void clear_refusal(const Transfer& transfer) override { refusals_.clear(transfer); }

  // Communicator
  shm::Bell::Process awaited_process() const override;
  void check(OperationList& done) override;
  void give_up(const Error& error) override { mesh_->give_up(error.what()); }
  void leave() override { mesh_->leave(); }
  void wake_peers() override { mesh_->bells().ring_pending(); }

  Memory memory_held() const override { return {mesh_->block_bytes(), mesh_->staging_bytes()}; }
  std::string calls_ahead_of_us(const shm::Peer& process) const override {
    return diagnosis_.calls_ahead(process);
  }

  void fail_messages_of(int rank, const Error& error, OperationList& done);
  const Operation* operation_that_needs(int rank) const;
  void check_gone(bool died, OperationList& done);
  void check_deadlines(OperationList& done);

  const std::unique_ptr<Mesh> mesh_;
  SubgroupState subgroup_state_;
  const Refusals refusals_;
  Executor executor_;
  Messenger messenger_;
  Windows windows_;
  Accesses accesses_;
  const Diagnosis diagnosis_;
};

}  // namespace occl::coll
