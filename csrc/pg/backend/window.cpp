#include "pg/backend/window.h"

#include <ATen/ATen.h>

#include <array>
#include <cstring>
#include <mutex>
#include <utility>

#include "device/runtime/allocator.h"
#include "pg/backend/process_group.h"
#include "pg/process/engine.h"
#include "pg/request/checks.h"
#include "pg/request/errors.h"
#include "pg/request/normalize.h"

namespace occl::pg {
namespace {

/// A new window of the group. In a forked child it is left as it is, because it is the parent's: there the
/// last holder closes nothing.
std::shared_ptr<coll::Window> new_window_of(const std::shared_ptr<coll::Communicator>& group, int channels) {
  const std::shared_ptr<coll::Window> window =
      translated([&] { return group->make_window(group, channels); });
  return {window.get(), [group, window](coll::Window*) {
            if (is_forked_from(*group)) new std::shared_ptr<coll::Window>(window);
          }};
}

/// Returns when the work has ended, be it with an error.
void wait_quietly(c10d::Work& work, std::chrono::milliseconds timeout) try {
  work.wait(timeout);
} catch (const c10::Error&) {
  if (!work.isCompleted()) throw;
}

}  // namespace

/// What ranks exchange.
struct WindowOCCL::Announcement {
  coll::WindowHandle handle;
  std::int32_t has_tensor = 0;
  std::int32_t type = 0, device = 0, dims = 0;
  std::array<std::int64_t, kMaxWindowDims> sizes{};
};

WindowOCCL::WindowOCCL(ProcessGroupOCCL& backend, std::shared_ptr<coll::Communicator> group,
                       const WindowPurpose& purpose)
    : backend_(c10::intrusive_ptr<c10d::Backend>::unsafe_reclaim_from_nonowning(&backend)),
      group_(std::move(group)),
      channels_(purpose.channels),
      window_(new_window_of(group_, purpose.channels)) {}

WindowOCCL::~WindowOCCL() {
  window_.reset();
  if (!is_forked_from(*group_)) group_->collect_windows();
}

c10::intrusive_ptr<WindowOCCL> WindowOCCL::make(ProcessGroupOCCL& backend,
                                                const std::optional<at::Tensor>& tensor,
                                                const WindowPurpose& purpose) {
  auto made = c10::make_intrusive<WindowOCCL>(backend, backend.communicator(), purpose);
  made->meet(purpose, tensor, true);
  return made;
}

bool WindowOCCL::is_of(ProcessGroupOCCL& backend) const {
  return backend_.lock().get() == &backend && backend.communicator() == group_;
}

std::size_t WindowOCCL::bytes(int rank) const {
  const auto& tensor = registered("bytes")->tensors[rank];
  return static_cast<std::size_t>(tensor.elements) * c10::elementSize(tensor.type);
}

c10::intrusive_ptr<ProcessGroupOCCL> WindowOCCL::backend() const {
  check_not_forked(*group_);
  auto backend = c10::static_intrusive_pointer_cast<ProcessGroupOCCL>(backend_.lock());
  if (!backend) raise(Error(Errc::closed, concat("group ", group_->name(), " has been destroyed")));
  if (backend->communicator() != group_)
    raise(Error(Errc::closed, concat("the window is of members of group ", group_->name(),
                                     " from before reconfigure(): make a new one")));
  return backend;
}

std::shared_ptr<const WindowOCCL::Registered> WindowOCCL::registered(const char* call) const {
  const std::lock_guard lock(mutex_);
  if (!registered_) invalid(call, "no tensor is registered with this window: all ranks call tensor_register");
  return registered_;
}

void WindowOCCL::set_registered(std::shared_ptr<const Registered> registered) {
  const std::lock_guard lock(mutex_);
  registered_ = std::move(registered);
}

// ---- collective calls

void WindowOCCL::tensor_register(const at::Tensor& tensor, bool owning) {
  meet({"tensor_register", "occl:tensor_register", coll::Composite::tensor_register}, tensor, owning);
}

void WindowOCCL::tensor_deregister() {
  const char* call = "tensor_deregister";
  const auto backend = this->backend();
  backend->meet_for_window(call, [&] {
    registered(call);
    wait_for_accesses(backend->getBackendOptions()->timeout);
    Request r = barrier();
    r.title = "occl:tensor_deregister";
    r.collective().part_of = coll::Composite::tensor_deregister;
    return r;
  });
  set_registered(nullptr);
  window_->keep(nullptr);
}

/// All ranks tell each other which tensors they have, and find each other's.
void WindowOCCL::meet(const WindowPurpose& purpose, const std::optional<at::Tensor>& tensor, bool owning) {
  const char* call = purpose.call;
  const auto backend = this->backend();
  const auto size = static_cast<std::int64_t>(sizeof(Announcement));
  std::vector<Announcement> announced(group_->size());
  at::Tensor all = at::empty({group_->size(), size}, at::kByte);
  backend->meet_for_window(call, [&] {
    const Announcement own = announce(call, tensor);
    at::Tensor mine = at::empty({size}, at::kByte);
    std::memcpy(mine.data_ptr(), &own, sizeof(own));
    if (tensor) window_->keep(owning ? std::make_shared<at::Tensor>(*tensor) : nullptr);
    Request r = all_gather_into(self(), all, mine);
    r.title = purpose.title;
    r.collective().part_of = purpose.part_of;
    return r;
  });
  std::memcpy(announced.data(), all.const_data_ptr(), all.nbytes());
  std::vector<coll::WindowHandle> handles;
  auto known = std::make_shared<Registered>();
  for (int rank = 0; rank < group_->size(); ++rank) {
    const Announcement& it = announced[rank];
    if (it.has_tensor != announced[0].has_tensor)
      invalid(call, "rank ", it.has_tensor ? rank : 0, " passed a tensor, and rank ",
              it.has_tensor ? 0 : rank, " none");
    handles.push_back(it.handle);
    known->tensors.push_back(translated([&] { return read(rank, it); }));
  }
  const Deadline deadline = Deadline::after(backend->getBackendOptions()->timeout);
  translated([&] {
    group_->connect_window(*window_, handles, tensor ? static_cast<std::byte*>(tensor->data_ptr()) : nullptr,
                           deadline);
  });
  if (!tensor) return;
  known->mark = at::empty({0}, at::TensorOptions(at::kByte).device(tensor->device()));
  set_registered(std::move(known));
}

WindowOCCL::Announcement WindowOCCL::announce(const char* call,
                                              const std::optional<at::Tensor>& tensor) const {
  Announcement own;
  if (!tensor) {
    own.handle = group_->show_window(*window_, {}, nullptr, 0);
    return own;
  }
  {
    const std::lock_guard lock(mutex_);
    if (registered_) invalid(call, "a tensor is registered already: all ranks call tensor_deregister first");
  }
  const at::Tensor& t = *tensor;
  const shm::Ref at = mapped_memory(call, t, engine().endpoint()->regions());  // first of all checks t
  own.handle = group_->show_window(*window_, at, static_cast<std::byte*>(t.data_ptr()), t.nbytes());
  own.has_tensor = 1;
  own.type = static_cast<std::int32_t>(t.scalar_type());
  own.device = static_cast<std::int32_t>(t.device().type());
  own.dims = static_cast<std::int32_t>(t.dim());
  std::copy(t.sizes().begin(), t.sizes().end(), own.sizes.begin());
  return own;
}

/// Throws Error(protocol) if that is no tensor.
WindowTensor WindowOCCL::read(int rank, const Announcement& it) const {
  WindowTensor tensor;
  if (!it.has_tensor) return tensor;
  const auto device = static_cast<c10::DeviceType>(it.device);
  bool sound = (device == at::kCPU || device == at::kPrivateUse1) && it.type >= 0 &&
               it.type < static_cast<int>(at::ScalarType::NumOptions) && it.dims >= 0 &&
               it.dims <= static_cast<int>(kMaxWindowDims);
  if (sound) {
    tensor.type = static_cast<at::ScalarType>(it.type);
    tensor.device = device;
    tensor.sizes.assign(it.sizes.begin(), it.sizes.begin() + it.dims);
    tensor.elements = 1;
    for (const std::int64_t n : tensor.sizes)
      sound = sound && n >= 0 && !__builtin_mul_overflow(tensor.elements, n, &tensor.elements);
    std::uint64_t bytes = 0;
    sound = sound &&
            !__builtin_mul_overflow(static_cast<std::uint64_t>(tensor.elements),
                                    c10::elementSize(tensor.type), &bytes) &&
            bytes == it.handle.bytes;
  }
  if (!sound)
    fail(Errc::protocol, "rank ", rank, " of group ", group_->name(), " announced a tensor that cannot be");
  return tensor;
}

// ---- accesses

template <class Make>
WindowOCCL::WorkPtr WindowOCCL::access(const char* call, std::int64_t rank, bool send,
                                       std::chrono::milliseconds timeout, bool async, Make&& make) {
  const auto backend = this->backend();
  auto work = backend->access_window(
      call, rank, send,
      [&] {
        const auto known = registered(call);
        return make(
            WindowAccess{self(), window_, memory(group_->rank()), known->tensors, known->mark, channels_});
      },
      timeout, async);
  const std::lock_guard lock(mutex_);
  std::erase_if(accesses_, [](const auto& weak) {
    const auto earlier = weak.lock();
    return !earlier || earlier->isCompleted();
  });
  if (!work->isCompleted()) accesses_.emplace_back(work);
  return work;
}

WindowOCCL::WorkPtr WindowOCCL::put(const at::Tensor& tensor, std::int64_t rank, std::int64_t offset,
                                    bool async, const PutOptions& opts) {
  return access("put", rank, true, opts.timeout, async,
                [&](const WindowAccess& window) { return pg::put(window, tensor, rank, offset); });
}

WindowOCCL::WorkPtr WindowOCCL::signal_on(std::int64_t channel, std::int64_t rank, bool async,
                                          std::chrono::milliseconds timeout) {
  return access("signal", rank, true, timeout, async,
                [&](const WindowAccess& window) { return pg::signal(window, rank, channel); });
}

WindowOCCL::WorkPtr WindowOCCL::wait_signal_on(std::int64_t channel, std::int64_t rank, bool async,
                                               std::chrono::milliseconds timeout) {
  return access("wait_signal", rank, false, timeout, async,
                [&](const WindowAccess& window) { return pg::wait_signal(window, rank, channel); });
}

/// Returns when the accesses of this rank have ended; their errors are those of their works. With a timeout
/// the host waits, even on a side stream.
void WindowOCCL::wait_for_accesses(std::chrono::milliseconds timeout) {
  std::vector<c10::weak_intrusive_ptr<c10d::Work>> all;
  {
    const std::lock_guard lock(mutex_);
    all.swap(accesses_);
  }
  for (const auto& weak : all)
    if (const auto work = weak.lock(); work && !work->isCompleted()) wait_quietly(*work, timeout);
}

// ---- views

at::Tensor WindowOCCL::map_remote_tensor(std::int64_t rank) {
  const char* call = "map_remote_tensor";
  backend();
  if (const auto error = group_->error()) raise(*error);
  const auto known = registered(call);
  const int from = rank_of(call, self(), rank);
  const WindowTensor& theirs = known->tensors[from];
  if (theirs.device.is_privateuseone() && !device::owns_privateuse1())
    invalid(call, "the tensor of rank ", from, " is on dev, which this process does not have");
  if (theirs.elements > 0 && !memory(from))
    raise(Error(
        Errc::not_implemented,
        concat(call, ": rank ", from, " is on another host, whose memory this process cannot map: use put")));
  const bool alike = theirs.device.type() == known->mark.device().type();
  const at::Tensor view =
      at::empty({0}, at::TensorOptions(theirs.type).device(alike ? known->mark.device() : theirs.device));
  using Held = std::shared_ptr<coll::Window>;
  c10::DataPtr data(
      memory(from), new Held(window_), [](void* held) { delete static_cast<Held*>(held); }, view.device());
  const std::size_t bytes = static_cast<std::size_t>(theirs.elements) * c10::elementSize(theirs.type);
  c10::Storage storage(c10::Storage::use_byte_size_t(), bytes, std::move(data), /*allocator=*/nullptr,
                       /*resizable=*/false);
  return view.set_(std::move(storage), 0, theirs.sizes);
}

WindowAttr WindowOCCL::get_attr(std::int64_t rank) {
  backend();
  rank_of("get_attr", self(), rank);
  return {};
}

}  // namespace occl::pg
