// Everything that makes `dev` known to PyTorch's C++ side, in one call. Nothing happens when the library is
// loaded: another package may own PrivateUse1.
#pragma once

namespace occl::device {

/// Once per process.
void init();

}  // namespace occl::device
