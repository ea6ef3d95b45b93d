#include "coll/group/subgroup.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "base/error.h"
#include "base/hash.h"
#include "base/limits.h"
#include "coll/group/turn.h"

namespace occl::coll {
namespace {

using Purpose = Subgroup::Purpose;

/// Shows this rank's offer while an attempt lasts, and afterwards only its last failure.
class Showing {
 public:
  Showing(Group& parent, const Offer& offer) : parent_(parent), offer_(offer) { show(); }
  ~Showing() {
    offer_ = {};
    offer_.failure = parent_.subgroup_state().failure;
    show();
  }
  Showing(const Showing&) = delete;
  Showing& operator=(const Showing&) = delete;

  std::uint64_t agreed() const { return offer_.agreed; }
  void agree(std::uint64_t which) {
    offer_.agreed = which;
    show();
  }

 private:
  void show() const {
    parent_.mesh().own().offers().show(offer_);
    parent_.mesh().bells().ring_all();
  }

  Group& parent_;
  Offer offer_;
};

/// One attempt of this rank to meet the others. A rank may give up and begin again after others have seen its
/// offer. So all ranks first show which offers they have seen, and proceed when all have seen the same ones.
class Attempt {
 public:
  Attempt(Group& parent, const Subgroup& wanted, Showing& showing)
      : memory_(parent.subgroup_state()),
        mesh_(parent.mesh()),
        wanted_(wanted),
        showing_(showing),
        found_(wanted.ranks.size()) {
    memory_.failures.resize(mesh_.size());
  }

  /// Reads the offers on the ranks' boards. True if all ranks have agreed on one offer of each.
  bool look() {
    for (std::size_t i = 0; i < wanted_.ranks.size(); ++i) look_at(i);
    const bool all = std::all_of(found_.begin(), found_.end(), [](const auto& it) { return it.has_value(); });
    if (!all && dispute_.passed()) fail(Errc::mismatch, disputed_);
    const std::uint64_t seen = all ? which() : 0;
    if (seen != showing_.agreed()) {
      showing_.agree(seen);
      return look();  // this rank's own offer has changed
    }
    return all && std::all_of(found_.begin(), found_.end(),
                              [&](const auto& it) { return it->offer.agreed == seen; });
  }

  /// The invitations that the ranks agreed on, in the new group's order.
  std::vector<Invitation> invitations() const {
    std::vector<Invitation> all;
    for (const auto& it : found_) all.push_back(it->offer.invitation);
    return all;
  }

  /// "rank 1 (pid 4711, host a), rank 3 (...)": ranks of the parent that have not come or not agreed.
  std::string missing() const {
    std::string text;
    for (std::size_t i = 0; i < wanted_.ranks.size(); ++i)
      if (!found_[i] || found_[i]->offer.agreed == 0 || found_[i]->offer.agreed != showing_.agreed())
        if (wanted_.ranks[i] != mesh_.rank()) enlist(text, mesh_.describe(wanted_.ranks[i]));
    return text;
  }

 private:
  void look_at(std::size_t i) {
    const int rank = wanted_.ranks[i];
    const Member& member = mesh_.member(rank);
    // Read before the board, because an offer counts that a rank showed before it exited or left.
    const bool exited = member.peer->exited(), left = member.left();
    const OfferBoard& board = member.block.offers();
    if (exited) fail_for_the_dead();
    if (found_[i] && board.number() == found_[i]->number) return;
    found_[i].reset();  // that attempt has ended
    auto shown = board.look();
    if (shown) {
      check(rank, shown->offer);
      fail_with_peer(rank, shown->offer.failure);
    }
    if (!shown || shown->offer.ranks.size == 0) {
      if (left) fail_for_the_leaver(rank, shown);
    } else if (shown->offer.ranks.is(wanted_.all())) {
      found_[i] = shown;
      if (rank == disputing_) disputed_.clear(), dispute_ = Deadline::never();  // it has changed its mind
    } else {
      note_dispute(rank, shown->offer.ranks);
    }
  }

  /// A number for the offers that were found, never 0: a hash of their random incarnations.
  std::uint64_t which() const {
    std::uint64_t hash = kHashStart;
    for (const auto& it : found_) hash = hashed(hash, it->offer.invitation.incarnation);
    return hash | 1;
  }

  /// Names all dead ranks, because the death of one can have caused that of another.
  [[noreturn]] void fail_for_the_dead() const {
    std::string dead;
    for (const int rank : wanted_.ranks)
      if (mesh_.member(rank).peer->has_exited()) enlist(dead, mesh_.describe(rank));
    fail(Errc::peer_exited, dead, " of group ", mesh_.name(), " exited while rank ", this_rank(),
         " tried to ", goal(mesh_.name(), wanted_));
  }

  /// The rank can have left because of a death that this rank does not know of, even of a rank that has no
  /// part in the new group, or because its own attempt failed.
  [[noreturn]] void fail_for_the_leaver(int rank, const std::optional<OfferBoard::Shown>& shown) const {
    for (const int other : wanted_.ranks)
      if (mesh_.member(other).peer->has_exited()) fail_for_the_dead();
    if (const Member& leaver = mesh_.member(rank); leaver.aborted()) {
      const auto& why = leaver.block.header().reason;
      fail(Errc::aborted, mesh_.describe(rank), " ended group ", mesh_.name(), " while rank ", this_rank(),
           " tried to ", goal(mesh_.name(), wanted_), ": ", printable(why.data(), why.size()));
    }
    const bool told = shown && shown->offer.failure.ranks.is(wanted_.all());
    const auto& reason = shown ? shown->offer.failure.reason : Offer::Failure{}.reason;
    fail(Errc::peer_left, mesh_.describe(rank), " left group ", mesh_.name(), " while rank ", this_rank(),
         " tried to ", goal(mesh_.name(), wanted_), told ? ". Its own attempt failed: " : "",
         told ? printable(reason.data(), reason.size()) : "", mesh_.exited_ranks(rank));
  }

  void check(int rank, const Offer& offer) const {
    const int size = wanted_.whole.empty() ? mesh_.size() : kMaxRanks;
    const auto within = [&](int it) { return it < size; };
    for (const RankList* list : {&offer.ranks, &offer.failure.ranks})
      if (list->size > list->ranks.size() || !std::all_of(list->begin(), list->end(), within))
        fail(Errc::protocol, mesh_.describe(rank), " shows a list of ranks that group ", mesh_.name(), " of ",
             mesh_.size(), " ranks cannot have");
  }

  /// Fails once for each failure of another rank, because that rank can have begun a new attempt since.
  void fail_with_peer(int rank, const Offer::Failure& failure) {
    if (failure.number == memory_.failures[rank] || !failure.ranks.is(wanted_.all())) return;
    memory_.failures[rank] = failure.number;
    if (rank == mesh_.rank()) return;
    fail(Errc::aborted, mesh_.describe(rank), " could not take part in group ", wanted_.name, ": ",
         printable(failure.reason.data(), failure.reason.size()));
  }

  /// `rank` wants another group. It can come to this one later, unless it waits for this rank there.
  void note_dispute(int rank, const RankList& ranks) {
    const bool waits_for_this = wanted_.purpose == Purpose::shrink || ranks.has(this_rank());
    if (!waits_for_this || !disputed_.empty()) return;
    for (int other = 0; other < mesh_.size(); ++other)
      if (ranks.has(mesh_.shown(other)) && mesh_.member(other).peer->exited()) return;
    const Subgroup other{{ranks.begin(), ranks.end()}, "?", wanted_.purpose};
    disputed_ =
        contradiction(mesh_.name(), mesh_.describe(rank), other, concat("rank ", this_rank()), wanted_);
    disputing_ = rank;
    dispute_ = Deadline::after(kDispute);
  }

  /// The number of this rank in messages and offers.
  int this_rank() const { return mesh_.shown_rank(); }

  Group::SubgroupState& memory_;
  const Mesh& mesh_;
  const Subgroup& wanted_;
  Showing& showing_;
  std::vector<std::optional<OfferBoard::Shown>> found_;
  std::string disputed_;  // how a rank contradicted this one: the error if the dispute lasts
  int disputing_ = -1;
  Deadline dispute_ = Deadline::never();
};

}  // namespace

std::string goal(const std::string& parent, const Subgroup& wanted) {
  std::string ranks;
  for (const int rank : wanted.all()) enlist(ranks, rank);
  return wanted.purpose == Purpose::shrink
             ? concat("shrink group ", parent, " to ranks ", ranks)
             : concat("create group ", wanted.name, " of ranks ", ranks, " of group ", parent);
}

void fail_waiting(const std::string& parent, int rank, const std::string& missing, const Subgroup& wanted,
                  Deadline deadline) {
  fail(Errc::timeout, "occl: Timed out after ", deadline.span().count(), " ms on rank ", rank, " of group ",
       parent, " waiting for ", missing, " to ", goal(parent, wanted));
}

std::string contradiction(const std::string& parent, const std::string& other, const Subgroup& theirs,
                          const std::string& rank, const Subgroup& wanted) {
  return concat(other, " wants to ", goal(parent, theirs), " where ", rank, " wants to ",
                goal(parent, wanted),
                ": all ranks must make their common groups in the same order and with the same ranks");
}

std::shared_ptr<Group> make_subgroup(Group& parent, const Subgroup& wanted,
                                     const std::function<Tuning()>& tuning, Deadline deadline,
                                     const std::function<void()>& interrupted) {
  Engine& engine = parent.engine();
  const Mesh& mesh = parent.mesh();
  const int this_rank = mesh.shown_rank();
  const Turn turn(parent, this_rank, parent.subgroup_state().busy, deadline, interrupted);
  Offer::Failure& failure = parent.subgroup_state().failure;
  const auto at = std::find(wanted.ranks.begin(), wanted.ranks.end(), mesh.rank());
  Offer offer;
  offer.failure = failure;
  std::unique_ptr<Mesh> made;
  try {
    made = std::make_unique<Mesh>(engine.endpoint(), wanted.name, static_cast<int>(at - wanted.ranks.begin()),
                                  static_cast<int>(wanted.ranks.size()), tuning());
  } catch (const Error& error) {
    ++failure.number;
    failure.set(wanted.all(), error.what());
    offer.failure = failure;
    const Showing showing(parent, offer);  // the others need not wait
    throw;
  }
  offer.invitation = made->invitation();
  offer.ranks = RankList(wanted.all());
  Showing showing(parent, offer);
  Attempt attempt(parent, wanted, showing);
  try {
    if (!engine.wait_until([&] { return attempt.look(); }, deadline, interrupted))
      fail_waiting(mesh.name(), this_rank, attempt.missing(), wanted, deadline);
  } catch (const Error& error) {
    failure.set(wanted.all(), error.what());  // for ranks that see this one leave
    throw;
  }
  std::vector<std::shared_ptr<shm::Peer>> peers;
  for (const int rank : wanted.ranks) peers.push_back(mesh.member(rank).peer);
  made->join(attempt.invitations(), std::move(peers));
  if (!wanted.whole.empty()) {
    std::vector<int> shown;
    for (const int rank : wanted.ranks)
      shown.push_back(static_cast<int>(std::find(wanted.whole.begin(), wanted.whole.end(), mesh.shown(rank)) -
                                       wanted.whole.begin()));
    made->show_ranks(std::move(shown));
  }
  // When this returns, every rank has joined and none needs the offer any more.
  return Group::open(engine, std::move(made), deadline, interrupted);
}

std::shared_ptr<Communicator> Group::make_subgroup(const Subgroup& wanted,
                                                   const std::function<Tuning()>& tuning, Deadline deadline,
                                                   const std::function<void()>& interrupted) {
  return coll::make_subgroup(*this, wanted, tuning, deadline, interrupted);
}

}  // namespace occl::coll
