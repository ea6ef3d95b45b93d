#include "hosts/in_flight.h"

#include <utility>

namespace occl::hosts {

InFlight::NodeOperation::NodeOperation(const coll::Task& given, std::vector<coll::Block> in,
                                       std::vector<coll::Block> out, Deadline deadline)
    : in(std::move(in)), out(std::move(out)), task(given), operation(*this, task, deadline) {
  if (auto* c = std::get_if<coll::Collective>(&task)) {
    if (c->in.n > 1) c->in.list = this->in.data();
    if (c->out.n > 1) c->out.list = this->out.data();
  }
}

void InFlight::add(coll::Group& node, std::unique_ptr<NodeOperation> node_operation, int place,
                   const coll::Operation& whole) {
  node_operation->operation.make_part_of(whole);
  items_.push_back({std::move(node_operation), nullptr, -1, place});
  node.submit(items_.back().node_operation->operation);
}

void InFlight::add(std::unique_ptr<Link::Message> message, int peer, int place) {
  items_.push_back({nullptr, std::move(message), peer, place});
}

void InFlight::cancel() {
  items_.remove_if([](const Item& item) { return item.message != nullptr; });
}

}  // namespace occl::hosts
