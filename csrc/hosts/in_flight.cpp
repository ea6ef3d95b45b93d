#include "hosts/in_flight.h"

#include <utility>

namespace occl::hosts {

UnderWay::Nested::Nested(const coll::Task& given, std::vector<coll::Block> in, std::vector<coll::Block> out,
                         Deadline deadline)
    : in(std::move(in)), out(std::move(out)), task(given), operation(*this, task, deadline) {
  if (auto* c = std::get_if<coll::Collective>(&task)) {
    if (c->in.n > 1) c->in.list = this->in.data();
    if (c->out.n > 1) c->out.list = this->out.data();
  }
}

void UnderWay::add(coll::Group& node, std::unique_ptr<Nested> nested, int place) {
  items_.push_back({std::move(nested), nullptr, -1, place});
  node.submit(items_.back().nested->operation);
}

void UnderWay::add(std::unique_ptr<Link::Message> message, int peer, int place) {
  items_.push_back({nullptr, std::move(message), peer, place});
}

void UnderWay::cancel() {
  items_.remove_if([](const Item& item) { return item.message != nullptr; });
}

}  // namespace occl::hosts
