#include "pg/transport/waiters.h"

#include <thread>
#include <utility>

#include "base/thread.h"
#include "pg/process/engine.h"
#include "pg/request/errors.h"

namespace occl::pg {
namespace {

/// A thread without work ends after this time. Most operations follow each other sooner.
constexpr std::chrono::seconds kIdle{1};

}  // namespace

// ---- Pending

void Pending::fail(std::string why) {
  {
    std::lock_guard lock(mutex_);
    broken_ = std::move(why);
    failed_.store(true, std::memory_order_release);  // pairs with failed
  }
  if (!work) end("");
}

void Pending::end(std::string why) {
  bool ring = !why.empty();
  {
    std::lock_guard lock(mutex_);
    if (!failed()) broken_ = std::move(why);
    ring |= end_.end();
  }
  over_.notify_all();
  if (ring) engine().ring();
}

void Pending::wait(std::chrono::milliseconds limit) noexcept {
  std::string why;
  try {
    work->wait(limit);
  } catch (const std::exception& error) {
    why = first_line(error);
  }
  end(std::move(why));
}

bool Pending::wait_for_end(std::chrono::milliseconds limit) {
  std::unique_lock lock(mutex_);
  return over_.wait_for(lock, limit, [this] { return ended(); });
}

std::string Pending::broken() const {
  std::lock_guard lock(mutex_);
  return broken_;
}

// ---- Waiters

Waiters::~Waiters() {
  std::unique_lock lock(state_->mutex);
  state_->stop = true;
  state_->wake.notify_all();
  state_->ended.wait_for(lock, kStubborn, [this] { return state_->running == 0; });
}

void Waiters::add(const Lane& lane, std::shared_ptr<Pending> message) {
  std::lock_guard lock(state_->mutex);
  state_->lanes[lane].messages.push_back(std::move(message));
}

void Waiters::serve(const Lane& lane) {
  std::lock_guard lock(state_->mutex);
  serve_locked(lane);
}

void Waiters::serve_locked(const Lane& lane) {
  const auto found = state_->lanes.find(lane);
  if (found == state_->lanes.end()) return;
  if (!found->second.served) {
    if (state_->unserved.size() >= state_->idle) {
      start_thread<std::thread>("that waits for messages of other nodes", [state = state_] {
        work(*state);
      }).detach();
      ++state_->running;
    }
    state_->unserved.push_back(lane);
    found->second.served = true;
    state_->wake.notify_one();
  }
  found->second.wanted = true;
}

void Waiters::park(const Lane& lane) {
  std::lock_guard lock(state_->mutex);
  if (const auto found = state_->lanes.find(lane); found != state_->lanes.end()) found->second.wanted = false;
}

void Waiters::serve_alone(const std::shared_ptr<Pending>& message) {
  std::lock_guard lock(state_->mutex);
  const auto found = state_->lanes.find(message->lane);
  if (found == state_->lanes.end() || std::erase(found->second.messages, message) == 0) return;
  const auto& [sends, rank, tag] = message->lane;
  const Lane lane{sends, rank, -++alone_};  // no tag is negative
  state_->lanes[lane].messages.push_back(message);
  serve_locked(lane);
}

std::size_t Waiters::waiting(const Lane& lane) {
  std::lock_guard lock(state_->mutex);
  const auto found = state_->lanes.find(lane);
  return found == state_->lanes.end() ? 0 : found->second.messages.size();
}

void Waiters::work(State& state) {
  std::unique_lock lock(state.mutex);
  for (;;) {
    ++state.idle;
    state.wake.wait_for(lock, kIdle, [&] { return state.stop || !state.unserved.empty(); });
    --state.idle;
    if (state.unserved.empty()) break;
    const auto found = state.lanes.find(state.unserved.front());
    state.unserved.pop_front();
    Queue& lane = found->second;
    while (lane.wanted && !lane.messages.empty()) {
      auto message = std::move(lane.messages.front());
      lane.messages.pop_front();
      lock.unlock();
      message->wait();
      if (message->then) message->then(*message);
      message.reset();
      lock.lock();
    }
    lane.served = lane.wanted = false;
    if (lane.messages.empty()) state.lanes.erase(found);
  }
  --state.running;
  state.ended.notify_all();
}

}  // namespace occl::pg
