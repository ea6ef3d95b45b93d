/* The doorbell (csrc/shm/bell.h): no thread sleeps for ever on what has been published.
 *
 * Stores go through a buffer, as on real processors: a thread's later loads may overtake them. A fence drains the
 * buffer, and so does an atomic addition. A publisher looks for sleepers at once, and again after a fence, which may
 * come later (Bells::ring_soon, Bells::ring_pending).
 *
 * Broken variants that must be caught: -DNO_FENCE (the last look does not wait for the stamp to be in memory),
 * -DLOOK_FIRST (the sleeper looks at the stamp before it counts itself), -DSEEN_LATE (the sleeper reads the bell's
 * word after it has looked).
 */
#define PUBLISHERS 2
#define SLEEPERS 2

byte stamp[PUBLISHERS];    /* in memory */
bit buffered[PUBLISHERS];  /* a store that is not in memory yet */
byte sleepers, bell, awake;
bit asleep[SLEEPERS];

inline drain(i) {
  if
  :: buffered[i] -> atomic { stamp[i] = 1; buffered[i] = 0 }
  :: else
  fi
}

inline ring(i) {
  drain(i);
  atomic { bell++ };
  atomic {  /* futex_wake */
    for (k : 0 .. SLEEPERS - 1) { asleep[k] = 0 }
  }
}

active [PUBLISHERS] proctype publisher() {
  byte i = _pid;
  byte k;
  buffered[i] = 1;
  if
  :: sleepers != 0 -> ring(i)
  :: else ->  /* the ring is owed */
#ifndef NO_FENCE
    drain(i);
#endif
    if
    :: sleepers == 0
    :: else -> ring(i)
    fi
  fi;
  drain(i)  /* a buffered store gets to memory some time */
}

#define ALL_THERE (stamp[0] == 1 && stamp[1] == 1)

active [SLEEPERS] proctype sleeper() {
  byte i = _pid - PUBLISHERS;
  byte seen;
  bit there;
  do
  :: ALL_THERE -> break
  :: else ->
#ifdef LOOK_FIRST
    there = ALL_THERE;
    atomic { sleepers++ };
    seen = bell;
#else
    atomic { sleepers++ };
#ifdef SEEN_LATE
    there = ALL_THERE;
    seen = bell;
#else
    seen = bell;
    there = ALL_THERE;
#endif
#endif
    if
    :: there
    :: else ->
      atomic {  /* futex_wait: the kernel compares and sleeps in one */
        if
        :: bell == seen -> asleep[i] = 1
        :: else
        fi
      };
      asleep[i] == 0  /* sleeping for ever is an invalid end state */
    fi;
    atomic { sleepers-- }
  od
}
