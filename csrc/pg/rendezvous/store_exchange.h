// The exchange between the ranks of one group through its store, before they share anything else. They first
// find their round (pg/rendezvous/attempt.h). Then each kind of thing has a key for each rank. Every wait
// ends at the deadline of the group's creation, and every error names this rank and those it waits for.
//
// Up to kSpread ranks each rank reads the keys of all others. In a larger group the keys pass up a tree:
// every kSpread-th rank puts what kSpread neighbours have put into one key, every kSpread^2-th rank does the
// same with these keys, and so on, until rank 0 has one key of everything, which all ranks read. So the calls
// of a rank grow with the logarithm of the size.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <exception>
#include <memory>
#include <optional>
#include <string>
#include <system_error>
#include <type_traits>
#include <utility>
#include <vector>

#include <c10/util/Exception.h>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "base/error.h"
#include "base/sync.h"
#include "pg/process/python_hooks.h"
#include "pg/rendezvous/attempt.h"
#include "pg/rendezvous/node_discovery.h"
#include "pg/rendezvous/store_client.h"

namespace occl::pg {

/// Extra wait after the group's timeout, for a rank that is about to say why it failed.
inline constexpr std::chrono::milliseconds kStoreGrace{1500};
inline constexpr int kSpread = 8;

class Board {
 public:
  Board(const c10::intrusive_ptr<c10d::Store>& store, std::string name, int rank, int size,
        Deadline deadline);
  ~Board();
  Board(const Board&) = delete;
  Board& operator=(const Board&) = delete;

  /// From now on errors name these processes ("pid 4711, host a"), and the rank that runs the store's server.
  void introduce(std::vector<std::string> processes, std::optional<int> store_host);
  const std::vector<std::string>& processes() const { return processes_; }
  /// "rank 3 (pid 4711, host a)", or without the process where that is not known.
  std::string describe(int rank) const;

  /// What all ranks have given, by rank; a collective call of all ranks, and the first one. Throws
  /// Error(timeout) naming the ranks that have not come, Error(aborted) with the reason of one that cannot
  /// take part, and Error(protocol) where two processes contradict each other.
  std::vector<Bytes> meet(const Bytes& own);
  /// In its place: tells the other ranks why this one cannot take part. They learn nothing if the store fails
  /// too.
  void refuse(const std::exception& error) noexcept;

  void put(const std::string& kind, const Bytes& bytes) { set(key(kind, rank_), bytes); }
  /// Tells the ranks that read this kind why there is nothing. They learn nothing if the store fails too.
  void put_failure(const std::string& kind, const std::exception& error) noexcept;

  /// What all ranks have put, by rank; a collective call of all ranks. Throws Error(timeout) naming the ranks
  /// that have put nothing, and Error(aborted) with the reason of one that failed.
  std::vector<Bytes> read(const std::string& kind, std::chrono::milliseconds grace = {});
  /// Throws Error(aborted) with the reason if a rank has failed.
  void check_failure();

  /// A key without a value that any rank may put, and whether one has.
  void put_for_all(const std::string& kind) { set(prefix(kind), {}); }
  bool has(const std::string& kind);

  /// The last call: this rank asks the store for nothing more. The rank whose process serves the store
  /// returns when all others have come here too, so that its program may end at once, or after kStoreGrace.
  void leave_store();

  std::string prefix(const std::string& kind) const { return concat("occl/", round_, "/", kind); }

  /// Throws Error(protocol) unless all ranks have the same text. `what`: "has", `remedy`: "install ...".
  void compare(const std::vector<std::string>& texts, const char* what, const char* remedy) const;

 private:
  /// The key with the bytes of `width` ranks from this one on.
  std::string key(const std::string& kind, int rank, int width = 1) const {
    return width == 1 ? concat(prefix(kind), "/", rank) : concat(prefix(kind), "/", width, "/", rank);
  }
  /// The most ranks whose bytes this rank puts into one key.
  int width_of(int rank) const;
  void set(const std::string& key, const Bytes& bytes);
  void set_failed(const std::string& kind, const std::string& why);
  Attempt attempt(Bytes given) const {
    return {rank_, size_, name_, processes_[rank_], std::move(given), pid_namespace()};
  }
  /// This rank's reason as the other ranks raise it.
  std::string reason(const std::exception& error) const;
  [[noreturn]] void fail_waiting(const std::string& missing) const;
  /// What each key has; nothing where a key does not come in time. Throws Error(aborted) with the reason of a
  /// rank that failed.
  std::vector<std::optional<Bytes>> take(const std::vector<std::string>& keys,
                                         std::chrono::milliseconds grace);
  std::vector<Bytes> read_each(const std::string& kind, std::chrono::milliseconds grace);
  std::optional<std::vector<Bytes>> read_tree(const std::string& kind, std::chrono::milliseconds grace);

  /// Calls the store, whose errors name no rank. `patience`: how long the call itself may wait beyond the
  /// deadline.
  template <class F>
  std::invoke_result_t<F, c10d::Store&> in_store(F call, std::chrono::milliseconds patience = {}) try {
    const auto left = std::max<std::chrono::nanoseconds>(deadline_.left(deadline_.span()), kStoreGrace);
    return store_.run(std::move(call), Deadline::after(left + patience), interrupt_check());
  } catch (const Error& error) {
    lost_store(error.what());
  } catch (const c10::Error& error) {
    lost_store(error.what_without_backtrace());
  } catch (const std::system_error& error) {
    lost_store(error.what());
  }
  [[noreturn]] void lost_store(const std::string& why) const;

  StoreThread store_;
  const std::string name_;
  const int rank_, size_;
  const Deadline deadline_;
  std::vector<std::string> processes_;  // by rank; empty where it is not known
  std::optional<int> store_host_;
  std::uint64_t round_ = 0;
  const std::shared_ptr<Atomic<bool>> ended_;  // no call waits for a key any more; relaxed: it may end late
};

}  // namespace occl::pg
