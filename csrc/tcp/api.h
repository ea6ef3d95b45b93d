// The functions of UCX that this library uses, over plain TCP: what carries messages between hosts that have
// no library of UCX. Settings: LISTEN, an address ("10.0.0.1"), and RANK.
#pragma once

#include "ucx/api.h"

namespace occl::tcp {

const ucx::Api& api();

}  // namespace occl::tcp
