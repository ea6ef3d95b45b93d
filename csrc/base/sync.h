// What threads and processes synchronise with, under names of our own: the tests put another header in this
// one's place, with a scheduler that tries interleavings and stale reads one by one
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
