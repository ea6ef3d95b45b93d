// Every operation that the CPU has, on `dev`: the CPU's own kernel runs on the same memory.
//
//   arguments   dev tensors -> CPU tensors over the same storages; dev devices -> cpu; generators -> CPU
//   engines kernel      allocates from the device's heap, because AllocateOn switches the CPU allocator
//   results     -> dev tensors: as they are, or views of the arguments' storages
#pragma once

namespace occl::device {

/// Registers the fallback for the PrivateUse1 key, and, so that operators with a CPU kernel go straight to it
/// and not through a composite of others, explicitly for each of those.
void install_fallback();

}  // namespace occl::device
