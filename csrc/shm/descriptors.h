// Room in this process's table of descriptors.
#pragma once

namespace occl::shm {

/// Makes room for a thousand descriptors, or as many as the limit allows, once in a process.
///
/// The kernel enlarges the table by doubling it from 64, and a process with several threads waits each time
/// until RCU has seen every core: 8 to 20 ms, and up to a minute on a machine with far more to do than cores.
/// A rank has several descriptors for each peer, so the wait would be in the middle of an operation. Here it
/// costs nothing where the process has one thread; else a thread of its own waits.
void make_room_for_descriptors();

}  // namespace occl::shm
