/* The byte ring (csrc/shm/ring.h): the reader gets what was written, in order; nothing is overwritten unread; and
 * neither side sleeps for ever, although each looks at the other's position only when its copy is not enough.
 *
 * Broken variants that must be caught: -DPUBLISH_FIRST (the position goes before the bytes), -DRELEASE_FIRST (the
 * reader gives room back before it has copied), -DTOO_MUCH_ROOM (one byte more than there is), -DNO_BELL (a reader
 * that has made room does not ring).
 */
#define CAPACITY 2
#define TOTAL 5

byte data[CAPACITY];
byte head, tail;
bit writer_asleep, reader_asleep;

active proctype writer() {
  byte position, seen_tail, room;
#ifdef TOO_MUCH_ROOM
  room = CAPACITY + 1;
#else
  room = CAPACITY;
#endif
  do
  :: position == TOTAL -> break
  :: else ->
    do  /* has_room */
    :: position - seen_tail < room -> break
    :: else ->
      seen_tail = tail;
      if
      :: position - seen_tail < room
      :: else ->
        atomic {  /* the bell is right (bell.pml): a change in between ends the sleep */
          if
          :: tail == seen_tail -> writer_asleep = 1
          :: else
          fi
        };
        !writer_asleep
      fi
    od;
#ifdef PUBLISH_FIRST
    head = position + 1;
#endif
    data[position % CAPACITY] = position + 1;
    position++;
    head = position;
    reader_asleep = 0
  od
}

active proctype reader() {
  byte position, seen_head;
  do
  :: position == TOTAL -> break
  :: else ->
    do  /* readable */
    :: seen_head != position -> break
    :: else ->
      seen_head = head;
      if
      :: seen_head != position
      :: else ->
        atomic {
          if
          :: head == seen_head -> reader_asleep = 1
          :: else
          fi
        };
        !reader_asleep
      fi
    od;
#ifdef RELEASE_FIRST
    tail = position + 1;
#endif
    assert(data[position % CAPACITY] == position + 1);
    position++;
    tail = position;
#ifndef NO_BELL
    writer_asleep = 0
#endif
  od
}
