// The argument of every kernel, field by field what kernels/src/cuda/params.rs says.
#pragma once

// A description of an array in global memory for the copy engine: 128 opaque bytes.
struct alignas(64) TensorMap {
    u64 words[16];
};

// Attention: plain_attention.cu, plain_masses.cu, merge.cu, few.cu.

// Queries as they are multiplied: bf16 beside bf16 keys. Row t stands at position start + t and
// sees keys at positions up to its own and above it less `window` (the largest u32: all), or from
// the beginning of its block of `blocks` positions on.
struct QueryArray {
    const void* q; // [heads, tokens, head_dim]
    u32 heads, tokens, start, window;
    f32 scale;
    u32 head_dim;
    f32 softcap; // or 0
    u32 blocks;  // or 0
    const f32* slopes; // [heads], what logits fall by with distance, or null
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
    const f32* sinks; // [heads], or null
    void* output;     // [tokens, heads * head_dim] f32 or bf16
    f32* lse;         // [heads, tokens]
    u32 heads, tokens, head_dim;
    u32 unused;
};

// Keys in splits of `split_keys`, a multiple of 128.
struct FewStretch {
    KeyArrays keys; // bf16
    f32* logits;    // [heads, tokens, keys], -inf where a row does not see the key; or null
    u32 splits, split_keys;
};

// few.cu: the partial states of rows over every split of past, then own keys.
struct FewAttention {
    QueryArray queries;
    FewStretch stretches[2];
    StateArrays parts; // m and l [splits, heads, tokens], o [splits, heads, tokens, head_dim]
};

// What all parts say together: either a state, or output and log-sum-exp.
struct FewCombine {
    StateArrays parts;
    StateArrays to;   // or null
    const f32* sinks; // [heads], or null; none where there is a `to`
    void* output;     // [tokens, heads * head_dim] bf16 where it rounds, else f32
    f32* lse;         // [heads, tokens]
    u32* broken;
    u32 heads, tokens, head_dim, splits, rounds;
    u32 unused;
};

// Masses from the logits that FewAttention left.
struct FewColumns {
    const f32* logits; // [heads, tokens, keys]
    f32* mass;         // [kv_heads, keys]
    u32 keys;
    u32 unused;
};
struct FewMasses {
    FewColumns stretches[2];
    const f32* lse;         // [heads, tokens]
    const f32* row_weights; // [tokens]
    u32* broken;
    u32 group, tokens;
};

// f32 to bf16 and back, `count` elements.
struct Convert {
    const void* from;
    void* to;
    u64 count;
};

// Keys and values, bf16, from the cells that `table` names to rows in order.
struct LayInOrder {
    const u16* from[2]; // [kv_heads, cells] rows of 8 `chunks` elements
    u16* to[2];         // [kv_heads, keys] rows
    const u32* table;   // [kv_heads, keys]
    u32 keys, cells, chunks;
    u32 unused;
};

// What rows see of keys where windows or blocks bound it, for kernels that read no position.
struct FindSight {
    QueryArray queries;
    const u32* positions; // [kv_heads, keys]
    u32* first;           // [kv_heads, tokens], the first key that each row sees
    u32* end;             // [kv_heads, keys], the first row that does not see a key any more
    u32 keys;
    u32 unused;
};

// layer.cu
// Rows that become what a weight multiplies: [rows, x columns] to [rows, y_stride].
// What LinearParams and PrepareParams call a gate's activation; anything else is SiLU.
constexpr u32 GELU_TANH = 1;
constexpr u32 CLAMPED_SILU = 2;
constexpr u32 RELU_SQUARED = 4;
// What PrepareParams calls what is made of an up projection without a gate; GELU_TANH and
// RELU_SQUARED too.
constexpr u32 GELU = 3;
constexpr u32 XIELU = 5;
constexpr u32 RELU = 6;

struct PrepareParams {
    const void* x;
    const f32* norm;   // [columns], or null
    const f32* residual; // [rows, columns], added to what is normed, or null; what gates multiply
    void* y;
    f32* scales;       // [columns / 128, scale_stride], or null
    u32* broken;       // null where nobody asks
    u32 rows;
    u32 columns;       // of the result; what is beside them up to y_stride becomes zero
    u32 y_stride;
    u32 scale_stride;
    f32 eps;           // of a norm, or of xIELU
    u32 code;          // what `broken` becomes where x is not finite
    u32 activation;    // of gates, or of what has none
    f32 positive, negative, beta; // of xIELU
    f32 factor;        // of what is normed, residual and all, or of rows as they are
    u32 unused;
};

struct HeadsParams {
    const f32* qkv;    // [tokens, (heads + 2 kv_heads) head_dim]
    const f32* q_norm; // [q_span], or null
    const f32* k_norm; // [k_span], or null
    const f32* v_norm; // [head_dim], or null
    const f32* cosines; // [tokens, head_dim / 2], and as many of queries if they have their own
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
    u32 q_span;        // queries of a token that one norm is of: head_dim, or those of all heads
    u32 k_span;        // the same of keys
    u32 queries_from;  // the row of the first token's queries among angles: 0 or `tokens`
    u32 norms_last;    // they are of what is rotated already
    u32 norms_apart;   // those of all heads are of each by itself
    f32 clip;          // what is further from 0 is cut off before rotation; infinite if nothing is
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
    f32 scale;
    u32 unused;
};

// linear.cu, int8.cu
// layer.cu, combine_rows: what was made of a row by several, [rows, columns].
struct CombineParams {
    const f32* const* parts; // [rows, count], where what each has made begins
    const f32* weights;      // [rows, count]
    const f32* shared;       // [rows, columns], what was made of all rows besides, or null
    const f32* gates;        // [rows], before the sigmoid by which that is multiplied, or null
    const f32* residual;     // [rows, columns], or null
    f32* y;
    u32 rows;
    u32 count;
    u32 columns;
    u32 unused;
};

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
    u32 activation;      // of gates
    u32 unused;
};

// select.cu. G heads, N past keys, T own keys, K kept keys a head.

// select_keys: what each head keeps, in order of position.
struct SelectKeys {
    const u32* positions; // [G, N]
    const f32* score;     // [G, N]
    const f32* votes;     // [G, N]
    const u32* table;     // [G, N] cells that go on as they are, or null
    const f32* past_mass; // [G, N]
    const f32* own_mass;  // [G, T]
    const f32* own_votes; // [T]
    u32* ranks;           // [G, N + T] scratch; null where shared memory has room for a head's
    u32* kept_positions;  // [G, K]
    f32* kept_score;      // [G, K]
    f32* kept_votes;      // [G, K]
    u32* kept_table;      // [G, K], own key j in cell N + j; null with `table`
    u32* source;          // [G, K] indices into past followed by own
    f64* sums;            // [G, 2]: of the kept scores, and of all
    u32 past, own, kept;
    u32 end;           // position of the first own key
    u32 sinks, recent; // positions below the one and from the other on always stay
    f32 fade, past_votes;
    u32 age_normalised;
    u32 first_seen; // keys at positions below it rank last, and no sum has them
};

// select_join: all of past and own.
struct SelectJoin {
    const u32* positions; // [G, N]
    const f32* score;     // [G, N]
    const f32* votes;     // [G, N]
    const u32* table;     // [G, N], or null
    u32* kept_positions;  // [G, N + T]
    f32* kept_score;      // [G, N + T]
    f32* kept_votes;      // [G, N + T]
    u32* kept_table;      // [G, N + T], or null
    u32 past, own;
    u32 end;
    u32 unused;
};

// select_gather*: rows `first..kept` of each head; a row is `row_units` of the kernel's units.
// Block z copies array z, keys or values.
struct SelectGather {
    const void* past[2];   // [G, past_cells] rows
    const void* own[2];    // [G, own_cells] rows
    void* to[2];           // [G, to_cells] rows
    const u32* past_table; // [G, past_keys], or null
    const u32* own_table;  // [G, own_keys], or null
    const u32* source;     // [G, kept], or null where all of both is kept
    u32 past_keys, own_keys, past_cells, own_cells, to_cells;
    u32 first, kept, row_units;
};

// select_replace: one own key a head, which takes the cell of the worst; everything in place.
struct SelectReplace {
    u32* positions;       // [G, N]
    f32* score;           // [G, N]
    f32* votes;           // [G, N]
    u32* table;           // [G, N]
    const f32* past_mass; // [G, N]
    const f32* own_mass;  // [G]
    f64* sums;            // [G, 2]
    u16* to[2];           // [G, cells] rows of keys, of values
    const u16* own[2];    // [G, own_cells] rows
    const u32* own_table; // [G], or null
    u32 keys, cells, own_cells;
    u32 row_units; // of two bytes
    u32 end, sinks, recent;
    f32 fade, new_votes;
    u32 age_normalised;
    u32 fresh_table; // nonzero: the table is still to be written, key j in cell j
    u32 first_seen; // as of `SelectKeys`
};

// Attention on sm_90a: attention90.cu, masses90.cu. Of a pair, the first is of own keys, the
// second of past keys; what there is none of has 0 keys and any map. `first` and `end` are those
// of FindSight, or null where nothing bounds what rows see.
struct HopperAttention {
    TensorMap q;                // [heads, tokens, head_dim], boxes of 64 rows
    TensorMap k[2], v[2];       // [kv_heads, keys, head_dim], boxes of a tile's keys
    TensorMap output;           // [heads, tokens, head_dim] within [tokens, heads * head_dim]
    StateArrays from;           // to go on from, or null
    StateArrays to;             // null: output and lse are asked for
    f32* lse;                   // [heads, tokens]
    u32* broken;
    u32 keys[2];
    u32 heads, group, tokens;   // `group` query heads of a KV head
    f32 scale;
    const u32* first[2];
    u32 head_dim;
    u32 unused[5];
};

struct HopperMasses {
    TensorMap q;             // [heads, tokens, head_dim], boxes of 64 rows
    TensorMap k[2];          // [kv_heads, keys, head_dim], boxes of 128 keys
    f32* columns[2];         // [heads, keys]
    const f32* lse;          // [heads, tokens]
    const f32* row_weights;  // [tokens]
    u32* broken;
    u32 keys[2];
    u32 first_row, end_row;  // no row outside has weight
    u32 heads, group, tokens;
    f32 scale;
    const u32* first[2];
    const u32* end[2];
    u32 unused[6];
};

// [kv_heads * group, keys] to [kv_heads, keys].
struct AddHeads {
    const f32* columns;
    f32* mass;
    u32 keys, group;
};

// attention80.cu, masses80.cu. Pairs are as on sm_90a.

// Keys with their values: k and v [kv_heads, cells, head_dim] bf16, key j in row j.
struct Stretch80 {
    const u16* k;
    const u16* v;
    u32 keys, cells;
};

// Own keys, causally, then past keys: one (m, l, o) to the next, or to an output.
struct Attention80 {
    const u16* q; // [heads, tokens, head_dim] bf16
    Stretch80 own, past;
    StateArrays from; // null where nothing has been seen
    StateArrays to;   // not written where there is an output
    u16* output;      // [tokens, heads * head_dim] bf16; may be null
    f32* lse;         // [heads, tokens], where there is an output
    u32* broken;
    u32 heads, group, tokens;
    f32 scale;
    const u32* first[2];
    u32 head_dim;
    u32 unused;
};

// Keys and their masses: k [kv_heads, cells, head_dim] bf16, mass [kv_heads, keys].
struct Columns80 {
    const u16* k;
    f32* mass;
    u32 keys, cells;
};

struct Masses80 {
    const u16* q; // [heads, tokens, head_dim] bf16
    Columns80 own, past;
    const f32* lse;         // [heads, tokens]
    const f32* row_weights; // [tokens], zero before first_row
    u32* broken;
    u32 group, tokens, first_row;
    f32 scale;
    const u32* end[2];
    u32 head_dim;
    u32 unused;
};

// measure.cu.

// Random elements, nearly normal, of mean 0 and deviation `size`.
struct Noise {
    u16* to; // [count] bf16
    u64 count, seed;
    f32 size;
    u32 unused;
};

struct alignas(16) Sixteen {
    u32 words[4];
};

// Memory that is read from one end to the other, and maybe written.
struct Roof {
    const Sixteen* from; // [quads]
    Sixteen* to;         // [quads], or a word for each warp
    u64 quads;
};
