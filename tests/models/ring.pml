/* The ring of records (csrc/shm/ring.h): the reader gets what was written, in order; nothing is overwritten unread;
 * what an earlier turn left is not taken for a record; and neither side sleeps for ever, although the writer looks at
 * the reader's position only when its copy is not enough.
 *
 * A line has one word. That of a record's first line is its stamp, position + 1; a second line holds a payload that
 * looks like the stamp of a record one turn later. Records of one line and of two take turns. Behind a record of one
 * line, the writer clears all that is free.
 *
 * Broken variants that must be caught: -DPUBLISH_FIRST (the stamp goes before the bytes), -DRELEASE_FIRST (the reader
 * gives room back before it has copied), -DTOO_MUCH_ROOM (a line that was not read counts as free), -DNO_CLEAR (the
 * place behind a record keeps what it held), -DCLEAR_UNREAD (the writer clears a record that was not read), -DNO_BELL
 * (a reader that has made room does not ring).
 */
#define CAPACITY 4
#define TOTAL 6

byte word[CAPACITY], data[CAPACITY];
byte tail;
bit writer_asleep, reader_asleep;

active proctype writer() {
  byte number, position, seen_tail, length, needed, cleared, end;
  do
  :: number == TOTAL -> break
  :: else ->
    length = 1 + number % 2;
#ifdef TOO_MUCH_ROOM
    needed = length - 1;
#else
    needed = length;
#endif
    do  /* has_room */
    :: CAPACITY - (position - seen_tail) >= needed -> break
    :: else ->
      seen_tail = tail;
      if
      :: CAPACITY - (position - seen_tail) >= needed
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
    word[position % CAPACITY] = position + 1;
#endif
    if
    :: length == 2 ->
      word[(position + 1) % CAPACITY] = position + 1 + CAPACITY + 1;
      data[(position + 1) % CAPACITY] = number + 1
    :: else
    fi;
    data[position % CAPACITY] = number + 1;
#ifndef NO_CLEAR
    if
    :: position + length >= cleared ->
      cleared = position + length;
#ifdef CLEAR_UNREAD
      end = cleared + 1;
#else
      end = seen_tail + CAPACITY;
#endif
      if
      :: length == 2 && end > cleared + 1 -> end = cleared + 1
      :: else
      fi;
      do
      :: cleared < end ->
        word[cleared % CAPACITY] = 0;
        cleared++
      :: else -> break
      od
    :: else
    fi;
#endif
    word[position % CAPACITY] = position + 1;
    position = position + length;
    number++;
    reader_asleep = 0
  od
}

active proctype reader() {
  byte number, position, length;
  do
  :: number == TOTAL -> break
  :: else ->
    do  /* readable */
    :: word[position % CAPACITY] == position + 1 -> break
    :: else ->
      atomic {
        if
        :: word[position % CAPACITY] != position + 1 -> reader_asleep = 1
        :: else
        fi
      };
      !reader_asleep
    od;
    length = 1 + number % 2;
#ifdef RELEASE_FIRST
    tail = position + length;
#endif
    assert(data[position % CAPACITY] == number + 1);
    assert(length == 1 || data[(position + 1) % CAPACITY] == number + 1);
    number++;
    position = position + length;
    tail = position;
#ifndef NO_BELL
    writer_asleep = 0
#endif
  od
}
