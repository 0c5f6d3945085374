#version 450
// The gated delta rule over the runs of a step (model-qwen35.md 5.2 step 5 in its recurrent form):
//     S <- decay S,  delta = beta (v - S^T k),  S <- S + k delta^T,  o = scale S^T q
// The state is stored by value column, contiguous over the key index. Value columns do not depend on each
// other: whoever holds one reads it once, goes over all rows of the run and writes it once.
// ROW: four columns per invocation, because on software devices a load of k or q costs as much as its use
// on several columns (one column each takes two to three times as long). LANES: a workgroup shares COLS
// columns, lane l holding the key indices l, l+LANES, ... HEAD: as LANES, but a workgroup takes all columns of a head, each
// of its subgroups COLS of them, so that it can also form the gated norm of the head (gated_norm.comp) and store that instead.
// SPREAD: as LANES, for subgroups of eight on devices where reads through an address cost next to nothing.
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
#ifdef SPREAD
#extension GL_EXT_buffer_reference2 : require
#extension GL_EXT_shader_explicit_arithmetic_types_int64 : require
#endif

layout(push_constant) uniform Push {
    uint off0, off1, off2, off3;
#ifdef HEAD
    uint off4, off5;
#endif
    uint stride;     // floats from row to row of q | k | v | decay | beta
    uint out_stride;
    uint k_heads, v_heads;
    uint dim;        // key indices and value columns of a head
    uint grouped;    // value heads per key head if they follow each other, 0 if key heads repeat in turn
    uint slot_first, slots; // the slots bound here
    uint row_first, row_count; // the part of each run taken here
    float scale;
#ifdef HEAD
    uint z_stride; // floats from row to row
    float eps;
#endif
#ifdef SPREAD
    uint x_at[2], state_at[2]; // addresses in the place of off1 and off2, the low words first
#endif
} p;

#if defined(LANES_PER_ROW) || defined(SPREAD)
#include "reduce.glsl"
layout(constant_id = 2) const uint PER = 4u; // key indices a lane holds: dim / LANES, rounded up
layout(constant_id = 3) const uint COLS = 4u;
#define COLUMN (gl_WorkGroupID.x * COLS)
#define SUM(v) wg_sum(v)
#elif defined(HEAD)
#extension GL_KHR_shader_subgroup_basic : require
#extension GL_KHR_shader_subgroup_arithmetic : require
layout(local_size_x_id = 0, local_size_y = 1, local_size_z = 1) in;
layout(constant_id = 1) const uint LANES = 32u; // of a subgroup
layout(constant_id = 2) const uint PER = 4u;
layout(constant_id = 3) const uint COLS = 16u;
#define LANE gl_SubgroupInvocationID
#define COLUMN (gl_SubgroupID * COLS)
#define SUM(v) subgroupAdd(v)
#else
layout(local_size_x_id = 0, local_size_y = 1, local_size_z = 1) in;
layout(constant_id = 1) const uint DIM = 128u; // dim, which sizes the column
#endif
#include "step.glsl"
layout(set = 0, binding = 1) readonly buffer InBuffer { float x[]; };
layout(set = 0, binding = 2) buffer StateBuffer { float state[]; };
layout(set = 0, binding = 3) writeonly buffer OutBuffer { float o[]; };
// What all lanes read and what each reads for itself, of the inputs, and a lane's of the state.
#ifdef SPREAD
#include "address.glsl"
#define INPUT(i) Floats(address(p.x_at) + 4u * ADDRESS((i) - p.off1)).v[0]
#define LANE_INPUT(first) lane_float(address(p.x_at) + 4u * ADDRESS((first) - p.off1))
#define LANE_STATE(first) lane_float(address(p.state_at) + 4u * ADDRESS((first) - p.off2))
#else
#define INPUT(i) x[i]
#define LANE_INPUT(first) x[(first) + LANE]
#define LANE_STATE(first) state[(first) + LANE]
#endif
#ifdef HEAD
layout(set = 0, binding = 4) readonly buffer ZBuffer { float z[]; };
layout(set = 0, binding = 5) readonly buffer NormBuffer { float norm[]; };
#include "gated.glsl"
shared float head[512]; // the output of a row; headColumns in delta_rule.go
#endif

void main() {
    uint h = gl_WorkGroupID.y, seq = gl_WorkGroupID.z;
    if (seq >= step_seqs()) return;
    uint slot = run_slot(seq) - p.slot_first; // wraps around for slots before the window
    if (slot >= p.slots) return;
#ifdef SPREAD
    slot = min(slot, p.slots - 1u);
#endif
    // Of a long run several dispatches take a part each, the state carried between them as between steps.
    if (p.row_first >= run_len(seq)) return;
    bool fresh = run_fresh(seq) && p.row_first == 0u;
    uint start = run_start(seq) + p.row_first, end = start + min(run_len(seq) - p.row_first, p.row_count);
    uint kh = p.grouped > 0u ? h / p.grouped : h % p.k_heads;
    uint matrix = p.off2 + (slot * p.v_heads + h) * p.dim * p.dim;
    // Offsets inside a row.
    uint q_at = kh * p.dim, k_at = (p.k_heads + kh) * p.dim, v_at = (2u * p.k_heads + h) * p.dim;
    uint gate_at = (2u * p.k_heads + p.v_heads) * p.dim + h;
#if defined(LANES_PER_ROW) || defined(HEAD) || defined(SPREAD)
    uint col = COLUMN;
    float s[COLS * PER];
    [[unroll]] for (uint c = 0u; c < COLS; c++) {
        [[unroll]] for (uint n = 0u; n < PER; n++) {
            // What lies beyond the matrix is held as zeros, which stay zeros as k is taken as zero there.
            uint i = LANE + n * LANES;
            s[c * PER + n] = 0.0;
            if (!fresh && i < p.dim && col + c < p.dim) s[c * PER + n] = LANE_STATE(matrix + (col + c) * p.dim + n * LANES);
        }
    }
    for (uint row = start; row < end; row++) {
#ifdef SPREAD
        uint from = p.off1 + min(row, max(step_rows(), 1u) - 1u) * p.stride;
#else
        uint from = p.off1 + row * p.stride;
#endif
        uint to = p.off3 + row * p.out_stride + h * p.dim;
        float decay = INPUT(from + gate_at), beta = INPUT(from + gate_at + p.v_heads);
        float k[PER], q[PER];
        [[unroll]] for (uint n = 0u; n < PER; n++) {
            uint i = LANE + n * LANES;
            k[n] = 0.0;
            q[n] = 0.0;
            if (i < p.dim) {
                k[n] = LANE_INPUT(from + k_at + n * LANES);
                q[n] = LANE_INPUT(from + q_at + n * LANES);
            }
        }
        float sum[COLS];
        [[unroll]] for (uint c = 0u; c < COLS; c++) {
            sum[c] = 0.0;
            [[unroll]] for (uint n = 0u; n < PER; n++) sum[c] += s[c * PER + n] * k[n];
        }
        [[unroll]] for (uint c = 0u; c < COLS; c++) sum[c] = SUM(sum[c]);
        [[unroll]] for (uint c = 0u; c < COLS; c++) {
            float v = INPUT(from + v_at + min(col + c, p.dim - 1u));
            float delta = beta * (v - decay * sum[c]);
            sum[c] = 0.0;
            [[unroll]] for (uint n = 0u; n < PER; n++) {
                s[c * PER + n] = decay * s[c * PER + n] + k[n] * delta;
                sum[c] += s[c * PER + n] * q[n];
            }
        }
        [[unroll]] for (uint c = 0u; c < COLS; c++) sum[c] = SUM(sum[c]);
#ifdef HEAD
        [[unroll]] for (uint c = 0u; c < COLS; c++) {
            if (LANE == 0u) head[col + c] = sum[c] * p.scale;
        }
        barrier();
        precise float squares = 0.0;
        for (uint i = LANE; i < p.dim; i += LANES) squares += head[i] * head[i];
        float by = gated_scale(SUM(squares), p.dim, p.eps);
        for (uint i = gl_LocalInvocationID.x; i < p.dim; i += gl_WorkGroupSize.x) {
            o[to + i] = gated(head[i], by, norm[p.off5 + i], z[p.off4 + row * p.z_stride + h * p.dim + i]);
        }
        barrier();
#else
        [[unroll]] for (uint c = 0u; c < COLS; c++) {
            if (LANE == 0u && col + c < p.dim) o[to + col + c] = sum[c] * p.scale;
        }
#endif
    }
    [[unroll]] for (uint c = 0u; c < COLS; c++) {
        [[unroll]] for (uint n = 0u; n < PER; n++) {
            uint i = LANE + n * LANES;
            if (i < p.dim && col + c < p.dim) state[matrix + (col + c) * p.dim + i] = s[c * PER + n];
        }
    }
#else
    uint col = gl_GlobalInvocationID.x * 4u;
    if (col >= DIM) return;
    // Columns beyond the matrix repeat the last one, down to what they store.
    uvec4 cols = min(uvec4(col, col + 1u, col + 2u, col + 3u), DIM - 1u), at = matrix + cols * DIM;
    vec4 s[DIM];
    for (uint i = 0u; i < DIM; i++) {
        s[i] = vec4(0.0);
        if (!fresh) s[i] = vec4(state[at.x + i], state[at.y + i], state[at.z + i], state[at.w + i]);
    }
    for (uint row = start; row < end; row++) {
        uint from = p.off1 + row * p.stride, to = p.off3 + row * p.out_stride + h * DIM;
        float decay = x[from + gate_at], beta = x[from + gate_at + p.v_heads];
        uvec4 v_cols = from + v_at + cols;
        vec4 v = vec4(x[v_cols.x], x[v_cols.y], x[v_cols.z], x[v_cols.w]), sum = vec4(0.0);
        for (uint i = 0u; i < DIM; i++) sum += x[from + k_at + i] * s[i];
        vec4 delta = beta * (v - decay * sum);
        sum = vec4(0.0);
        for (uint i = 0u; i < DIM; i++) {
            s[i] = decay * s[i] + x[from + k_at + i] * delta;
            sum += x[from + q_at + i] * s[i];
        }
        for (uint c = 0u; c < 4u; c++) o[to + cols[c]] = sum[c] * p.scale;
    }
    for (uint i = 0u; i < DIM; i++) {
        for (uint c = 0u; c < 4u; c++) state[at[c] + i] = s[i][c];
    }
#endif
}
