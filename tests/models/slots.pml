/* Staging slots (csrc/coll/plan/plan.h, `staged`): a rank fills slot w % 2 with window w while the others combine window
 * w - 1, with one synchronisation (a tick) for each window, through operation after operation; the meeting of an
 * operation is its first synchronisation. No slot is filled while somebody reads it, or before everybody has.
 *
 * Broken variants that must be caught: -DNO_ALTERNATION (every operation begins with slot 0, whatever the last one
 * ended with), -DNO_TICK (a rank does not wait for the ticks of the others), -DSLOTS=1.
 */
#ifndef SLOTS
#define SLOTS 2
#endif
#define RANKS 2
#define OPERATIONS 3

byte stamp[RANKS], tick[RANKS];
typedef Slots {
  byte holds[SLOTS];  /* number of the window since the group began */
  byte readers[SLOTS]
};
Slots slots[RANKS];

inline fill(number, place) {
  assert(slots[me].readers[place] == 0);
  slots[me].holds[place] = number
}

active [RANKS] proctype work() {
  byte me = _pid, other = 1 - _pid;
  byte q, w, windows, passed, begun, parity;
  for (q : 1 .. OPERATIONS) {
    windows = 1 + q % 2;  /* operations with one and with two windows: the same on all ranks */
#ifdef NO_ALTERNATION
    begun = 0;
#endif
    fill(q * 8, begun % SLOTS);
    stamp[me] = q;
    stamp[other] >= q;  /* meet */
    for (w : 1 .. windows) {
      if
      :: w < windows -> fill(q * 8 + w, (begun + w) % SLOTS)
      :: else
      fi;
      parity = (begun + w - 1) % SLOTS;
      atomic { slots[other].readers[parity]++ };
      assert(slots[other].holds[parity] == q * 8 + w - 1);
      atomic { slots[other].readers[parity]-- };
      if
      :: w < windows ->
        passed++;
        tick[me] = passed;
#ifndef NO_TICK
        tick[other] >= passed
#endif
      :: else  /* the last step has no tick: the next operation takes the slot that nobody reads any more */
      fi
    }
    begun = begun + windows
  }
}
