#include "pg/messages.h"

#include <ATen/Functions.h>
#include <ATen/record_function.h>

#include <atomic>
#include <utility>

#include "base/error.h"
#include "base/thread.h"
#include "coll/engine.h"
#include "pg/runtime.h"

namespace occl::pg {
namespace {

/// A message waits for as long as its group lets it: the group knows the deadline, and cancels it.
constexpr std::chrono::milliseconds kForever = std::chrono::hours(24 * 30);

/// What a message and the thread that waits for it share.
struct State {
  c10::intrusive_ptr<c10d::Work> work;
  std::mutex mutex;
  std::condition_variable over;
  std::atomic<bool> ended = false;  // release where it is set, acquire where it is read
  std::string broken;               // before `ended`
};

void wait_for(const std::shared_ptr<State>& state) noexcept {
  std::string broken;
  try {
    state->work->wait(kForever);
  } catch (const std::exception& error) {
    broken = error.what();
    broken = broken.substr(0, broken.find('\n'));
    if (broken.empty()) broken = "the message failed";
  }
  {
    std::lock_guard lock(state->mutex);
    state->broken = std::move(broken);
    state->ended.store(true, std::memory_order_release);
  }
  state->over.notify_all();
  engine().ring();
}

class BackendMessage final : public hosts::Link::Message {
 public:
  explicit BackendMessage(std::shared_ptr<State> state) : state_(std::move(state)) {}
  ~BackendMessage() override {
    if (ended()) return;
    try {
      state_->work->abort();
    } catch (const std::exception&) {  // it cannot be cancelled: the wait below lasts until it has ended
    }
    std::unique_lock lock(state_->mutex);
    state_->over.wait(lock, [this] { return ended(); });
  }
  bool ended() const override { return state_->ended.load(std::memory_order_acquire); }
  std::optional<Error> error() const override {
    if (state_->broken.empty()) return std::nullopt;
    return Error(Errc::system, state_->broken);
  }

 private:
  const std::shared_ptr<State> state_;
};

}  // namespace

// ---- Waiters

Waiters::~Waiters() {
  {
    std::lock_guard lock(mutex_);
    stop_ = true;
  }
  wake_.notify_all();
  for (auto& thread : threads_) thread.join();
}

void Waiters::run(std::function<void()> call) {
  std::lock_guard lock(mutex_);
  calls_.push_back(std::move(call));
  if (calls_.size() <= idle_)
    wake_.notify_one();
  else
    threads_.push_back(start_thread<std::thread>("that waits for messages of other nodes", [this] { work(); }));
}

void Waiters::work() {
  std::unique_lock lock(mutex_);
  for (;;) {
    ++idle_;
    wake_.wait(lock, [this] { return stop_ || !calls_.empty(); });
    --idle_;
    if (calls_.empty()) return;
    const auto call = std::move(calls_.front());
    calls_.pop_front();
    lock.unlock();
    call();
    lock.lock();
  }
}

// ---- InterNode

InterNode::InterNode(c10::intrusive_ptr<c10d::Backend> backend, c10::intrusive_ptr<c10d::Store> store)
    : backend_(std::move(backend)), store_(std::move(store)), name_(backend_->getBackendName()) {}

std::uint32_t InterNode::new_channel() { return static_cast<std::uint32_t>(store_->add("occl/channels", 1)); }

// ---- BackendLink

BackendLink::BackendLink(std::shared_ptr<InterNode> inter_node, std::vector<int> ranks)
    : inter_node_(std::move(inter_node)), ranks_(std::move(ranks)) {}

std::unique_ptr<hosts::Link::Message> BackendLink::start(bool send, int peer, std::uint32_t stream,
                                                         std::byte* data, std::size_t bytes) {
  auto state = std::make_shared<State>();
  std::vector<at::Tensor> tensors{at::from_blob(data, {static_cast<std::int64_t>(bytes)}, at::kByte)};
  const int rank = ranks_[peer], tag = static_cast<int>(stream);
  // A profiler shows the operation, not its messages, some of which outlive the profile.
  const at::DisableRecordFunctionGuard unrecorded;
  try {
    state->work = send ? inter_node_->backend().send(tensors, rank, tag) : inter_node_->backend().recv(tensors, rank, tag);
    inter_node_->waiters().run([state] { wait_for(state); });
  } catch (const std::exception& error) {
    state->broken = error.what();
    state->broken = state->broken.substr(0, state->broken.find('\n'));
    state->ended.store(true, std::memory_order_release);
  }
  return std::make_unique<BackendMessage>(std::move(state));
}

std::unique_ptr<hosts::Link::Message> BackendLink::send(int peer, std::uint32_t stream, const std::byte* data,
                                                        std::size_t bytes) {
  return start(true, peer, stream, const_cast<std::byte*>(data), bytes);
}
std::unique_ptr<hosts::Link::Message> BackendLink::receive(int peer, std::uint32_t stream, std::byte* data,
                                                           std::size_t bytes) {
  return start(false, peer, stream, data, bytes);
}

}  // namespace occl::pg
