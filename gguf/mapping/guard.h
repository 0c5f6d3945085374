#ifndef CALDERA_GUARD_H
#define CALDERA_GUARD_H

#include <stddef.h>
#include <stdint.h>

// A range that is watched. The handler reads it at any moment, so it is written by atomic operations alone, and
// turn is odd while start and end change.
typedef struct {
	uint32_t turn;
	uint32_t damaged; // 1 once a page of it was lost
	uintptr_t start, end; // whole pages; end is behind the last byte, 0 = nothing is watched
} guard_range;

enum { GUARD_OK, GUARD_FULL, GUARD_NO_HANDLER };

// guard_add watches size > 0 bytes at start, the beginning of a page.
int guard_add(void *start, size_t size, guard_range **slot);

// guard_drop ends the watch.
void guard_drop(guard_range *slot);

// guard_reach lets SIGBUS through to threads of this process, and returns to how many. Each has to let SIGSYS
// through. Linux only.
int guard_reach(const int *threads, int n);

#endif
