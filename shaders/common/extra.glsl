// What a block type binds besides its blocks, after the kernel's own bindings. The build defines
// CODEBOOK_BINDING for types whose codes index a codebook, and SCALE_BINDING (SCALE2_BINDING for a second
// matrix) for types whose matrices carry a factor. EXTRA_OFFSETS are the word offsets of these bindings; it
// stands in the push constants after the offsets of the kernel's own.
#ifndef EXTRA_GLSL
#define EXTRA_GLSL

#if defined(CODEBOOK_BINDING)
#define EXTRA_OFFSETS uint off_codebook;
#elif defined(SCALE2_BINDING)
#define EXTRA_OFFSETS uint off_scale, off_scale2;
#elif defined(SCALE_BINDING)
#define EXTRA_OFFSETS uint off_scale;
#else
#define EXTRA_OFFSETS
#endif

#endif
