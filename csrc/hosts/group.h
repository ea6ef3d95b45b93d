// The communicator whose ranks are on several nodes. A collective begins with a council of all ranks
// (hosts/preamble.h) and goes on with a program (hosts/program.h), whose steps are operations of the node's
// group, messages over the link, and kernels.
//
//     gather the notes ─▶ leaders exchange theirs ─▶ broadcast the verdict ─▶ run the program
//
// What ends the group on a node is told to the leaders of other nodes, and by them to their nodes and to more
// leaders, along the same paths on which leaders exchange notes.
#pragma once

#include <condition_variable>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
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
#include "hosts/program.h"
#include "hosts/schedule.h"
#include "hosts/scratch.h"
#include "hosts/unacknowledged_sends.h"

namespace occl::hosts {

class Group final : public coll::Communicator {
 public:
  /// `node`: the group of the ranks of this node, in the order of the partition. This group alone uses it.
  Group(Membership membership, std::shared_ptr<coll::Group> node, std::shared_ptr<Link> link);
  ~Group() override;

  const std::string& name() const override { return m_.name; }
  int rank() const override { return m_.rank; }
  int size() const override { return m_.partition.size(); }
  /// One for the rank, and one for the threads of the link that work while it waits.
  bool core_for_each() const override { return node_->mesh().cores_for_each(2); }
  double seconds(const coll::Task& task, bool mapped) const override;
  const Membership& membership() const { return m_; }
  /// For groups of some of its ranks (hosts/subgroup.h): the group of this node, and the letters.
  coll::Group& node() { return *node_; }
  Mail& mail() { return mail_; }
  void monitored_barrier(std::chrono::milliseconds timeout, bool all_ranks,
                         const std::function<void()>& interrupted) override {
    roll_call_.run(*this, timeout, all_ranks, interrupted);
  }
  void deliver(const std::function<void()>& interrupted) override;

 private:
  enum class Phase { gather, exchange, spread, run, close };

  void note_refusal(std::uint64_t, const std::string& text) override { node_->refuse(text); }
  void note_refused_message(int, bool, const std::string&) override {}
  void forgive(const coll::Transfer&) override {}

  void start(coll::Operation& op) override;
  coll::Outcome advance() override;
  Error mismatch() const override { return Error(Errc::mismatch, verdict().text()); }
  bool exposed() const override { return !under_way_.empty(); }

  void post(coll::Operation& message, coll::OperationList& done) override { messenger_.post(message, done); }
  bool advance_messages(coll::OperationList& done) override;
  bool owes_answers() const override { return parting_ && !outbox_.empty(); }
  void fail_messages(const Error& error, coll::OperationList& done) override { messenger_.fail(error, done); }

  void check(coll::OperationList& done) override;
  void give_up(const Error& error) override;
  void part() override;
  void leave() override;
  bool keeps_memory() const override { return link_->stuck(); }

  Memory memory_held() const override;
  std::string ahead_of_this(const shm::Peer&) const override { return ""; }

  void watch();
  void check_node();
  void bear(const Error& loss);
  [[noreturn]] void fail_for_loss(const coll::Operation& op) const;
  void meet_inside(coll::Kind kind, Note* from, Note* to);
  void begin_exchange();
  void exchange_notes();
  Note find_verdict() const;
  bool next_phase();
  bool reap(int place);
  bool run_program();
  int place(int stage, std::uint64_t window) const {
    return stage * program_->stages() + static_cast<int>(window % program_->stages());
  }
  int awaited() const;
  void carry_out(const Step& step, std::uint64_t window, int place);
  void carry_out(const Inside& step, std::uint64_t window, int place);
  std::byte* at(const Piece& piece, std::uint64_t window) const;
  void send_news(std::uint64_t kind, const std::string& text);
  void read_news();
  std::chrono::nanoseconds grace(const coll::Operation& op) const;
  int node_after(int distance) const {
    return (node_number_ + m_.partition.nodes() + distance) % m_.partition.nodes();
  }
  [[noreturn]] void time_out(const coll::Operation& op) const;

  bool leads() const { return m_.partition.leader(node_number_) == m_.rank; }
  Note* notes() const { return reinterpret_cast<Note*>(notes_.data()); }
  /// In the notes: this rank's, the verdict, and those of the node.
  Note& own() const { return notes()[0]; }
  Note& verdict() const { return notes()[1]; }
  std::span<Note> of_node() const { return {notes() + 2, static_cast<std::size_t>(node_->size())}; }

  const Membership m_;
  const int node_number_;
  const std::shared_ptr<coll::Group> node_;
  const std::shared_ptr<Link> link_;
  mutable Outbox outbox_;

  // The current collective.
  coll::Operation* op_ = nullptr;
  Phase phase_ = Phase::gather;
  std::unique_ptr<Program> program_;
  std::unique_ptr<Schedule> schedule_;
  std::vector<int> open_;  // steps that have not ended, by stage and place of the window
  UnderWay under_way_;
  Scratch notes_, work_;
  const std::vector<std::vector<Exchange>> exchanges_;
  std::size_t round_ = 0;                          // of them
  std::shared_ptr<std::vector<Note>> of_leaders_;  // by distance of their nodes
  Messenger messenger_;
  RollCall roll_call_;
  Mail mail_;

  // News between leaders.
  struct Report : Parcel<Note> {
    int node = 0;  // whose leader sends it
  };
  std::vector<Report> expected_;  // from the leaders behind this one
  std::string heard_;             // why the group has ended, if another leader has said so
  // A leader that computes looks for trouble of its node now and then, because other nodes may wait for it.
  std::mutex watch_mutex_;
  std::condition_variable watch_wake_;
  bool watch_ends_ = false;
  std::thread watch_;

  std::optional<Error> loss_;              // a rank has left, or has died: no collective can begin any more
  Deadline patience_ = Deadline::never();  // for the one that had begun before, and may not need that rank
  bool parting_ = false;                   // this rank calls nothing any more
  bool silent_ = false;                    // this rank has left or given up
};

}  // namespace occl::hosts
