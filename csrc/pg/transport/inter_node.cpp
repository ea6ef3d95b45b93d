#include "pg/transport/inter_node.h"

#include <ATen/Functions.h>
#include <ATen/record_function.h>

#include <utility>

#include "base/error.h"
#include "hosts/broken_connection.h"
#include "pg/request/errors.h"

namespace occl::pg {
namespace {

/// Time limit for a cancelled message to end by itself.
constexpr std::chrono::milliseconds kPatience{300};

/// Sends of a lane that have no thread while the caller has not asked for them.
constexpr std::size_t kUnasked = 16;

}  // namespace

InterNode::InterNode(std::string name, c10::intrusive_ptr<c10d::Backend> backend)
    : backend_(std::move(backend)),
      name_(std::move(name)),
      numbers_(backend_->getRank(), backend_->getSize()) {}

/// The group that broke the connection to a rank, or nothing.
std::string InterNode::broken_by(int rank) {
  std::lock_guard lock(mutex_);
  const auto found = broken_.find(rank);
  return found == broken_.end() ? "" : found->second;
}

std::shared_ptr<Pending> InterNode::begin(const Lane& lane, std::byte* data, std::size_t bytes,
                                          hosts::Link::Owner owner, Pending::Then then) {
  const auto& [send, rank, tag] = lane;
  auto message = std::make_shared<Pending>(lane, std::move(owner), std::move(then));
  std::vector<at::Tensor> tensors{at::from_blob(data, {static_cast<std::int64_t>(bytes)}, at::kByte)};
  // A profiler shows the operation, not its messages, some of which outlive the profile.
  const at::DisableRecordFunctionGuard unrecorded;
  if (!broken_by(rank).empty()) {
    message->fail("?");  // error_of says why
    return message;
  }
  try {
    message->work = send ? backend_->send(tensors, rank, tag) : backend_->recv(tensors, rank, tag);
    {
      std::lock_guard lock(mutex_);
      std::erase_if(under_way_, [](const auto& it) { return it.expired(); });
      under_way_.push_back(message);
    }
    waiters_.add(lane, message);
  } catch (const std::exception& error) {
    message->fail(first_line(error));  // which does not end it, if the backend has its buffer
  }
  return message;
}

std::shared_ptr<Pending> InterNode::start(const Lane& lane, std::byte* data, std::size_t bytes,
                                          hosts::Link::Owner owner) {
  auto message = begin(lane, data, bytes, std::move(owner));
  if (message->failed()) return message;
  try {
    if (const bool send = std::get<0>(lane); !send || waiters_.waiting(lane) > kUnasked) waiters_.serve(lane);
  } catch (const std::exception& error) {
    message->fail(first_line(error));  // which does not end it
  }
  return message;
}

bool InterNode::ask(Pending& message) {
  if (message.ended() || message.failed() || !message.await()) return true;
  if (message.work) waiters_.serve(message.lane);
  return message.ended();
}

std::optional<Error> InterNode::error_of(const Pending& message) {
  const std::string why = message.broken();
  if (why.empty()) return std::nullopt;
  const std::string group = broken_by(std::get<1>(message.lane));
  if (group.empty()) return Error(Errc::system, why);
  return hosts::broken_by(group);
}

bool InterNode::give_up(const std::shared_ptr<Pending>& message, const std::string& group) {
  if (!message->work) {
    control_->cancel(message);
    return true;
  }
  const int rank = std::get<1>(message->lane);
  try {
    if (broken_by(rank).empty() && !message->failed() && (ask(*message) || message->wait_for_end(kPatience)))
      return true;
  } catch (const Error&) {  // no thread could be made
  }
  {
    std::lock_guard lock(mutex_);
    broken_.emplace(rank, group);
  }
  message->work->abort();
  try {
    waiters_.serve_alone(message);
  } catch (const Error&) {
    message->wait(kStubborn);  // no thread can be made, so this one waits
  }
  if (message->wait_for_end(stuck_ ? kPatience : kStubborn)) {
    message->work.reset();  // Gloo's thread can still be reading into the buffer, and this waits for it
    return true;
  }
  if (!stuck_.exchange(true, std::memory_order_relaxed)) hosts::tell_stuck(name_, rank, kStubborn, group);
  return false;
}

InterNode::~InterNode() {
  control_->close();
  std::lock_guard lock(mutex_);
  for (const auto& it : under_way_)
    if (const auto message = it.lock(); message && !message->ended()) message->work->abort();
}

}  // namespace occl::pg
