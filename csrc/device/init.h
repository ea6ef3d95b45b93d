// Everything that makes `dev` known to PyTorch's C++ side, in one call. Nothing happens when the library is
// loaded: another package may own PrivateUse1.
#pragma once

#include <functional>

namespace occl::device {

/// Once per process. `groups` registers what groups on `dev` need.
void init(const std::function<void()>& groups);

}  // namespace occl::device
