#include "device/metadata.h"

#include <ATen/core/Tensor.h>
#include <torch/csrc/jit/serialization/pickler.h>

#include <string>
#include <unordered_map>
#include <utility>

#include "device/device.h"

namespace occl::device {
namespace {

using Names = std::unordered_map<std::string, bool>;

/// Never changed once it is attached: tensors that PyTorch copies the metadata to share one object.
struct Metadata final : c10::BackendMeta {
  explicit Metadata(Names n) : names(std::move(n)) {}
  const Names names;
};

/// Adds to what PyTorch itself saves (the conjugate and the negative bit).
void get(const at::Tensor& tensor, Names& names) {
  // Whatever is attached to a dev tensor is ours, unless a C++ extension attached something of its own.
  const auto* attached = dynamic_cast<Metadata*>(tensor.unsafeGetTensorImpl()->get_backend_meta());
  if (attached) names.insert(attached->names.begin(), attached->names.end());
}

void set(const at::Tensor& tensor, Names& names) {
  c10::TensorImpl* impl = tensor.unsafeGetTensorImpl();
  if (!names.empty()) {
    impl->set_backend_meta(c10::make_intrusive<Metadata>(std::move(names)));
  } else if (impl->get_backend_meta()) {  // a tensor that never had any keeps its lean form
    impl->set_backend_meta(nullptr);
  }
}

}  // namespace

void install_metadata() { torch::jit::TensorBackendMetaRegistry(kType, get, set); }

}  // namespace occl::device
