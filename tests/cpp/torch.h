// PyTorch's headers that most of the extension includes, precompiled where it is built with a sanitizer: see
// tests/support/cpp_build.py.

#include <ATen/ATen.h>
#include <torch/csrc/utils/pybind.h>
#include <torch/library.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>
