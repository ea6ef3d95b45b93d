// A message, or a flush, that has been started and not been freed: what UCX's interface calls a request.
#pragma once

#include <cstddef>
#include <cstdint>

#include "ucx/abi.h"

namespace occl::tcp {

using ucx::abi::Status;

inline constexpr std::uint64_t kWholeTag = ~std::uint64_t{0};
/// Not a status that a request ends with.
inline constexpr Status kInProgress = 1;

struct Request {
  enum class Kind : std::uint8_t { send, receive, flush };

  Kind kind = Kind::flush;
  Status status = kInProgress;
  std::size_t bytes = 0;
  std::uint64_t tag = 0, mask = kWholeTag;
  const std::byte* from = nullptr;  // of a send
  std::byte* into = nullptr;        // of a receive
  std::size_t sent = 0;             // bytes that are with the kernel
  decltype(ucx::abi::RequestParams::callback) callback{};
  void* user_data = nullptr;

  /// Calls the callback of a message. `arrived` and `of_tag`: the length and the tag of a received one.
  void finish(Status with, std::size_t arrived = 0, std::uint64_t of_tag = 0) {
    status = with;
    const ucx::abi::ReceiveInfo info{of_tag, arrived};
    if (kind == Kind::send && callback.send)
      callback.send(this, with, user_data);
    else if (kind == Kind::receive && callback.receive)
      callback.receive(this, with, &info, user_data);
  }
};

}  // namespace occl::tcp
