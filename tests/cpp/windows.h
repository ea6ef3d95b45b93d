// A window of every rank of a cluster, each over mapped memory of its own.
#pragma once

#include <memory>
#include <vector>

#include "cluster.h"
#include "coll/windows/window.h"

namespace occl::test {

/// `Ranks`: Cluster, or Hosts (hosts.h), whose ranks are on several nodes.
class WindowRanks {
 public:
  template <class Ranks>
  WindowRanks(Ranks& cluster, std::size_t bytes, int channels = 1) {
    std::vector<coll::WindowHandle> handles;
    for (int i = 0; i < cluster.size(); ++i) {
      auto region =
          std::make_shared<shm::Region>(shm::Region::create("test", bytes, shm::Access::read_write));
      region->commit(0, bytes);
      const auto group = cluster[i].shared_communicator();
      windows.push_back(group->make_window(group, channels));
      handles.push_back(
          group->show_window(*windows[i], {cluster[i].regions->add(region), 0}, region->base(), bytes));
      memory.push_back(std::move(region));
    }
    for (int i = 0; i < cluster.size(); ++i)
      cluster[i].communicator().connect_window(*windows[i], handles, memory[i]->base(),
                                               Deadline::after(std::chrono::seconds(60)));
  }

  coll::Transfer put(int rank, int to, std::byte* data, std::size_t bytes, std::size_t offset) const {
    return {true, to, 0, DType::u8, {data, bytes}, 0, coll::Access::put, windows[rank].get(), offset};
  }
  coll::Transfer signal(int rank, int to, std::uint32_t channel = 0) const {
    return {true, to, channel, DType::u8, {}, 0, coll::Access::signal, windows[rank].get()};
  }
  coll::Transfer wait(int rank, int from, std::uint32_t channel = 0) const {
    return {false, from, channel, DType::u8, {}, 0, coll::Access::wait_signal, windows[rank].get()};
  }

  std::vector<std::shared_ptr<shm::Region>> memory;
  std::vector<std::shared_ptr<coll::Window>> windows;
};

}  // namespace occl::test
