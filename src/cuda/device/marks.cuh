// marks.cuh: marks and counters in the workspace, for the blocks of one launch, that no launch before it has to clear.
//
// The workspace may hold anything. So a mark is a number that nobody writes by chance, and a launch takes its marks away again
// before it ends; a counter carries such a number with it, and is left at zero. Where memory has been used for something else
// since, whoever finds a counter without that number sets it to zero, and one of those who do so is the first.
#define THERE 0xfff7e91cffd3a5b7ull   // read as floats of any size, not-a-numbers that no arithmetic makes
#define COUNTER 0xffc9d6e5u

struct Counter {
  u64 *word;
  // Once by whoever takes numbers, of which there are at most `most`.
  DEV void begin(u32 most) const {
    for (u64 x = word_seen(word); x >> 32 != COUNTER || (u32)x > most; x = word_seen(word)) word_swap(word, x, (u64)COUNTER << 32);
  }
  DEV u32 take() const { return take_number((u32 *)word); }
  DEV bool has(u32 n) const { return word_seen(word) == ((u64)COUNTER << 32 | n); }
  DEV void end() const { *word = (u64)COUNTER << 32; }   // when all have been taken
};

// Words of eight bytes: tiles of a queue; and of copies the jobs that are taken, early and late ones, the warps that are through,
// the blocks that look at marks no more, the mark that all is copied, and those of the parts. Lines of their own, where many come
// at once.
enum Word { TILES, JOBS_TAKEN = 16, LATE_TAKEN = 32, WARPS_DONE = 48, BLOCKS_DONE = 64, ALL_THERE = 80, PARTS = ALL_WORDS };

