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

/// A message waits for as long as its group lets it: the group knows the deadline, and gives it up.
constexpr std::chrono::milliseconds kForever = std::chrono::hours(24 * 30);

/// How long a message that is given up may take to end by itself.
constexpr std::chrono::milliseconds kPatience{300};

std::string first_line(const std::exception& error) {
  const std::string text = error.what();
  return text.empty() ? "the message failed" : text.substr(0, text.find('\n'));
}

}  // namespace

struct InterNode::State {
  c10::intrusive_ptr<c10d::Work> work;
  hosts::Link::Owner owner;
  std::mutex mutex;
  std::condition_variable over;
  std::atomic<bool> ended = false;  // release where it is set, acquire where it is read
  std::string broken;               // before `ended`

  void end(std::string why) {
    {
      std::lock_guard lock(mutex);
      broken = std::move(why);
      ended.store(true, std::memory_order_release);
    }
    over.notify_all();
  }
  void wait() noexcept {
    std::string why;
    try {
      work->wait(kForever);
    } catch (const std::exception& error) {
      why = first_line(error);
    }
    end(std::move(why));
    engine().ring();
  }
};

namespace {

class BackendMessage final : public hosts::Link::Message {
 public:
  BackendMessage(std::shared_ptr<InterNode> inter_node, std::shared_ptr<InterNode::State> state)
      : inter_node_(std::move(inter_node)), state_(std::move(state)) {}
  ~BackendMessage() override {
    if (!ended() && !state_->owner) inter_node_->give_up(*state_);
  }
  bool ended() const override { return state_->ended.load(std::memory_order_acquire); }
  std::optional<Error> error() const override {
    if (state_->broken.empty()) return std::nullopt;
    return Error(Errc::system, state_->broken);
  }

 private:
  const std::shared_ptr<InterNode> inter_node_;
  const std::shared_ptr<InterNode::State> state_;
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
    threads_.push_back(
        start_thread<std::thread>("that waits for messages of other nodes", [this] { work(); }));
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

InterNode::InterNode(std::string name, c10::intrusive_ptr<c10d::Backend> backend,
                     c10::intrusive_ptr<c10d::Store> store)
    : backend_(std::move(backend)), store_(std::move(store)), name_(std::move(name)) {}

std::uint32_t InterNode::new_channel() { return static_cast<std::uint32_t>(store_->add("occl/channels", 1)); }

std::shared_ptr<InterNode::State> InterNode::start(bool send, int rank, int tag, std::byte* data,
                                                   std::size_t bytes, hosts::Link::Owner owner) {
  auto state = std::make_shared<State>();
  state->owner = std::move(owner);
  std::vector<at::Tensor> tensors{at::from_blob(data, {static_cast<std::int64_t>(bytes)}, at::kByte)};
  // A profiler shows the operation, not its messages, some of which outlive the profile.
  const at::DisableRecordFunctionGuard unrecorded;
  try {
    if (broken_.load(std::memory_order_relaxed))
      fail(Errc::system, "another group ended while its messages were under way, and broke a connection of ",
           name_);
    state->work = send ? backend_->send(tensors, rank, tag) : backend_->recv(tensors, rank, tag);
    {
      std::lock_guard lock(mutex_);
      std::erase_if(under_way_, [](const auto& it) { return it.expired(); });
      under_way_.push_back(state);
    }
    waiters_.run([state] { state->wait(); });
  } catch (const std::exception& error) {
    state->end(first_line(error));
  }
  return state;
}

void InterNode::give_up(State& state) {
  std::unique_lock lock(state.mutex);
  const auto ended = [&] { return state.ended.load(std::memory_order_acquire); };
  if (!broken_.load(std::memory_order_relaxed) && state.over.wait_for(lock, kPatience, ended)) return;
  broken_.store(true, std::memory_order_relaxed);
  state.work->abort();
  state.over.wait(lock, ended);
}

InterNode::~InterNode() {
  std::lock_guard lock(mutex_);
  for (const auto& it : under_way_)
    if (const auto state = it.lock(); state && !state->ended.load(std::memory_order_acquire))
      state->work->abort();
}

// ---- BackendLink

BackendLink::BackendLink(std::shared_ptr<InterNode> inter_node, std::vector<int> ranks)
    : inter_node_(std::move(inter_node)), ranks_(std::move(ranks)) {}

std::unique_ptr<hosts::Link::Message> BackendLink::start(bool send, int peer, std::uint32_t stream,
                                                         std::byte* data, std::size_t bytes, Owner owner) {
  return std::make_unique<BackendMessage>(
      inter_node_,
      inter_node_->start(send, ranks_[peer], static_cast<int>(stream), data, bytes, std::move(owner)));
}

std::unique_ptr<hosts::Link::Message> BackendLink::send(int peer, std::uint32_t stream, const std::byte* data,
                                                        std::size_t bytes, Owner owner) {
  return start(true, peer, stream, const_cast<std::byte*>(data), bytes, std::move(owner));
}
std::unique_ptr<hosts::Link::Message> BackendLink::receive(int peer, std::uint32_t stream, std::byte* data,
                                                           std::size_t bytes, Owner owner) {
  return start(false, peer, stream, data, bytes, std::move(owner));
}

}  // namespace occl::pg
