#include "coll/shrink.h"

#include <algorithm>

#include "base/error.h"
#include "coll/rank_set.h"

namespace occl::coll {
namespace {

/// What a rank shows in its control region while and after it shrinks. Written once, at a place of its own,
/// before its offset is published: whoever finds it reads it in peace.
struct Offer {
  Invitation invitation;
  RankSet survivors{};
};

std::string list_of(const RankSet& set) {
  std::string text;
  for (const int rank : ranks_of(set, kMaxRanks)) enlist(text, rank);
  return text;
}

// One of two ranks that make different choices may not know yet of a death that the other knows of: it will
// give its choice up. Otherwise they disagree.
constexpr std::chrono::seconds kDispute{1};

bool keeps_dead(const Mesh& mesh, const Offer& offer) {
  for (int i = 0; i < mesh.size(); ++i)
    if (contains(offer.survivors, i) && mesh.member(i).peer->exited()) return true;
  return false;
}

/// This rank's offer. Withdrawn if it comes to nothing, so that another attempt may follow.
class Published {
 public:
  Published(const Mesh& mesh, const Offer& offer) : mesh_(mesh) {
    auto& arena = mesh.endpoint().arena();
    const std::uint64_t offset = arena.keep(sizeof(Offer));
    new (arena.at(offset)) Offer(offer);
    show(offset);
  }
  ~Published() {
    if (!accepted_) show(0);
  }
  Published(const Published&) = delete;
  Published& operator=(const Published&) = delete;

  void accept() { accepted_ = true; }

 private:
  void show(std::uint64_t offset) const {
    mesh_.own().header().offer.store(offset, std::memory_order_seq_cst);  // pairs with offer_of, and sleepers
    mesh_.ring_all();
  }
  const Mesh& mesh_;
  bool accepted_ = false;
};

/// What a member shows, or null. Its control region is mapped for as long as we hold the peer.
const Offer* offer_of(const Member& member) {
  const std::uint64_t offset = member.block.header().offer.load(std::memory_order_seq_cst);
  if (!offset) return nullptr;
  if (offset % kLine != 0) fail(Errc::protocol, member.peer->describe(), " shows a misaligned offer");
  return reinterpret_cast<const Offer*>(member.peer->control(offset, sizeof(Offer)));
}

}  // namespace

std::shared_ptr<Group> shrink(const Group& old, const std::vector<int>& survivors, const std::string& name,
                              Deadline deadline, const std::function<void()>& interrupted) {
  Engine& engine = old.engine();
  const Mesh& mesh = old.mesh();
  const auto at = std::find(survivors.begin(), survivors.end(), mesh.rank());
  auto smaller = std::make_unique<Mesh>(engine.endpoint(), name, static_cast<int>(at - survivors.begin()),
                                        static_cast<int>(survivors.size()), mesh.tuning());
  const auto kept = set_of(survivors);
  Published published(mesh, Offer{smaller->invitation(), kept});

  std::vector<const Offer*> offers;
  std::string disputed;
  Deadline dispute = Deadline::never();
  const auto all_there = [&] {
    offers.clear();
    for (const int rank : survivors) {
      const Member& member = mesh.member(rank);
      // In this order: what a rank showed before it went counts.
      const bool exited = member.peer->exited();
      const bool left = member.left();
      const Offer* offer = offer_of(member);
      if (exited)
        fail(Errc::peer_exited, mesh.describe(rank), " exited while group ", mesh.name(),
             " was shrunk to ranks ", list_of(kept));
      if (!offer && left)
        fail(Errc::peer_left, mesh.describe(rank), " left group ", mesh.name(), " instead of shrinking it");
      if (offer && offer->survivors == kept)
        offers.push_back(offer);
      else if (offer && !keeps_dead(mesh, *offer) && disputed.empty())
        disputed = concat(mesh.describe(rank), " shrinks group ", mesh.name(), " to ranks ",
                          list_of(offer->survivors), " where rank ", mesh.rank(), " shrinks it to ranks ",
                          list_of(kept)),
        dispute = Deadline::after(kDispute);
    }
    if (!disputed.empty() && dispute.passed() && offers.size() < survivors.size())
      fail(Errc::mismatch, disputed);
    return offers.size() == survivors.size();
  };
  if (!engine.wait_until(all_there, deadline, interrupted)) {
    std::string missing;
    for (const int rank : survivors)
      if (const Offer* offer = offer_of(mesh.member(rank)); !offer || offer->survivors != kept)
        enlist(missing, mesh.describe(rank));
    fail(Errc::timeout, "occl: Timed out shrinking group ", mesh.name(), " to ranks ", list_of(kept),
         " on rank ", mesh.rank(), ": ", missing, " did not call shrink");
  }
  std::vector<Invitation> invitations;
  std::vector<std::shared_ptr<shm::Peer>> peers;
  for (std::size_t i = 0; i < survivors.size(); ++i) {
    invitations.push_back(offers[i]->invitation);
    peers.push_back(mesh.member(survivors[i]).peer);
  }
  smaller->join(invitations, std::move(peers));
  published.accept();
  return Group::open(engine, std::move(smaller), deadline, interrupted);
}

}  // namespace occl::coll
