// The communicator whose ranks are on several nodes. A collective begins with the preamble, in which all
// ranks compare their calls (hosts/preamble.h). Then a program runs (hosts/program_run.h): operations of the
// node's group, messages over the link, and kernels.
//
//     gather call headers ─▶ leaders exchange theirs ─▶ broadcast the agreement ─▶ run the program
//
// The leader of a node tells other leaders what has ended the group there. They tell their nodes and further
// leaders, along the paths on which leaders exchange call headers.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "coll/group/group.h"
#include "coll/progress/communicator.h"
#include "hosts/control_messages.h"
#include "hosts/group_info.h"
#include "hosts/in_flight.h"
#include "hosts/link.h"
#include "hosts/monitored_barrier.h"
#include "hosts/p2p.h"
#include "hosts/preamble.h"
#include "hosts/program_cache.h"
#include "hosts/program_run.h"
#include "hosts/remote_accesses.h"
#include "hosts/scratch.h"
#include "hosts/unacknowledged_sends.h"

namespace occl::hosts {

class Group final : public coll::Communicator,
                    private coll::Collectives::Machine,
                    private coll::Messages::Machine {
 public:
  /// `node`: the group of the ranks of this node, in the order of the topology. This group alone uses it.
  Group(GroupInfo info, std::shared_ptr<coll::Group> node, std::shared_ptr<Link> link);

  const std::string& name() const override { return info_.name; }
  int rank() const override { return info_.rank; }
  int size() const override { return info_.topology.size(); }
  /// One for each rank of this machine, and one for the threads of its link that work while it waits.
  bool core_for_each() const override {
    const auto [ranks, cores] = ranks_and_cores_;
    return cores >= ranks * (link_->has_threads() ? 2 : 1);
  }
  std::pair<int, int> ranks_and_cores() const override { return ranks_and_cores_; }
  std::size_t moving() const override { return pending() + node_->pending(); }
  double seconds(const coll::Task& task, bool mapped) const override;
  const GroupInfo& info() const { return info_; }
  /// For subgroups (hosts/subgroup.h): the group of this node, the link, and the control messages.
  coll::Group& node() { return *node_; }
  const Link& link() const { return *link_; }
  ControlMessages& control_messages() { return control_messages_; }
  void monitored_barrier(std::chrono::milliseconds timeout, bool all_ranks,
                         const std::function<void()>& interrupted) override {
    monitored_barrier_.run(*this, timeout, all_ranks, interrupted);
  }
  void deliver(const std::function<void()>& interrupted) override;
  /// Only on leaders: other nodes can be waiting for a rank of a leader's node.
  bool monitored() const override { return leads(); }
  std::shared_ptr<coll::Communicator> make_subgroup(const coll::Subgroup& wanted,
                                                    const std::function<Tuning()>& tuning, Deadline deadline,
                                                    const std::function<void()>& interrupted) override;
  std::shared_ptr<coll::Window> make_window(std::shared_ptr<void> self, int channels) override;
  coll::WindowHandle show_window(coll::Window& window, shm::Ref memory, std::byte* own,
                                 std::size_t bytes) override;
  void connect_window(coll::Window& window, const std::vector<coll::WindowHandle>& handles, std::byte* own,
                      Deadline deadline) override;
  std::byte* window_memory(const coll::Window& window, int rank) const override;
  void collect_windows() override { node_->collect_windows(); }
  std::string describe() const override {
    return concat("its ranks are on several nodes; between them: ", link_->describe());
  }

 private:
  enum class Phase { gather, exchange, spread, run, close };

  void note_refusal(std::uint64_t, const std::string& text) override { node_->refuse(text); }
  void note_refused_message(int, bool, const std::string&) override {}
  void clear_refusal(const coll::Transfer&) override {}

  void start(coll::Operation& op) override;
  coll::Outcome advance() override;
  Error mismatch() const override { return Error(Errc::mismatch, agreement().text()); }
  bool exposed() const override { return !in_flight_.empty(); }

  void take_over(coll::Operation& message, coll::OperationList& done) override {
    message.transfer().window ? accesses_.post(message, done) : p2p_.post(message, done);
  }
  bool advance_messages(coll::OperationList& done) override;
  bool owes_answers() const override { return (leaving_ && !unacknowledged_.empty()) || accesses_.serving(); }
  void fail_messages(const Error& error, coll::OperationList& done) override {
    p2p_.fail(error, done);
    accesses_.fail(error, done);
  }

  void check(coll::OperationList& done) override;
  void give_up(const Error& error) override;
  void part() override;
  void leave() override;
  bool keeps_memory() const override { return link_->stuck(); }

  Memory memory_held() const override;
  std::string calls_ahead_of_us(const shm::Peer&) const override { return ""; }

  void check_node();
  void tolerate(const Error& loss);
  [[noreturn]] void fail_for_loss(const coll::Operation& op) const;
  void start_node_collective(coll::Kind kind, CallHeader* from, CallHeader* to);
  void begin_exchange();
  void exchange_headers();
  CallHeader find_agreement() const;
  bool next_phase();
  bool collect_ended(int place);
  void send_notices(std::uint64_t kind, const std::string& text);
  void read_notices();
  std::chrono::nanoseconds grace(const coll::Operation& op) const;
  int node_after(int distance) const {
    return (node_number_ + info_.topology.nodes() + distance) % info_.topology.nodes();
  }
  void check_deadlines();
  [[noreturn]] void time_out(const coll::Operation& op, const coll::Operation& current) const;

  bool leads() const { return info_.topology.leader(node_number_) == info_.rank; }
  CallHeader* headers() const { return reinterpret_cast<CallHeader*>(headers_.data()); }
  /// In headers(): this rank's, the agreement, and those of the node.
  CallHeader& own() const { return headers()[0]; }
  CallHeader& agreement() const { return headers()[1]; }
  std::span<CallHeader> of_node() const { return {headers() + 2, static_cast<std::size_t>(node_->size())}; }

  const GroupInfo info_;
  const int node_number_;
  const std::shared_ptr<coll::Group> node_;
  const std::shared_ptr<Link> link_;
  const std::pair<int, int> ranks_and_cores_;  // of this machine
  mutable UnacknowledgedSends unacknowledged_;

  // The current collective.
  coll::Operation* op_ = nullptr;
  Phase phase_ = Phase::gather;
  ProgramCache programs_;
  InFlight in_flight_;
  ProgramRun run_;
  Scratch headers_;
  const std::vector<std::vector<HeaderExchange>> rounds_;
  std::size_t round_ = 0;                                // of them
  std::shared_ptr<std::vector<CallHeader>> of_leaders_;  // by distance of their nodes
  PointToPoint p2p_;
  RemoteAccesses accesses_;
  MonitoredBarrier monitored_barrier_;
  ControlMessages control_messages_;

  // Notices between leaders.
  struct PendingNotice : PendingReceive<CallHeader> {
    int node = 0;  // whose leader sends it
  };
  std::vector<PendingNotice> expected_notices_;  // from the leaders behind this one
  std::string remote_failure_;                   // why the group has ended, if a notice said so

  std::optional<Error> loss_;              // a rank has left, or has died: no collective can begin any more
  Deadline patience_ = Deadline::never();  // for one that had begun before, and can do without it
  bool leaving_ = false;                   // this rank makes no more calls
  bool silent_ = false;                    // this rank has left or given up
};

}  // namespace occl::hosts
