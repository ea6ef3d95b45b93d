#include "coll/mesh/topology.h"

#include <sched.h>

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

CoreSet own_cores() {
  CoreSet cores{};
  static_assert(sizeof(cpu_set_t) == sizeof(cores));
  sched_getaffinity(0, sizeof(cpu_set_t), reinterpret_cast<cpu_set_t*>(cores.data()));
  return cores;
}

int count_cores(const std::vector<CoreSet>& sets) {
  CoreSet any{};
  for (const CoreSet& set : sets)
    for (std::size_t word = 0; word < any.size(); ++word) any[word] |= set[word];
  int count = 0;
  for (const std::uint64_t word : any) count += std::popcount(word);
  return count;
}

std::int64_t own_socket(const CoreSet& cores) {
  long any = -1;  // a core on which it may run
  for (std::size_t word = 0; word < cores.size() && any < 0; ++word)
    if (cores[word]) any = static_cast<long>(64 * word) + std::countr_zero(cores[word]);
  if (any < 0) return kAnywhere;
  const std::string folder = concat("/sys/devices/system/cpu/cpu", any, "/topology/");
  std::string list = first_line(folder + "package_cpus_list");
  if (list.empty()) list = first_line(folder + "core_siblings_list");  // its name before Linux 5.5
  CoreSet elsewhere = cores;
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

std::optional<std::int64_t> listed_domain(int rank) {
  const std::string listed = environment::get(environment::kTopology);
  if (listed.empty()) return std::nullopt;
  return listed_domain(listed, rank);
}

}  // namespace occl::coll
