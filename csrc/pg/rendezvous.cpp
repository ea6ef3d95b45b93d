#include "pg/rendezvous.h"

#include <algorithm>
#include <cstring>
#include <string_view>
#include <thread>

#include "base/error.h"
#include "coll/engine.h"
#include "pg/runtime.h"
#include "pg/store_server.h"

namespace occl::pg {
namespace {

// Polling interval. Store::wait is of no use: it notices no interrupt, and two clients of a TCPStore whose
// waits time out at the same moment can both hang for seconds.
constexpr std::chrono::microseconds kFirstNap{100}, kLongestNap{50'000};

std::string key_of(int size, int64_t round, int rank) { return concat("occl/", size, "/", round, "/", rank); }

/// Returns false if a key is still missing after `timeout`.
bool wait_for(c10d::Store& store, const std::vector<std::string>& keys, std::chrono::milliseconds timeout) {
  const Deadline deadline = Deadline::after(timeout);
  std::chrono::nanoseconds nap = kFirstNap;
  for (const std::string& key : keys)
    while (!store.check({key})) {
      if (deadline.passed()) return false;
      interrupt_check()();
      std::this_thread::sleep_for(deadline.left(nap));
      nap = std::min<std::chrono::nanoseconds>(nap * 3 / 2, kLongestNap);
    }
  return true;
}

/// Begins the reason that a rank stores in place of an invitation that it could not make.
constexpr std::string_view kFailed = "failed: ";

std::vector<uint8_t> to_bytes(const coll::Invitation& invitation) {
  std::vector<uint8_t> bytes(sizeof(invitation));
  std::memcpy(bytes.data(), &invitation, sizeof(invitation));
  return bytes;
}

coll::Invitation from_bytes(const std::vector<uint8_t>& bytes, int rank, const std::string& name) {
  coll::Invitation invitation;
  if (const std::string_view text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
      text.starts_with(kFailed))
    fail(Errc::aborted, "rank ", rank, " could not take part in group ", name, ": ",
         text.substr(kFailed.size()));
  if (bytes.size() != sizeof(invitation))
    fail(Errc::protocol, "rank ", rank, " of group ", name, " put ", bytes.size(),
         " bytes into the store where ", sizeof(invitation),
         " are expected: use the same torch_occl on all ranks");
  std::memcpy(&invitation, bytes.data(), sizeof(invitation));
  return invitation;
}
static_assert(std::is_trivially_copyable_v<coll::Invitation>);

/// The invitations of all ranks, in rank order.
std::vector<coll::Invitation> read_all(c10d::Store& store, const std::string& name, int64_t round, int rank,
                                       int size, std::chrono::milliseconds timeout) {
  std::vector<std::string> keys;
  for (int i = 0; i < size; ++i) keys.push_back(key_of(size, round, i));
  if (!wait_for(store, keys, timeout)) {
    std::string missing;
    for (int i = 0; i < size; ++i)
      if (!store.check({keys[i]})) enlist(missing, i);
    if (!missing.empty())
      fail(Errc::timeout, "occl: Timed out after ", timeout.count(), " ms on rank ", rank, " of group ", name,
           " waiting for rank(s) ", missing, " of ", size, " to create the group");
  }
  std::vector<coll::Invitation> invitations;
  for (int i = 0; i < size; ++i) invitations.push_back(from_bytes(store.get(keys[i]), i, name));
  return invitations;
}

}  // namespace

Met rendezvous(c10d::Store& store, const std::string& name, int rank, int size,
               const std::function<Tuning()>& tuning, std::chrono::milliseconds timeout) {
  if (size < 1 || size > kMaxRanks || rank < 0 || rank >= size)
    fail(Errc::invalid_argument, "cannot create group ", name, " as rank ", rank, " of ", size,
         ": 0 <= rank < size <= ", kMaxRanks, " is needed");
  const auto make_mesh = [&] {
    return std::make_unique<coll::Mesh>(engine().endpoint(), name, rank, size, tuning());
  };
  std::unique_ptr<coll::Mesh> mesh;
  std::optional<int> store_host;
  if (size == 1) {
    mesh = make_mesh();
    mesh->join({mesh->invitation()}, Deadline::after(timeout));
  } else {
    // One store can serve one name several times (init, destroy, init; or fewer ranks after a shrink, when
    // PyTorch counts names from the start again), so each round of `size` ranks has keys of its own.
    const int64_t round = (store.add(concat("occl/", size, "/joined"), 1) - 1) / size;
    const std::string key = key_of(size, round, rank);
    try {
      mesh = make_mesh();
    } catch (const Error& error) {
      const std::string text = concat(kFailed, error.what());
      store.set(key, std::vector<uint8_t>(text.begin(), text.end()));  // the others need not wait
      throw;
    }
    coll::Invitation invitation = mesh->invitation();
    invitation.hosts_store = hosts_server(store);
    store.set(key, to_bytes(invitation));
    const auto invitations = read_all(store, name, round, rank, size, timeout);
    for (const coll::Invitation& it : invitations)
      if (it.hosts_store) store_host = it.rank;
    mesh->join(invitations, Deadline::after(timeout));
  }
  // From here on the group itself notices a rank that dies.
  return {coll::Group::open(engine(), std::move(mesh), Deadline::after(timeout), interrupt_check()),
          store_host};
}

}  // namespace occl::pg
