#include "ucx/worker.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <mutex>
#include <set>
#include <string>
#include <system_error>
#include <thread>
#include <utility>

#include "base/deadline.h"
#include "hosts/broken_connection.h"
#include "hosts/group_info.h"
#include "hosts/group_numbers.h"

namespace occl::ucx {
namespace {

using abi::StatusOrRequest;

/// Time limit for a cancelled message to end by itself.
constexpr std::chrono::milliseconds kPatience{300};
/// Time limit for it to end after its connection was closed.
constexpr std::chrono::milliseconds kStubborn{2'000};
/// Time limit for what was sent to leave this process when the group ends.
constexpr std::chrono::milliseconds kLinger{1'000};

// A tag: what kind of message, the rank that sends, and the channel.
constexpr std::uint64_t kEndOfGroup = std::uint64_t{1} << 63;
constexpr std::uint64_t kAll = ~std::uint64_t{0};
constexpr int kRankShift = 32;
std::uint64_t tag_of(int sender, std::uint32_t channel) {
  return static_cast<std::uint64_t>(sender) << kRankShift | channel;
}
/// All channels of one group.
constexpr std::uint64_t kGroupMask = kAll - (hosts::kChannels - 1);

abi::RequestParams params_for(void* user_data) {
  abi::RequestParams params;
  params.field_mask = abi::kRequestCallback | abi::kRequestUserData | abi::kRequestMemoryType;
  params.user_data = user_data;
  params.memory_type = abi::kHostMemory;
  return params;
}

/// Network interfaces and RDMA devices: "lo, eth0, mlx5_0".
std::string devices_of_host() {
  std::set<std::string> names;
  for (const char* folder : {"/sys/class/net", "/sys/class/infiniband"}) {
    std::error_code absent;
    for (const auto& entry : std::filesystem::directory_iterator(folder, absent))
      names.insert(entry.path().filename());
  }
  std::string text;
  for (const std::string& name : names) enlist(text, name);
  return text.empty() ? "no device" : text;
}

}  // namespace

// ---- its life

Worker::Worker(const Api& api, const Settings& settings, int rank, int size, std::function<void()> ring)
    : api_(api), rank_(rank), ring_(std::move(ring)), peers_(size), caretaker_(*this) {
  const auto check = [this](abi::Status status, const auto&... what) {
    if (status == abi::kOk) return;
    const std::string why = text(status);
    if (worker_) api_.worker_destroy(worker_);
    if (context_) api_.cleanup(std::exchange(context_, nullptr));
    fail(Errc::system, api_.name, " cannot ", concat(what...), ": ", why);
  };
  abi::Config* config = nullptr;
  check(api_.config_read(nullptr, nullptr, &config), "read its settings (UCX_*)");
  const std::unique_ptr<abi::Config, void (*)(abi::Config*)> released(config, api_.config_release);
  for (const auto& [name, value] : settings.context)
    check(api_.config_modify(config, name.c_str(), value.c_str()), "set ", name, " to ", value);
  // Not every version has each of these.
  for (const auto& [name, value] : settings.wishes) api_.config_modify(config, name.c_str(), value.c_str());
  abi::ContextParams context;
  context.field_mask = abi::kContextFeatures | abi::kContextTagSenderMask | abi::kContextEndpoints;
  context.features = abi::kFeatureTag | abi::kFeatureWakeup;
  context.tag_sender_mask = std::uint64_t{0x7fffffff} << kRankShift;
  context.estimated_num_eps = size;
  const abi::Status opened = api_.init(abi::kLeastMajor, abi::kLeastMinor, &context, config, &context_);
  if (opened != abi::kOk)
    check(opened, "be used with these settings (UCX_TLS, UCX_NET_DEVICES; this host has ", devices_of_host(),
          ")");
  abi::WorkerParams worker;
  worker.field_mask = abi::kWorkerThreadMode;
  worker.thread_mode = abi::kSerialized;
  try {
    check(api_.worker_create(context_, &worker, &worker_), "make a worker");
  } catch (const Error&) {
    if (context_) api_.cleanup(context_);
    throw;
  }
  check(api_.worker_descriptor(worker_, &descriptor_), "offer a descriptor");
  for (int peer = 0; peer < size; ++peer) {
    peers_[peer].worker = this;
    peers_[peer].rank = peer;
  }
  expect_end();
}

Worker::~Worker() {
  caretaker_.stop();
  std::lock_guard lock(mutex_);
  const auto until = Deadline::after(kLinger);
  while (!settled() && !until.passed()) {
    move();
    std::this_thread::yield();
  }
  if (expecting_end_) api_.request_cancel(worker_, expecting_end_);
  for (Peer& peer : peers_)
    if (peer.broken.empty()) break_connection(peer, "the group has ended", "");
  while (!leaving_.empty() && !until.passed()) move();
  api_.worker_destroy(worker_);
  api_.cleanup(context_);
}

std::string Worker::address() {
  abi::Address* address = nullptr;
  std::size_t bytes = 0;
  std::lock_guard lock(mutex_);
  if (const auto status = api_.worker_address(worker_, &address, &bytes); status != abi::kOk)
    fail(Errc::system, api_.name, " has no address: ", text(status));
  std::string copy(reinterpret_cast<const char*>(address), bytes);
  api_.release_address(worker_, address);
  return copy;
}

void Worker::set_addresses(std::vector<std::string> addresses) {
  for (const std::string& address : addresses)
    if (api_.address_bytes > 0 && address.size() != api_.address_bytes)
      fail(Errc::protocol, "an address of ", api_.name, " has ", address.size(), " bytes, and not ",
           api_.address_bytes);
  std::lock_guard lock(mutex_);
  for (std::size_t i = 0; i < peers_.size(); ++i) peers_[i].address = std::move(addresses[i]);
}

void Worker::connect(Peer& peer) {
  if (peer.endpoint || !peer.broken.empty()) return;
  abi::EndpointParams params;
  params.field_mask = abi::kEndpointAddress | abi::kEndpointErrorMode | abi::kEndpointErrorHandler;
  params.address = reinterpret_cast<const abi::Address*>(peer.address.data());
  params.error_mode = abi::kPeerErrors;
  params.error_handler = peer_failed;
  params.error_argument = &peer;
  if (const auto status = api_.endpoint_create(worker_, &params, &peer.endpoint); status != abi::kOk) {
    peer.endpoint = nullptr;
    peer.broken = text(status);
  }
}

// ---- messages

std::shared_ptr<Message> Worker::send(int rank, std::uint32_t channel, const std::byte* data,
                                      std::size_t bytes, hosts::Link::Owner owner) {
  auto message = std::make_shared<Message>(*this, true, rank, bytes, std::move(owner));
  {
    std::lock_guard lock(mutex_);
    Peer& peer = peers_[rank];
    connect(peer);
    if (!peer.broken.empty()) {
      message->end(peer.broken);
      return message;
    }
    abi::RequestParams params = params_for(message.get());
    params.callback.send = sent;
    const StatusOrRequest started = api_.send(peer.endpoint, data, bytes, tag_of(rank_, channel), &params);
    peer.unsettled = true;
    if (!started) {
      message->end("");
    } else if (abi::is_error(started)) {
      message->end(text(abi::error_of(started)));
    } else {
      message->request = started;
      message->self = message;
      ++sending_;
    }
  }
  caretaker_.attend();
  return message;
}

std::shared_ptr<Message> Worker::receive(int rank, std::uint32_t channel, std::byte* data, std::size_t bytes,
                                         hosts::Link::Owner owner) {
  auto message = std::make_shared<Message>(*this, false, rank, bytes, std::move(owner));
  std::lock_guard lock(mutex_);
  Peer& peer = peers_[rank];
  connect(peer);
  abi::RequestParams params = params_for(message.get());
  params.callback.receive = received;
  // Not every version says how much has arrived where a receive ends at once, unless by the callback.
  params.field_mask |= abi::kRequestAlways;
  peer.receives.push_back(message.get());
  message->self = message;
  took(*message, api_.receive(worker_, data, bytes, tag_of(rank, channel), kAll, &params));
  // What has arrived before the connection broke is received even now.
  if (!peer.broken.empty()) cancel(*message);
  return message;
}

/// UCX has been given a message with kRequestAlways. Its callback can have been called already.
void Worker::took(Message& message, StatusOrRequest started) {
  if (abi::is_error(started)) {
    forget(message);
    finish(message, abi::error_of(started), 0);
  } else if (message.ended()) {
    api_.request_free(started);
  } else {
    message.request = started;
  }
}

/// UCX does not have this receive any more.
void Worker::forget(Message& message) {
  auto& receives = peers_[message.rank].receives;
  if (const auto found = std::find(receives.begin(), receives.end(), &message); found != receives.end()) {
    *found = receives.back();
    receives.pop_back();
  }
}

/// In a callback, or where UCX has ended the message at once.
void Worker::finish(Message& message, abi::Status status, std::size_t received) {
  Peer& peer = peers_[message.rank];
  std::string why;
  if (status != abi::kOk)
    why = peer.broken.empty() ? text(status) : peer.broken;
  else if (!message.sends && received != message.bytes)
    why = concat("it sent ", received, " bytes where ", message.bytes, " were expected");
  end_now(message, std::move(why));
}

void Worker::end_now(Message& message, std::string why) {
  const std::shared_ptr<Message> held = std::move(message.self);
  const bool begun = std::exchange(message.request, nullptr) != nullptr;
  if (message.end(std::move(why)) && begun) ring_();
}

void Worker::sent(void* request, abi::Status status, void* data) {
  auto& message = *static_cast<Message*>(data);
  Worker& self = message.worker;
  --self.sending_;
  self.finish(message, status, 0);
  self.api_.request_free(request);
}

void Worker::received(void* request, abi::Status status, const abi::ReceiveInfo* info, void* data) {
  auto& message = *static_cast<Message*>(data);
  Worker& self = message.worker;
  const bool begun = message.request != nullptr;
  self.forget(message);
  self.finish(message, status, status == abi::kOk ? info->length : 0);
  if (begun) self.api_.request_free(request);
}

void Worker::cancel(Message& message) {
  if (message.request) api_.request_cancel(worker_, message.request);
}

bool Worker::ask(Message& message) {
  if (message.ended()) return true;
  progress();
  return message.ended() || !message.await();
}

std::optional<Error> Worker::error_of(const Message& message) {
  if (message.why().empty()) return std::nullopt;
  std::lock_guard lock(mutex_);
  const std::string& group = peers_[message.rank].broken_by;
  if (group.empty()) return Error(Errc::system, message.why());
  return hosts::broken_by(group);
}

void Worker::let_go(Message& message) {
  if (message.sends) return;
  std::lock_guard lock(mutex_);
  cancel(message);
}

bool Worker::give_up(const std::shared_ptr<Message>& message, const std::string& group) {
  const auto ends_within = [&](std::chrono::milliseconds limit) {
    for (const auto until = Deadline::after(limit); !message->ended();) {
      progress();
      if (until.passed()) return message->ended();
      std::this_thread::yield();
    }
    return true;
  };
  if (!message->sends) {
    std::lock_guard lock(mutex_);
    cancel(*message);
  }
  if (ends_within(kPatience)) return true;
  {
    std::lock_guard lock(mutex_);
    if (Peer& peer = peers_[message->rank]; peer.broken.empty())
      break_connection(peer, "the connection was broken", group);
  }
  if (ends_within(stuck_ ? kPatience : kStubborn)) return true;
  std::lock_guard lock(mutex_);
  if (!std::exchange(stuck_, true)) hosts::tell_stuck(api_.name, message->rank, kStubborn, group);
  return false;
}

// ---- progress

void Worker::progress() {
  if (!mutex_.try_lock()) return;  // another thread moves the messages
  std::lock_guard lock(mutex_, std::adopt_lock);
  move();
}

void Worker::move() {
  looks_.store(looks_.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
  api_.worker_progress(worker_);
  if (end_arrived_) expect_end();
  if (!failed_.empty())
    for (const auto& [peer, status] : std::exchange(failed_, {}))
      if (peer->broken.empty()) break_connection(*peer, text(status), "");
  std::erase_if(leaving_, [this](void* request) {
    if (api_.request_status(request) > abi::kOk) return false;
    api_.request_free(request);
    return true;
  });
}

bool Worker::arm() {
  std::lock_guard lock(mutex_);
  return api_.worker_arm(worker_) == abi::kOk;
}

bool Worker::settled() {
  if (sending_ > 0 || !leaving_.empty()) return false;
  for (Peer& peer : peers_) {
    if (!std::exchange(peer.unsettled, false) || !peer.endpoint) continue;
    const abi::RequestParams params{};
    const StatusOrRequest flush = api_.endpoint_flush(peer.endpoint, &params);
    if (flush && !abi::is_error(flush)) leaving_.push_back(flush);
  }
  return leaving_.empty();
}

bool Worker::settle() {
  std::lock_guard lock(mutex_);
  move();
  return settled();
}

// ---- the end of a connection

void Worker::peer_failed(void* data, abi::Endpoint*, abi::Status status) {
  auto& peer = *static_cast<Peer*>(data);
  peer.worker->failed_.emplace_back(&peer, status);
}

void Worker::break_connection(Peer& peer, const std::string& why, const std::string& group) {
  peer.broken = why;
  peer.broken_by = group;
  if (peer.endpoint) {
    abi::RequestParams params;
    params.field_mask = abi::kRequestFlags;
    params.flags = abi::kCloseAtOnce;
    const StatusOrRequest closing = api_.endpoint_close(std::exchange(peer.endpoint, nullptr), &params);
    if (closing && !abi::is_error(closing)) leaving_.push_back(closing);
  }
  for (Message* message : std::vector<Message*>(peer.receives)) cancel(*message);
}

// ---- groups

void Worker::end_group(std::uint32_t number, const std::vector<int>& ranks) {
  {
    std::lock_guard lock(mutex_);
    if (!ended_.insert(number).second) return;
    for (Peer& peer : peers_)
      if (peer.over.erase(number) > 0) throw_away(peer.rank, number);
  }
  const auto content = std::make_shared<EndOfGroup>(EndOfGroup{static_cast<std::uint32_t>(rank_), number});
  for (const int rank : ranks) {
    const auto message = std::make_shared<Message>(*this, true, rank, sizeof(EndOfGroup), content);
    std::lock_guard lock(mutex_);
    Peer& peer = peers_[rank];
    if (!peer.endpoint) continue;
    abi::RequestParams params = params_for(message.get());
    params.callback.send = sent;
    const StatusOrRequest started =
        api_.send(peer.endpoint, content.get(), sizeof(EndOfGroup), kEndOfGroup | tag_of(rank_, 0), &params);
    peer.unsettled = true;
    if (started && !abi::is_error(started)) {
      message->request = started;
      message->self = message;
      ++sending_;
    }
  }
  caretaker_.attend();
}

/// Receives what ranks say about groups that have ended there, until none of it has arrived yet.
void Worker::expect_end() {
  do {
    end_arrived_ = false;
    abi::RequestParams params = params_for(this);
    params.callback.receive = group_ended;
    params.field_mask |= abi::kRequestAlways;
    const StatusOrRequest started =
        api_.receive(worker_, &end_, sizeof(end_), kEndOfGroup, kEndOfGroup, &params);
    if (abi::is_error(started)) return;
    if (end_arrived_)
      api_.request_free(started);
    else
      expecting_end_ = started;
  } while (end_arrived_);
}

void Worker::group_ended(void* request, abi::Status status, const abi::ReceiveInfo* info, void* data) {
  auto& self = *static_cast<Worker*>(data);
  self.end_arrived_ = status != abi::kCanceled;
  const bool whole = status == abi::kOk && info->length == sizeof(EndOfGroup);
  if (whole && info->sender_tag == (kEndOfGroup | tag_of(static_cast<int>(self.end_.rank), 0)))
    self.take_end(self.end_);
  // `info` can lie in the request.
  if (std::exchange(self.expecting_end_, nullptr)) self.api_.request_free(request);
}

void Worker::take_end(const EndOfGroup& end) {
  if (end.rank >= peers_.size() || end.number > hosts::kLastGroupNumber) return;  // no rank of ours sent it
  if (ended_.contains(end.number))
    throw_away(static_cast<int>(end.rank), end.number);
  else
    peers_[end.rank].over.insert(end.number);
}

/// What has arrived from a rank for a group that expects nothing more.
void Worker::throw_away(int rank, std::uint32_t number) {
  abi::ReceiveInfo info;
  while (abi::UnexpectedMessage* found =
             api_.probe(worker_, tag_of(rank, number * hosts::kChannels), kGroupMask, 1, &info)) {
    const auto nowhere = std::make_shared<std::vector<std::byte>>(info.length);
    const auto message = std::make_shared<Message>(*this, false, rank, info.length, nowhere);
    abi::RequestParams params = params_for(message.get());
    params.callback.receive = received;
    params.field_mask |= abi::kRequestAlways;
    message->self = message;
    took(*message, api_.receive_found(worker_, nowhere->data(), info.length, found, &params));
  }
}

}  // namespace occl::ucx
