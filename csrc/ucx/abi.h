// The part of UCX's interface (libucp) that this library uses: structs as far as their fields are filled in,
// numbers and functions. UCX keeps it for all versions from kLeast on, and reads no field whose bit in a mask
// is not set. tests/test_ucx_abi.py compares it with UCX's own headers.
#pragma once

#include <cstddef>
#include <cstdint>

namespace occl::ucx::abi {

inline constexpr unsigned kLeastMajor = 1, kLeastMinor = 13;

using Status = std::int8_t;  // ucs_status_t, which is a packed enumeration
inline constexpr Status kOk = 0, kTruncated = -9, kBusy = -15, kCanceled = -16, kLastError = -100;

struct Context;
struct Worker;
struct Endpoint;
struct Config;
struct Address;
struct UnexpectedMessage;

/// What functions that start something return: null for "done", an error, or a request that goes on.
using StatusOrRequest = void*;
inline bool is_error(StatusOrRequest returned) {
  return reinterpret_cast<std::uintptr_t>(returned) >=
         static_cast<std::uintptr_t>(static_cast<std::intptr_t>(kLastError));
}
inline Status error_of(StatusOrRequest returned) {
  return static_cast<Status>(reinterpret_cast<std::intptr_t>(returned));
}

struct ContextParams {  // ucp_params_t
  std::uint64_t field_mask = 0;
  std::uint64_t features = 0;
  std::size_t request_size = 0;
  void (*request_init)(void*) = nullptr;
  void (*request_cleanup)(void*) = nullptr;
  std::uint64_t tag_sender_mask = 0;
  int mt_workers_shared = 0;
  std::size_t estimated_num_eps = 0;
};
inline constexpr std::uint64_t kContextFeatures = 1 << 0, kContextTagSenderMask = 1 << 4,
                               kContextEndpoints = 1 << 6;
inline constexpr std::uint64_t kFeatureTag = 1 << 0, kFeatureWakeup = 1 << 4;

struct WorkerParams {  // ucp_worker_params_t
  std::uint64_t field_mask = 0;
  int thread_mode = 0;
};
inline constexpr std::uint64_t kWorkerThreadMode = 1 << 0;
inline constexpr int kSerialized = 1;

struct EndpointParams {  // ucp_ep_params_t
  std::uint64_t field_mask = 0;
  const Address* address = nullptr;
  int error_mode = 0;
  void (*error_handler)(void* argument, Endpoint*, Status) = nullptr;
  void* error_argument = nullptr;
};
inline constexpr std::uint64_t kEndpointAddress = 1 << 0, kEndpointErrorMode = 1 << 1,
                               kEndpointErrorHandler = 1 << 2;
inline constexpr int kPeerErrors = 1;

struct ReceiveInfo {  // ucp_tag_recv_info_t
  std::uint64_t sender_tag = 0;
  std::size_t length = 0;
};

struct RequestParams {  // ucp_request_param_t
  std::uint32_t field_mask = 0;
  std::uint32_t flags = 0;
  void* request = nullptr;
  union {
    void (*send)(void* request, Status, void* user_data);
    void (*receive)(void* request, Status, const ReceiveInfo*, void* user_data);
  } callback{};
  std::uint64_t datatype = 0;
  void* user_data = nullptr;
  void* reply_buffer = nullptr;
  int memory_type = 0;
  ReceiveInfo* receive_info = nullptr;
  void* memory = nullptr;
};
inline constexpr std::uint32_t kRequestCallback = 1 << 1, kRequestUserData = 1 << 2, kRequestFlags = 1 << 4,
                               kRequestMemoryType = 1 << 6;
inline constexpr std::uint32_t kRequestAlways = 1 << 16;  // there is a request even if it ends at once
inline constexpr std::uint32_t kCloseAtOnce = 1 << 0;     // a flag of closing an endpoint
inline constexpr int kHostMemory = 0;

/// Calls f(member of Functions, its name in the library) for each function.
template <class Functions, class F>
void for_each_function(Functions& all, F f) {
  f(all.get_version, "ucp_get_version");
  f(all.config_read, "ucp_config_read");
  f(all.config_modify, "ucp_config_modify");
  f(all.config_release, "ucp_config_release");
  f(all.init, "ucp_init_version");
  f(all.cleanup, "ucp_cleanup");
  f(all.worker_create, "ucp_worker_create");
  f(all.worker_destroy, "ucp_worker_destroy");
  f(all.worker_address, "ucp_worker_get_address");
  f(all.release_address, "ucp_worker_release_address");
  f(all.worker_descriptor, "ucp_worker_get_efd");
  f(all.worker_arm, "ucp_worker_arm");
  f(all.worker_progress, "ucp_worker_progress");
  f(all.endpoint_create, "ucp_ep_create");
  f(all.endpoint_flush, "ucp_ep_flush_nbx");
  f(all.endpoint_close, "ucp_ep_close_nbx");
  f(all.send, "ucp_tag_send_nbx");
  f(all.receive, "ucp_tag_recv_nbx");
  f(all.probe, "ucp_tag_probe_nb");
  f(all.receive_found, "ucp_tag_msg_recv_nbx");
  f(all.request_status, "ucp_request_check_status");
  f(all.request_cancel, "ucp_request_cancel");
  f(all.request_free, "ucp_request_free");
  f(all.status_string, "ucs_status_string");
  f(all.set_global, "ucs_global_opts_set_value");
}

struct Functions {
  void (*get_version)(unsigned* major, unsigned* minor, unsigned* release);
  Status (*config_read)(const char* prefix, const char* file, Config**);
  Status (*config_modify)(Config*, const char* name, const char* value);
  void (*config_release)(Config*);
  Status (*init)(unsigned major, unsigned minor, const ContextParams*, const Config*, Context**);
  void (*cleanup)(Context*);
  Status (*worker_create)(Context*, const WorkerParams*, Worker**);
  void (*worker_destroy)(Worker*);
  Status (*worker_address)(Worker*, Address**, std::size_t* bytes);
  void (*release_address)(Worker*, Address*);
  Status (*worker_descriptor)(Worker*, int*);
  Status (*worker_arm)(Worker*);
  unsigned (*worker_progress)(Worker*);
  Status (*endpoint_create)(Worker*, const EndpointParams*, Endpoint**);
  StatusOrRequest (*endpoint_flush)(Endpoint*, const RequestParams*);
  StatusOrRequest (*endpoint_close)(Endpoint*, const RequestParams*);
  StatusOrRequest (*send)(Endpoint*, const void*, std::size_t, std::uint64_t tag, const RequestParams*);
  StatusOrRequest (*receive)(Worker*, void*, std::size_t, std::uint64_t tag, std::uint64_t mask,
                             const RequestParams*);
  UnexpectedMessage* (*probe)(Worker*, std::uint64_t tag, std::uint64_t mask, int remove, ReceiveInfo*);
  StatusOrRequest (*receive_found)(Worker*, void*, std::size_t, UnexpectedMessage*, const RequestParams*);
  Status (*request_status)(void* request);
  void (*request_cancel)(Worker*, void* request);
  void (*request_free)(void* request);
  const char* (*status_string)(Status);
  Status (*set_global)(const char* name, const char* value);
};

}  // namespace occl::ucx::abi
