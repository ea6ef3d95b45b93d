// A c10d::Backend that passes messages on to another one and remembers them. It offers nothing but messages,
// so any other call is an error. It can keep messages from their receives, and leave an abort without effect.

#include <chrono>
#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <stdexcept>
#include <string>
#include <tuple>
#include <vector>

#include <torch/csrc/utils/pybind.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>

namespace {

/// "send" or "receive", the other rank, the tag, and the number of bytes.
using Entry = std::tuple<std::string, int, int, std::size_t>;

/// What the engine and its messages share.
struct Shared {
  std::mutex mutex;
  std::condition_variable ended;
  std::map<int, int> open;  // by tag: messages that have neither ended nor been given up
  std::set<int> held;       // tags whose receives get no message
  bool stubborn = false;    // an abort ends nothing
};

class Message final : public c10d::Work {
 public:
  /// `inner`: null if the message never comes.
  Message(std::shared_ptr<Shared> shared, c10::intrusive_ptr<c10d::Work> inner, int tag)
      : shared_(std::move(shared)), inner_(std::move(inner)), tag_(tag) {
    std::lock_guard lock(shared_->mutex);
    ++shared_->open[tag_];
  }
  bool wait(std::chrono::milliseconds timeout) override {
    struct Ending {
      ~Ending() { message.end(); }
      Message& message;
    } ending{*this};
    if (inner_) return inner_->wait(timeout);
    std::unique_lock lock(shared_->mutex);
    shared_->ended.wait(lock, [this] { return over_; });
    throw std::runtime_error("given up");
  }
  void abort() override {
    {
      std::lock_guard lock(shared_->mutex);
      if (shared_->stubborn) return;
    }
    if (inner_) inner_->abort();
    end();
  }

 private:
  void end() {
    {
      std::lock_guard lock(shared_->mutex);
      if (!over_) --shared_->open[tag_];
      over_ = true;
    }
    shared_->ended.notify_all();
  }

  const std::shared_ptr<Shared> shared_;
  const c10::intrusive_ptr<c10d::Work> inner_;
  const int tag_;
  bool over_ = false;
};

class Recorder final : public c10d::Backend {
 public:
  explicit Recorder(c10::intrusive_ptr<c10d::Backend> inner)
      : Backend(inner->getRank(), inner->getSize()), inner_(std::move(inner)) {}

  const std::string getBackendName() const override { return "recorder"; }
  c10::intrusive_ptr<c10d::Work> send(std::vector<at::Tensor>& tensors, int to, int tag) override {
    add({"send", to, tag, tensors.at(0).nbytes()});
    return c10::make_intrusive<Message>(shared_, inner_->send(tensors, to, tag), tag);
  }
  c10::intrusive_ptr<c10d::Work> recv(std::vector<at::Tensor>& tensors, int from, int tag) override {
    add({"receive", from, tag, tensors.at(0).nbytes()});
    {
      std::lock_guard lock(shared_->mutex);
      if (shared_->held.count(tag)) tensors.clear();
    }
    auto inner = tensors.empty() ? c10::intrusive_ptr<c10d::Work>() : inner_->recv(tensors, from, tag);
    return c10::make_intrusive<Message>(shared_, std::move(inner), tag);
  }
  std::vector<Entry> entries() {
    std::lock_guard lock(mutex_);
    return entries_;
  }
  int open(int tag) {
    std::lock_guard lock(shared_->mutex);
    return shared_->open[tag];
  }
  void hold(int tag) {
    std::lock_guard lock(shared_->mutex);
    shared_->held.insert(tag);
  }
  void be_stubborn() {
    std::lock_guard lock(shared_->mutex);
    shared_->stubborn = true;
  }

 private:
  void add(Entry entry) {
    std::lock_guard lock(mutex_);
    entries_.push_back(std::move(entry));
  }

  const c10::intrusive_ptr<c10d::Backend> inner_;
  const std::shared_ptr<Shared> shared_ = std::make_shared<Shared>();
  std::mutex mutex_;
  std::vector<Entry> entries_;
};

}  // namespace

PYBIND11_MODULE(TORCH_EXTENSION_NAME, module) {
  pybind11::module_::import("torch.distributed");  // registers the base class
  pybind11::class_<Recorder, c10d::Backend, c10::intrusive_ptr<Recorder>>(module, "Recorder")
      .def(pybind11::init<c10::intrusive_ptr<c10d::Backend>>())
      .def("entries", &Recorder::entries)
      .def("open", &Recorder::open)
      .def("hold", &Recorder::hold)
      .def("be_stubborn", &Recorder::be_stubborn);
}
