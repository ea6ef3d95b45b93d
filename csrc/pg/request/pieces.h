// Large collectives of staged tensors (request/staging.h) in pieces: a collective for each, whose copies are
// made beside the collectives of other pieces.
//
//     copies         in 0 | in 1 | out 0, in 2 | out 1 | out 2
//     collectives         | 0    | 1           | 2     |
//
// All ranks must divide a call alike, so only what they agree on decides: the kind, the sizes, and that the
// tensors are staged. A rank whose tensors are on the host calls the whole, and the ranks learn of the
// mismatch.
#pragma once

#include <cstddef>
#include <exception>
#include <vector>

#include "pg/request/request.h"

namespace occl::pg {

/// The pieces of a call, whose collectives follow each other in one operation.
struct Pieces {
  struct Piece {
    coll::Collective collective;
    std::vector<coll::Block> in, out;  // what its Blocks::list points to
    Request::Copies before, after;
  };
  std::vector<Piece> all;  // they do not change

  std::size_t now = 0;  // only for the driving thread: the one whose collective is carried out

  // Only for the thread that makes the copies:
  std::size_t copied_in = 0;   // pieces
  std::exception_ptr failure;  // of the first copy out that failed

  bool at_last() const { return now + 1 == all.size(); }
};

/// Divides a request that is large and staged: it begins with the first piece, and has no copies of its own.
void divide(Request& request);

}  // namespace occl::pg
