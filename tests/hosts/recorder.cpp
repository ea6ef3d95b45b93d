// A c10d::Backend that passes messages on to another one and remembers them. It offers nothing but messages,
// so any other call is an error.

#include <mutex>
#include <string>
#include <tuple>
#include <vector>

#include <torch/csrc/utils/pybind.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>

namespace {

/// "send" or "receive", the other rank, the tag, and the number of bytes.
using Entry = std::tuple<std::string, int, int, std::size_t>;

class Recorder final : public c10d::Backend {
 public:
  explicit Recorder(c10::intrusive_ptr<c10d::Backend> inner)
      : Backend(inner->getRank(), inner->getSize()), inner_(std::move(inner)) {}

  const std::string getBackendName() const override { return "recorder"; }
  c10::intrusive_ptr<c10d::Work> send(std::vector<at::Tensor>& tensors, int to, int tag) override {
    add({"send", to, tag, tensors.at(0).nbytes()});
    return inner_->send(tensors, to, tag);
  }
  c10::intrusive_ptr<c10d::Work> recv(std::vector<at::Tensor>& tensors, int from, int tag) override {
    add({"receive", from, tag, tensors.at(0).nbytes()});
    return inner_->recv(tensors, from, tag);
  }
  std::vector<Entry> entries() {
    std::lock_guard lock(mutex_);
    return entries_;
  }

 private:
  void add(Entry entry) {
    std::lock_guard lock(mutex_);
    entries_.push_back(std::move(entry));
  }

  const c10::intrusive_ptr<c10d::Backend> inner_;
  std::mutex mutex_;
  std::vector<Entry> entries_;
};

}  // namespace

PYBIND11_MODULE(TORCH_EXTENSION_NAME, module) {
  pybind11::module_::import("torch.distributed");  // registers the base class
  pybind11::class_<Recorder, c10d::Backend, c10::intrusive_ptr<Recorder>>(module, "Recorder")
      .def(pybind11::init<c10::intrusive_ptr<c10d::Backend>>())
      .def("entries", &Recorder::entries);
}
