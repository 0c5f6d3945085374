// What codes.glsl wants of a block that is a half and one group of 32 signed codes, each in its own byte once loaded.
// The block type's file defines BLOCK_BYTES before, and has CODE_BITS and load_codes. A head is the block's first word and
// the half.
#define ONE_GROUP
#define CODE_HEAD 2u
#define CODE_CHUNKS 1u
#define CODE_GROUPS 1u
#define CODE_WORDS PER_LANE(8u)
#define CODE_SCALES 1u
#define CODE_SPAN 8u
#define CODES(q, i, j) q[j]
#define CODE_SCALE(i, h) 0
uint chunk_group(uint c, uint i) { return 0u; }
void load_head(ADDRESS row, uint block, out uint head[2]) {
    ADDRESS b = row + block * BLOCK_BYTES;
    head[0] = WORD(b >> 2u);
    head[1] = half_of(b, head[0]);
}
void chunk_scales(uint head[2], uint c, out float s[1]) { s[0] = half_value(head[1]); }
