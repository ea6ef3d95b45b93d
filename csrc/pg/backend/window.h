// The window that PyTorch's programs hold (c10d::Window): the tensors of all ranks, over
// coll/windows/window.h.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "base/sync.h"
#include "coll/group/group.h"
#include "pg/compat/window_base.h"
#include "pg/request/one_sided.h"

namespace occl::pg {

class ProcessGroupOCCL;

/// The call that makes a window.
struct WindowPurpose {
  const char* call = "new_window";
  const char* title = "occl:new_window";
  coll::Composite part_of = coll::Composite::new_window;
  int channels = 1;  // of signals
};

class WindowOCCL final : public WindowBase {
 public:
  using WorkPtr = c10::intrusive_ptr<c10d::Work>;

  /// A collective call: makes a window, and registers the tensor, which all ranks pass or none.
  static c10::intrusive_ptr<WindowOCCL> make(ProcessGroupOCCL& backend,
                                             const std::optional<at::Tensor>& tensor,
                                             const WindowPurpose& purpose = {});
  ~WindowOCCL() override;

  /// Collective calls. The tensors of the ranks may have different shapes and types, and lie where peers can
  /// map them. `owning`: the tensor lives as long as it is registered. Deregistering first waits for this
  /// rank's accesses; on return, no rank writes into the tensor any more.
  void tensor_register(const at::Tensor& tensor, bool owning) override;
  void tensor_deregister() override;

  /// Writes into the tensor of `rank`, from its element `offset` on (one_sided.h). When this has ended, the
  /// bytes lie there, and what `rank` does after it has waited for a later signal sees them.
  WorkPtr put(const at::Tensor& tensor, std::int64_t rank, std::int64_t offset, bool async,
              const PutOptions& opts) override;
  WorkPtr signal(std::int64_t rank, bool async, const SignalOptions& opts) override {
    return signal_on(0, rank, async, opts.timeout);
  }
  /// Ends when `rank` has sent one more signal than have been waited for. On a side stream, the stream waits.
  WorkPtr wait_signal(std::int64_t rank, bool async, const WaitSignalOptions& opts) override {
    return wait_signal_on(0, rank, async, opts.timeout);
  }
  /// The same on one of the window's channels, which are independent.
  WorkPtr signal_on(std::int64_t channel, std::int64_t rank, bool async, std::chrono::milliseconds timeout);
  WorkPtr wait_signal_on(std::int64_t channel, std::int64_t rank, bool async,
                         std::chrono::milliseconds timeout);

  /// The tensor of `rank`, in its own memory. That stays mapped as long as the result lives. After `rank` has
  /// deregistered it, it holds whatever is there then. Raises NotImplementedError for a rank of another host.
  at::Tensor map_remote_tensor(std::int64_t rank) override;
  WindowAttr get_attr(std::int64_t rank) override;

  /// Of a rank: where this process has its tensor, null if that has no bytes, and the tensor's bytes.
  std::byte* memory(int rank) const { return group_->window_memory(*window_, rank); }
  std::size_t bytes(int rank) const;
  /// Whether it is a window of this group, with the members that it has now.
  bool is_of(ProcessGroupOCCL& backend) const;

  WindowOCCL(ProcessGroupOCCL& backend, std::shared_ptr<coll::Communicator> group,
             const WindowPurpose& purpose);

 private:
  struct Announcement;
  /// What all ranks have registered, by rank, and the mark of this one (one_sided.h).
  struct Registered {
    std::vector<WindowTensor> tensors;
    at::Tensor mark;
  };

  /// Raises DistBackendError once the backend is gone.
  c10::intrusive_ptr<ProcessGroupOCCL> backend() const;
  ThisRank self() const { return {group_->rank(), group_->size()}; }
  std::shared_ptr<const Registered> registered(const char* call) const;
  void set_registered(std::shared_ptr<const Registered> registered);
  void meet(const WindowPurpose& purpose, const std::optional<at::Tensor>& tensor, bool owning);
  Announcement announce(const char* call, const std::optional<at::Tensor>& tensor) const;
  WindowTensor read(int rank, const Announcement& announced) const;
  template <class Make>
  WorkPtr access(const char* call, std::int64_t rank, bool send, std::chrono::milliseconds timeout,
                 bool async, Make&& make);
  void wait_for_accesses(std::chrono::milliseconds timeout);

  const c10::weak_intrusive_ptr<c10d::Backend> backend_;  // a ProcessGroupOCCL
  const std::shared_ptr<coll::Communicator> group_;
  const int channels_;
  std::shared_ptr<coll::Window> window_;  // changes in the destructor only
  mutable Mutex mutex_;
  // Guarded by mutex_:
  std::shared_ptr<const Registered> registered_;               // null: nothing
  std::vector<c10::weak_intrusive_ptr<c10d::Work>> accesses_;  // all that have not ended, and some that have
};

}  // namespace occl::pg
