/* Two posts and no exit barrier (csrc/coll/mesh/layout.h): a rank writes Post[q % 2] when it starts operation q, and reads
 * the posts of all others. Nobody ever reads what belongs to another operation, and nobody writes what is being read.
 *
 * Broken variants that must be caught: -DPOSTS=1 (one post), -DSKIP_WAIT (a rank goes on without waiting for all).
 */
#ifndef POSTS
#define POSTS 2
#endif
#define RANKS 3
#define OPERATIONS 5

typedef Post {
  byte stamp, payload
};
typedef Rank {
  Post post[POSTS];
  byte readers[POSTS]
};
Rank rank[RANKS];

active [RANKS] proctype work() {
  byte me = _pid;
  byte q, i, at;
  for (q : 1 .. OPERATIONS) {
    at = q % POSTS;
    assert(rank[me].readers[at] == 0);  /* not written while it is read */
    rank[me].post[at].payload = q * 8 + me;
    rank[me].post[at].stamp = q;
    for (i : 0 .. RANKS - 1) {
      if
      :: i != me ->
#ifdef SKIP_WAIT
        if
        :: rank[i].post[at].stamp >= q
        :: i == RANKS - 1  /* the last one is not waited for */
        fi;
#else
        rank[i].post[at].stamp >= q;
#endif
        assert(rank[i].post[at].stamp == q)
      :: else
      fi
    }
    /* All have arrived: now their contributions are combined, one after the other. */
    for (i : 0 .. RANKS - 1) {
      if
      :: i != me ->
        atomic { rank[i].readers[at]++ };
        assert(rank[i].post[at].payload == q * 8 + i);
        atomic { rank[i].readers[at]-- }
      :: else
      fi
    }
  }
}
