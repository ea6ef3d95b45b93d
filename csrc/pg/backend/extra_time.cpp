#include "pg/backend/extra_time.h"

#include <utility>

namespace occl::pg {

class ExtraTime::Observer final : public CallObserver {
 public:
  Observer(std::shared_ptr<ExtraTime> extra, std::uint64_t number)
      : extra_(std::move(extra)), number_(number) {}
  void end(const CallEnd&) noexcept override { extra_->remove_up_to(number_); }

 private:
  const std::shared_ptr<ExtraTime> extra_;
  const std::uint64_t number_;
};

void ExtraTime::add(std::chrono::milliseconds time) {
  std::lock_guard lock(mutex_);
  additions_.push_back({++added_, time});
  sum_.fetch_add(time.count(), std::memory_order_relaxed);
}

std::unique_ptr<CallObserver> ExtraTime::until_end_of_call() {
  std::lock_guard lock(mutex_);
  return std::make_unique<Observer>(shared_from_this(), added_);
}

void ExtraTime::remove_up_to(std::uint64_t number) {
  std::lock_guard lock(mutex_);
  std::erase_if(additions_, [&](const Addition& addition) {
    if (addition.number > number) return false;
    sum_.fetch_sub(addition.time.count(), std::memory_order_relaxed);
    return true;
  });
}

}  // namespace occl::pg
