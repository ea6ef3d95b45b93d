// Ranks as threads: each has its own endpoint and engine, and sees the others' memory at the same addresses,
// so that ThreadSanitizer checks the protocol itself.
#pragma once

#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "coll/group/group.h"
#include "coll/progress/engine.h"

namespace occl::test {

/// An operation that a thread waits for.
class Call : public coll::Listener {
 public:
  virtual ~Call() = default;
  Call(const coll::Task& task, Deadline deadline) : task(task), operation(*this, this->task, deadline) {}
  void completed(coll::Operation&) noexcept override { ++completions; }
  void released(coll::Operation&) noexcept override { ++releases; }

  const coll::Task task;
  coll::Operation operation;
  Atomic<int> completions = 0, releases = 0;
};

struct Rank {
  int rank = 0, size = 0;
  int number = 0;                             // of its process, whatever its rank in a group is
  std::chrono::milliseconds patience{60000};  // of operations that name no deadline
  std::shared_ptr<shm::RegionTable> regions;
  std::shared_ptr<shm::Endpoint> endpoint;
  std::unique_ptr<coll::Engine> engine;
  coll::Engine* engine_of_another = nullptr;  // where two groups of one process share one
  std::shared_ptr<coll::Group> group;
  std::shared_ptr<coll::Communicator> wide;  // used in place of the group, if there is one

  coll::Engine& any_engine() const { return engine ? *engine : *engine_of_another; }
  coll::Communicator& communicator() const { return wide ? *wide : *group; }
  std::shared_ptr<coll::Communicator> shared_communicator() const {
    return wide ? wide : std::static_pointer_cast<coll::Communicator>(group);
  }
  void submit(Call& call) { any_engine().submit(communicator(), call.operation); }
  /// Returns when the call may be destroyed. Throws the operation's error; then it may still be in use.
  void wait(Call& call) {
    if (!any_engine().wait(communicator(), call.operation, Deadline::after(std::chrono::seconds(60)), {}))
      throw std::runtime_error("the operation did not end: " + call.operation.describe());
    while (!call.completions) std::this_thread::yield();
    if (call.operation.error()) throw *call.operation.error();
    while (!call.releases) std::this_thread::yield();
  }
  template <class What>
  void run(const What& what) {
    run(what, Deadline::after(patience));
  }
  template <class What>
  void run(const What& what, Deadline deadline) {
    calls.push_back(std::make_unique<Call>(what, deadline));
    submit(*calls.back());
    wait(*calls.back());
    calls.pop_back();
  }
  /// After the group was closed: destroys the calls that ended with an error. Another thread may be about to
  /// release them.
  void forget_calls() {
    for (const auto& call : calls)
      while (!call->releases) std::this_thread::yield();
    calls.clear();
    windows.clear();
  }

  // Those that ended with an error live as long as the group, and so do their windows.
  std::vector<std::unique_ptr<Call>> calls;
  std::vector<std::shared_ptr<coll::Window>> windows;
};

class Cluster {
 public:
  /// `domains`: by rank, as OCCL_TOPOLOGY would say; none: as the machine says. `shown`: Mesh::show_ranks.
  explicit Cluster(int size, Tuning tuning = {}, const std::vector<std::int64_t>& domains = {},
                   const std::vector<int>& shown = {})
      : ranks_(size) {
    std::vector<std::unique_ptr<coll::Mesh>> meshes;
    std::vector<coll::Invitation> invitations;
    for (int i = 0; i < size; ++i) {
      Rank& r = ranks_[i];
      r.rank = i;
      r.size = size;
      r.regions = std::make_shared<shm::RegionTable>();
      r.endpoint =
          std::make_shared<shm::Endpoint>(r.regions, shm::Endpoint::Config{std::size_t{256} << 20, 0});
      r.engine = std::make_unique<coll::Engine>(r.endpoint);
      meshes.push_back(std::make_unique<coll::Mesh>(r.endpoint, "test", i, size, tuning));
      meshes.back()->show_ranks(shown);
      invitations.push_back(meshes.back()->invitation());
      if (!domains.empty()) invitations.back().domain = domains[i];
    }
    for (int i = 0; i < size; ++i) {
      std::vector<std::shared_ptr<shm::Peer>> peers;
      for (auto& other : ranks_) peers.push_back(other.endpoint->as_local_peer());
      meshes[i]->join(invitations, std::move(peers));
      ranks_[i].group = std::make_shared<coll::Group>(*ranks_[i].engine, std::move(meshes[i]));
      ranks_[i].engine->add(ranks_[i].group);
    }
  }
  ~Cluster() {
    for (auto& r : ranks_) r.group->close();
    // Local peers point into each other's memory: first all groups, then all engines, then the memory.
    for (auto& r : ranks_) r.group.reset();
    for (auto& r : ranks_) r.engine.reset();
  }

  Rank& operator[](int i) { return ranks_[i]; }
  int size() const { return static_cast<int>(ranks_.size()); }

  /// Runs `body` on every rank at once. The first exception is thrown again.
  void each(const std::function<void(Rank&)>& body) {
    std::vector<Thread> threads;
    Mutex mutex;
    std::exception_ptr error;
    for (auto& r : ranks_)
      threads.emplace_back([&] {
        try {
          body(r);
        } catch (...) {
          {
            std::lock_guard lock(mutex);
            if (!error) error = std::current_exception();
          }
          r.group->abort("its thread failed");
        }
      });
    for (auto& thread : threads) thread.join();
    if (error) std::rethrow_exception(error);
  }

 private:
  std::vector<Rank> ranks_;
};

inline coll::Collective all_reduce(std::int64_t* data, std::size_t count) {
  coll::Collective c;
  c.kind = coll::Kind::all_reduce, c.dtype = DType::i64, c.op = ReduceOp::sum;
  c.in = c.out = {reinterpret_cast<std::byte*>(data), count, 1, nullptr};
  c.largest = c.volume = count;
  return c;
}

/// What `body` throws; fails if it throws nothing.
inline Error error_of(const std::function<void()>& body) {
  try {
    body();
  } catch (const Error& error) {
    return error;
  }
  throw std::runtime_error("expected an error, there was none");
}

inline bool contains(const Error& error, const std::string& text) {
  return std::string(error.what()).find(text) != std::string::npos;
}

}  // namespace occl::test
