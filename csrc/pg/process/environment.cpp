#include "pg/process/environment.h"

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <string_view>

#include "base/environment.h"
#include "base/error.h"

namespace occl::pg {

std::string node_from_environment() {
  const std::string node = environment::get(environment::kNode);
  const bool visible = std::all_of(node.begin(), node.end(), [](char c) { return c >= ' ' && c <= '~'; });
  if (!visible || node.size() > kLongestNode || node.starts_with(' ') || node.ends_with(' '))
    fail(Errc::invalid_argument, environment::kNode, " is \"", printable(node.c_str(), kLongestNode + 1),
         "\": set it to at most ", kLongestNode,
         " printable ASCII characters without spaces at the ends, or unset it");
  return node;
}

void check_carrier(const std::string& name, const char* where) {
  if (name != kGloo && name != kUcx && name != kTcp)
    fail(Errc::invalid_argument, where, " is \"", printable(name.c_str(), kLongestNode),
         "\": it must be ucx, tcp or gloo");
}

std::string carrier_from_environment() {
  const std::string name = environment::get(environment::kInterNode);
  if (!name.empty()) check_carrier(name, environment::kInterNode);
  return name;
}

Tuning tuning_from_environment() {
  Tuning tuning;
  const std::string text = environment::get(environment::kTuning);
  std::string_view rest = text;
  while (!rest.empty()) {
    const std::string_view item = rest.substr(0, rest.find(','));
    rest.remove_prefix(std::min(rest.size(), item.size() + 1));
    const auto equals = item.find('=');
    std::uint64_t number = 0;
    const char* end = item.data() + item.size();
    const char* begin = equals == item.npos ? end : item.data() + equals + 1;
    const auto parsed = std::from_chars(begin, end, number);
    try {
      if (begin == end || parsed.ec != std::errc{} || parsed.ptr != end)
        fail(Errc::invalid_argument, "\"", item,
             "\" is not a name and a number of bytes, as in slot_bytes=262144");
      set(tuning, item.substr(0, equals), number);
    } catch (const Error& error) {
      fail(error.code(), environment::kTuning, "=\"", text, "\": ", error.what());
    }
  }
  return tuning;
}

}  // namespace occl::pg
