// In place of csrc/base/sync.h, in the programs of mode `explore`.
#pragma once

#include "explore/explore.h"

namespace occl {

template <class T>
using Atomic = explore::Atomic<T>;
using Mutex = explore::Mutex;
using SpinLock = explore::SpinLock;
using explore::fence;
using Condition = explore::Condition;
using Thread = explore::Thread;

}  // namespace occl
