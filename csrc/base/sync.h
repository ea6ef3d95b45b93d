// The primitives with which threads and processes synchronise, under names of this library: some tests
// replace this header with one whose scheduler enumerates interleavings and stale reads
// (tests/cpp/explore/explore.h).
#pragma once

#include <atomic>
#include <condition_variable>
#include <mutex>
#include <thread>

namespace occl {

template <class T>
using Atomic = std::atomic<T>;
using Mutex = std::mutex;
using Condition = std::condition_variable;
using Thread = std::thread;

}  // namespace occl
