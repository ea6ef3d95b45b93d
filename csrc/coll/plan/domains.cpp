#include "coll/plan/domains.h"

#include <algorithm>
#include <bit>
#include <fstream>

#include "base/environment.h"
#include "base/error.h"

namespace occl::coll {
namespace {

/// The number at the beginning of `text`, which is shortened by it; -1 if there is none.
long take_number(std::string& text) {
  std::size_t digits = 0;
  while (digits < text.size() && digits < 6 && text[digits] >= '0' && text[digits] <= '9') ++digits;
  if (digits == 0) return -1;
  const long number = std::stol(text.substr(0, digits));
  text.erase(0, digits);
  return number;
}

/// Calls f(low, high) for each part of "0-3,8,10-11". False if the text is no such list.
template <class F>
bool each_range(std::string text, const F& f) {
  for (bool more = true; more;) {
    const long low = take_number(text);
    long high = low;
    if (low >= 0 && text.starts_with("-")) {
      text.erase(0, 1);
      high = take_number(text);
    }
    if (low < 0 || high < low) return false;
    f(low, high);
    more = text.starts_with(",");
    if (more) text.erase(0, 1);
  }
  return text.empty();
}

std::string first_line(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

}  // namespace

int Domains::least_size() const {
  int least = size(0);
  for (int d = 1; d < count; ++d) least = std::min(least, size(d));
  return least;
}

int Domains::count_handled(int rank) const {
  const int domain = of(rank), others = ranks() - size(domain), index = rank - first[domain];
  return 1 + (others - index + size(domain) - 1) / size(domain);
}

int Domains::most_handled() const {
  int most = 0;
  for (int d = 0; d < count; ++d) most = std::max(most, count_handled(first[d]));
  return most;
}

int Domains::handled(int rank, std::uint32_t k) const {
  if (k == 0) return rank;
  const int domain = of(rank), n = size(domain);
  const int other = rank - first[domain] + static_cast<int>(k - 1) * n;
  return other < first[domain] ? other : other + n;
}

std::uint32_t Domains::place_of(int rank, int block) const {
  const int domain = of(rank), n = size(domain);
  if (block == rank) return 0;
  return static_cast<std::uint32_t>(1 + (block < first[domain] ? block : block - n) / n);
}

int Domains::handler(int domain, int block) const {
  if (of(block) == domain) return block;
  const int n = size(domain);
  return first[domain] + (block < first[domain] ? block : block - n) % n;
}

int Domains::fetches_from(int rank) const { return first[last()] + (rank - first[of(rank)]) % size(last()); }

Domains domains_of(const std::vector<std::int64_t>& by_rank) {
  Domains found;
  std::vector<std::int64_t> seen;
  for (std::size_t rank = 0; rank < by_rank.size(); ++rank) {
    if (by_rank[rank] == kAnywhere) return {};
    if (rank > 0 && by_rank[rank] == by_rank[rank - 1]) continue;
    for (const auto other : seen)
      if (other == by_rank[rank]) return {};
    if (seen.size() == Domains::kMost) return {};
    found.first[seen.size()] = static_cast<std::uint16_t>(rank);
    seen.push_back(by_rank[rank]);
  }
  found.count = static_cast<int>(seen.size());
  if (found.count < 2 || by_rank.size() < 2 * seen.size()) return {};
  found.first[seen.size()] = static_cast<std::uint16_t>(by_rank.size());
  return found;
}

std::int64_t own_socket(const std::array<std::uint64_t, 16>& cores) {
  long any = -1;  // a core on which it may run
  for (std::size_t word = 0; word < cores.size() && any < 0; ++word)
    if (cores[word]) any = static_cast<long>(64 * word) + std::countr_zero(cores[word]);
  if (any < 0) return kAnywhere;
  const std::string folder = concat("/sys/devices/system/cpu/cpu", any, "/topology/");
  std::string list = first_line(folder + "package_cpus_list");
  if (list.empty()) list = first_line(folder + "core_siblings_list");  // its name before Linux 5.5
  std::array<std::uint64_t, 16> elsewhere = cores;
  const bool known = each_range(list, [&](long low, long high) {
    for (long core = low; core <= high && core < 1024; ++core)
      elsewhere[core / 64] &= ~(std::uint64_t{1} << core % 64);
  });
  for (const std::uint64_t word : elsewhere)
    if (word) return kAnywhere;
  std::string id = first_line(folder + "physical_package_id");
  const long socket = take_number(id);
  return known && socket >= 0 ? static_cast<std::int64_t>(socket) : kAnywhere;
}

std::int64_t listed_domain(const std::string& text, int rank) {
  std::int64_t domain = 0, found = kAnywhere;
  long next = 0;  // ranks are listed in order, so no rank is in two domains
  bool in_order = true;
  const bool list = each_range(text, [&](long low, long high) {
    in_order &= low >= next;
    next = high + 1;
    if (low <= rank && rank <= high) found = domain;
    ++domain;
  });
  if (!list || !in_order)
    fail(Errc::invalid_argument, environment::kTopology, " is \"", text,
         "\", but must list the ranks of each domain in order, like \"0-31,32-63\"");
  return found;
}

}  // namespace occl::coll
