// A device that stands in for another package's accelerator: the host cannot touch its memory, and its
// streams run later than the calls that queue work on them.
//
// Each device's memory lies in one file that is mapped twice: a tensor's address is protected against any
// access, and the device's own copies and kernels use the other mapping. A thread for each stream carries out
// its tasks in order, each after a short pause, so work that does not wait for a stream sees old data.
#include <ATen/EmptyTensor.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <ATen/native/CPUFallback.h>
#include <ATen/native/Resize.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/set_native.h>
#include <ATen/ops/unfold_native.h>
#include <ATen/ops/view_as_complex_native.h>
#include <ATen/ops/view_as_real_native.h>
#include <ATen/ops/view_native.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <sys/mman.h>
#include <torch/library.h>

#include <array>
#include <atomic>
#include <bit>
#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <map>
#include <mutex>
#include <thread>

namespace {

using at::IntArrayRef;
using at::Tensor;
using std::optional;

constexpr c10::DeviceType kType = c10::kPrivateUse1;
constexpr c10::DeviceIndex kDevices = 2;
constexpr std::size_t kMemory = std::size_t{4} << 30;  // of all devices; pages come with their first use
constexpr auto kPause = std::chrono::microseconds(300);

/// Whether the device is one without this: FOREIGN_DEVICE_LACKS has its word.
bool lacks(const char* what) {
  const char* said = std::getenv("FOREIGN_DEVICE_LACKS");
  return said && std::strstr(said, what);
}

std::atomic<bool> lost = false;

/// What tasks wait at while it is closed.
class Gate {
 public:
  void set(bool open) {
    const std::lock_guard lock(mutex_);
    is_open_ = open;
    changed_.notify_all();
  }
  void pass() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return is_open_; });
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool is_open_ = true;
};
auto& held_streams = *new Gate;
auto& copies = *new Gate;

void check_offered(const char* what) {
  TORCH_CHECK_NOT_IMPLEMENTED(!lacks(what), "the foreign device has no ", what);
  TORCH_CHECK(!lost, "the foreign device is lost");
}

// ---- memory -------------------------------------------------------------------------------------------

struct Block {
  void* at;
  std::size_t size;
};

struct Memory {
  std::byte *protected_{}, *usable{};
  std::mutex mutex;
  std::size_t used = 0;
  std::multimap<std::size_t, void*> free;

  Memory() {
    const int file = memfd_create("foreign device", MFD_CLOEXEC);
    TORCH_CHECK(file >= 0 && ftruncate(file, kMemory) == 0);
    const auto map = [&](int access) {
      void* at = mmap(nullptr, kMemory, access, MAP_SHARED, file, 0);
      TORCH_CHECK(at != MAP_FAILED);
      return static_cast<std::byte*>(at);
    };
    protected_ = map(PROT_NONE);
    usable = map(PROT_READ | PROT_WRITE);
    close(file);
  }
  static Memory& get() {  // made in the process that uses it, because its pages are shared with forked ones
    static auto* memory = new Memory;
    return *memory;
  }
  Block allocate(std::size_t bytes) {
    const std::size_t size = std::bit_ceil(std::max<std::size_t>(bytes, 256));
    const std::lock_guard lock(mutex);
    if (const auto found = free.find(size); found != free.end()) return {free.extract(found).mapped(), size};
    TORCH_CHECK(used + size <= kMemory, "the foreign device is out of memory");
    return {protected_ + std::exchange(used, used + size), size};
  }
  void release(Block* block) {
    const std::lock_guard lock(mutex);
    free.emplace(block->size, block->at);
    delete block;
  }
  /// The address of the device's own mapping.
  std::byte* usable_at(const void* at) const {
    return usable + (static_cast<const std::byte*>(at) - protected_);
  }
};

c10::DeviceIndex& current() {
  thread_local c10::DeviceIndex index = 0;
  return index;
}

struct Allocator final : c10::Allocator {
  c10::DataPtr allocate(std::size_t bytes) override {
    const c10::Device device(kType, current());
    if (bytes == 0) return {nullptr, device};
    auto* block = new Block(Memory::get().allocate(bytes));
    return {block->at, block, [](void* block) { Memory::get().release(static_cast<Block*>(block)); }, device};
  }
  c10::DeleterFnPtr raw_deleter() const override { return nullptr; }
  void copy_data(void*, const void*, std::size_t) const override { TORCH_CHECK(false, "not offered"); }
} allocator;

/// A CPU tensor with the memory of a tensor of the device, which it keeps.
Tensor usable(const Tensor& t) {
  if (t.numel() == 0) return at::empty_strided(t.sizes(), t.strides(), t.options().device(c10::kCPU));
  return at::from_blob(
      Memory::get().usable_at(t.data_ptr()), t.sizes(), t.strides(), [storage = t.storage()](void*) {},
      t.options().device(c10::kCPU));
}

// ---- streams ------------------------------------------------------------------------------------------

/// A thread that carries out tasks in the order in which they were queued.
class Worker {
 public:
  Worker() {
    std::thread([this] { run(); }).detach();
  }
  std::uint64_t enqueue(std::function<void()> task) {
    const std::lock_guard lock(mutex_);
    tasks_.push_back(std::move(task));
    changed_.notify_all();
    return ++queued_;
  }
  std::uint64_t queued() {
    const std::lock_guard lock(mutex_);
    return queued_;
  }
  bool has_done(std::uint64_t number) {
    const std::lock_guard lock(mutex_);
    return done_ >= number;
  }
  void wait(std::uint64_t number) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return done_ >= number; });
  }

 private:
  void run() {
    const at::AutoDispatchBelowADInplaceOrView below;
    for (std::unique_lock lock(mutex_);;) {
      changed_.wait(lock, [&] { return !tasks_.empty(); });
      auto task = std::move(tasks_.front());
      tasks_.pop_front();
      lock.unlock();
      std::this_thread::sleep_for(kPause);
      task();
      task = nullptr;  // with the tensors that it keeps
      lock.lock();
      ++done_;
      changed_.notify_all();
    }
  }
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> tasks_;
  std::uint64_t queued_ = 0, done_ = 0;
};

/// Of each device: the default one, those of the pool, and the one of high priority.
constexpr c10::StreamId kStreams = 5;

Worker& worker(const c10::Stream& stream) {
  static std::mutex mutex;
  static auto* all = new std::array<std::array<Worker*, kStreams>, kDevices>{};
  const std::lock_guard lock(mutex);
  Worker*& found = (*all)[stream.device_index()][stream.id()];
  if (!found) found = new Worker;
  return *found;
}

c10::StreamId& current_stream(c10::DeviceIndex index) {
  thread_local std::array<c10::StreamId, kDevices> ids{};
  return ids[index];
}

c10::Stream stream(c10::DeviceIndex index, c10::StreamId id) {
  return c10::Stream(c10::Stream::UNSAFE, c10::Device(kType, index), id);
}
Worker& current_worker(const Tensor& t) {
  return worker(stream(t.device().index(), current_stream(t.device().index())));
}

struct Event {
  Worker* worker;
  std::uint64_t number;
};

struct Guard final : c10::impl::DeviceGuardImplInterface {
  c10::DeviceType type() const override { return kType; }
  c10::Device exchangeDevice(c10::Device to) const override {
    return {kType, std::exchange(current(), to.index())};
  }
  c10::Device getDevice() const override { return {kType, current()}; }
  void setDevice(c10::Device to) const override { current() = to.index(); }
  void uncheckedSetDevice(c10::Device to) const noexcept override { current() = to.index(); }
  c10::DeviceIndex deviceCount() const noexcept override { return kDevices; }

  c10::Stream getStream(c10::Device of) const override {
    const c10::DeviceIndex index = of.has_index() ? of.index() : current();
    return stream(index, current_stream(index));
  }
  c10::Stream getDefaultStream(c10::Device of) const override { return stream(of.index(), 0); }
  c10::Stream getNewStream(c10::Device of, int) const override {
    static std::atomic<unsigned> next = 0;
    return stream(of.has_index() ? of.index() : current(), 1 + next++ % (kStreams - 2));
  }
  c10::Stream getStreamFromGlobalPool(c10::Device of, bool high) const override {
    check_offered("pool");
    return high ? stream(of.index(), kStreams - 1) : getNewStream(of, 0);
  }
  c10::Stream exchangeStream(c10::Stream to) const override {
    return stream(to.device_index(), std::exchange(current_stream(to.device_index()), to.id()));
  }
  bool queryStream(const c10::Stream& of) const override { return worker(of).has_done(worker(of).queued()); }
  void synchronizeStream(const c10::Stream& of) const override {
    check_offered("synchronization");
    worker(of).wait(worker(of).queued());
  }
  void synchronizeDevice(const c10::DeviceIndex index) const override {
    if (lacks("mercy")) std::abort();
    for (c10::StreamId id = 0; id < kStreams; ++id) {
      Worker& each = worker(stream(index, id));
      each.wait(each.queued());
    }
  }

  void record(void** event, const c10::Stream& of, const c10::DeviceIndex,
              const c10::EventFlag) const override {
    check_offered("events");
    if (!*event) *event = new Event;
    *static_cast<Event*>(*event) = {&worker(of), worker(of).queued()};
  }
  void block(void* event, const c10::Stream& of) const override {
    if (!event) return;
    const Event recorded = *static_cast<Event*>(event);
    if (recorded.worker != &worker(of)) worker(of).enqueue([=] { recorded.worker->wait(recorded.number); });
  }
  bool queryEvent(void* event) const override {
    const auto* recorded = static_cast<Event*>(event);
    return !recorded || recorded->worker->has_done(recorded->number);
  }
  void synchronizeEvent(void* event) const override {
    if (const auto* recorded = static_cast<Event*>(event)) recorded->worker->wait(recorded->number);
  }
  void destroyEvent(void* event, const c10::DeviceIndex) const noexcept override {
    delete static_cast<Event*>(event);
  }
  void recordDataPtrOnStream(const c10::DataPtr&, const c10::Stream&) const override {}  // tasks keep theirs
};

struct Hooks final : at::PrivateUse1HooksInterface {
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }
  c10::DeviceIndex deviceCount() const override { return kDevices; }
  c10::DeviceIndex getCurrentDevice() const override { return current(); }
  void setCurrentDevice(c10::DeviceIndex index) const override { current() = index; }
  c10::DeviceIndex exchangeDevice(c10::DeviceIndex index) const override {
    return std::exchange(current(), index);
  }
  c10::DeviceIndex maybeExchangeDevice(c10::DeviceIndex index) const override {
    return exchangeDevice(index);
  }
  void resizePrivateUse1Bytes(const c10::Storage& storage, std::size_t bytes) const override {
    c10::StorageImpl* impl = storage.unsafeGetStorageImpl();
    const Guard guard;
    guard.synchronizeDevice(impl->device().index());
    c10::DataPtr fresh = allocator.allocate(bytes);
    const Memory& memory = Memory::get();
    if (const std::size_t kept = std::min(bytes, impl->nbytes()))
      memcpy(memory.usable_at(fresh.get()), memory.usable_at(impl->data()), kept);
    impl->set_data_ptr_noswap(std::move(fresh));
    impl->set_nbytes(bytes);
  }
};

// ---- operators ----------------------------------------------------------------------------------------

constexpr c10::DispatchKeySet kKeys{c10::DispatchKey::PrivateUse1};

Tensor empty(IntArrayRef size, optional<at::ScalarType> dtype, optional<at::Layout>,
             optional<at::Device> where, optional<bool>, optional<at::MemoryFormat> format) {
  const c10::DeviceGuard guard(where && where->has_index() ? *where : c10::Device(kType, current()));
  return at::detail::empty_generic(size, &allocator, kKeys, c10::dtype_or_default(dtype), format);
}

Tensor empty_strided(IntArrayRef size, IntArrayRef stride, optional<at::ScalarType> dtype,
                     optional<at::Layout>, optional<at::Device> where, optional<bool>) {
  const c10::DeviceGuard guard(where && where->has_index() ? *where : c10::Device(kType, current()));
  return at::detail::empty_strided_generic(size, stride, &allocator, kKeys, c10::dtype_or_default(dtype));
}

/// A copy on the device's current stream. To the host it is waited for. From the host, the data is what it is
/// at the call, and arrives later, as on devices that first copy it into a buffer of their own.
Tensor copy_from(const Tensor& from, const Tensor& to, bool) {
  check_offered("copies");
  const bool to_host = to.is_cpu();
  Worker& stream = current_worker(to_host ? from : to);
  const Tensor source = from.is_cpu() ? from.clone() : usable(from), target = to_host ? to : usable(to);
  if (!to_host && !from.is_cpu() && &stream != &current_worker(from))
    current_worker(from).wait(current_worker(from).queued());
  const std::uint64_t number = stream.enqueue([source, target] {
    copies.pass();
    target.copy_(source);
  });
  if (to_host) stream.wait(number);
  return to;
}

Tensor view_as_real(const Tensor& t) {
  check_offered("complex views");
  return at::native::view_as_real(t);
}

Tensor copy_from_and_resize(const Tensor& from, const Tensor& to) {
  to.resize_(from.sizes());
  return copy_from(from, to, false);
}

Tensor& fill_(Tensor& self, const at::Scalar& value) {
  current_worker(self).enqueue([t = usable(self), value] { t.fill_(value); });
  return self;
}
Tensor& mul_(Tensor& self, const Tensor& factor) {
  const Tensor by = factor.is_cpu() ? factor.clone() : usable(factor);
  current_worker(self).enqueue([t = usable(self), by] { t.mul_(by); });
  return self;
}

/// Not PyTorch's own, which copies what stays with the host's memcpy.
const Tensor& resize_(const Tensor& self, IntArrayRef size, optional<at::MemoryFormat>) {
  auto* impl = self.unsafeGetTensorImpl();
  impl->set_sizes_contiguous(size);
  const std::size_t wanted =
      at::detail::computeStorageNbytesContiguous(size, self.dtype().itemsize(), self.storage_offset());
  if (wanted > self.storage().nbytes())
    at::detail::getPrivateUse1Hooks().resizePrivateUse1Bytes(self.storage(), wanted);
  return self;
}

Tensor& set_storage_(Tensor& self, at::Storage source, int64_t offset, IntArrayRef size, IntArrayRef stride) {
  return at::native::set_storage_cpu_(self, std::move(source), offset, size, stride);
}
Tensor& set_whole_storage_(Tensor& self, at::Storage source) {
  const auto elements = static_cast<int64_t>(source.nbytes() / self.dtype().itemsize());
  return set_storage_(self, std::move(source), 0, {elements}, {});
}
Tensor& set_tensor_(Tensor& self, const Tensor& source) {
  return set_storage_(self, source.storage(), source.storage_offset(), source.sizes(), source.strides());
}

void record_stream(Tensor&, c10::Stream) {}  // tasks keep their tensors

TORCH_LIBRARY_IMPL(aten, PrivateUse1, aten) {
  aten.impl("empty.memory_format", TORCH_FN(empty));
  aten.impl("empty_strided", TORCH_FN(empty_strided));
  aten.impl("_copy_from", TORCH_FN(copy_from));
  aten.impl("_copy_from_and_resize", TORCH_FN(copy_from_and_resize));
  aten.impl("fill_.Scalar", TORCH_FN(fill_));
  aten.impl("mul_.Tensor", TORCH_FN(mul_));
  aten.impl("resize_", TORCH_FN(resize_));
  aten.impl("set_.source_Tensor", TORCH_FN(set_tensor_));
  aten.impl("set_.source_Storage", TORCH_FN(set_whole_storage_));
  aten.impl("set_.source_Storage_storage_offset", TORCH_FN(set_storage_));
  aten.impl("record_stream", TORCH_FN(record_stream));
  aten.impl("view", TORCH_FN(at::native::view));
  aten.impl("as_strided", TORCH_FN(at::native::as_strided_tensorimpl));
  aten.impl("_reshape_alias", TORCH_FN(at::native::_reshape_alias));
  aten.impl("unfold", TORCH_FN(at::native::unfold));
  aten.impl("view_as_real", TORCH_FN(view_as_real));
  aten.impl("view_as_complex", TORCH_FN(at::native::view_as_complex));
}

/// Everything else is computed by the CPU, between copies.
void on_the_cpu(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  at::native::cpu_fallback(op, stack);
}
TORCH_LIBRARY_IMPL(_, PrivateUse1, every) {
  every.fallback(torch::CppFunction::makeFromBoxedFunction<&on_the_cpu>());
}

/// Keeps the current stream of a tensor's device from its next tasks, until `release`.
void hold(const Tensor& t) {
  held_streams.set(false);
  current_worker(t).enqueue([] { held_streams.pass(); });
}
void release() { held_streams.set(true); }
/// From now on no copy ends, or each does.
void hang(bool hangs) { copies.set(!hangs); }
/// From now on copies, events and waits for streams fail, or no longer.
void lose(bool is_lost) { lost = is_lost; }

TORCH_LIBRARY(foreign, own) {
  own.def("hold", TORCH_FN(hold));
  own.def("release", TORCH_FN(release));
  own.def("hang", TORCH_FN(hang));
  own.def("lose", TORCH_FN(lose));
}

[[maybe_unused]] const bool registered = [] {
  static const Guard guard;
  static Hooks hooks;
  c10::impl::device_guard_impl_registry[static_cast<std::size_t>(kType)].store(&guard);
  at::RegisterPrivateUse1HooksInterface(&hooks);
  c10::SetAllocator(kType, &allocator);
  return true;
}();

}  // namespace
