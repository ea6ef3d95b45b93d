// What carries a group's messages between nodes, and how its ranks are connected: UCX, Gloo, or a backend
// that the program has made.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>

#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "hosts/link.h"

namespace occl::pg {

/// The carrier of a group's messages between nodes, before it is connected.
struct PreparedBetween {
  std::string engine;  // what all ranks must have in common, for texts
  std::string name;    // how this process uses it: "gloo over eth0 (10.0.0.1)"
  std::function<std::shared_ptr<hosts::Link>(const c10::intrusive_ptr<c10d::Store>& store,
                                             std::chrono::milliseconds timeout)>
      connect;  // a collective call
};
/// `one_network`: all ranks are in one network namespace. Throws if this rank can prepare nothing.
using PrepareBetween = std::function<PreparedBetween(bool one_network)>;

/// For a rank of `size` of this group. Each throws if this rank can prepare nothing.
PreparedBetween between_by(const c10::intrusive_ptr<c10d::Backend>& given, int rank, int size,
                           const std::string& group);
PreparedBetween between_by_gloo(bool one_network, int rank, int size, const std::string& group);
PreparedBetween between_by_ucx(bool one_network, int rank, int size, const std::string& group);

}  // namespace occl::pg
