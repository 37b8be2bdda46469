// counter.cuh: a word in the workspace from which blocks take numbers.

// The counter of a queue, a word in the workspace that no launch before has to clear. The workspace may hold anything, so the
// counter carries a mark in its upper half that nobody writes by chance, and the last one to take a number leaves it at zero with
// the mark. Where memory has been used for something else since, whoever finds no mark sets the counter to zero; a compare and
// swap lets only the first of them do so.
#define COUNTER 0xffc9d6e5u   // read as a float, a not-a-number that no arithmetic makes

struct Counter {
  u64 *word;
  // Once by whoever takes numbers, of which there are at most `most`.
  DEV void begin(u32 most) const {
    for (u64 x = word_seen(word); x >> 32 != COUNTER || (u32)x > most; x = word_seen(word)) word_swap(word, x, (u64)COUNTER << 32);
  }
  DEV u32 take() const { return take_number((u32 *)word); }
  DEV void end() const { *word = (u64)COUNTER << 32; }   // when all have been taken
};
