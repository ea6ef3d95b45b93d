// The version of the PyTorch that this is compiled for.
//
// Only headers of this folder ask for it, and only where neither a feature macro of PyTorch nor a `requires`
// can tell; each branch for an older version says with which one it can go.
#pragma once

#include <torch/headeronly/version.h>

#define OCCL_TORCH_AT_LEAST(major, minor) \
  (TORCH_VERSION_MAJOR > (major) || (TORCH_VERSION_MAJOR == (major) && TORCH_VERSION_MINOR >= (minor)))
