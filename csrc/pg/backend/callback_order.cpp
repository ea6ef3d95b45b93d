#include "pg/backend/callback_order.h"

#include <utility>

namespace occl::pg {
namespace {
thread_local std::shared_ptr<CallbackOrder> t_order;
}

std::shared_ptr<CallbackOrder> CallbackOrder::of_this_thread(const coll::Communicator& group) {
  return t_order && &t_order->group_ == &group ? t_order : nullptr;
}

void CallbackOrder::called(std::uint64_t number) {
  for (CallbackOrder* order = this; order; order = order->outer_.get())
    order->next_.store(number + 1, std::memory_order_release);
}

CallbackOrder::Running::Running(std::shared_ptr<CallbackOrder> order)
    : before_(std::exchange(t_order, std::move(order))) {}
CallbackOrder::Running::~Running() { t_order = std::move(before_); }

}  // namespace occl::pg
