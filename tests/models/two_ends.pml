/* Both ends of one message (csrc/shm/two_ends.h): each piece is copied once, by one side; when the receiver is done
 * nobody copies any more; and neither waits for ever, however late the sender comes.
 *
 * Broken variants that must be caught: -DLOOK_FIRST (a side looks at the other's word before it writes its own),
 * -DNO_REST (a receiver that was stopped does not wait for the sender's count), -DANY_JOB (the back does not see
 * that the front has gone on), -DFRESH_BACK (the front takes an old job's word for this one's).
 */
#define PIECES 3
#define JOBS 2

byte front_word, back_word;  /* job * 8 + pieces */
chan grants = [JOBS] of { byte };
chan rests = [JOBS] of { byte, byte };

/* Seen by nobody in the protocol. */
byte current;         /* the job whose buffer may be written */
byte copies[PIECES];
byte writing;

inline copy(job, piece) {
  atomic { assert(current == job); writing++ };
  atomic { copies[piece]++; writing-- }
}

inline reach(mine, theirs, job, taken) {
#ifdef LOOK_FIRST
  seen = theirs;
  mine = job * 8 + taken + 1
#else
  mine = job * 8 + taken + 1;
  seen = theirs
#endif
}

active proctype front() {
  byte job, taken, seen, rest, i;
  for (job : 1 .. JOBS) {
    atomic { current = job; for (i : 0 .. PIECES - 1) { copies[i] = 0 } };
    front_word = job * 8;
    if
    :: grants ! job
    :: skip  /* its buffer is out of the sender's reach */
    fi;
    taken = 0;
    rest = 0;
    do
    :: taken == PIECES -> break
    :: else ->
      reach(front_word, back_word, job, taken);
      if
#ifdef FRESH_BACK
      :: taken + 1 + seen % 8 > PIECES ->
#else
      :: seen / 8 == job && taken + 1 + seen % 8 > PIECES ->
#endif
#ifdef NO_REST
        rest = seen % 8;
#else
        rests ?? eval(job), rest;
#endif
        do
        :: taken + rest < PIECES -> copy(job, taken); taken++
        :: else -> break
        od;
        break
      :: else -> copy(job, taken); taken++
      fi
    od;
    atomic {
      assert(writing == 0);
      for (i : 0 .. PIECES - 1) { assert(copies[i] == 1) };
      current = 0
    }
  }
}

active proctype back() {
  byte job, taken, seen;
end:
  do
  :: grants ? job ->
    back_word = job * 8;
    taken = 0;
    do
    :: taken == PIECES -> break
    :: else ->
      reach(back_word, front_word, job, taken);
      if
#ifdef ANY_JOB
      :: taken + 1 + seen % 8 > PIECES -> break
#else
      :: seen / 8 != job || taken + 1 + seen % 8 > PIECES -> break
#endif
      :: else -> copy(job, PIECES - 1 - taken); taken++
      fi
    od;
    rests ! job, taken
  od
}
