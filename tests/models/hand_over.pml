/* Who drives (csrc/coll/progress/engine.h): two operations in flight. One thread submits A and goes away; another submits B
 * and waits for it. Either may be brief: then the submitter drives once before the engine counts the operation
 * (Communicator::submit_and_drive). An operation ends when its peer has answered and a thread drives after that. Both
 * end, whichever thread drives, waits, or is asleep: one that waits for ever for A or B is an invalid end state.
 *
 * Broken variants that must be caught: -DNO_HAND_OVER (who stops waiting leaves the rest to nobody),
 * -DNO_RING_ON_HAND_OVER (who sleeps is not told that there is more to drive, or that nobody drives any more),
 * -DLOOK_BEFORE_SUBMIT (a submitter looks for a driver before it has added its operation), -DPARK_BLINDLY (a driver
 * that leaves does not look once more), -DNO_RING_ON_LEAVE (a driver that leaves does not wake those who found it
 * driving), -DPARK_FROM_DOZE (a thread that dozed does not look once more before it parks), -DCOUNT_LATE (a brief
 * operation is counted after the lock is released).
 */
byte pending, waiters, drivers, dozing, parked;
bit answered[2], taken[2], ended[2], submitted[2];
bit driving;       /* Group's drive_mutex_ */
bit mutex;         /* background_mutex_ */
bit started, notified;
/* On the bell, 0 the waiter, 1 the background: is it asleep, and has the bell been rung since it last looked? (Futex:
 * who looked at the bell's number falls asleep only if it is the same.) */
bit asleep[2], rung[2];

#define NEEDED (pending > 0 && waiters == 0)

inline ring() {
  atomic { rung[0] = 1; rung[1] = 1; asleep[0] = 0; asleep[1] = 0 }
}

inline try_lock() {
  atomic {
    if
    :: driving -> held = 0
    :: else -> driving = 1; held = 1
    fi
  }
}

/* What ends is taken out of the list under the lock. */
inline collect() {
  atomic {
    ends[0] = submitted[0] && answered[0] && !taken[0];
    ends[1] = submitted[1] && answered[1] && !taken[1];
    taken[0] = taken[0] || ends[0];
    taken[1] = taken[1] || ends[1]
  }
}

/* Outside of the lock. `uncounted`: how many of those that end the engine does not know. */
inline finish(uncounted) {
  if
  :: ends[0] || ends[1] ->
    atomic {
      assert(pending + uncounted >= ends[0] + ends[1]);
      pending = pending + uncounted - ends[0] - ends[1]
    };
    atomic {
      if
      :: ends[0] -> ended[0] = 1
      :: else
      fi;
      if
      :: ends[1] -> ended[1] = 1
      :: else
      fi
    };
    moved = 1;
    ring()
  :: else
  fi
}

/* Group::drive by whoever it is: goes away if another thread drives. */
inline drive(moved) {
  moved = 0;
  try_lock();
  if
  :: held ->
    collect();
    driving = 0;
    finish(0)
  :: else
  fi
}

inline start_background() {
  if
  :: drivers > 0
  :: else ->
  if
  :: dozing > 0
  :: else ->
    atomic { !mutex -> mutex = 1 };
    started = 1;
    notified = 1;
    mutex = 0
  fi
  fi
}

inline hand_over() {
#ifndef NO_HAND_OVER
  if
  :: pending == 0
  :: else ->
#ifndef NO_RING_ON_HAND_OVER
    ring();
#endif
    if
    :: waiters == 0 ->
#ifdef LOOK_BEFORE_SUBMIT
      if
      :: looked > 0
      :: else -> start_background()
      fi
#else
      start_background()
#endif
    :: else
    fi
  fi
#else
  skip
#endif
}

/* ~Waiting: the thread counts as one that waits no more. */
inline leave() {
  atomic { waiters-- };
  hand_over()
}

/* Leaves `held` false if another thread drives: then nothing has happened. */
inline submit_brief(op) {
  try_lock();
  if
  :: held ->
    submitted[op] = 1;
    collect();
#ifdef COUNT_LATE
    driving = 0;
    atomic { pending = pending + 1 - ends[op] };
#else
    atomic { pending = pending + 1 - ends[op] };
    driving = 0;
#endif
    finish(ends[op])
  :: else
  fi
}

inline submit(op) {
#ifdef LOOK_BEFORE_SUBMIT
  looked = drivers;
#endif
  atomic { submitted[op] = 1; pending++ };
  atomic { waiters++ };
  drive(moved);
  leave()
}

/* Looks by itself, until it finds something to do or has looked in vain for long enough. */
inline doze() {
  atomic { dozing++ };
  do
  :: NEEDED -> break
  :: break
  od;
  atomic { dozing-- }
}

active proctype peer() {
  byte op;
  if  /* the answers come in any order */
  :: op = 0
  :: op = 1
  fi;
  answered[op] = 1;
  ring();
  answered[1 - op] = 1;
  ring()
}

active proctype goes_away() {
  bit moved, held, ends[2];
  byte looked;
  if
  :: true -> submit(0)
  :: true -> submit_brief(0);
    if
    :: held -> hand_over()
    :: else -> submit(0)
    fi
  fi;
  ended[0]  /* the user's callback will come */
}

active proctype waits() {
  bit moved, held, ends[2];
  byte looked;
  if
  :: true -> submit(1)
  :: true -> submit_brief(1);
    if
    :: held  /* a call that blocks waits at once */
    :: else -> submit(1)
    fi
  fi;
  if
  :: ended[1]
  :: else ->
    atomic { waiters++ };
    do
    :: drive(moved);
      if
      :: ended[1] -> break
      :: else
      fi;
      if
      :: moved
      :: else ->
        rung[0] = 0;
        drive(moved);
        if
        :: moved || ended[1]
        :: else ->
          atomic {
            if
            :: !rung[0] -> asleep[0] = 1
            :: else
            fi
          };
          !asleep[0]
        fi
      fi
    od;
    leave()
  fi
}

active proctype background() {
  bit moved, held, ends[2];
end_not_started:
  started;
  do
  ::
    atomic { !mutex -> mutex = 1 };
    parked++;
#ifdef PARK_BLINDLY
    notified = 0;
    mutex = 0;
end_blind:
    atomic { notified && !mutex -> mutex = 1 };
#endif
    do
    :: NEEDED && drivers == 0 -> break
    :: else ->
      atomic { notified = 0; mutex = 0 };
end_parked:
      atomic { notified && !mutex -> mutex = 1 };
      if
      :: NEEDED && drivers == 0 -> break
      :: else
      fi;
      mutex = 0;
      doze();
      atomic { !mutex -> mutex = 1 };
#ifdef PARK_FROM_DOZE
      atomic { notified = 0; mutex = 0 };
end_from_doze:
      atomic { notified && !mutex -> mutex = 1 }
#endif
    od;
    parked--;
    atomic { drivers++ };
    mutex = 0;
    do
    :: !(NEEDED && drivers == 1) -> break
    :: else ->
      drive(moved);
      if
      :: moved
      :: else ->
        rung[1] = 0;
        if
        :: !NEEDED
        :: else ->
          drive(moved);
          if
          :: moved
          :: else ->
            atomic {
              if
              :: !rung[1] -> asleep[1] = 1
              :: else
              fi
            };
end_asleep:
            !asleep[1]
          fi
        fi
      fi
    od;
    atomic { drivers-- };
#ifndef NO_RING_ON_LEAVE
    ring();
#endif
    doze()
  od
}
