#include "coll/messages/misfit.h"

namespace occl::coll {

Error misfit(const Mesh& mesh, int sender, int receiver, const Envelope& nack) {
  return {Errc::mismatch,
          misfit_text(mesh.shown(sender), mesh.shown(receiver), static_cast<DType>(nack.dtype), nack.count,
                      nack.tag, static_cast<DType>(nack.other.dtype), nack.other.count,
                      nack.order != nack.other.order, mesh.name())};
}

std::string misfit_text(int sender, int receiver, DType sent, std::uint64_t count, std::uint32_t tag,
                        DType expected, std::uint64_t expected_count, bool orders_differ,
                        const std::string& group) {
  return concat("rank ", sender, " sent ", name_of(sent), "[", count, "] with tag ", tag, " where rank ",
                receiver, " called recv(", name_of(expected), "[", expected_count, "]) in group ", group,
                orders_differ ? ": their dimensions are in different orders in memory" : "");
}

}  // namespace occl::coll
