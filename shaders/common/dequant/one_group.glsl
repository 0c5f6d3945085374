// What codes.glsl wants of a block that is one group of 32 signed codes with one scale, each in its own byte once loaded.
// The block type's file has CODE_BITS and load_chunk.
#define CODE_HEAD 1u
#define CODE_CHUNKS 1u
#define CODE_GROUPS 1u
#define CODE_WORDS 8u
#define CODE_SCALES 1u
#define CODE_SPAN 8u
#define CODES(q, i, j) q[j]
#define CODE_SCALE(i, h) 0
void load_head(uint row, uint block, out uint head[1]) { head[0] = 0u; }
uint chunk_group(uint c, uint i) { return 0u; }
