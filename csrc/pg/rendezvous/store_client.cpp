#include "pg/rendezvous/store_client.h"

#include <utility>

#include "base/thread.h"

namespace occl::pg {

StoreThread::StoreThread(c10::intrusive_ptr<c10d::Store> store) : state_(std::make_shared<State>()) {
  state_->store = std::move(store);
  thread_ = start_thread<std::thread>("that calls the store", [state = state_] {
    std::unique_lock lock(state->mutex);
    for (;;) {
      state->wake.wait(lock, [&] { return state->stop || state->call; });
      if (!state->call) return;
      const Call call = std::exchange(state->call, nullptr);
      lock.unlock();
      call(*state->store);
      lock.lock();
    }
  });
}

StoreThread::~StoreThread() {
  {
    const std::lock_guard lock(state_->mutex);
    state_->stop = true;
  }
  state_->wake.notify_one();
  stuck_ ? thread_.detach() : thread_.join();
}

void StoreThread::start(Call call) {
  {
    const std::lock_guard lock(state_->mutex);
    state_->call = std::move(call);
  }
  state_->wake.notify_one();
}

}  // namespace occl::pg
