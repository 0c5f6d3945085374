// The step buffer: what the host tells the kernels about this step (shaders/step.go has the layout).
// Include after the push constants, whose first word is the step buffer's offset, are declared as `p`.
// STEP is its name as a buffer of uints.
#ifndef STEP_GLSL
#define STEP_GLSL

#define PAGE_TOKENS 256u
#define PAGE_COLD 0x80000000u
#define RUN_FRESH 1u

layout(set = 0, binding = 0) readonly buffer StepBuffer { uint step_words[]; };

uint step_head(uint i) { return step_words[p.off0 + i]; }
uint step_at(uint field, uint i) { return step_words[p.off0 + step_words[p.off0 + field] + i]; }

uint step_rows() { return step_head(0u); }
uint step_seqs() { return step_head(1u); }
uint step_outs() { return step_head(2u); }
// The count a kernel is limited by: 0 rows, 2 rows whose logits are wanted.
uint step_count(uint which) { return step_head(which); }
uint step_token(uint row) { return step_at(4u, row); }
uint step_pos(uint row) { return step_at(5u, row); }
uint step_seq(uint row) { return step_at(6u, row); }
uint step_out(uint i) { return step_at(7u, i); }
// A page of a sequence; with PAGE_COLD set it is one of the cold pool.
uint step_page(uint seq, uint i) { return step_at(9u, seq * step_head(3u) + i); }
uint run_start(uint seq) { return step_at(8u, seq * 4u); }
uint run_len(uint seq) { return step_at(8u, seq * 4u + 1u); }
uint run_slot(uint seq) { return step_at(8u, seq * 4u + 2u); }
bool run_fresh(uint seq) { return (step_at(8u, seq * 4u + 3u) & RUN_FRESH) != 0u; }
// Cos (even i) and sin (odd i) of pair i/2 of a row.
float step_rope(uint row, uint i) { return uintBitsToFloat(step_at(10u, row * step_head(11u) + i)); }
// Pages to re-encode: how many, the hot page of one and its cold page.
uint step_moves() { return step_head(12u); }
uint move_hot(uint i) { return step_at(13u, 2u * i); }
uint move_cold(uint i) { return step_at(13u, 2u * i + 1u); }
// Index of a position of a sequence in tokens of a layer's page pool, the hot one.
uint kv_token(uint seq, uint pos) { return step_page(seq, pos / PAGE_TOKENS) * PAGE_TOKENS + pos % PAGE_TOKENS; }

#endif
