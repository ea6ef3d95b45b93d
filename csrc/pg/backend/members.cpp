#include "pg/backend/members.h"

#include <algorithm>
#include <charconv>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include "base/error.h"
#include "pg/rendezvous/node_discovery.h"
#include "shm/socket.h"

namespace occl::pg {
namespace {

constexpr std::string_view kBegin = "occl:";

/// The first rank of the backend that this is the handle of.
int first_rank(const std::string& handle) {
  int rank = -1;
  const char* const end = handle.data() + handle.size();
  if (handle.starts_with(kBegin)) std::from_chars(handle.data() + kBegin.size(), end, rank);
  if (rank < 0)
    fail(Errc::invalid_argument, "reconfigure: '",
         printable(handle.data(), std::min(handle.size(), std::size_t{100})),
         "' is no handle of occl: give what get_reconfigure_handle() returns on each member");
  return rank;
}

/// What a handle says of its process, behind the third colon.
std::string process_of(const std::string& handle) {
  std::size_t at = 0;
  for (int colons = 0; colons < 3 && at != handle.npos; ++colons) at = handle.find(':', at) + 1;
  return printable(handle.data() + at, handle.size() - at);
}

std::vector<std::string> in_order(const ReconfigureOptions& members) {
  if (const auto* list = std::get_if<std::vector<std::string>>(&members.handles)) {
    std::ranges::for_each(*list, first_rank);
    return *list;
  }
  std::vector<std::pair<int, std::string>> found;
  for (const auto& handle : std::get<std::unordered_set<std::string>>(members.handles))
    found.emplace_back(first_rank(handle), handle);
  std::ranges::sort(found);
  std::vector<std::string> handles;
  for (auto& [rank, handle] : found) handles.push_back(std::move(handle));
  return handles;
}

}  // namespace

Members::Members(c10::intrusive_ptr<c10d::Store> store, int rank)
    : store_(std::move(store)),
      handle_(concat(kBegin, rank, ':', std::hex, shm::random_number(), ':', this_process())) {}

Members::Place Members::place_among(const ReconfigureOptions& members) const {
  const std::vector<std::string> handles = in_order(members);
  const auto own = std::ranges::find(handles, handle_);
  if (own == handles.end())
    fail(Errc::invalid_argument, "reconfigure: this rank's handle '", handle_, "' is not among the ",
         handles.size(), " given: a rank that is no member does not call it");
  for (auto at = handles.begin(); at != handles.end(); ++at)
    if (const auto again = std::find(at + 1, handles.end(), *at); again != handles.end())
      fail(Errc::invalid_argument, "reconfigure: members ", at - handles.begin(), " and ",
           again - handles.begin(), " have one handle, '", printable(at->data(), at->size()), "'");
  Place place{static_cast<int>(own - handles.begin()), static_cast<int>(handles.size()), {}};
  for (const std::string& handle : handles) place.processes.push_back(process_of(handle));
  return place;
}

std::string Members::Place::describe() const {
  constexpr std::size_t kMost = 16;
  std::string text;
  for (std::size_t i = 0; i < std::min(kMost, processes.size()); ++i)
    text += concat(i ? ", " : "", "rank ", i, " (", processes[i], ")");
  return processes.size() > kMost ? text + ", ..." : text;
}

c10::intrusive_ptr<c10d::Store> Members::store_of(std::int64_t uuid) const {
  return c10::make_intrusive<c10d::PrefixStore>(concat("reconfigure/", uuid), store_);
}

}  // namespace occl::pg
