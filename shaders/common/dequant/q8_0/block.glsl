// 34 bytes for 32 weights: half d, 32 signed bytes; q*d (weights.md 2.2).
void load32(uint row, uint g, out float v[32]) {
    uint q[8];
    float d;
    half_words_at(row + g * 34u, d, q);
    [[unroll]] for (uint j = 0u; j < 8u; j++) {
        [[unroll]] for (uint i = 0u; i < 4u; i++) v[4u * j + i] = sbyte(q[j], i) * d;
    }
}

// As codes (codes.glsl).
#define CODE_HEAD 1u
#define CODE_CHUNKS 1u
#define CODE_GROUPS 1u
#define CODE_WORDS 8u
#define CODE_SCALES 1u
#define CODE_SPAN 8u
#define CODE_BITS 8u
#define CODES(q, i, j) q[j]
#define CODE_SCALE(i, h) 0
void load_head(uint row, uint block, out uint head[1]) { head[0] = 0u; }
uint chunk_group(uint c, uint i) { return 0u; }
void load_chunk(uint row, uint block, uint head[1], uint c, out uint q[8], out float s[1]) {
    half_words_at(row + block * 34u, s[0], q);
}
