// The error for a message that does not fit its receive: another dtype, size or order of dimensions.
#pragma once

#include <cstdint>
#include <string>

#include "base/dtype.h"
#include "base/error.h"
#include "coll/mesh/mesh.h"
#include "coll/messages/pipe.h"

namespace occl::coll {

/// `nack`: the message's envelope, with what its receive expects.
Error misfit(const Mesh& mesh, int sender, int receiver, const Envelope& nack);

/// The text of the error.
std::string misfit_text(int sender, int receiver, DType sent, std::uint64_t count, std::uint32_t tag,
                        DType expected, std::uint64_t expected_count, bool orders_differ,
                        const std::string& group);

}  // namespace occl::coll
