// Calls of a store that have a deadline. A TCPStore waits for the answer of its server for as long as the
// connection lives, which is a quarter of an hour or more if the server's host is cut off.
#pragma once

#include <condition_variable>
#include <functional>
#include <future>
#include <memory>
#include <mutex>
#include <thread>
#include <type_traits>

#include <torch/csrc/distributed/c10d/Store.hpp>

#include "base/deadline.h"
#include "base/error.h"

namespace occl::pg {

class StoreThread {
 public:
  /// Throws Error(system) if there can be no further thread.
  explicit StoreThread(c10::intrusive_ptr<c10d::Store> store);
  /// A thread that waits for an answer is left to itself.
  ~StoreThread();
  StoreThread(const StoreThread&) = delete;
  StoreThread& operator=(const StoreThread&) = delete;

  /// What `call` returns for the store, or throws. It must hold all that it uses, because it can outlive this
  /// wait. Throws Error(timeout) after the deadline, and at once from then on; `interrupted` may throw too.
  template <class F>
  std::invoke_result_t<F, c10d::Store&> run(F call, Deadline deadline,
                                            const std::function<void()>& interrupted) {
    using Result = std::invoke_result_t<F, c10d::Store&>;
    auto task = std::make_shared<std::packaged_task<Result(c10d::Store&)>>(std::move(call));
    auto result = task->get_future();
    if (stuck_) fail(Errc::timeout, "an earlier call has not been answered yet");
    start([task](c10d::Store& store) { (*task)(store); });
    stuck_ = true;
    while (result.wait_for(deadline.left(kSlice)) != std::future_status::ready) {
      if (deadline.passed()) fail(Errc::timeout, "it did not answer for ", deadline.span().count(), " ms");
      interrupted();
    }
    stuck_ = false;
    return result.get();
  }

 private:
  using Call = std::function<void(c10d::Store&)>;
  struct State {
    c10::intrusive_ptr<c10d::Store> store;
    std::mutex mutex;
    std::condition_variable wake;
    Call call;
    bool stop = false;
  };
  static constexpr std::chrono::milliseconds kSlice{50};

  void start(Call call);

  const std::shared_ptr<State> state_;
  bool stuck_ = false;  // a call has not ended
  std::thread thread_;
};

}  // namespace occl::pg
