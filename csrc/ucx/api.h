// UCX's library, opened at run time: nothing needs it until a group asks for it, and nothing is linked to it.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "ucx/abi.h"

namespace occl::ucx {

/// How a process uses UCX.
struct Settings {
  using Values = std::vector<std::pair<std::string, std::string>>;

  std::vector<std::string> libraries;  // names or paths of libucp; the first that can be opened is used
  Values context;                      // for ucp_config_modify: {"NET_DEVICES", "eth0"}
  Values wishes;                       // the same, where the library knows the name
  Values process;                      // for ucs_global_opts_set_value, once in a process
};

struct Api : abi::Functions {
  std::string name;               // for texts: "UCX 1.22.0"
  std::string version;            // "1.22.0"
  std::size_t address_bytes = 0;  // of each address; 0: they differ
};

/// The library, which stays open; all calls of a process return the same, that of the first successful one.
/// Installs no signal handler. Throws Error(system) if no library can be opened, or if it is too old.
const Api& api(const Settings& settings);

}  // namespace occl::ucx
