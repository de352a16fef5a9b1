// The argument of every kernel, field by field what kernels/src/cuda/params.rs says.
#pragma once

// A description of an array in global memory for the copy engine: 128 opaque bytes.
struct alignas(64) TensorMap {
    u64 words[16];
};

// Attention: plain_attention.cu, plain_masses.cu, merge.cu, few.cu.

// Queries as they are multiplied: bf16 beside bf16 keys. Row t stands at position start + t and
// sees keys at positions up to its own and above it less `window` (the largest u32: all).
struct QueryArray {
    const void* q; // [heads, tokens, head_dim]
    u32 heads, tokens, start, window;
    f32 scale;
    u32 head_dim;
};

// Keys with their values, all of one dtype.
struct KeyArrays {
    const void* k;        // [kv_heads, cells, head_dim]
    const void* v;        // [kv_heads, cells, head_dim]
    const u32* table;     // [kv_heads, keys]; null where key j has cell j
    const u32* positions; // [kv_heads, keys], ascending in each head
    u32 kv_heads, keys, cells;
    u32 unused;
};

// A partial state: m and l [heads, tokens], o [heads, tokens, head_dim].
struct StateArrays {
    f32* m;
    f32* l;
    f32* o;
};

struct PlainAttention {
    QueryArray queries;
    KeyArrays keys;
    StateArrays to;
    u32* broken;
};

struct PlainMasses {
    QueryArray queries;
    KeyArrays keys;          // values are not read
    const f32* lse;          // [heads, tokens]
    const f32* row_weights;  // [tokens]
    f32* mass;               // [kv_heads, keys]
    u32* broken;
};

// What states over different keys say together.
struct MergeStates {
    StateArrays a, b; // b null where there is but one
    void* output; // [tokens, heads * head_dim] f32 or bf16
    f32* lse;     // [heads, tokens]
    u32 heads, tokens, head_dim;
    u32 unused;
};

// f32 to bf16 and back, `count` elements.
struct Convert {
    const void* from;
    void* to;
    u64 count;
};

// layer.cu
// Rows that become what a weight multiplies: [rows, x columns] to [rows, y_stride].
struct PrepareParams {
    const void* x;
    const f32* norm;   // [columns], or null
    void* y;
    f32* scales;       // [columns / 128, scale_stride], or null
    u32* broken;       // null where nobody asks
    u32 rows;
    u32 columns;       // of the result; what is beside them up to y_stride becomes zero
    u32 y_stride;
    u32 scale_stride;
    f32 eps;
    u32 code;          // what `broken` becomes where x is not finite
};

struct HeadsParams {
    const f32* qkv;    // [tokens, (heads + 2 kv_heads) head_dim]
    const f32* q_norm; // [head_dim], or null
    const f32* k_norm;
    const f32* cosines; // [tokens, head_dim / 2]
    const f32* sines;
    void* q;           // [heads, tokens, head_dim]
    void* k;           // [kv_heads, tokens, head_dim]
    void* v;
    u32* positions;    // [kv_heads, tokens]
    u32* broken;
    u32 tokens;
    u32 heads;
    u32 kv_heads;
    u32 head_dim;
    u32 start;
    u32 code;          // what `broken` becomes
    f32 eps;
    u32 unused;
};

struct EmbedParams {
    const void* table; // [table rows, stride]
    const f32* scales; // [columns / 128, scale_stride], or null
    const u32* tokens;
    f32* y;            // [count, columns]
    u32 count;
    u32 columns;
    u32 stride;
    u32 scale_stride;
};

// linear.cu, int8.cu
struct LinearParams {
    const void* x;       // [rows, x_stride]
    const void* w;       // [outputs, w_stride]; twice as many rows where gate and up are multiplied
    const f32* x_scales; // [inputs / 128, x_scale_stride]
    const f32* w_scales; // [inputs / 128, w_scale_stride]
    const f32* bias;     // one for every row of w, or null
    const f32* residual; // [rows, outputs], or null
    void* y;             // [rows, y_stride]
    u32* broken;
    u32 rows;
    u32 outputs;
    u32 inputs;
    u32 x_stride;        // in elements, like all strides
    u32 w_stride;
    u32 y_stride;
    u32 x_scale_stride;
    u32 w_scale_stride;
    u32 rounds;          // 1 where y is bf16 (gate and up alone), else f32
    u32 code;            // what `broken` becomes where a sum is not finite
};
