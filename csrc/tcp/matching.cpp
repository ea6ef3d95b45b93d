#include "tcp/matching.h"

#include <algorithm>
#include <cstring>
#include <utility>

namespace occl::tcp {

void Incoming::claim(Request& request) {
  receive = &request;
  if (got > 0) std::memcpy(request.into, kept_.get(), got);
  kept_.reset();
  to_ = request.into;
}

void Incoming::keep() {
  kept_ = std::make_unique_for_overwrite<std::byte[]>(bytes);
  to_ = kept_.get();
}

void Incoming::drop() {
  kept_.reset();
  to_ = nullptr;
}

Request* Matching::take(std::uint64_t tag) {
  if (const auto found = receives_.find(tag); found != receives_.end()) {
    Request* first = found->second.front();
    found->second.pop_front();
    if (found->second.empty()) receives_.erase(found);
    return first;
  }
  const auto fits = [tag](const Request* receive) { return ((receive->tag ^ tag) & receive->mask) == 0; };
  const auto found = std::find_if(of_many_tags_.begin(), of_many_tags_.end(), fits);
  if (found == of_many_tags_.end()) return nullptr;
  Request* first = *found;
  of_many_tags_.erase(found);
  return first;
}

void Matching::post(Request& receive) {
  if (receive.mask == kWholeTag)
    receives_[receive.tag].push_back(&receive);
  else
    of_many_tags_.push_back(&receive);
}

bool Matching::remove(Request& receive) {
  const auto found = receives_.find(receive.tag);
  if (found == receives_.end() || receive.mask != kWholeTag) return of_many_tags_.remove(&receive) > 0;
  const bool posted = std::erase(found->second, &receive) > 0;
  if (found->second.empty()) receives_.erase(found);
  return posted;
}

void Matching::keep(std::shared_ptr<Incoming> message) { kept_[message->tag].push_back(std::move(message)); }

std::shared_ptr<Incoming> Matching::find(std::uint64_t tag, std::uint64_t mask) const {
  if (mask == kWholeTag) {
    const auto found = kept_.find(tag);
    return found == kept_.end() ? nullptr : found->second.front();
  }
  for (const auto& [of_message, messages] : kept_)
    if (((of_message ^ tag) & mask) == 0) return messages.front();
  return nullptr;
}

void Matching::forget(const Incoming& message) {
  const auto found = kept_.find(message.tag);
  if (found == kept_.end()) return;
  std::erase_if(found->second, [&](const auto& it) { return it.get() == &message; });
  if (found->second.empty()) kept_.erase(found);
}

}  // namespace occl::tcp
