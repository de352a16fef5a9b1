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

// What two states over different keys say together.
struct MergeStates {
    StateArrays a, b;
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
