// What carries a group's messages between nodes, and how its ranks are connected: UCX, TCP, Gloo, or a
// backend that the program has made.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "hosts/link.h"
#include "hosts/topology.h"

namespace occl::pg {

/// A carrier that this process can use, before it is connected.
struct PreparedBetween {
  std::string name;     // "gloo over eth0 (10.0.0.1)"
  std::string version;  // all ranks must have the same: "UCX 1.22"
  std::string address;  // what the other ranks need to reach this one
  /// A collective call. `addresses`: by rank.
  std::function<std::shared_ptr<hosts::Link>(const c10::intrusive_ptr<c10d::Store>& store,
                                             const std::vector<std::string>& addresses,
                                             const hosts::Topology& nodes, std::chrono::milliseconds timeout)>
      connect;
  /// Of a carrier that the group does not take: a `connect` in another thread throws, and nothing moves any
  /// more. Connections stay open: UCX 1.13 aborts the process of a peer whose connection is refused while it
  /// is made. None: `connect` ends by itself.
  std::function<void()> abandon;
};
/// `one_network`: all ranks are in one network namespace. Throws if this rank cannot use the carrier.
using PrepareBetween = std::function<PreparedBetween(bool one_network)>;

/// The carriers that a group tries, in this order, until all of its ranks can use one.
struct CarrierChoice {
  std::string engine;  // what all ranks must have in common, for texts
  std::vector<PrepareBetween> carriers;
};
using ChooseCarriers = std::function<CarrierChoice()>;

/// For a rank of `size` of this group. The first throws Error(invalid_argument) if the backend has another
/// rank or size.
CarrierChoice between_by(const c10::intrusive_ptr<c10d::Backend>& given, int rank, int size,
                         const std::string& group);
/// `name`: ucx, tcp, gloo, or nothing: then the first of these that all ranks would take.
CarrierChoice between_by(const std::string& name, int rank, int size, const std::string& group);

}  // namespace occl::pg
