#include "pg/rendezvous.h"

#include <cstring>

#include "base/error.h"
#include "coll/engine.h"
#include "pg/runtime.h"

namespace occl::pg {
namespace {

std::string key_of(int64_t round, int rank) { return concat("occl/", round, "/", rank); }

std::vector<uint8_t> to_bytes(const coll::Invitation& invitation) {
  std::vector<uint8_t> bytes(sizeof(invitation));
  std::memcpy(bytes.data(), &invitation, sizeof(invitation));
  return bytes;
}

coll::Invitation from_bytes(const std::vector<uint8_t>& bytes, int rank, const std::string& name) {
  coll::Invitation invitation;
  if (bytes.size() != sizeof(invitation))
    fail(Errc::protocol, "rank ", rank, " of group ", name, " put ", bytes.size(),
         " bytes into the store where ", sizeof(invitation),
         " are expected: use the same torch_occl on all ranks");
  std::memcpy(&invitation, bytes.data(), sizeof(invitation));
  return invitation;
}
static_assert(std::is_trivially_copyable_v<coll::Invitation>);

/// What the other ranks put into the store, in rank order.
std::vector<coll::Invitation> read_all(c10d::Store& store, const std::string& name, int64_t round, int rank,
                                       int size, std::chrono::milliseconds timeout) {
  std::vector<std::string> keys;
  for (int i = 0; i < size; ++i) keys.push_back(key_of(round, i));
  try {
    store.wait(keys, timeout);
  } catch (const std::exception& error) {
    std::string missing;
    for (int i = 0; i < size; ++i)
      if (!store.check({keys[i]})) missing += concat(missing.empty() ? "" : ", ", i);
    if (missing.empty()) throw;
    const auto* traced = dynamic_cast<const c10::Error*>(&error);  // its what() is a page of stack
    const std::string said = traced ? traced->what_without_backtrace() : error.what();
    fail(Errc::timeout, "occl: Timed out after ", timeout.count(), " ms on rank ", rank, " of group ", name,
         " waiting for rank(s) ", missing, " of ", size, " to create the group (the store said: ", said, ")");
  }
  std::vector<coll::Invitation> invitations;
  for (int i = 0; i < size; ++i) invitations.push_back(from_bytes(store.get(keys[i]), i, name));
  return invitations;
}

}  // namespace

std::shared_ptr<coll::Group> rendezvous(c10d::Store& store, const std::string& name, int rank, int size,
                                        std::chrono::milliseconds timeout) {
  if (size < 1 || size > kMaxRanks || rank < 0 || rank >= size)
    fail(Errc::invalid_argument, "cannot create group ", name, " as rank ", rank, " of ", size,
         ": 0 <= rank < size <= ", kMaxRanks, " is needed");
  auto mesh = std::make_unique<coll::Mesh>(engine().endpoint(), name, rank, size, tuning_from_environment());
  const auto invitation = mesh->invitation();
  if (size == 1) {
    mesh->join({invitation}, Deadline::after(timeout));
  } else {
    // The same store may be used for the same group again and again (init, destroy, init): each round of
    // `size` ranks has keys of its own.
    const int64_t round = (store.add("occl/joined", 1) - 1) / size;
    store.set(key_of(round, rank), to_bytes(invitation));
    mesh->join(read_all(store, name, round, rank, size, timeout), Deadline::after(timeout));
  }
  auto group = std::make_shared<coll::Group>(engine(), std::move(mesh));
  engine().add(group);
  return group;
}

}  // namespace occl::pg
