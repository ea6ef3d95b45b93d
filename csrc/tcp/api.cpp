#include "tcp/api.h"

#include <cerrno>
#include <charconv>
#include <cstring>
#include <memory>
#include <string>

#include "base/error.h"
#include "tcp/engine.h"
#include "tcp/wire.h"

namespace occl::tcp {
namespace {

namespace abi = ucx::abi;

struct Settings {
  std::string listen, rank;
  std::uint64_t sender_mask = 0;
};

Settings& settings_of(const abi::Config* config) {
  return *const_cast<Settings*>(reinterpret_cast<const Settings*>(config));
}
Settings& settings_of(abi::Context* context) { return *reinterpret_cast<Settings*>(context); }
Engine& engine_of(abi::Worker* worker) { return *reinterpret_cast<Engine*>(worker); }
Peer& peer_of(abi::Endpoint* endpoint) { return *reinterpret_cast<Peer*>(endpoint); }
Request& request_of(void* request) { return *static_cast<Request*>(request); }

Request* request_for(Request::Kind kind, const abi::RequestParams* params) {
  auto* request = new Request;
  request->kind = kind;
  request->callback = params->callback;
  request->user_data = params->user_data;
  return request;
}

// ---- settings and lives

abi::Status config_read(const char*, const char*, abi::Config** config) {
  *config = reinterpret_cast<abi::Config*>(new Settings);
  return abi::kOk;
}
abi::Status config_modify(abi::Config* config, const char* name, const char* value) {
  Settings& settings = settings_of(config);
  (std::strcmp(name, "RANK") == 0 ? settings.rank : settings.listen) = value;
  return abi::kOk;
}
void config_release(abi::Config* config) { delete &settings_of(config); }

abi::Status init(unsigned, unsigned, const abi::ContextParams* params, const abi::Config* config,
                 abi::Context** context) {
  auto* settings = new Settings(settings_of(config));
  settings->sender_mask = params->tag_sender_mask;
  *context = reinterpret_cast<abi::Context*>(settings);
  return abi::kOk;
}
void cleanup(abi::Context* context) { delete &settings_of(context); }

abi::Status worker_create(abi::Context* context, const abi::WorkerParams*, abi::Worker** worker) {
  const Settings& settings = settings_of(context);
  std::uint32_t rank = 0;
  std::from_chars(settings.rank.data(), settings.rank.data() + settings.rank.size(), rank);
  *worker = reinterpret_cast<abi::Worker*>(new Engine(settings.listen, rank, settings.sender_mask));
  return abi::kOk;
}
void worker_destroy(abi::Worker* worker) { delete &engine_of(worker); }

abi::Status worker_address(abi::Worker* worker, abi::Address** address, std::size_t* bytes) {
  *address = reinterpret_cast<abi::Address*>(new Address(engine_of(worker).address()));
  *bytes = sizeof(Address);
  return abi::kOk;
}
void release_address(abi::Worker*, abi::Address* address) { delete reinterpret_cast<Address*>(address); }

abi::Status worker_descriptor(abi::Worker* worker, int* descriptor) {
  *descriptor = engine_of(worker).descriptor();
  return abi::kOk;
}
abi::Status worker_arm(abi::Worker*) { return abi::kOk; }  // the descriptor is readable until nothing is left
unsigned worker_progress(abi::Worker* worker) {
  engine_of(worker).progress();
  return 0;
}

// ---- connections

abi::Status endpoint_create(abi::Worker* worker, const abi::EndpointParams* params, abi::Endpoint** made) {
  Address to;
  std::memcpy(static_cast<void*>(&to), params->address, sizeof(to));
  if (to.magic != shm::kMagic || to.version != kVersion || to.length > sizeof(to.socket)) return -EPROTO;
  Peer& peer = engine_of(worker).connect(to);
  if (peer.connection.state() == Connection::State::over) return peer.connection.status();
  peer.on_error = params->error_handler;
  peer.error_argument = params->error_argument;
  *made = reinterpret_cast<abi::Endpoint*>(&peer);
  return abi::kOk;
}
abi::StatusOrRequest endpoint_flush(abi::Endpoint* endpoint, const abi::RequestParams* params) {
  Request* request = request_for(Request::Kind::flush, params);
  Peer& peer = peer_of(endpoint);
  if (!peer.engine.flush(peer, *request)) return request;
  delete request;
  return nullptr;
}
abi::StatusOrRequest endpoint_close(abi::Endpoint* endpoint, const abi::RequestParams*) {
  Peer& peer = peer_of(endpoint);
  peer.engine.close(peer);
  return nullptr;
}

// ---- messages

abi::StatusOrRequest send(abi::Endpoint* endpoint, const void* data, std::size_t bytes, std::uint64_t tag,
                          const abi::RequestParams* params) {
  Request* request = request_for(Request::Kind::send, params);
  request->tag = tag;
  request->bytes = bytes;
  request->from = static_cast<const std::byte*>(data);
  Peer& peer = peer_of(endpoint);
  if (!peer.engine.send(peer, *request)) return request;
  delete request;
  return nullptr;
}

Request* receive_for(void* into, std::size_t bytes, const abi::RequestParams* params) {
  Request* request = request_for(Request::Kind::receive, params);
  request->bytes = bytes;
  request->into = static_cast<std::byte*>(into);
  return request;
}
abi::StatusOrRequest receive(abi::Worker* worker, void* into, std::size_t bytes, std::uint64_t tag,
                             std::uint64_t mask, const abi::RequestParams* params) {
  Request* request = receive_for(into, bytes, params);
  request->tag = tag;
  request->mask = mask;
  engine_of(worker).receive(*request);
  return request;
}

struct Found {
  std::shared_ptr<Incoming> message;
};
abi::UnexpectedMessage* probe(abi::Worker* worker, std::uint64_t tag, std::uint64_t mask, int,
                              abi::ReceiveInfo* info) {
  auto message = engine_of(worker).find(tag, mask);
  if (!message) return nullptr;
  *info = {message->tag, message->bytes};
  return reinterpret_cast<abi::UnexpectedMessage*>(new Found{std::move(message)});
}
abi::StatusOrRequest receive_found(abi::Worker* worker, void* into, std::size_t bytes,
                                   abi::UnexpectedMessage* message, const abi::RequestParams* params) {
  const std::unique_ptr<Found> found(reinterpret_cast<Found*>(message));
  Request* request = receive_for(into, bytes, params);
  request->tag = found->message->tag;
  engine_of(worker).receive(*request, *found->message);
  return request;
}

// ---- requests

abi::Status request_status(void* request) { return request_of(request).status; }
void request_cancel(abi::Worker* worker, void* request) { engine_of(worker).cancel(request_of(request)); }
void request_free(void* request) { delete &request_of(request); }

const char* status_string(abi::Status status) {
  switch (status) {
    case abi::kCanceled:
      return "the connection was closed";
    case -ESHUTDOWN:
      return "it closed the connection, or has ended";
    case -EPROTO:
      return "it sent what no rank sends";
    default:
      return std::strerror(-status);
  }
}

ucx::Api make() {
  ucx::Api api;
  api.name = concat("TCP, version ", kVersion);
  api.address_bytes = sizeof(Address);
  api.config_read = config_read;
  api.config_modify = config_modify;
  api.config_release = config_release;
  api.init = init;
  api.cleanup = cleanup;
  api.worker_create = worker_create;
  api.worker_destroy = worker_destroy;
  api.worker_address = worker_address;
  api.release_address = release_address;
  api.worker_descriptor = worker_descriptor;
  api.worker_arm = worker_arm;
  api.worker_progress = worker_progress;
  api.endpoint_create = endpoint_create;
  api.endpoint_flush = endpoint_flush;
  api.endpoint_close = endpoint_close;
  api.send = send;
  api.receive = receive;
  api.probe = probe;
  api.receive_found = receive_found;
  api.request_status = request_status;
  api.request_cancel = request_cancel;
  api.request_free = request_free;
  api.status_string = status_string;
  return api;
}

}  // namespace

const ucx::Api& api() {
  static const ucx::Api api = make();
  return api;
}

}  // namespace occl::tcp
